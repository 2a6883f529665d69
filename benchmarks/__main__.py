"""Every benchmark by one command: `python -m benchmarks NAME [--json [FILE]] [--plot [FILE]] [its own options]`.

NAME is a file `NAME_bench.py` of this folder: gemm, norms, launch, jit and the others. It prints a table, all peers
measured in the same run. --json keeps the figures with machine and versions, in benchmarks/results unless a file is
named; --plot draws them as PNG (pip install matplotlib). `python -m benchmarks NAME --help` lists its own options.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(p.stem.removesuffix("_bench") for p in HERE.glob("*_bench.py"))


def device_name() -> str:
    """What the files of results are called by: "h200", or "cpu" without a GPU."""
    from graphene import _core

    try:
        devices = _core.driver_info()["devices"]
    except Exception:
        devices = []
    words = re.findall(r"[a-z0-9]+", devices[0]["name"].lower()) if devices else []
    return "_".join(w for w in words if w not in ("nvidia", "geforce")) or "cpu"


def main(argv: list[str] | None = None) -> int:
    """Runs one benchmark. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("name", choices=names(), nargs="?")
    parser.add_argument("--json", nargs="?", const="", metavar="FILE", help="keep the figures")
    parser.add_argument("--plot", nargs="?", const="", metavar="FILE", help="draw them as PNG")
    parser.add_argument("-h", "--help", action="store_true")
    args, own = parser.parse_known_args(argv)
    if args.name is None:
        parser.print_help()
        return 0 if args.help else 2
    sys.path.insert(0, str(HERE))
    script = str(HERE / f"{args.name}_bench.py")
    if args.help:
        own.append("--help")
    base = f"{args.name}_{device_name()}" if "" in (args.json, args.plot) else args.name
    with tempfile.TemporaryDirectory() as work:
        kept = Path(args.json) if args.json else HERE / "results" / f"{base}.json"
        file = kept if args.json is not None else Path(work) / "figures.json"
        if args.json is not None or args.plot is not None:
            own += ["--json", str(file)]
        sys.argv = [script, *own]
        try:
            module = importlib.import_module(f"{args.name}_bench")
        except ModuleNotFoundError as e:
            if args.help:  # without the options' own texts, which the module would print
                print(ast.get_docstring(ast.parse(Path(script).read_text())))
            print(f"{args.name} needs a package that is not installed: {e.name}", file=sys.stderr)
            return 0 if args.help else 2
        status = int(module.main() or 0)
        if status or args.plot is None:
            return status
        from plots import draw

        out = Path(args.plot) if args.plot else HERE / "results" / f"{base}.png"
        try:
            draw(json.loads(file.read_text()), out)
        except ImportError as e:
            print(f"no plot: {e}; pip install matplotlib", file=sys.stderr)
            return 1
    print(f"plot: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
