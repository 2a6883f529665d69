"""Mistakes planted by hand in the kernels for Hopper: a line of the builder's Python, and the same line wrong.

``python tests/mutation/hopper_mistakes.py`` checks every kernel that has one, the kernels without a mistake, and all of
their synchronisation (3 minutes of one core); the tests a sample of them. Most mistakes are about what only
asynchronous kernels have: phases, stages, turns, fences, boxes, clusters.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

from product_mistakes import Mistake, told

import graphene as gr
import graphene.kernels
from graphene.judge.signature import Signature


def _terms(x: Any, *more: Any) -> Any:
    return gr.max(sum((t * (2 + i) for i, t in enumerate(more)), x), -9)


def _gemm(*tile: int, **options: Any) -> Callable[[Any], gr.Kernel]:
    BM, BN, stages = tile or (64, 64, 3)
    return lambda k: k.gemm_sm90(BM, BN, None, stages, **{"epilogue": lambda x: gr.max(x, 0), "bias": False, **options})


def _all_terms(*tile: int, **options: Any) -> Callable[[Any], gr.Kernel]:
    return _gemm(*tile, **{"epilogue": _terms, "bias": True, "residual": True, "alpha": True, "beta": True, **options})


def _cell(**options: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module = importlib.import_module("graphene.kernels.recurrent_sm90")
        kernel: gr.Kernel = module.cell_sm90(module.CellSm90Config(**options))
        return kernel

    return build


def _mlp(*widths: int, **options: Any) -> Callable[[Any], gr.Kernel]:
    def build(_: Any) -> gr.Kernel:
        module, n = importlib.import_module("graphene.kernels.mlp_sm90"), len(widths) - 1
        acts = options.get("activations", ("relu",) * n)
        more = {"rows": 64, **{name: x for name, x in options.items() if name != "activations"}}
        config = module.MlpSm90Config(widths, acts, (True,) * n, **more)
        kernel: gr.Kernel = module.mlp_sm90(config)
        return kernel

    return build


BUILD: dict[str, Callable[[Any], gr.Kernel]] = {
    "turns": _gemm(),
    "turns, narrow C": _gemm(align=(16, 16, 4)),
    "three pieces": _gemm(64, 192, 2, turns=False, warps=(4, 1)),
    "joined, 128 rows": _gemm(128, 64, 2, turns=False, warps=(4, 1), cluster=(1, 1, 2)),
    "turns, in groups": _gemm(group=3),
    "two pieces": _gemm(64, 128, 2),
    "shared rows": _gemm(128, 64, 3, warps=(8, 1)),
    "few rows": _gemm(16, 64, 3, warps=(1, 4)),
    "cluster along rows": _gemm(64, 128, 3, cluster=(2, 1, 1)),
    "cluster along columns": _gemm(64, 128, 3, cluster=(1, 2, 1)),
    "two by two": _gemm(64, 128, 2, cluster=(2, 2, 1)),
    "shared rows, cluster": _gemm(128, 64, 2, warps=(8, 1), cluster=(2, 1, 1)),
    "joined": _gemm(turns=False, warps=(4, 1), cluster=(1, 1, 2)),
    "joined, turns": _gemm(64, 64, 2, cluster=(1, 1, 2)),
    "joined parts": _gemm(epilogue=None, turns=False, warps=(4, 1), split_k=True, cluster=(1, 1, 2)),
    "parts": _gemm(epilogue=None, split_k=True, batched=True),
    "terms": _all_terms(),
    "residual in stages": _gemm(
        128, 128, 2, epilogue=_terms, bias=True, residual=True, warps=(8, 1), terms_in_stages=True
    ),
    "terms, two pieces": _all_terms(64, 128, 2),
    "terms, three pieces": _all_terms(64, 192, 6, turns=False, warps=(4, 1)),  # which leave room for two
    "terms, pieces at once": _all_terms(64, 128, 2, turns=False, warps=(4, 1)),
    "joined, shared": _gemm(64, 192, 2, turns=False, warps=(4, 1), cluster=(1, 1, 3)),
    "joined, shared by two": _gemm(
        64, 128, 2, epilogue=_terms, bias=True, residual=True, turns=False, warps=(4, 1), cluster=(1, 1, 3)
    ),
    "joined sums, shared": _gemm(64, 128, 2, epilogue=None, turns=False, warps=(4, 1), split_k=True, cluster=(1, 1, 3)),
    "halves of pairs": _gemm(64, 72, 3, epilogue=_terms, bias=True, residual=True),
    "bias": _gemm(64, 128, 2, epilogue=_terms, bias=True),
    "few rows, bias": _gemm(32, 64, 2, epilogue=_terms, bias=True, out=gr.fp32, warps=(1, 4), turns=False),
    "across": _gemm(64, 128, 2, order="NT"),
    "promoted": _gemm(128, 64, 2, warps=(8, 1), dtype=gr.fp8e4m3, promote=True),
    "scales of tensors": _gemm(dtype=gr.fp8e4m3, out=gr.fp16, scales="tensor"),
    "scales of rows": _gemm(128, 64, 2, dtype=gr.fp8e4m3, out=gr.fp16, scales="rows"),
    "scales of rows, fp32": _gemm(128, 64, 2, dtype=gr.fp8e4m3, b_dtype=gr.fp8e5m2, scales="rows"),
    "scales, few rows": _gemm(32, 64, 2, dtype=gr.fp8e5m2, out=gr.fp16, warps=(1, 4), turns=False, scales="rows"),
    "rnn": _cell(tile=(64, 64), stages=3, group=2),
    "rnn, shared rows": _cell(tile=(128, 64), turns=False),
    "rnn, wide": _cell(tile=(64, 128), stages=3, group=2),
    "lstm, 128 rows": _cell(gates=4, biases=2, tile=(128, 32), stages=2),
    "lstm": _cell(gates=4, biases=2, tile=(64, 16), stages=2),
    "mlp": _mlp(24, 64, 64, 72, stages=4),
    "mlp, filled up": _mlp(24, 120, 64, stages=4, activations=("sigmoid", "relu")),
    "mlp, one piece": _mlp(136, 64, 64, stages=4),
    "mlp, deep": _mlp(24, 72, 72, 72, 72, stages=4),
    "mlp, 128 rows": _mlp(72, 64, 64, rows=128, stages=4),
    "mlp, boxes": _mlp(136, 64, 128, stages=4),
}

M = Mistake
SM90, STORE, CELL, MLP = "gemm.sm90", "gemm.hopper_store", "recurrent_sm90", "mlp_sm90"
MISTAKES = [
    # Phases.
    M(SM90, 'gr.ring("put", STAGES, phase=1)', 'gr.ring("put", STAGES)', "turns"),
    M(SM90, "full[i].wait(get.phase)", "full[i].wait(1 - get.phase)", "turns"),
    M(SM90, "empty[i].wait(put.phase)", "empty[i].wait(1 - put.phase)", "turns"),
    M(SM90, "full[i].wait(get.phase)", "full[i].wait(0)", "shared rows"),
    M(SM90, "                        put.advance()\n", "", "turns"),
    M(SM90, "            if turn is not None:\n                get.advance(w * grid.steps)",
      "            if turn is not None:\n                get.advance(grid.steps)", "turns"),
    M(SM90, "                if t.turns:\n                    get.advance(grid.steps)\n", "", "turns"),
    M(SM90, "                    get.advance(grid.steps)\n", "                    get.advance(grid.steps - 1)\n",
      "turns"),
    M(STORE, "].wait(ring.phase)", "].wait(0)", "terms, three pieces"),
    M(STORE, "                ring.advance()\n", "", "bias"),
    M(CELL, "            self.round.advance()\n", "", "lstm"),
    M(CELL, "cell.state[self.w].wait(self.round.phase)", "cell.state[self.w].wait(1 - self.round.phase)", "lstm"),
    # Bytes.
    M(SM90, "expect=[sX[i], sY[i]]", "expect=[sX[i]]", "turns"),
    M(SM90, "expect=[sX[i], sY[i]]", "expect=[sX[i], sX[i]]", "two pieces"),
    M(STORE, "come.arrive(expect=[to for to, _ in copies])", "come.arrive(expect=[copies[0][0]])", "terms"),
    M(CELL, "expect=[self.left[i], self.right[i]]", "expect=[self.left[i]]", "lstm"),
    M(CELL, "cell.state[self.w].arrive(expect=pieces)", "cell.state[self.w].arrive(expect=pieces + pieces)", "lstm"),
    # Stages.
    M(SM90, "                            release(2)\n", "                            release(1)\n", "turns"),
    M(SM90, "                release(1)\n", "                release(2)\n", "turns"),
    M(SM90, "empty[(get.index + (STAGES - back)) % STAGES]", "empty[get.index]", "turns"),
    M(SM90, 'gr.loop("k", grid.steps, start=1)', 'gr.loop("k", grid.steps, start=2)', "turns"),
    M(SM90, 'gr.loop("k", grid.steps, start=1)', 'gr.loop("k", grid.steps)', "turns"),
    M(SM90, "gr.wait(wgmma, pending=1)  # the", "gr.wait(wgmma, pending=2)  # the", "turns"),
    M(SM90, "gr.wait(wgmma, pending=0)", "gr.wait(wgmma, pending=1)", "shared rows"),
    M(SM90, "                            gr.wait(wgmma, pending=1)  # the step before has read its stage\n", "",
      "few rows"),
    M(SM90, "arrivals=mates.arrivals * (1 if t.turns else h.consumers)", "arrivals=mates.arrivals", "shared rows"),
    M(SM90, "arrivals=mates.arrivals * (1 if t.turns else h.consumers)", "arrivals=h.consumers",
      "shared rows, cluster"),
    M(SM90, "                with gr.only(mine.elect()):\n                    for all_of",
      "                with gr.only(mine):\n                    for all_of", "turns"),
    M(SM90, "        self.full[self.ring.index].wait(self.ring.phase)\n", "", "residual in stages"),
    M(SM90, "        self.ring.advance()\n        self.release(1)\n", "        self.release(1)\n",
      "residual in stages"),
    M(SM90, "        self.ring.advance()\n        self.release(1)\n", "        self.ring.advance()\n",
      "residual in stages"),
    M(SM90, "expect=[sX[put.index]]", "expect=[sX[put.index], sX[put.index]]", "residual in stages"),
    M(SM90, "empty[put.index].wait(put.phase)", "pass", "residual in stages"),
    M(SM90, "tile([None, h.width])[0, j]", "tile([None, h.width])[0, 0]", "residual in stages"),
    M(SM90, "tile([self.rows, None])[self.w, 0]", "tile([self.rows, None])[0, 0]", "residual in stages"),
    M(CELL, "            gr.wait(self.wgmma, pending=0)\n            self.release()\n",
      "            self.release()\n            gr.wait(self.wgmma, pending=0)\n", "rnn"),
    M(CELL, "                    self.release()\n            if c.turns",
      "                    self.free.advance()\n            if c.turns", "rnn"),
    # Turns.
    M(SM90, "turn[w].sync()", "turn[1 - w].sync()", "turns"),
    M(SM90, "turn[1 - w].arrive()", "turn[w].arrive()", "turns"),
    M(SM90, "                with gr.if_(w == 1):\n                    turn[0].arrive()\n", "", "turns"),
    M(SM90, "                    if turn is not None:\n                        turn[w].sync()\n", "", "turns"),
    M(MLP, "turns[(self.w + 1) % self.c.consumers].arrive()", "turns[self.w].arrive()", "mlp"),
    M(CELL, "cell.turn[1 - self.w].arrive()", "cell.turn[0].arrive()", "rnn"),
    # Fences and the registers of products.
    M(SM90, "gr.fence(wgmma)  # the assembler", "pass  # the assembler", "turns"),
    M(SM90, "                gr.commit(wgmma)\n", "", "turns"),
    M(STORE, '            gr.fence("async.shared")  # what threads stored becomes visible to the copy\n', "", "turns"),
    M(STORE, '            gr.fence("async.shared")  # what threads stored becomes visible to the copy\n'
      "            gr.barrier(on=self.mine)\n", '            gr.barrier(on=self.mine)\n'
      '            gr.fence("async.global")\n', "two pieces"),
    M(MLP, '            gr.move(piece, self.out, atom=stmatrix)\n'
      '            gr.fence("async.shared")  # what threads stored becomes visible to the copy\n',
      '            gr.fence("async.shared")\n            gr.move(piece, self.out, atom=stmatrix)\n', "mlp, boxes"),
    M(CELL, '            gr.fence("async.shared")  # what threads stored becomes visible to the copies\n', "", "rnn"),
    M(MLP, '            gr.fence("async.shared")  # what threads stored becomes visible to the copy\n', "",
      "mlp, boxes"),
    # Stores that are on their way.
    M(STORE, "pending=min(self.h.buffers - 1, behind)", "pending=self.h.buffers", "two pieces"),
    M(STORE, "        if not (self.h.by_boxes and self.h.fetched):\n            gr.barrier(on=self.mine)\n", "",
      "turns"),
    M(STORE, '            gr.wait(gr.atom("tma.store"), pending=0)  # the stores from these places have read them\n',
      "", "terms, two pieces"),
    M(STORE, "                self.come[self.w * self.ahead + i % self.ahead].wait(ring.phase)\n", "", "terms"),
    M(STORE, "                gr.move(to, held, atom=store)\n                gr.commit(store)\n",
      "                gr.commit(store)\n                gr.move(to, held, atom=store)\n", "turns"),
    M(STORE, '        if self.h.by_boxes:\n            gr.wait(gr.atom("tma.store"), pending=0)\n', "        pass\n",
      "turns"),
    M(CELL, "pending=c.buffers - 1 if even else 0", "pending=c.buffers", "rnn"),
    M(MLP, "pending=buffers - 1 if even else 0", "pending=buffers - 1", "mlp, one piece"),
    M(MLP, "pending=buffers - 1 if even else 0", "pending=buffers", "mlp, boxes"),
    # Clusters.
    M(SM90, "s.tile([n, None])[part_of, 0]", "s.tile([n, None])[1 - part_of, 0]", "cluster along rows"),
    M(SM90, "s.tile([n, None])[part_of, 0]", "s.tile([n, None])[0, 0]", "cluster along columns"),
    M(SM90, "done=full[i], to=to)", "done=full[i], to=None)", "cluster along rows"),
    M(SM90, ".arrive(at=all_of)", ".arrive()", "cluster along columns"),
    M(SM90, "            gr.barrier(on=cluster)  # nobody leaves while another block may still arrive here\n",
      "            pass\n", "cluster along rows"),
    M(SM90, "gr.barrier(on=cluster)  # nobody", "gr.barrier()  # nobody", "shared rows, cluster"),
    M(SM90, "gr.barrier(on=cluster)  # the barriers", "gr.barrier()  # the barriers", "cluster along columns"),
    M(SM90, "        gr.barrier(on=cluster)  # the barriers are initialised\n", "", "turns"),
    M(SM90, "shares * at + rank if", "shares * at if", "cluster along rows"),
    M(SM90, "square[self.row, :], square[:, self.column]", "square[:, self.column], square[self.row, :]", "two by two"),
    M(SM90, "square[self.row, :], square[:, self.column]", "cluster, square[:, self.column]", "two by two"),
    M(SM90, "sum(n for n in (h.down, h.across) if n > 1)", "max(h.down, h.across)", "two by two"),
    M(SM90, "x is not None] or", "x is not None][:1] or", "two by two"),
    M(SM90, "h.down * x + mates.row if", "h.down * x if", "cluster along rows"),
    M(SM90, "h.across * y + mates.column if", "h.across * y if", "cluster along columns"),
    # Sums of other blocks.
    M(SM90, "self.come[w].wait(self.ring.phase, acquire=True)", "self.come[w].wait(self.ring.phase)", "joined"),
    M(SM90, "self.come[w].arrive(at=cluster[owner], release=True)", "self.come[w].arrive(at=cluster[owner])", "joined"),
    M(SM90, "        self.come[w].wait(self.ring.phase, acquire=True)\n", "", "joined"),
    M(SM90, "        self.read[w].wait(self.free.phase)\n", "", "joined, turns"),
    M(SM90, "        gr.barrier(on=mine)  # all have read them\n", "", "joined, turns"),
    M(SM90, "        gr.barrier(on=mine)\n        with gr.only(mine.elect()):\n            for owner",
      "        with gr.only(mine.elect()):\n            for owner", "joined"),
    M(SM90, "slot = rank if rank < owner else rank - 1", "slot = max(rank - 1, 0)", "joined, shared"),
    M(SM90, "for i, j in enumerate(h.owned[owner])", "for i, j in enumerate(h.owned[0])", "joined, shared"),
    M(SM90, "arrivals=len(self.owners))", "arrivals=1)", "joined, shared by two"),
    M(SM90, "if other != rank or self.owners != [rank]:", "if other != rank:", "joined, shared"),
    M(SM90, "acc.tile([64, self.step])[m, j * steps + n]", "acc.tile([64, self.step])[m, i * steps + n]",
      "joined, shared"),
    M(SM90, "with gr.if_(rank == r):", "with gr.if_(rank == (r ^ 1)):", "joined, shared by two"),
    M(STORE, "for j in pieces:\n            of", "for j in pieces[:0]:\n            of", "joined sums, shared"),
    M(STORE, "return 4 if self.step % 16 == 0 else 2", "return 4", "halves of pairs"),
    M(STORE, "if not self.once or j == pieces[-1] or not h.fetched:", "if not self.once:", "terms, pieces at once"),
    M(SM90, "self.read[w].arrive(at=cluster[other])", "self.read[w].arrive()", "joined"),
    M(SM90, "        self.ring.advance()\n        self.free", "        self.free", "joined"),
    M(SM90, "        self.free.advance()\n", "", "joined, turns"),
    M(SM90, 'gr.ring("given", 1, phase=1)', 'gr.ring("given", 1)', "joined"),
    M(SM90, "* h.consumers + w].of(owner)", "* h.consumers + w].of(rank)", "joined"),
    M(SM90, "given = self.sums[slot * h.consumers + w]", "given = self.sums[slot * h.consumers]", "joined, turns"),
    M(SM90, "arrivals=h.cuts - 1)", "arrivals=h.cuts)", "joined"),
    M(SM90, "cut = part * self.h.cuts + rank", "cut = part + rank", "joined parts"),
    M(SM90, "mine_of_acc[:] = mine_of_acc + self.other", "mine_of_acc[:] = self.other", "joined"),
    # Which tile.
    M(SM90, "gr.max(1, gr.min(group, rows - first))", "group", "turns, in groups"),
    M(SM90, "tile % of_group // many", "tile % of_group // group", "turns, in groups"),
    M(SM90, "tile // of_group * group", "tile // of_group", "turns, in groups"),
    M(SM90, "gr.max(1, 2 * grid.workers)", "gr.max(1, grid.workers)", "turns"),
    M(SM90, "h.consumers * x + w", "h.consumers * x + 1 - w", "shared rows"),
    M(SM90, "sX[i].tile([h.rows, None])[w, 0]", "sX[i].tile([h.rows, None])[0, 0]", "shared rows"),
    M(SM90, "g[first_k + k]", "g[k]", "parts"),
    M(SM90, "z // self.of.batch[0], z % self.of.batch[0]", "z % self.of.batch[0], z // self.of.batch[0]", "parts"),
    M(SM90, "start(acc, True)", "start(acc, False)", "turns"),
    M(SM90, "start(acc, False)", "start(acc, True)", "few rows"),
    M(STORE, "pieces.tile([self.lines, None])[self.w, 0]", "pieces.tile([self.lines, None])[0, 0]", "turns"),
    M(STORE, "self.fetch(tile, i + self.ahead, pieces[i + self.ahead])", "self.fetch(tile, i, pieces[i])",
      "terms, three pieces"),
    M(STORE, "if i == 0:\n            for name, held", "if i == 1:\n            for name, held", "bias"),
    M(STORE, "elif first and h.rows == 64:", "elif at == 1 and h.rows == 64:", "few rows, bias"),
    M(SM90, "((1, ks * line), line))", "((1, (ks - 8) * line), line))", "across"),
    # Sums of fp8 that are promoted, and scales.
    M(SM90, "acc[:] = acc + newest[(k - 1) % 2]", "acc[:] = newest[(k - 1) % 2]", "promoted"),
    M(SM90, "acc[:] = acc + newest[(k - 1) % 2]", "acc[:] = acc + newest[k % 2]", "promoted"),
    M(SM90, "    gr.init(acc, 0)\n", "", "promoted"),
    M(SM90, "start(newest[k % 2], False)", "start(newest[k % 2], True)", "promoted"),
    M(SM90, "        finish()\n        acc[:] = acc + newest[(steps - 1) % 2]\n",
      "        acc[:] = acc + newest[(steps - 1) % 2]\n        finish()\n", "promoted"),
    M(SM90, "            release(2)\n            acc[:]", "            release(1)\n            acc[:]", "promoted"),
    M(SM90, "grid.steps % AT_ONCE // 2)", "grid.steps % AT_ONCE // 4)", "promoted"),
    M(STORE, "each[0][:] = each[0] * each[1]", "each[0][:] = each[0]", "scales of tensors"),
    M(STORE, "row = kept.tile([1, None])[self.w, 0]  #", "row = kept.tile([1, None])[0, 0]  #", "scales of rows"),
    M(STORE, "[self.scales_of_rows[m], self", "[self.scales_of_rows[0], self", "scales of rows"),
    M(STORE, "v.tile([64, None])[m, 0]", "v.tile([64, None])[0, 0]", "scales of rows, fp32"),
    M(STORE, "v.tile([None, self.step])[0, at], on=self.mine, atom=load)\n\n    def load_scales",
      "v.tile([None, self.step])[0, 0], on=self.mine, atom=load)\n\n    def load_scales", "scales, few rows"),
    M(STORE, 'self.scale("b" if self.h.swapped else "a", tile)', 'self.scale("a" if self.h.swapped else "b", tile)',
      "scales, few rows"),
    M(STORE, "[m, j * (h.width // self.step) + n], m)", "[m, n], m)", "two pieces"),
    M(STORE, "self.load_biases(tile, j * (h.width // self.step) + n,", "self.load_biases(tile, n,", "bias"),
    M(CELL, "rows[g * self.tiles + n, 0]", "rows[g + self.c.gates * n, 0]", "lstm"),
    M(CELL, "c.tile[1]])[g * tiles + n]", "c.tile[1]])[n]", "lstm"),
    M(CELL, "first = gr.min(t // (c.group * tn) * c.group, tm)", "first = gr.min(t // (c.group * tn), tm)", "rnn"),
    M(MLP, "self.biases.tile([1, r.lines])[r.first + i, 0]", "self.biases.tile([1, r.lines])[r.first, 0]", "mlp, deep"),
    M(MLP, "(t * c.consumers + me.number) * me.halves + half", "(t * c.consumers + 1 - me.number) * me.halves + half",
      "mlp"),
    M(MLP, "* self.halves + half, i]", "* self.halves, i]", "mlp, 128 rows"),
    M(MLP, "s.full[i].arrive(expect=[to])", "s.full[i].arrive(expect=[to, to])", "mlp"),
    # Found by another hand: parts of results, later tiles and steps, orders of statements.
    M(SM90, "                gr.wait(wgmma, pending=0)\n                release(1)\n",
      "                release(1)\n                gr.wait(wgmma, pending=0)\n", "turns"),
    M(SM90, "gr.ceil_div(gr.ceil_div(ks, t.tile[2]), each * h.cuts * prod(of.parts))",
      "gr.ceil_div(ks, t.tile[2]) // (each * h.cuts * prod(of.parts))", "joined"),
    M(SM90, "nullcontext() if h.cuts == 1 else gr.if_(rank == r)", "nullcontext()", "joined"),
    M(SM90,
      "x, y, part, z = grid.place(tile, mates)\n                    first_k",
      "x, y, part, z = grid.place(tile + 0 * rank, mates)\n                    y = gr.min(y, grid.columns "
      "- 2) if h.consumers > 1 else y\n                    first_k", "shared rows"),
    M(STORE, "places = [s[i % self.h.buffers] for s in self.shared]",
      "places = [s[0] for s in self.shared]", "terms, two pieces"),
    M(STORE, "copies.append((held[self.w, :], self.turned(vector)[of]))",
      "copies.append((held[0, :], self.turned(vector)[of]))", "bias"),
    M(STORE, 'row = self.kept["bias"].tile([1, None])[self.w, 0]',
      'row = self.kept["bias"].tile([1, None])[0, 0]', "bias"),
    M(STORE, 'x = x * r.scalars["alpha"] if "alpha" in r.scalars else x', "x = x", "terms"),
    M(STORE, "self.out[:] = pointwise(epilogue, x, *self.biases, *residual)",
      "self.out[:] = pointwise(epilogue, gr.cast(gr.cast(x, gr.fp16), gr.fp32), *self.biases, *residual)", "terms"),
    M(STORE, "            gr.barrier(on=self.mine)\n            width = self.result.align_bytes",
      "            width = self.result.align_bytes", "turns, narrow C"),
    M(STORE,
      "gr.move(to, held, atom=store)\n                gr.commit(store)",
      "gr.move(to, held, atom=store)\n                with gr.if_(self.w == 0):\n                    "
      "gr.commit(store)", "turns"),
    M(CELL, "first = m * (c.tile[0] // 64) + (self.w * (c.rows // 64) if c.rows < c.tile[0] else 0)",
      "first = m * (c.tile[0] // 64)", "rnn, shared rows"),
    M(CELL, "self.state[:] = sigmoid(x[1]) * self.old + sigmoid_tanh(x[0], x[2])",
      "self.state[:] = sigmoid(x[1] + 1) * self.old + sigmoid_tanh(x[0], x[2])", "lstm"),
    M(CELL, 'return {"H_new": sigmoid_tanh(x[3], self.state), "C_new": self.state}',
      'return {"C_new": self.state, "H_new": sigmoid_tanh(x[3], gr.cast(self.old, gr.fp32))}', "lstm"),
    M(MLP, "bias = self.shared.biases.tile([1, wide])[layer, piece]",
      "bias = self.shared.biases.tile([1, wide])[layer, 0]", "mlp, boxes"),
    M(MLP, "self.x[r.lines].tile([64, wide])[half, j][:] = y",
      "self.x[r.lines].tile([64, wide])[0, j][:] = y", "mlp, 128 rows"),
    M(MLP, "        gr.commit(CP)\n        gr.wait(CP, pending=0)\n        self.biased",
      "        gr.commit(CP)\n        self.biased", "mlp"),
    M(MLP, "gr.wait(self.any, pending=self.halves - 1 - half)",
      "gr.wait(self.any, pending=self.halves - 1)", "mlp, 128 rows"),
    M(MLP, "s.empty_x[i].wait(put_x.phase)", "s.empty_x[i].wait(put.phase)", "mlp, boxes"),
    M(MLP, "Y.tile([64, wide])[row, j]", "Y.tile([64, wide])[row, 0]", "mlp, boxes"),
    M(SM90, "rows = gr.Layout((8, 2, 4, h.rows // 64), (8, 256, 64, 512 * n))",
      "rows = gr.Layout((8, 2, 4, h.rows // 64), (8, 256, 64, 256 * n))", "joined, 128 rows"),
    M(STORE, "behind = (pieces - 1 - i) % self.h.buffers + i", "behind = pieces - 1 - i", "three pieces"),
    M(CELL, 'gr.move(v, of_tile.tile([None, c.part])[0, p], atom=access("ld.global", 4))',
      'gr.move(v, of_tile.tile([None, c.part])[0, 0], atom=access("ld.global", 4))', "rnn, wide"),
    M(CELL, 'tile = cell.given["C"].tile([64, c.width])[self.place(m, half), n]',
      'tile = cell.given["C"].tile([64, c.width])[self.place(m, 0), n]', "lstm, 128 rows"),
    M(MLP, "y = gr.where(column < r.n - j * wide, y, 0)", "y = gr.where(column < r.n, y, 0)", "mlp, filled up"),
    M(SM90, "get.advance(w * grid.steps)  # over", "get.advance(w * gr.min(grid.steps, 5))  # over", "turns"),
    M(SM90, "                if t.turns:\n                    get.advance(grid.steps)\n",
      "                if t.turns:\n                    get.advance(gr.min(grid.steps, 6))\n", "turns"),
    M(CELL, "me.pass_over(steps[0] + steps[1])", "me.pass_over(steps[0] + gr.min(steps[1], 2))", "rnn"),
    M(MLP, 'for done in gr.loop("tile", tiles - b, step=workers):\n                t = b + done\n'
      "                for r in runs:",
      'for done in gr.loop("tile", gr.min(tiles - b, 2 * workers), step=workers):\n                t = b + done\n'
      "                for r in runs:", "mlp"),
    M(SM90, 'for tile in gr.loop("tile", grid.counted, start=first, step=step):',
      'for tile in gr.loop("tile", gr.min(grid.counted, 2 * step), start=first, step=step):', "shared rows"),
]  # fmt: skip


SIZES: dict[str, dict[str, int]] = {
    "few rows": {"M": 40},
    "shared rows, cluster": {"M": 600},
    "rnn": {"I": 200, "J": 136},
}
SIZES |= {n: {"K": 272} for n in BUILD if n.startswith("scale")} | {"promoted": {"K": 1168}}
SIZES |= {"lstm": {"M": 640, "N": 32, "I": 200, "J": 136}}
UNNEEDED = (
    "start_kernels",
    "setmaxnreg",
)  # they change no result: when a kernel starts, how many registers a thread has


def silent_synchronisation(name: str) -> list[str]:
    """The synchronisation statements of a kernel without which, or with weaker ones, no call is wrong."""
    kernel = BUILD[name](graphene.kernels)
    usual = {"M": 1200 if name.startswith("mlp") else 320, "N": 584, "K": 264, "batch": 2, "splits": 2}
    wanted = set(Signature.of(kernel).symbols)
    sizes: dict[str, Any] = {n: v for n, v in (usual | SIZES.get(name, {})).items() if n in wanted}
    return [str(m).partition(": ")[2] for m in kernel.mutants(**sizes) if m.hazard is None]


if __name__ == "__main__":
    silent: list[Mistake | str] = []
    for i, m in enumerate(MISTAKES):
        began = time.process_time()
        how = told(m, BUILD)
        print(f"{i + 1}/{len(MISTAKES)}", m, "->", how or "SILENT", f"{time.process_time() - began:.1f} s", flush=True)
        silent += [] if how else [m]
    for name, make in BUILD.items() if len(sys.argv) < 2 else ():
        began = time.process_time()
        result = make(graphene.kernels).check()
        print(name, result, f"{time.process_time() - began:.1f} s", flush=True)
        silent += [] if result.ok else [name]
        print("  no hazard without:", "; ".join(silent_synchronisation(name)), flush=True)
    print(f"{len(silent)} silent or false:", *silent, sep="\n")
    sys.exit(bool(silent))
