"""Index expressions in C mean what they mean in the IR: random ones, compiled for the host with overflow checks."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import c_text
import pytest

import graphene as gr
from graphene import _core

Point = dict[str, int]
BLOCKS, THREADS, STEPS = (70000, 5), 192, 40
COUNT = 60


class Both:
    """An expression of the IR and the same function of a point in Python."""

    def __init__(self, expr: Any, value: Callable[[Point], int]) -> None:
        self.expr = expr
        self.value = value


def random_expression(rng: random.Random, leaves: list[Both], depth: int) -> Both:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(leaves)
    a = random_expression(rng, leaves, depth - 1)
    op = rng.choice(["+", "+", "+", "*", "*c", "//", "%", "min", "max", "^", "-"])
    if op in ("//", "%", "*c"):
        c = rng.choice([1, 2, 3, 5, 8, 16, 64, 100, 4096])
        if op == "*c":
            return Both(a.expr * c, lambda p: a.value(p) * c)
        if op == "//":
            return Both(a.expr // c, lambda p: a.value(p) // c)
        return Both(a.expr % c, lambda p: a.value(p) % c)
    b = random_expression(rng, leaves, depth - 1)
    if op == "+":
        return Both(a.expr + b.expr, lambda p: a.value(p) + b.value(p))
    if op == "-":  # kept non-negative by what is added
        return Both(a.expr - b.expr % 64 + 64, lambda p: a.value(p) - b.value(p) % 64 + 64)
    if op == "*":
        return Both(a.expr * (b.expr % 8), lambda p: a.value(p) * (b.value(p) % 8))
    if op == "^":
        return Both((a.expr % 4096) ^ (b.expr % 64), lambda p: (a.value(p) % 4096) ^ (b.value(p) % 64))
    if op == "min":
        return Both(gr.min(a.expr, b.expr), lambda p: min(a.value(p), b.value(p)))
    return Both(gr.max(a.expr, b.expr), lambda p: max(a.value(p), b.value(p)))


def kernel_of(seed: int) -> tuple[gr.Kernel, Callable[[Point], int]]:
    rng = random.Random(seed)
    n = gr.sym("n", max=2**31 - 1) if seed % 2 else gr.sym("n", max=2**40)
    with gr.Kernel(f"k{seed}") as kernel:
        gr.input("sizes", [n], gr.fp32)
        x = gr.input("x", [2**46], gr.fp32)
        blocks, threads = gr.blocks(*BLOCKS), gr.threads(THREADS)
        bx, by = blocks.indices()
        (w, lane) = threads.tile(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("k", STEPS) as k, gr.loop("j", n) as j:
            leaves = [
                Both(bx, lambda p: p["bx"]),
                Both(by, lambda p: p["by"]),
                Both(w, lambda p: p["t"] // 32),
                Both(lane, lambda p: p["t"] % 32),
                Both(k, lambda p: p["k"]),
                Both(j, lambda p: p["j"]),
                Both(n, lambda p: p["n"]),
            ]
            e = random_expression(rng, leaves, 4)
            gr.move(r, x[e.expr])
            gr.move(r, x[e.expr + 8 * lane])
    return kernel, e.value


def points(rng: random.Random, seed: int) -> list[Point]:
    top = 2**31 - 1 if seed % 2 else 2**40
    out = []
    for _ in range(40):
        n = rng.choice([1, 2, 63, 1000, 2**20, top - 1, top])
        out.append(
            {
                "bx": rng.choice([0, 1, 777, BLOCKS[0] - 1]),
                "by": rng.randrange(BLOCKS[1]),
                "t": rng.randrange(THREADS),
                "k": rng.randrange(STEPS),
                "j": rng.choice([0, n - 1, rng.randrange(n)]),
                "n": n,
            }
        )
    return out


def c_type_of(source: str, name: str) -> str:
    m = re.search(rf"\b(i64|int) {name}\b(?= =|,|\))", source)
    return m[1] if m else "int"


def host_function(seed: int, source: str) -> str:
    """The kernel's constants and both indices as a host function of a point."""
    body = [line.strip() for line in source.splitlines() if c_text.DEFINITION.fullmatch(line.strip())]
    first, second = c_text.indices(source, "x")
    types = {v: c_type_of(source, v) for v in ("k", "j", "n")}
    return f"""
static void f{seed}(const i64* p, i64* out) {{
  struct {{ unsigned x, y; }} blockIdx{{(unsigned)p[0], (unsigned)p[1]}}, threadIdx{{(unsigned)p[2], 0}};
  {types["k"]} k = p[3]; {types["j"]} j = p[4]; {types["n"]} n = p[5];
  (void)blockIdx; (void)threadIdx; (void)k; (void)j; (void)n;
  {" ".join(body)}
  out[0] = {first};
  out[1] = {second};
}}"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a host compiler")
def test_random_index_expressions(tmp_path: Path) -> None:
    functions, calls, expected = [], [], []
    helpers: dict[str, None] = {}
    for seed in range(COUNT):
        kernel, value = kernel_of(seed)
        source = _core.lower(kernel.ir, "sm_80").cuda_source()
        for m in re.finditer(r"template <class A, class B>\n[^{]*\{[^}]*\}", source):
            helpers[m[0]] = None
        functions.append(host_function(seed, source))
        for p in points(random.Random(seed), seed):
            calls.append(f"f{seed}, {p['bx']}, {p['by']}, {p['t']}, {p['k']}, {p['j']}, {p['n']}")
            want = value(p)
            expected.append(f"{want} {want + 8 * (p['t'] % 32)}")
    table = ",\n".join(f"{{{c}}}" for c in calls)
    program = f"""
#include <cstdio>
#define __device__
#define __forceinline__ inline
using i64 = long long;
{"".join(h + chr(10) for h in helpers)}
{"".join(functions)}
struct Call {{ void (*f)(const i64*, i64*); i64 bx, by, t, k, j, n; }};
static const Call calls[] = {{
{table}
}};
int main() {{
  for (const Call& c : calls) {{
    i64 p[6] = {{c.bx, c.by, c.t, c.k, c.j, c.n}}, out[2];
    c.f(p, out);
    std::printf("%lld %lld\\n", out[0], out[1]);
  }}
}}
"""
    (tmp_path / "f.cpp").write_text(program)
    command = ["g++", "-std=c++17", "-O0", "-w", "-fsanitize=signed-integer-overflow", "-fno-sanitize-recover=all"]
    subprocess.run([*command, "f.cpp", "-o", "f"], cwd=tmp_path, check=True)
    done = subprocess.run(["./f"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    got = done.stdout.splitlines()
    wrong = [(c, g, e) for c, g, e in zip(calls, got, expected, strict=True) if g != e]
    assert not wrong, wrong[:3]


def test_the_next_stage_of_a_ring_is_a_comparison() -> None:
    with gr.Kernel("ring") as kernel:
        x = gr.input("x", [STEPS + 1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("k", STEPS) as k:
            gr.move(r, x[(k + 1) % STEPS])
            gr.move(r, x[(k + 1) // STEPS])
    source = _core.lower(kernel.ir, "sm_80").cuda_source()
    assert f"x[k + 1 < {STEPS} ? k + 1 : k - {STEPS - 1}]" in source
    assert f"x[k + 1 >= {STEPS}]" in source
    assert all((k + 1 if k + 1 < STEPS else k - (STEPS - 1)) == (k + 1) % STEPS for k in range(STEPS))
