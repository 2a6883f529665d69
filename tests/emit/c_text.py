"""Reads generated CUDA C++ back: named constants, loops and index expressions, evaluated over NumPy arrays."""

from __future__ import annotations

import re
from typing import Any

Env = dict[str, Any]

DEFINITION = re.compile(r"const (?:int|i64|bool) (\w+) = (.*);")


def to_python(text: str) -> str:
    """A C expression over non-negative operands of `/` and `%`, as Python."""
    text = text.replace("blockIdx.", "blockIdx_").replace("threadIdx.", "threadIdx_")
    text = re.sub(r"\(i64\)", "", text).replace("&&", "&").replace("||", "|")
    return re.sub(r"(?<!/)/(?!/)", "//", text)


def definitions(source: str) -> list[tuple[str, str]]:
    """(name, expression) of every `const` of the kernel, in order."""
    return [(m[1], to_python(m[2])) for m in map(DEFINITION.fullmatch, map(str.strip, source.splitlines())) if m]


def environment(source: str, given: Env) -> Env:
    """`given` (hardware indices, loop counters, sizes) with everything the kernel defines from it."""
    env = dict(given)
    for name, expression in definitions(source):
        env[name] = eval(expression, {"__builtins__": {}}, env)
    return env


def indices(source: str, buffer: str) -> list[str]:
    """The index expressions of `buffer[...]`, in order of appearance, without repetitions."""
    found: list[str] = []
    code = re.sub(r"//.*|__shared__.*", "", source)
    for m in re.finditer(rf"\b{buffer}\[", code):
        rest = code[m.end() :]
        depth = end = 0
        while depth >= 0:
            depth += (rest[end] == "[") - (rest[end] == "]")
            end += 1
        if rest[: end - 1] not in found:
            found.append(rest[: end - 1])
    return found


def evaluate(expression: str, env: Env) -> Any:
    return eval(to_python(expression), {"__builtins__": {}}, env)
