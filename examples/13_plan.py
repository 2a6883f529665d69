"""From six lines of operators to an explicit kernel: RMSNorm and a linear layer in one, planned, printed, checked."""

import sys

import numpy as np

import graphene as gr
from graphene import plan

m, k, n = plan.axes(m=gr.sym("M"), k=256, n=96)  # small, for the simulator
with plan.graph("rms_linear") as g:
    x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
    r = plan.rsqrt(plan.mean(x * x, k) + 1e-5)
    g.output("O", plan.dot(x * r, w, k), [m, n], gr.fp16)

p = g.plan("sm_80", m=16)
print(p)  # every decision with its reason
print()
print(p.why("tile.n"))  # its cost, and what else there was
print()
print(p.source() if "-v" in sys.argv else f"{len(p.source().splitlines())} lines of source")

found = p.check()  # the kernel against its promise, the promise against the graph
print(found)
assert found.ok
assert found.conflicts == 0

rng = np.random.default_rng(0)
X, W = (rng.standard_normal(s).astype(np.float16) for s in ((5, 256), (256, 96)))
out = np.zeros((5, 96), np.float16)
p(X, W, out)  # NumPy arrays run on the simulator, CUDA tensors on the GPU
want = g.evaluate({"X": X, "W": W})["O"]
print("largest error:", np.abs(out - want).max())
assert np.abs(out - want).max() < 0.02

pinned = g.plan("sm_80", m=16, pin={"tile.n": 64, "stages": 2})
print(pinned.why("slots.ahead"))
