"""Attention of few queries whose keys and values lie in pages of a cache, for sm_90a.

A table says which pages a sequence has. The warp that copies has a lane for each box of a stage; the lane reads the
table some steps ahead.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import instance
from graphene.kernels.attention.decode import Decode, DecodeConfig
from graphene.kernels.attention.problem import MOST, Seen
from graphene.kernels.attention.reference import forward, parts, parts_read
from graphene.kernels.attention.usual_arguments import arguments

PAGES = 2**31 - 1
INTEGERS = (-(2**31), 2**31 - 1)  # the bounds of a table's entries and of lengths


def attention_paged_kernel(c: DecodeConfig) -> gr.Kernel:
    """The same as ``attention_decode_kernel``, of keys and values in pages of `c.page` keys.

    Arguments: Q (batch, sq, heads, D); K and V (pages, page, kv_heads, D) with unit stride in D; table (batch, most)
    in i32, the pages of a sequence in order; lengths (batch) in i32, how many keys it has; O and the rest as in
    ``attention_forward_kernel``. Entries of the table behind a sequence's last page are not read, and what lies in its
    last page behind its last key changes nothing. A page that does not exist, also one below 0, holds zeros. No
    sequence is longer than its row of the table or shorter than 0. There is a page at least. scale_log2 is above 0
    unless `c.what` is ``scaled``.
    """
    instance("attention_paged_kernel", "c", c, DecodeConfig)
    if c.page is None:
        _core.fail("KERNEL_ARGUMENT", "attention_paged_kernel: pages need a size", ["want: page=16, for example",
                   "got: None"], "take attention_decode_kernel, or say how many keys a page has")  # fmt: skip
    a = c.what
    means, read = functools.partial(forward, a, c.lse, False), None
    if c.split:
        means, read = functools.partial(parts, a), functools.partial(parts_read, a.group)
    given = arguments(a, c.BN, c.BM, far=True, packed=True)
    with gr.Kernel("attention_paged", means, read, given) as kernel:
        _Paged(c).run()
    return kernel


class _Paged(Decode):
    """One kernel in the making."""

    def declare_keys(self) -> tuple[gr.Tensor, gr.Tensor]:
        """Pages, and which of them a sequence has."""
        args, page = self.args, self.d.keys_of_page
        self.pages, self.most = gr.sym("pages", max=PAGES), gr.sym("most", max=MOST)
        strides: dict[str, Any] = {}

        def pages(name: str) -> gr.Tensor:
            base = "K" if self.a.alike else name
            if base not in strides:
                strides[base] = gr.sym(f"{base}p {base}s {base}h", multiple_of=8)
            layout = gr.Layout((self.pages, page, args.kv_heads, self.a.D), (*strides[base], 1))
            return gr.input(name, layout, self.a.dtype, align_bytes=16)

        K, V = pages("K"), pages("V")
        self.table = gr.input("table", gr.row_major(args.batch, self.most), gr.i32)
        self.lengths = gr.input("lengths", [args.batch], gr.i32)
        return K, V

    def place_keys(self) -> None:
        """The keys of the block's sequence."""
        page = self.d.keys_of_page
        self.rows = math.gcd(page, self.d.BN)  # keys of a box
        self.boxes = self.d.BN // self.rows
        most = gr.min(self.most * page, MOST)
        self.sq, self.sk = self.args.sq, gr.max(gr.min(gr.index(self.lengths[self.b], *INTEGERS), most), 0)
        self.gK, self.gV = (t[:, :, self.kh, :].tile([1, self.rows, self.a.depth]) for t in (self.K, self.V))
        self.ahead = self.d.stages + 1  # for how many steps the table is read at a time
        self.entries = gr.alloc("entries", [self.ahead, self.boxes], gr.i32, gr.SH)
        self.seen = Seen(self.sq, self.sk, self.left, self.right)

    def clear(self, rv: gr.Tensor, k: int) -> None:
        """Zeros behind the last key, where a page may hold anything, even what is not a number."""
        first = (self.steps.number(self.at) * self.d.WARPS + self.of_keys) * self.chunk
        with self.where_masked():
            _, key = rv.coords()
            rv[:] = gr.where(first + k * 16 + key < self.sk, rv, 0)

    def run_producer(self) -> None:
        """Copies the pages."""
        page, cp, count = self.d.keys_of_page, gr.atom("cp.async.ca.4"), self.steps.count
        (lane,) = self.producer.indices()
        of_a_page = page // self.rows

        def read_table(i: Any) -> None:
            with gr.if_((i < count) * (lane < self.boxes)):
                box = self.steps.number(i) * self.boxes + lane
                last = gr.max((self.sk - 1) // page, 0)  # read again behind the last key, unseen
                gr.move(
                    self.entries[i % self.ahead, lane % self.boxes],
                    self.table[self.b, gr.min(box // of_a_page, last)],
                    atom=cp,
                )
            gr.commit(cp)

        for i in gr.loop("first", self.ahead - 1):
            read_table(i)
        put = gr.ring("put", self.d.stages, phase=1)
        for i in gr.loop("i", count):
            read_table(i + self.ahead - 1)
            gr.wait(cp, pending=self.ahead - 1)
            s = put.index
            self.empty[s].wait(put.phase)
            with gr.only(self.producer.elect()):
                self.full[s].arrive(expect=[self.sK[s], self.sV[s]])
            with gr.if_(lane < self.boxes):
                box = self.steps.number(i) * self.boxes + lane
                entry = gr.index(self.entries[i % self.ahead, lane % self.boxes], *INTEGERS)
                entry = entry * (entry >= 0) + self.pages * (entry < 0)  # past the last page there are zeros, too
                for to, pages in ((self.sK, self.gK), (self.sV, self.gV)):
                    here = to[s].tile([self.rows, None])[lane % self.boxes, 0]
                    gr.move(here, pages[entry, box % of_a_page, 0][0, :, :], atom=self.tma, done=self.full[s])
            put.advance()
