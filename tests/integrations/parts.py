"""What the commands that judge many networks have in common: names, and one part of several for several processes."""

from __future__ import annotations

import argparse
import warnings

import torch
import transformers


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A command line with names and a part; a program adds its own."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="1/1", help="i/n: every n-th, for several processes")
    return parser


def begin(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, slice]:
    """The arguments, and which of all are to be judged; transformers and warnings are quiet from now on."""
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    part, parts = (int(n) for n in args.part.split("/"))
    return args, slice(part - 1, None, parts)
