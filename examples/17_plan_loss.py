"""A language model's head, planned: loss and best token of each row, with no logits in memory."""

import sys

import numpy as np

import graphene as gr
from graphene import plan

m, k, v = plan.axes(m=gr.sym("M"), k=64, v=1000)  # small, for the simulator; a model has k=4096, v=128256
with plan.graph("head") as g:
    hidden, weights = g.input("H", [m, k], gr.bf16), g.input("W", [v, k], gr.bf16)
    logits = plan.dot(hidden, weights, k)
    own = plan.at(logits, v, g.input("label", [m], gr.i32))
    g.output("loss", plan.logsumexp(logits, v) - own, [m], gr.fp32)
    g.output("best", plan.argmax(logits, v), [m], gr.i32)

made = g.plan("sm_90a", m=192)
print(made)  # every decision with its reason
print()
print(made.source() if "-v" in sys.argv else f"{len(made.source().splitlines())} lines of source")

found = made.check()  # both kernels against their promise, the promise against the graph
print(found)
assert found.ok
assert found.conflicts == 0

first, second = made.launches()  # a kernel of products, and one that puts statistics of parts together
print(first.kernel.name, first.arguments)
print(second.kernel.name, second.arguments)
assert made.decisions["workspace.bytes"].value < 192 * 1000 * 2  # less than logits would take

rng = np.random.default_rng(0)
arrays = {"H": rng.standard_normal((150, 64)), "W": rng.standard_normal((1000, 64))}
stored = {name: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for name, x in arrays.items()}
arrays = {name: (x.astype(np.uint32) << 16).view(np.float32) for name, x in stored.items()}  # as bf16 holds them
label = rng.integers(0, 1000, 150).astype(np.int32)
loss, best = np.zeros(150, np.float32), np.zeros(150, np.int32)
made(stored["H"], stored["W"], label, loss, best)
want = g.evaluate({**arrays, "label": label})
print("largest error:", np.abs(loss - want["loss"]).max())
assert np.abs(loss - want["loss"]).max() < 1e-3
assert (best == want["best"]).all()
