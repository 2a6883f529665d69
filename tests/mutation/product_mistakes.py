"""Mistakes planted by hand in products and kernels of rows: a line of the builder's Python, and the same line wrong.

``python tests/mutation/product_mistakes.py`` checks every kernel that has one; the tests a sample of them.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import graphene as gr
import graphene.kernels  # which is planted in

KERNELS = Path(__file__).parents[2] / "graphene/kernels"


def path_of(file: str) -> Path:
    """The file of a module of graphene/kernels, such as "gemm.sm80"."""
    return KERNELS / f"{file.replace('.', '/')}.py"


@dataclass(frozen=True)
class Mistake:
    """In a file of graphene/kernels ``before``, which stands there once, becomes ``after``; it changes ``kernel``."""

    file: str
    before: str
    after: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.file}: {self.before} -> {self.after or '(left out)'}"

    def build(self, kernels_of: Mapping[str, Callable[[Any], gr.Kernel]] | None = None) -> gr.Kernel:
        """The kernel with the mistake; ``kernels_of``: how kernels are built, by name."""
        with _planted(self.file, self.before, self.after) as kernels:
            return (BUILD if kernels_of is None else kernels_of)[self.kernel](kernels)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed text."""

    def __init__(self, file: str, text: str) -> None:
        self._name, self._path, self._text = f"graphene.kernels.{file}", path_of(file), text

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


@contextmanager
def _planted(file: str, before: str, after: str) -> Iterator[Any]:
    text = path_of(file).read_text()
    assert text.count(before) == 1, f"{file}: {before} stands {text.count(before)} times"
    finder = _Finder(file, text.replace(before, after))
    kept = {n: m for n, m in sys.modules.items() if n.startswith("graphene.kernels")}
    attribute = gr.kernels  # type: ignore[attr-defined]
    for n in kept:
        del sys.modules[n]
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("graphene.kernels")
    finally:
        sys.meta_path.remove(finder)
        for n in [n for n in sys.modules if n.startswith("graphene.kernels")]:
            del sys.modules[n]
        sys.modules.update(kept)
        gr.kernels = attribute  # type: ignore[attr-defined]


def _epilogue(x: Any, *more: Any) -> Any:
    return gr.max(sum((t * (2 + i) for i, t in enumerate(more)), x), -9)


def _norm(build: str, **options: Any) -> Callable[[Any], gr.Kernel]:
    tile = options.pop("tile", (70, 16, 2, 2))
    dense = options.pop("dense", 0)
    options = {"eps": 1e-5, **options}
    return lambda k: getattr(k, build)(k.NormConfig(k.RowTile(*tile, dense=dense), **options))


def _gemm(*args: Any, **options: Any) -> Callable[[Any], gr.Kernel]:
    return lambda k: k.gemm_sm80(*(args or (32, 32, 32, 2)), **{"warps": (2, 2), **options})


def _activated(name: str) -> Callable[[Any], gr.Kernel]:
    def build(k: Any) -> gr.Kernel:
        act = importlib.import_module("graphene.kernels.epilogues").ACTIVATIONS[name]
        return k.elementwise_kernel(act, k.ElementwiseConfig((gr.fp16,), gr.fp16, (False,), 32, 1, 2))

    return build


def _groupnorm(k: Any) -> gr.Kernel:
    module = importlib.import_module("graphene.kernels.rows.groupnorm")
    kernel: gr.Kernel = module.groupnorm_kernel(module.GroupNormConfig(k.RowTile(180, 32, 1, 2), 2, 3))
    return kernel


BUILD: dict[str, Callable[[Any], gr.Kernel]] = {
    "groupnorm": _groupnorm,
    "transpose": lambda k: k.transpose_kernel(k.TransposeConfig(load=8, store=4)),
    "softmax": lambda k: k.softmax_kernel(k.SoftmaxConfig(k.RowTile(250, 32, 8, 2))),
    "softmax in parts": lambda k: k.softmax_kernel(k.SoftmaxConfig(k.RowTile(600, 32, 1, 8, "memory"))),
    "softmax of columns": lambda k: k.softmax_columns_kernel(k.SoftmaxColumnsConfig(rows=4)),
    "layernorm": _norm("layernorm_kernel", residual=True, write_sum=True),
    "layernorm of fp32": _norm("layernorm_kernel", dtype=gr.fp32),
    "layernorm of vectors": _norm("layernorm_kernel", tile=(1000, 64)),
    "layernorm in shared memory": _norm("layernorm_kernel", tile=(812, 64, 1, 4, "shared")),
    "layernorm, dense": _norm("layernorm_kernel", tile=(301, 64, 1, 2, "memory"), dense=2),
    "layernorm of many warps": _norm("layernorm_kernel", tile=(1100, 256, 1, 1, "memory")),
    "rmsnorm": _norm("rmsnorm_kernel"),
    "rmsnorm, factors plus an argument": _norm("rmsnorm_kernel", beta=False, shift=True),
    "rotary": lambda k: k.rotary_kernel(k.RotaryConfig((4, 2), 24, norm=True, vector=4, each=2, threads=32)),
    "rotary in steps": lambda k: k.rotary_kernel(k.RotaryConfig((1, 1), 70, norm=True, vector=1, threads=32)),
    "rotary of neighbours": lambda k: k.rotary_kernel(k.RotaryConfig((2, 1), 8, "neighbours", threads=32)),
    "rmsnorm, a vector behind whole parts": _norm("rmsnorm_kernel", tile=(259, 32, 1, 2, "shared"), dense=2),
    "rmsnorm, dense": _norm("rmsnorm_kernel", tile=(133, 32, 1, 2), dense=2),
    "layernorm's gradient": _norm("layernorm_backward_kernel", write_sum=True),
    "layernorm's gradient of fp32": _norm("layernorm_backward_kernel", dtype=gr.fp32),
    "norm_columns": lambda k: k.norm_columns_kernel(k.NormColumnsConfig(rows=4)),
    "sums of rows": lambda k: k.reduction_kernel(k.ReductionConfig(threads=8, rows=4, vector=2, scale=True)),
    "maxima of rows": lambda k: k.reduction_kernel(k.ReductionConfig(1, "max", threads=8, rows=4, vector=2)),
    "maxima of columns": lambda k: k.reduction_kernel(k.ReductionConfig(0, "max", threads=32, rows=4, vector=2)),
    "elementwise": lambda k: k.elementwise_kernel(
        lambda x, y: gr.max(x, y),
        k.ElementwiseConfig((gr.fp16, gr.fp16), gr.fp16, (False, True), threads=16, rows=4, vector=2),
    ),
    **{name: _activated(name) for name in ("gelu", "gelu_tanh", "sigmoid", "tanh")},
    "product": _gemm(),
    "product of long tiles": _gemm(32, 128, 32, 2),
    "product of long tiles, residual": _gemm(32, 128, 32, 2, _epilogue, residual=True),
    "product with all terms": _gemm(
        32, 32, 32, 2, _epilogue, batched=True, residual=True, alpha=True, beta=True, align=(8, 8, 8)
    ),
    "product of i8, scaled": _gemm(32, 32, 64, 2, dtype=gr.i8, out=gr.fp16, alpha=True, beta=True),
    "product in groups": _gemm(group=2),
    "product of large tiles": _gemm(64, 128, 32, 2),
    "product through registers": _gemm(32, 32, 32, 2, align=(2, 2, 2)),
    "product of parts": _gemm(batched=True, split_k=True, order="TT", b_as_kn=True, align=(16, 8, 8)),
    "product of fp32": _gemm(32, 32, 16, 2, dtype=gr.fp32),
    "product of quad-pairs": lambda k: k.gemm_sm70(32, 32, 32, warps=(2, 2), align=(8, 8, 4)),
    "gemm_pad": lambda k: k.gemm_pad("AB", batched=True),
    "gemm_reduce": lambda k: k.gemm_reduce(
        _epilogue, align=4, batched=True, bias=True, residual=True, alpha=True, beta=True
    ),
    "gemm_reduce, one activation": lambda k: k.gemm_reduce(lambda x: gr.max(x, 0)),
    "gemm_reduce in groups": lambda k: k.gemm_reduce(groups=4),
    "gemm_reduce, scales of rows": lambda k: k.gemm_reduce(lambda x: x, scales="rows"),
    "gemm_reduce, scales of tensors": lambda k: k.gemm_reduce(lambda x: x, scales="tensor"),
}

M = Mistake
MISTAKES = [
    M("rotary", "h[v] * cos[v] - h[v + 1] * sin[v]", "h[v] * cos[v] + h[v + 1] * sin[v]", "rotary"),
    M("rotary", "h[v + 1] * cos[v + 1] + h[v] * sin[v + 1]", "h[v + 1] * cos[v] + h[v] * sin[v]", "rotary"),
    M("rotary", "gr.where(lane < left, own, 0)", "own", "rotary"),
    M("rotary", "gr.where(lane < left, own, 0)", "own", "rotary in steps"),
    M("rotary", "step * c.lanes + part * c.vectors", "step + part * c.vectors", "rotary in steps"),
    M("rotary", "(lane < c.vectors - step * c.lanes)", "(lane < c.vectors)", "rotary in steps"),
    M("rotary", "gr.rsqrt(total * (1 / c.width) + eps)", "gr.rsqrt((total + eps) * (1 / c.width))", "rotary"),
    M("rotary", "(at < S) * (lane < c.vectors - step * c.lanes)", "(at < S)", "rotary"),
    M("rotary", "first = task - tasks[0] if i else task", "first = gr.max(task - 1, 0) if i else task", "rotary"),
    M("rotary", "f[:] = r + addend", "f[:] = r", "rotary"),
    M("rotary", "t[b, :, :], at, vector", "t[0, :, :], at, vector", "rotary"),
    M("rotary", "h[v][i + 1] * sin[v][i]\n", "h[v][i + 1] * sin[v][i + 1]\n", "rotary of neighbours"),
    M("transpose", "s[chunk * V + i, column]", "s[column, chunk * V + i]", "transpose"),
    M("transpose", "X[b, :, :]", "X[0, :, :]", "transpose"),
    M("transpose", "Y[b, :, :]", "Y[0, :, :]", "transpose"),
    M("transpose", "step * (T // 2)", "step * (T // 4)", "transpose"),
    M("transpose", "[bn, bm].tile", "[bm, bn].tile", "transpose"),
    M("transpose", "        gr.barrier()\n", "", "transpose"),
    M("rows.softmax", "(part.take(x) - most) * math.log2(math.e)", "(part.take(x) - most)", "softmax"),
    M("rows.softmax", "part.inside(part.take(x), -gr.inf)", "part.inside(part.take(x))", "softmax"),
    M("rows.softmax", "part.inside(power(part))", "power(part)", "softmax"),
    M("rows.softmax", "finish(_online(rows, x, most))", "_online(rows, x, most)", "softmax in parts"),
    M("rows.softmax", "lanes[:] = lanes * _power(seen - base)", "pass", "softmax in parts"),
    M("rows.softmax", "_power(v - base.values[e])", "_power(v)", "softmax in parts"),
    M("rows.softmax", "_power(seen.values[0] - _finite(most.values[0]))", "1", "softmax in parts"),
    M("rows.softmax", "part.inside(part.take(x), outside=-gr.inf)", "part.take(x)", "softmax in parts"),
    M("rows.softmax", "gr.where(m == -gr.inf, 0, m)", "m", "softmax of columns"),
    M("rows.softmax", "p * c.rows + row < M", "p * c.rows + row <= M", "softmax of columns"),
    M("rows.softmax", "total[:] = total * _power(most - column_most)", "pass", "softmax of columns"),
    M("rows.softmax", "gr.fma(part, _power(most - _finite(more)), _power(v - _finite(more)))",
      "part + _power(v - _finite(more))", "softmax of columns"),
    M("rows.softmax", 'steps = gr.ceil_div(M, c.rows)', 'steps = M // c.rows', "softmax of columns"),
    M("rows.softmax", "gr.ceil_div(steps, PART)", "steps // PART", "softmax of columns"),
    M("rows.softmax", "p = q * PART + i", "p = q + i", "softmax of columns"),
    M("rows.softmax", "more[:] = _power(before - _finite(most))", "gr.init(more, 1)", "softmax of columns"),
    M("rows.softmax", "t[b, :, :].tile", "t[0, :, :].tile", "softmax of columns"),
    M("rows.moments", "part.inside(value(part) - base)", "value(part) - base", "layernorm"),
    M("rows.moments", "square[:] = gr.fma(-mean, mean, square * (1 / t.width))", "square[:] = square * (1 / t.width)",
      "layernorm"),
    M("rows.moments", "square * (1 / t.width))", "square * (1 / (t.width - 1)))", "layernorm of vectors"),
    M("rows.moments", "        mean[:] = mean + base\n", "        pass\n", "layernorm"),
    M("rows.moments", "(squares[w] + shifts[w] * shifts[w] * n[w])", "squares[w]", "layernorm in shared memory"),
    M("rows.moments", "part.inside(part.v - shift)", "part.v - shift", "layernorm in shared memory"),
    M("rows.moments", "counts[0] += t.width - body", "counts[0] += 0", "layernorm, dense"),
    M("rows.layernorm", "gr.rsqrt(square + a.eps)", "gr.rsqrt(square)", "layernorm"),
    M("rows.rmsnorm", " + a.eps)", ")", "rmsnorm"),
    M("rows.rmsnorm", "(1 / config.tile.width)", "(1 / (config.tile.width + 1))", "rmsnorm, dense"),
    M("rows.norm", "factors, part.column(self.beta)", "part.column(self.beta), factors", "layernorm"),
    M("rows.norm", "factors = factors + self.shift", "pass", "rmsnorm, factors plus an argument"),
    M("rows.norm", "part.store(self.S, h)", "part.store(self.S, normal)", "layernorm"),
    M("rows.norm", "return x + r[0] if r else x", "return x - r[0] if r else x", "layernorm"),
    M("rows.block", "return line.tile([None, self._wide])[0, self.index]",
      "return line.tile([None, self._wide])[0, 0]", "layernorm in shared memory"),
    M("rows.norm_backward", "(inner - distance(part) * rstd * of_gn)", "(inner + distance(part) * rstd * of_gn)",
      "layernorm's gradient"),
    M("rows.norm_backward", 'of_g[:] = rows.reduce("add", g) * scale', 'of_g[:] = rows.reduce("add", g)',
      "layernorm's gradient"),
    M("rows.norm_backward", "value if dS is None else value + part.load(dS)", "value", "layernorm's gradient"),
    M("rows.norm_backward", "part.take(dy) * part.column(gamma) if", "part.take(dy) if", "layernorm's gradient"),
    M("rows.norm_backward", "rows.store(means, mean)", "rows.store(means, rstd)", "layernorm's gradient"),
    M("rows.norm_backward", "start=s, step=S", "start=0, step=S", "norm_columns"),
    M("rows.norm_backward", "gr.ceil_div(M, c.rows), start", "M // c.rows, start", "norm_columns"),
    M("rows.norm_backward", "gr.fma(x * of_row[-1], dy, sums[0])", "gr.fma(x, dy, sums[0])", "norm_columns"),
    M("rows.norm_backward", "sums[1][:] = sums[1] + dy", "sums[1][:] = sums[1] + x", "norm_columns"),
    M("rows.norm_backward", "out.tile([1, wide])[s, b]", "out.tile([1, wide])[0, b]", "norm_columns"),
    M("reduction", "p * part + column < N", "p * part + column <= N", "maxima of rows"),
    M("reduction", "p * high + row < M", "p * high + row <= M", "maxima of columns"),
    M("reduction", "gr.where(wrong == wrong, total, wrong)", "total", "maxima of rows"),
    M("reduction", 'gr.ceil_div(N, part), start', 'N // part, start', "sums of rows"),
    M("reduction", "[b, s], y", "[b, 0], y", "sums of rows"),
    M("reduction", "gr.cast(total, gr.fp32) * scale if self.c.scale else total", "total", "sums of rows"),
    M("reduction", "gr.reduce(self.c.op, self.own, self.v, axis=self.axis, accumulate=True)",
      "gr.reduce(self.c.op, self.own, self.v, axis=self.axis)", "maxima of rows"),
    M("elementwise", "at = (i // across, i % across)", "at = (i % across, i // across)", "elementwise"),
    M("elementwise", "x[b, :].reshape", "x[0, :].reshape", "elementwise"),
    M("elementwise", "[at[0], 0]", "[0, 0]", "elementwise"),
    M("epilogues", "G_POLE = 0.29", "G_POLE = 0.3", "gelu"),
    M("epilogues", "0.18125284059901978", "0.18145284059901978", "gelu"),
    M("epilogues", "factor * 0.044715, factor", "factor * 0.0447, factor", "gelu_tanh"),
    M("epilogues", "gr.exp2(x * -LOG2_E, ftz=True), ftz=True)", "gr.exp2(x * -1.44, ftz=True), ftz=True)", "sigmoid"),
    M("epilogues", "gr.abs(x) * (-2 * LOG2_E)", "gr.abs(x) * (-2 * 1.4427)", "tanh"),
    M("gemm.frame", "B[z, :, :]", "B[0, :, :]", "product with all terms"),
    M("gemm.frame", "steps = gr.ceil_div(steps, of.parts[0])", "steps = steps // of.parts[0]", "product of parts"),
    M("gemm.frame", "part * steps * BK, steps * BK", "part * steps, steps * BK", "product of parts"),
    M("gemm.frame", "(z // of.batch[0], z % of.batch[0])", "(z % of.batch[0], z // of.batch[0])", "product of parts"),
    M("gemm.frame", "steps = gr.ceil_div(ks, BK)", "steps = ks // BK", "product"),
    M("gemm.frame", "y * group + x % group", "y + x % group", "product in groups"),
    M("gemm.frame", "x // group) if group", "x % tiles_n) if group", "product in groups"),
    M("gemm.frame", "tiles_m, tiles_n = gr.ceil_div(of.M, BM), gr.ceil_div(of.N, BN)",
      "tiles_m, tiles_n = of.M // BM, gr.ceil_div(of.N, BN)", "product"),
    M("gemm.result", "gr.fma(gr.where(beta == 0, 0, old), beta, x)", "gr.fma(old, beta, x)", "product with all terms"),
    M("gemm.result", '                x = x * self.scalars["alpha"]\n', "                pass\n",
      "product with all terms"),
    M("gemm.result", "(t[z, :, :] if self.batch else t).tile", "(t[0, :, :] if self.batch else t).tile",
      "product with all terms"),
    M("gemm.result", "t.tile([sizes[1]])[at[1]]", "t.tile([sizes[1]])[at[0]]", "product"),
    M("gemm.result", "vector.tile([1, width])[0, j]", "vector.tile([1, width])[0, 0]", "product of long tiles"),
    M("gemm.result", '            if "alpha" in self.scalars:\n                x = x *',
      '            x = gr.cast(gr.cast(x, gr.fp16), gr.fp32)\n            if "alpha" in self.scalars:\n'
      "                x = x *",
      "product with all terms"),
    M("gemm.reduce", "acc[:] = acc + part", "acc[:] = acc + pointwise(epilogue, part)", "gemm_reduce, one activation"),
    M("gemm.reduce", 'gr.loop("s", parts, unroll=16)', 'gr.loop("s", gr.min(parts, 16), unroll=16)', "gemm_reduce"),
    M("gemm.reduce", 'gr.loop("s", parts, unroll=16)', 'gr.loop("s", parts - 1, unroll=16)', "gemm_reduce"),
    M("gemm.reduce", "            gr.barrier()\n", "            pass\n", "gemm_reduce in groups"),
    M("gemm.reduce", "range(1, groups)", "range(1, groups - 1)", "gemm_reduce in groups"),
    M("gemm.reduce", "(group * each, gr.max", "(group, gr.max", "gemm_reduce in groups"),
    M("gemm.reduce", "gr.min(each, S - group * each)", "each", "gemm_reduce in groups"),
    M("gemm.reduce", "x = x * factor if alpha else x", "x = x", "gemm_reduce"),
    M("gemm.reduce", "factors[0].tile([1])[row]", "factors[0].tile([1])[by * 8]", "gemm_reduce, scales of rows"),
    M("gemm.reduce", 'scale("of_b", factors[1], 1)', 'scale("of_b", factors[0], 1)', "gemm_reduce, scales of tensors"),
    M("gemm.reduce", "(column < gr.ceil_div(N, width))", "(column < N // width)", "gemm_reduce"),
    M("gemm.pad", "y.tile([1, width])[row, column + 32 * j]", "y.tile([1, width])[row, column]", "gemm_pad"),
    M("gemm.pad", "(z % len(pairs) == i) & ", "", "gemm_pad"),
    M("gemm.pad", "(t[z // len(pairs), :, :] if batched", "(t[0, :, :] if batched", "gemm_pad"),
    M("gemm.sm80", "                    gr.matmul(acc[wm, wn], a.ready(j), b.ready(j).T, atom=mma)\n",
      "                    gr.matmul(acc[wm, wn], a.ready(j), b.ready(j).T, atom=mma)\n"
      "                    acc[:] = gr.cast(gr.cast(acc, gr.fp16), gr.fp32)\n", "product"),
    M("gemm.sm80", "fragments((j + 1) % KB)", "fragments(j)", "product"),
    M("gemm.sm80", "b.copy(k + STAGES - 1, wr.index)", "b.copy(k + STAGES, wr.index)", "product"),
    M("gemm.sm80", "a.ready(j), b.ready(j).T", "a.ready(j), b.ready(j + 1).T", "product"),
    M("gemm.operand", "gr.cast(self.loaded[j % 2], gr.tf32)", "gr.cast(gr.cast(self.loaded[j % 2], gr.bf16), gr.tf32)",
      "product of fp32"),
    M("gemm.sm70", "load(k + 1)", "load(k)", "product of quad-pairs"),
    M("gemm.sm70", "[warp, j].tile", "[warp, 0].tile", "product of quad-pairs"),
    M("gemm.sm70", ".tile([rows, 4])[quad, 0]", ".tile([rows, 4])[0, 0]", "product of quad-pairs"),
    # Of kinds that no operator of mutants knows.
    M("rows.moments", "mean[:] = mean * (1 / t.width)", "mean[:] = mean * (1 / (t.width + 1))", "layernorm"),
    M("rows.moments", "shifts[w] = shifts[w] - base + totals[w] * rcp[w]", "shifts[w] = shifts[w] + totals[w] * rcp[w]",
      "layernorm in shared memory"),
    M("rows.moments", "shift[:] = shift - base + total * rcp", "shift[:] = shift - base - total * rcp",
      "layernorm of many warps"),
    M("rows.moments", "mean[:] = shift * n * (1 / N)", "mean[:] = shift * (1 / warps)", "layernorm of many warps"),
    M("rows.moments", "        squares[w] = gr.fma(-totals[w] * rcp[w], totals[w], squares[w])\n", "",
      "layernorm in shared memory"),
    M("rows.moments", "square[:] = (squares + shift * shift * n) * (1 / N)",
      "square[:] = gr.cast(gr.cast((squares + shift * shift * n) * (1 / N), gr.bf16), gr.fp32)",
      "layernorm of many warps"),
    M("rows.block", "            x[:] = self.inside(x)\n        return x", "            pass\n        return x",
      "rmsnorm, a vector behind whole parts"),
    M("rows.norm", "normal = gr.fma(normal, factors, part.column(self.beta))",
      "normal = gr.fma(normal, factors + 1, part.column(self.beta))", "layernorm"),
    M("rows.norm", "normal = gr.fma(normal, factors, part.column(self.beta))",
      "normal = gr.cast(gr.cast(normal, gr.fp16), gr.fp32) * factors + part.column(self.beta)",
      "layernorm"),
    M("rows.layernorm", "a.store(part, value, distance(value) * rstd)", "a.store(part, value, value * rstd)",
      "layernorm"),
    M("rows.norm_backward", "- distance(part) * rstd * of_gn) * rstd", "- distance(part) * of_gn) * rstd",
      "layernorm's gradient"),
    M("rows.norm_backward", "- distance(part) * rstd * of_gn) * rstd", "- distance(part) * rstd * of_gn) * rstd * rstd",
      "layernorm's gradient"),
    M("rows.norm_backward", "inner = g(part) - of_g if centred else g(part)", "inner = g(part)",
      "layernorm's gradient"),
    M("rows.norm_backward", "x, dy = pieces[0] + pieces[1] if c.residual else pieces[0], pieces[-1]",
      "x, dy = pieces[-1], pieces[0]", "norm_columns"),
    M("rows.norm_backward", "gr.move(r, stat.tile([c.rows, None])[p, 0]", "gr.move(r, stat.tile([c.rows, None])[s, 0]",
      "norm_columns"),
    M("rows.softmax", "else power(part) * rest)", "else gr.cast(gr.cast(power(part), gr.fp16), gr.fp32) * rest)",
      "softmax"),
    M("rows.softmax", "else _power(x - column_most) * rest", "else _power(x - most) * rest", "softmax of columns"),
    M("reduction", "gr.init(self.own, c.start)", "gr.init(self.own, 0)", "maxima of rows"),
    M("reduction", "y[:] = gr.cast(total, gr.fp32) * scale if self.c.scale else total",
      "y[:] = gr.cast(gr.cast(total, gr.fp16), gr.fp32) * scale if self.c.scale else total", "sums of rows"),
    M("reduction", "gr.move(x, parts[p, b], atom=load)", "gr.move(x, parts[p, 0], atom=load)", "maxima of columns"),
    M("reduction", 'gr.reduce("add", self.wrong, self.v, axis=self.axis, accumulate=True)',
      'gr.reduce("add", self.wrong, self.v, axis=self.axis)', "maxima of rows"),
    M("elementwise", "x[b, :, :].tile([c.rows, part])[at]", "x[0, :, :].tile([c.rows, part])[at]", "elementwise"),
    M("elementwise", "        y[:] = value\n", "        y[:] = gr.cast(gr.cast(value, gr.bf16), gr.fp32)\n",
      "elementwise"),
    M("gemm.result", "sources = {n: self.matrices[n] for n in loaded}",
      'sources = {n: self.matrices["C"] for n in loaded}', "product with all terms"),
    M("gemm.result", 'x = add_scaled(x, loaded["C"], self.scalars["beta"])',
      'x = add_scaled(x, loaded["C"], self.scalars["alpha"])', "product with all terms"),
    M("gemm.result", "gr.move(registers, mine(sources[name], i, j), atom=load)",
      "gr.move(registers, mine(sources[name], i, 0), atom=load)", "product of long tiles, residual"),
    M("gemm.result", "out[:] = pointwise(epilogue, x, *terms)", "out[:] = pointwise(epilogue, x, *reversed(terms))",
      "product with all terms"),
    M("gemm.result", "x = gr.cast(x, gr.fp32) if acc.dtype == gr.i32 != self.dtype else x",
      "x = gr.cast(gr.cast(x, gr.fp16), gr.fp32) if acc.dtype == gr.i32 != self.dtype else x", "product of i8, scaled"),
    M("gemm.result", '                x = x * self.scalars["alpha"]\n',
      '                x = x * self.scalars["alpha"] * self.scalars["alpha"]\n', "product of i8, scaled"),
    M("gemm.reduce", "arguments[0].tile([width])[column]", "arguments[0].tile([width])[row]", "gemm_reduce"),
    M("gemm.reduce", "acc[:] = acc + part", "acc[:] = gr.cast(gr.cast(acc + part, gr.bf16), gr.fp32)", "gemm_reduce"),
    M("gemm.reduce", "            gr.init(acc, 0)\n", "", "gemm_reduce"),
    M("gemm.reduce", "mine(W[first + s, :, :, :] if batched", "mine(W[0, :, :, :] if batched", "gemm_reduce"),
    M("gemm.pad", "x.tile([1, width])[row, column + 32 * j]", "x.tile([1, width])[row, column + 31 * j]", "gemm_pad"),
    M("gemm.frame", "bm, bn = (y * group + x % group, x // group) if group > 1 else (x, y)",
      "bm, bn = (y * group + x % group, x // group) if group > 1 else (tiles_m - 1 - x, x)", "product"),
    M("gemm.sm70", "                half.advance()\n", "", "product of quad-pairs"),
    M("gemm.sm70", "fragment(rb, sB[half.index], wn, qn, j)",
      "fragment(rb, sB[half.index], wn, qm, j)", "product of quad-pairs"),
    M("gemm.sm70", "fragment(ra, sA[half.index], wm, qm, j)",
      "fragment(ra, sA[half.index], wm, qm, (j + 1) % (BK // 4))", "product of quad-pairs"),
    M("gemm.sm80", "b.fragments(wn, WN, MK", "b.fragments(wm, WN, MK", "product"),
    M("gemm.sm80", "        gr.init(acc, 0)\n", "        gr.init(acc, 1)\n", "product"),
    M("gemm.operand", "            return self.loaded[j % 2]\n", "            return self.loaded[0]\n", "product"),
    M("transpose", "s[chunk * V + i, column]", "s[chunk * V + V - 1 - i, column]", "transpose"),
    M("rows.rmsnorm", "(1 / config.tile.width)", "(1 / config.tile.width / config.tile.width)", "rmsnorm"),
    M("epilogues", "series, relu(x))", "series, x)", "gelu"),
    M("epilogues", "gr.where(x < 0, -large, large)", "large", "tanh"),
    M("epilogues", "return s < 0.0625,", "return s < 2.5,", "tanh"),
    M("epilogues", "2 / 15), s, -1 / 3)", "2 / 15), s, -1 / 3.01)", "tanh"),
    M("epilogues", "return gr.rcp(1 + gr.exp2(x * -LOG2_E, ftz=True), ftz=True)",
      "return gr.rcp(1.001 + gr.exp2(x * -LOG2_E, ftz=True), ftz=True)", "sigmoid"),
    M("reduction", "gr.move(x, parts[b, p], atom=load)", "gr.move(x, parts[b, s], atom=load)", "sums of rows"),
    M("gemm.reduce", "rounded[:] = pointwise(epilogue, x, *terms)",
      "rounded[:] = pointwise(epilogue, x, *terms[:1], *terms[:1])", "gemm_reduce"),
    M("gemm.reduce", 'x = add_scaled(x, loaded("old", mine(C)), factor_c)',
      'x = add_scaled(x, loaded("old", mine(C)), factor)', "gemm_reduce"),
    M("gemm.frame", "A[z, :, :]", "A[0, :, :]", "product with all terms"),
    M("rows.softmax", 'rows.reduce("max", lambda part', 'rows.reduce("min", lambda part', "softmax"),
    M("rows.softmax", "gr.move(x, parts[p], atom=load)\n            y[:]",
      "gr.move(x, parts[0], atom=load)\n            y[:]", "softmax of columns"),
    M("rows.norm_backward", "rows.store(rests, rest)", "rows.store(rests, mean)", "layernorm's gradient of fp32"),
    M("rows.norm_backward", "rstd[:] = gr.rsqrt(rows.sum_of_squares(inside) * scale + eps)",
      "rstd[:] = gr.rsqrt(rows.sum_of_squares(distance) * scale + eps)", "layernorm's gradient"),
    M("rows.norm_backward", "rstd[:] = gr.rsqrt(rows.sum_of_squares(inside) * scale + eps)",
      "rstd[:] = gr.rsqrt(rows.sum_of_squares(inside) * scale) + eps", "layernorm's gradient"),
    # Another group, warp, slice or batch; what was there before; a scale or an edge wrong in one case alone.
    M("rows.groupnorm", "x[self.group * c.channels + column //", "x[column //", "groupnorm"),
    M("rows.groupnorm", "self.group * c.channels + column // (t.width // c.channels)",
      "self.group * c.channels + column // t.vector % c.channels", "groupnorm"),
    M("rows.groupnorm", "self.block // config.groups, self.block % config.groups",
      "self.block // config.groups, self.block // config.groups", "groupnorm"),
    M("rows.groupnorm", "y = distance(part.take(x)) * rstd\n", "y = distance(part.take(x)) * rstd * rstd\n",
      "groupnorm"),
    M("rows.groupnorm", "y = y + rows.channel(beta, part)", "y = y + rows.channel(gamma, part)", "groupnorm"),
    M("rows.groupnorm", "+ i * t.threads + thread * t.vector", "+ thread * t.vector", "groupnorm"),
    M("rows.softmax", "_power(v - _finite(more)))", "_power(v - _finite(most)))", "softmax of columns"),
    M("rows.softmax", "more[:] = gr.max(most, v)\n", "more[:] = v\n",
      "softmax of columns"),
    M("rows.softmax", "most[:] = more\n",
      "most[:] = gr.cast(gr.cast(more, gr.bf16), gr.fp32)\n", "softmax of columns"),
    M("rows.norm_backward", "(distance(part) * rstd)) * scale", "(distance(part) * rstd)) * (scale * 1.001)",
      "layernorm's gradient"),
    M("rows.norm_backward", "value + part.load(dS)", "value + part.load(dS) * rstd", "layernorm's gradient"),
    M("rows.norm_backward", "            sums[0][:] = gr.fma(x * of_row[-1], dy, sums[0])\n",
      "            sums[0][:] = gr.fma(x * of_row[-1], dy, gr.cast(gr.cast(sums[0], gr.fp16), gr.fp32))\n",
      "norm_columns"),
    M("rows.moments", "        total[:] = total + x\n", "        total[:] = x\n", "layernorm in shared memory"),
    M("gemm.sm80", "                        rd.advance()\n", "", "product"),
    M("gemm.sm80", "a.copy(k + STAGES - 1, wr.index)", "a.copy(k + STAGES - 2, wr.index)", "product"),
    M("gemm.sm80", "a.fragments(wm, WM, MK", "a.fragments(wn, WM, MK", "product"),
    M("gemm.reduce", "x = x * factor if alpha else x", "x = x * factor_c if alpha and beta else x", "gemm_reduce"),
    M("gemm.reduce", "rows + ty % rows, bx * 32 + tx", "rows + ty % rows, bx * 32 + tx - tx // 31", "gemm_reduce"),
    M("gemm.reduce", ".tile([1, width])[row, column]", ".tile([1, width])[row - row // 8, column]", "gemm_reduce"),
    M("gemm.pad", "block // across * 8 + ty, block % across", "block // across * 8 + ty, block // across", "gemm_pad"),
    M("gemm.pad", "r[j, :], source", "r[steps - 1 - j, :], source", "gemm_pad"),
    M("reduction", "        gr.reduce(self.c.op, total, self.own, axis=self.axis)\n",
      "        self.own[:] = gr.cast(gr.cast(self.own, gr.fp16), gr.fp32)\n"
      "        gr.reduce(self.c.op, total, self.own, axis=self.axis)\n", "sums of rows"),
    # Found by another hand: neutral elements, later turns, edges and memory used again.
    M("rows.block", 'gr.init(lanes, {"add": 0.0, "max": -gr.inf, "min": gr.inf}[op])',
      'gr.init(lanes, {"add": 0.0, "max": -60000.0, "min": gr.inf}[op])', "softmax"),
    M("rows.block", "self._end = rows.tile.width - self._behind",
      "self._end = rows.tile.width - self._behind - 1", "rmsnorm, dense"),
    M("rows.block", "do(self._thread + self._behind)", "do(self._thread + self._behind - 1)", "rmsnorm, dense"),
    M("rows.block", "line.window(k * V, rows.body)", "line.window(0, rows.body)", "rmsnorm, dense"),
    M("rows.moments", "gr.move(squares.values[e], total.values[t.each + e])",
      "gr.move(squares.values[e], total.values[e])", "layernorm"),
    M("rows.moments", "    counts[0] += t.width - body\n", "    counts[-1] += t.width - body\n", "layernorm, dense"),
    M("rows.moments", "full * strip + min(max(rest - w * strip, 0), strip)",
      "full * strip + min(rest, strip)", "layernorm of many warps"),
    M("rows.moments", "value = gr.where(lane <= last, counts[w], value)",
      "value = gr.where(lane < last, counts[w], value)", "layernorm of many warps"),
    M("rows.moments", "        mean[:] = mean + base\n",
      "        mean[:] = gr.cast(gr.cast(mean, gr.fp16), gr.fp32) + base\n", "layernorm"),
    M("rows.moments", "row, place = thread // t.threads, thread % t.threads // 32",
      "row, place = thread // t.threads, thread // 32 % 2", "layernorm of many warps"),
    M("rows.softmax",
      "part[:] = gr.fma(part, _power(most - _finite(more)), _power(v - _finite(more)))",
      "part[:] = gr.fma(part, _power(gr.max(most, -80) - _finite(more)), _power(v - _finite(more)))",
      "softmax of columns"),
    M("rows.softmax", 'rest[:] = finish(rows.reduce("add", lambda part: part.inside(power(part))))',
      'rest[:] = finish(rows.reduce("add", lambda part: part.inside(power(part)))) * (1 + 2.0**-12)', "softmax"),
    M("rows.groupnorm", "with gr.if_(column < t.width):", "with gr.if_(column < t.width - t.vector):", "groupnorm"),
    M("rows.groupnorm", "self.sample, self.group = self.block // config.groups, self.block % config.groups",
      "self.sample, self.group = self.block % config.groups, self.block // config.groups", "groupnorm"),
    M("rows.norm_backward", 'of_g[:] = rows.reduce("add", g) * scale',
      'of_g[:] = rows.reduce("add", lambda part: part.take(dy)) * scale', "layernorm's gradient"),
    M("rows.norm_backward", "g(part) * (distance(part) * rstd)", "g(part) * (h(part) * rstd)", "layernorm's gradient"),
    M("rows.norm_backward", "start=s, step=S, unroll=4", "start=s, step=gr.min(S, 2), unroll=4", "norm_columns"),
    M("rows.norm_backward", "sums[1][:] = sums[1] + dy", "sums[1][:] = sums[1] + dy * of_row[-1]", "norm_columns"),
    M("rows.rmsnorm", "(1 / config.tile.width)", "(1 / (32 * config.tile.vector))", "rmsnorm"),
    M("transpose", "chunk, column = t % 8, t // 8 + step * (T // 2)",
      "chunk, column = t % 8, t // 8 + step * (T // 2) - step", "transpose"),
    M("transpose", "gr.barrier()\n", "gr.barrier(on=threads.tile(32)[t // 32])\n", "transpose"),
    M("transpose", "[bn, bm].tile([1, c.store])", "[gr.min(bn, 1), bm].tile([1, c.store])", "transpose"),
    M("transpose", "X[b, :, :].tile([T, T])[bm, bn]", "X[b, :, :].tile([T, T])[bm, gr.max(bn, bm)]", "transpose"),
    M("reduction", 'v[:] = x if c.op == "add" else gr.where(p * part + column < N, x, c.start)',
      "v[:] = x", "maxima of rows"),
    M("reduction", 'v[:] = x if c.op == "add" else gr.where(p * high + row < M, x, c.start)',
      'v[:] = x if c.op == "add" else gr.where(p * high + row < M - (S > 2), x, c.start)', "maxima of columns"),
    M("reduction", "y[:] = gr.cast(total, gr.fp32) * scale if self.c.scale else total",
      "y[:] = gr.cast(total, gr.fp32) * gr.abs(gr.cast(scale, gr.fp32)) if self.c.scale else total", "sums of rows"),
    M("reduction", "total[:] = gr.where(wrong == wrong, total, wrong)",
      "total[:] = gr.where(wrong == wrong, total, self.c.start)", "maxima of rows"),
    M("elementwise", "column.tile([c.rows, 1])[at[0], 0]", "column.tile([c.rows, 1])[at[1], 0]", "elementwise"),
    M("elementwise", "column = x[b, :]", "column = x[0, :]", "elementwise"),
    M("epilogues", "a = gr.min(gr.abs(x), 16)", "a = gr.min(gr.abs(x), 4)", "gelu"),
    M("epilogues", "G_POLE = 0.29", "G_POLE = 0.2901", "gelu"),
    M("epilogues", "t = gr.exp2(gr.abs(x) * (-2 * LOG2_E), ftz=True)\n    large",
      "t = gr.exp2(gr.abs(x) * (-2 * LOG2_E + 1e-5), ftz=True)\n    large", "tanh"),
    M("epilogues", "gr.rcp(1 + gr.exp2(x * gr.fma(", "gr.rcp(1.0005 + gr.exp2(x * gr.fma(", "gelu_tanh"),
    M("gemm.result", "sources[name] = shared[stage]", "sources[name] = shared[0]", "product with all terms"),
    M("gemm.result", "load_lines(shared[stage], t, threads, self.align_bytes)",
      "load_lines(shared[0], t, threads, self.align_bytes)", "product with all terms"),
    M("gemm.result", "            if loaded:\n                arrived(self.align_bytes)\n",
      "            if loaded:\n                gr.barrier()\n", "product with all terms"),
    M("gemm.result", "        if to is not C:\n            gr.barrier()\n", "        if to is not C:\n", "product"),
    M("gemm.result", "return gr.fma(gr.where(beta == 0, 0, old), beta, x)",
      "return gr.fma(gr.where(beta == 0, 0, old), gr.abs(gr.cast(beta, gr.fp32)), x)", "product with all terms"),
    M("gemm.sm80",
      "                        next_stage()\n                    fragments((j + 1) % KB)",
      "                        gr.wait(CP, pending=STAGES - 2)\n                    fragments((j + 1) % "
      "KB)", "product"),
    M("gemm.sm80", "for k in range(STAGES - 1):  # past", "for k in range(STAGES - 2):  # past", "product in groups"),
    M("gemm.sm80",
      "            if result.through_shared_memory:  # where the stages are\n                if "
      "asynchronous:\n                    gr.wait(CP, pending=0)\n                gr.barrier()\n",
      "", "product"),
    M("gemm.operand", "self.rounded[:] = gr.cast(self.loaded[j % 2], gr.tf32)",
      "self.rounded[:] = gr.cast(self.loaded[j % 2] * (1 - 2.0**-13), gr.tf32)", "product of fp32"),
    M("gemm.sm70", "                half.advance()\n                store(half.index)\n",
      "                store(half.index)\n                half.advance()\n", "product of quad-pairs"),
    M("gemm.sm70", "            load(0)\n            store(half.index)\n",
      "            load(1)\n            store(half.index)\n            load(0)\n", "product of quad-pairs"),
    M("gemm.reduce", "x = x * factor if alpha else x",
      "acc[:] = acc * factor if alpha else acc\n            x = acc * factor if alpha else acc", "gemm_reduce"),
    M("gemm.reduce", "gr.init(acc, 0)\n", "gr.init(acc, -0.001)\n", "gemm_reduce"),
    M("gemm.reduce", "blocks, threads = gr.blocks(down, across,",
      "blocks, threads = gr.blocks(down, gr.min(across, 2),", "gemm_reduce"),
    M("gemm.pad", "across = gr.max(across, 1)\n", "across = gr.max(across - 1, 1)\n", "gemm_pad"),
    M("gemm.pad",
      "with gr.if_((z % len(pairs) == i) & (row < y.shape[0])):",
      "with gr.if_((z % len(pairs) == i) & (row < x.shape[0]) & (column < gr.ceil_div(x.shape[1], "
      "width))):", "gemm_pad"),
    M("rows.softmax", "gr.init(most, -gr.inf)", "gr.init(most, -10000)", "softmax of columns"),
    M("gemm.result", "for j, i in product(*reversed(pieces)):",
      "for i, j in product(*pieces):", "product of large tiles"),
    M("gemm.result", 'for i in gr.loop("i", rows // step,',
      'for i in gr.loop("i", gr.min(rows // step, 2),', "product of large tiles"),
    M("gemm.result", "vector.tile([1, width])[0, j]", "vector.tile([1, width])[0, i]", "product of large tiles"),
    M("rows.norm_backward", "g(part) * (distance(part) * rstd))", "g(part) * ((h(part) - mean) * rstd))",
      "layernorm's gradient of fp32"),
    M("rows.norm_backward", "distance(part) * rstd * of_gn", "(h(part) - mean) * rstd * of_gn",
      "layernorm's gradient of fp32"),
    M("rows.moments", "return x - base - mean if exact", "return x - (base + mean) if exact", "layernorm of fp32"),
    M("gemm.operand", "self.held.load(self.tiles[k])",
      "self.held.load(self.tiles[gr.max(k - 1, 0)])", "product through registers"),
]  # fmt: skip


def told(mistake: Mistake, kernels_of: Mapping[str, Callable[[Any], gr.Kernel]] | None = None) -> str:
    """How ``check()`` tells the mistake: a code; empty where it does not."""
    try:
        result = mistake.build(kernels_of).check()
    except gr.GrapheneError as e:
        return str(e.code)
    return "" if result.ok else result.errors[0].code


if __name__ == "__main__":
    wrong = [m for m in MISTAKES if (print(".", end="", flush=True), not told(m))[1]]
    print(f"\n{len(MISTAKES) - len(wrong)} of {len(MISTAKES)} are told", *wrong, sep="\n")
    sys.exit(bool(wrong))
