"""`python -m graphene warm`: compiles the kernels of later calls of operators, and keeps cubins and plans."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence


def warm_calls(calls: Sequence[str], recorded: str | None, archs: Sequence[str] | None, usual: bool = False) -> int:
    """Warms every call for every architecture and prints a line for each; returns the exit status.

    ``calls``: texts that ``graphene.ops.core.warm.spelled`` takes. ``recorded``: a file of GRAPHENE_RECORD_CALLS.
    ``archs``: None means the architecture of this machine's GPU. ``usual``: also those of graphene/compiled.
    """
    import graphene as gr
    from graphene import _core

    try:
        from graphene.ops.core import warm

        if _core.cache_dir() is None:
            print("the cache is off: set GRAPHENE_CACHE_DIR, not GRAPHENE_CACHE=0", file=sys.stderr)
            return 1
        wanted = archs or _here()
        if not wanted:
            print(
                "no GPU was found whose kernels could be compiled: name an architecture, as --arch sm_90a",
                file=sys.stderr,
            )
            return 1
        todo = [warm.spelled(text) for text in [*calls, *(warm.usual() if usual else [])]] + (
            warm.recorded(recorded) if recorded else []
        )
        jobs = [(call, arch) for call in todo for arch in wanted]
    except gr.GrapheneError as e:
        print(e, file=sys.stderr)
        return 1
    failed = 0
    for i, (call, arch) in enumerate(jobs, 1):
        begin = time.perf_counter()
        front = f"[{i}/{len(jobs)}] {call.text} for {arch}"
        try:
            done = warm.warm(call, arch)
        except gr.GrapheneError as e:
            failed += 1
            print(f"{front}: {e}", file=sys.stderr, flush=True)
            continue
        what = f"was there: {', '.join(done.kernels)}" if done.was_there else ", ".join(done.kernels)
        what = what if done.kernels else f"no kernel: {done.reason}"
        print(f"{front}: {what}, {time.perf_counter() - begin:.2f} s", flush=True)
    return 1 if failed else 0


def _here() -> list[str]:
    """The architecture of this machine's first GPU, if there is one."""
    import graphene as gr
    from graphene import _core

    try:
        return [d["arch"] for d in _core.driver_info()["devices"][:1]]
    except gr.LaunchError:
        return []
