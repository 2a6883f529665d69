"""`python -m graphene cache [--clear | export FILE | import FILE]`."""

from __future__ import annotations

import sys


def size_text(n: int) -> str:
    """A number of bytes for people: "12.3 MiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"


def entries_text(n: int) -> str:
    """A count in words: 1 entry, 2 entries."""
    return "1 entry" if n == 1 else f"{n} entries"


def describe() -> str:
    """One line: where the cache is, how many entries and bytes it holds, and its limit."""
    from graphene import _core

    s = _core.cache_stats()
    if s["dir"] is None:
        return "off (GRAPHENE_CACHE=0, or no home directory)"
    state = "" if s["writable"] else ", not writable"
    return f"{s['dir']}: {entries_text(s['entries'])}, {size_text(s['bytes'])} of {size_text(s['limit_bytes'])}{state}"


def show(clear: bool) -> int:
    """Prints the state of the cache; with `clear`, empties it first. Returns the exit status."""
    from graphene import _core

    if clear:
        print(f"removed {entries_text(_core.cache_clear())}")
    print(describe())
    return 0


def send(file: str, archs: list[str] | None) -> int:
    """Writes the entries to an archive; returns the exit status."""
    import graphene as gr

    try:
        n = gr.export_cache(file, archs)
    except gr.GrapheneError as e:
        print(e, file=sys.stderr)
        return 1
    print(f"{entries_text(n)} in {file}")
    return 0


def receive(file: str) -> int:
    """Adds the entries of an archive; returns the exit status."""
    import graphene as gr

    try:
        done = gr.import_cache(file)
    except gr.GrapheneError as e:
        print(e, file=sys.stderr)
        return 1
    print(f"added {entries_text(done.added)}" + (f", {done.present} were there" if done.present else ""))
    print(describe())
    return 0
