"""Commands of `python -m graphene`. They do not need `graphene/__init__.py`: `doctor` explains broken installations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, or 1 when `doctor` finds something missing."""
    what = "What Graphene finds on this machine, and what it keeps there."
    parser = argparse.ArgumentParser(prog="python -m graphene", description=what)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what was found on this machine, what is missing, and the fix")
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    cache = commands.add_parser("cache", help="show the cache of compiled kernels")
    cache.add_argument("--clear", action="store_true", help="remove every entry")
    args = parser.parse_args(argv)
    if args.command == "doctor":
        from graphene.cli.doctor import report

        return report(as_json=args.json)
    from graphene.cli.cache import show

    return show(clear=args.clear)
