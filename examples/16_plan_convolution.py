"""A convolution with padding and a stride, bias, residual and relu, as one planned kernel that stores no windows."""

import sys

import numpy as np

import graphene as gr
from graphene import plan

n, h, w, c = plan.axes(n=gr.sym("N"), h=12, w=14, c=32)  # images as NHWC; small, for the simulator
p, q, r, s, k = plan.axes(p=6, q=7, r=3, s=3, k=48)
with plan.graph("convolution") as g:
    x, weights = g.input("X", [n, h, w, c], gr.fp16), g.input("F", [k, r, s, c], gr.fp16)
    windows = plan.window(plan.window(x, h, p, r, stride=2, padding=1), w, q, s, stride=2, padding=1)
    y = plan.dot(windows, weights, [r, s, c]) + g.input("bias", [k], gr.fp16)
    g.output("Y", plan.relu(y + g.input("residual", [n, p, q, k], gr.fp16)), [n, p, q, k], gr.fp16)

made = g.plan("sm_80", n=8)
print(made)  # every decision with its reason
print()
print(made.source() if "-v" in sys.argv else f"{len(made.source().splitlines())} lines of source")

found = made.check()  # the kernel against its promise, the promise against the graph
print(found)
assert found.ok
assert found.conflicts == 0

rng = np.random.default_rng(0)
arrays = {v.name: rng.standard_normal([3 if a is n else a.size for a in v.more["stored"]]) for v in g.inputs}
arrays = {name: x.astype(np.float16) for name, x in arrays.items()}
out = np.zeros((3, 6, 7, 48), np.float16)
made(*(arrays[v.name] for v in made.kernel_inputs()), out)
want = g.evaluate(arrays)["Y"]
print("largest error:", np.abs(out - want).max())
assert np.abs(out - want).max() < 0.05
