"""Commands of `python -m graphene`. They do not need `graphene/__init__.py`: `doctor` explains broken installations."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from graphene.testing.jobs import add_options, at_least_one, options_of

_PIPE_CLOSED, _INTERRUPTED = 141, 130  # as shells report programs that SIGPIPE, SIGINT ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    It is 0 for success, 1 if something is missing or refused, 2 for a wrong command, 130 after Ctrl-C, and 141 if the
    reader of the output (``| head``) has ended.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        status = _run(argv)
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Warning as e:  # by python -W error
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        if e.filename is not None:
            print(f"{e.filename}: {e.strerror}", file=sys.stderr)
            return 1
        print(f"the output cannot be written: {e.strerror or e}", file=sys.stderr)
        _drop_output()
        return 1
    return status


def _drop_output() -> None:
    # The interpreter flushes once more at its end; now that goes to /dev/null.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    what = "What Graphene finds on this machine, and what it keeps there."
    parser = argparse.ArgumentParser(prog="python -m graphene", description=what)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")

    doctor = command("doctor", help="what was found on this machine, what is missing, and the fix")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    cache = command("cache", help="show, clear, export or import the cache of compiled kernels")
    cache.add_argument("--clear", action="store_true", help="remove every entry")
    actions = cache.add_subparsers(dest="action")
    export = actions.add_parser("export", help="write the entries to an archive, for another machine")
    export.add_argument("file")
    export.add_argument("--arch", action="append", help="only entries for this architecture; may be repeated")
    actions.add_parser("import", help="add the entries of an archive").add_argument("file")
    build = command("compile", help="compile kernels ahead of time")
    build.add_argument("kernel", nargs="+", help="such as gemm_sm80, name='gemm_sm80(BM=128)', file.py:function, k.gir")
    build.add_argument("--arch", action="append", required=True, help="such as sm_80, sm_90a; may be repeated")
    build.add_argument("-o", "--out", help="the folder to write; without it only the cache is warmed")
    warming = command("warm", help="compile and keep what calls of operators will launch")
    warming.add_argument("call", nargs="*", help="such as 'matmul(fp16[4096, 4096], fp16[4096, 4096].T)'")
    warming.add_argument("--calls", metavar="FILE", help="also those that GRAPHENE_RECORD_CALLS=FILE recorded")
    warming.add_argument("--usual", action="store_true", help="also usual products, attention and normalisations")
    warming.add_argument("--arch", action="append", help="such as sm_90a; may be repeated; without it this GPU's")
    tuning = command("tune", help="rank or measure configurations of products, norms, softmax")
    tuning.add_argument(
        "size", nargs="*", help="MxNxK, such as 4096x4096x1024, or layernorm:8192x4096, rmsnorm:, softmax:"
    )
    tuning.add_argument("--dtype", default="fp16", choices=("fp16", "bf16", "fp32", "i8"), help="of all tensors")
    orders = "A lies along k (T) or m (N), B along k (N) or n (T), as in BLAS: TN is a @ b.T, TT is a @ b"
    tuning.add_argument("--order", default="TN", choices=("TN", "NN", "NT", "TT"), help=orders)
    tuning.add_argument("--bias", action="store_true", help="products with a bias")
    tuning.add_argument("--activation", help="products with an activation, such as relu, gelu, silu")
    tuning.add_argument("--residual", action="store_true", help="products with a residual")
    tuning.add_argument("--measure", action="store_true", help="measure the short list and store the winner")
    tuning.add_argument("--count", type=at_least_one, default=8, help="length of the short list")
    tuning.add_argument("--arch", help="rank for a device of this architecture")
    tuning.add_argument("--like", metavar="DEVICE", help="also what the package has records of for 'NVIDIA H200'")
    tuning.add_argument("--seconds", type=float, default=math.inf, help="begin no problem later than that")
    checking = command("check", help="hold every kernel that selection returns to its promise")
    checking.add_argument(
        "--library", action="store_true", required=True, help="the kernels of a grid of usual problems"
    )
    checking.add_argument("--every", type=at_least_one, default=1, help="judge only every N-th problem")
    checking.add_argument("--function", default="", metavar="NAME", help="only kernels whose names begin so: groupnorm")
    checking.add_argument("--json", metavar="FILE", help="write the outcome there")
    checking.add_argument("--of", nargs="+", type=Path, metavar="JOURNAL", help="of these journals, without a check")
    add_options(checking)
    args = parser.parse_args(argv)
    if args.command == "doctor":
        from graphene.cli.doctor import report

        return report(as_json=args.json)
    if args.command == "check":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # there is one process for each core already
        from graphene.testing.library import report as check_library

        try:
            return check_library(args.every, options_of(args), args.json, args.of, args.function)
        except ValueError as e:  # a journal of another run, a function that the grid lacks
            checking.error(str(e))
    if args.command == "compile":
        from graphene.cli.compile import compile_kernels

        return compile_kernels(args.kernel, args.arch, args.out)
    if args.command == "warm":
        from graphene.cli.warm import warm_calls

        if not args.call and not args.calls and not args.usual:
            warming.error("name a call, or a file of calls by --calls, or --usual")
        return warm_calls(args.call, args.calls, args.arch, args.usual)
    if args.command == "tune":
        from graphene.cli.tune import tune_sizes

        if not args.size and args.like is None:
            tuning.error("name a size, or a device by --like")
        limits = (args.measure, args.count, args.arch, args.like, args.seconds)
        terms = {n: getattr(args, n) for n in ("bias", "activation", "residual")}
        return tune_sizes(args.size, args.dtype, args.order, *limits, terms)
    from graphene.cli.cache import receive, send, show

    if args.action == "export":
        return send(args.file, args.arch)
    return receive(args.file) if args.action == "import" else show(clear=args.clear)
