"""Kernels of attention, perceptrons and recurrent cells, and mistakes planted by hand (attention_mistakes.txt)."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import graphene as gr
from graphene import kernels
from graphene.kernels import Attention, BackwardConfig, Extra, ForwardConfig, ProductConfig
from graphene.kernels import mlp as _mlp
from graphene.kernels import recurrent as _recurrent

CAUSAL, WINDOW = Attention(32, right=True), Attention(16, left=True, right=True, group=2)
CAPPED = Attention(16, softcap=True, right=True)
BOTH = Attention(16, left=True, right=True, softcap=True, group=2)
EXTRAS = Attention(16, mask=Extra(), bias=Extra(gr.fp16), group=2)
PACKED = Attention(16, right=True, varlen=True, group=2)
SHORT = Attention(16, left=True, right=True, group=3)
KEYS = Attention(16, right=True, mask=Extra(rows=False))
Make = Callable[[], gr.Kernel]


def forward(a: Attention = CAUSAL, BM: int = 32, WARPS: int = 2, **how: Any) -> Make:
    return lambda: kernels.attention_forward_kernel(ForwardConfig(a, BM, 16, WARPS, lse=True, **how))


def keys(a: Attention = CAUSAL, **how: Any) -> Make:
    stages = 3 if how.get("paired") else 2
    return lambda: kernels.attention_keys_gradient_kernel(BackwardConfig(a, 32, 32, 2, stages, **how))


def queries(a: Attention = CAUSAL) -> Make:
    return lambda: kernels.attention_queries_gradient_kernel(BackwardConfig(a, 32, 16, 2))


def product(a: Attention = CAUSAL) -> Make:
    return lambda: kernels.attention_queries_product_kernel(ProductConfig(a, 16, 2))


def mlp(*acts: Any, widths: tuple[int, ...] = (48,) * 4, **how: Any) -> Make:
    biases = tuple(i != 1 or len(set(widths)) == 1 for i in range(len(acts)))
    c = _mlp.MlpConfig(widths[: len(acts) + 1], acts, biases, rows=16, warps=2, chunk=32, stages=3, **how)
    return lambda: _mlp.mlp_kernel(c)


def cell(**how: Any) -> Make:
    return lambda: _recurrent.recurrent_cell(_recurrent.CellConfig(biases=2, **how))


KERNELS: dict[str, Make] = {
    "forward": forward(),
    "forward, eager": forward(lazy=False),
    "training": forward(Attention(16, bias=Extra(gr.fp16)), training=True),
    "training, packed": forward(PACKED, training=True),
    "forward, window": forward(WINDOW),
    "forward, capped": forward(CAPPED),
    "forward, wide cap": forward(replace(CAPPED, wide=True)),
    "forward, mask": forward(Attention(16, mask=Extra())),
    "forward, mask and bias": forward(EXTRAS),
    "forward, function of scores": forward(Attention(16, score=lambda s, query, key: s - 0.1 * abs(query - key))),
    "forward, window and cap": forward(BOTH),
    "forward, scaled": forward(Attention(16, right=True, scaled=True)),
    "forward, chunks": lambda: kernels.attention_forward_kernel(
        ForwardConfig(CAUSAL, 32, 32, 2, chunk=16, lazy=False, q_in_registers=False, lse=True)
    ),
    "forward, packed": forward(PACKED),
    "short": forward(SHORT, 16, 1, packed=True),
    "parts": forward(SHORT, 16, 1, packed=True, split=True),
    "listed": forward(KEYS, listed=True),
    "combine": lambda: kernels.attention_combine_kernel(Attention(40, group=2), lse=True),
    "combine, wide": lambda: kernels.attention_combine_kernel(Attention(136, group=2)),
    "keys": keys(),
    "keys, window": keys(WINDOW),
    "keys, capped": keys(CAPPED),
    "keys, bias of keys": keys(Attention(16, bias=Extra(gr.fp16, rows=False))),
    "keys, packed": keys(PACKED),
    "keys, paired": keys(paired=True),
    "keys, paired, bias": keys(Attention(16, bias=Extra(gr.fp16)), paired=True),
    "keys, saved": keys(saves=True),
    "keys, all saved": keys(Attention(16), saves=True),
    "keys, saved of groups": keys(WINDOW, saves=True),
    "keys, kept": keys(replace(EXTRAS, softcap=True), keep=True),
    "queries": queries(),
    "queries, mask and bias": queries(EXTRAS),
    "queries, kept": lambda: kernels.attention_queries_gradient_kernel(
        BackwardConfig(replace(BOTH, mask=Extra(rows=False)), 32, 16, 2, keep=True)
    ),
    "queries, window": queries(WINDOW),
    "queries, capped": queries(CAPPED),
    "product": product(),
    "product, window": product(WINDOW),
    "product, packed": product(PACKED),
    "delta": lambda: kernels.attention_delta_kernel(Attention(40), lse=True),
    "tiles": lambda: kernels.attention_tiles_kernel(replace(WINDOW, mask=Extra()), 32, 32),
    "tiles, mask of keys": lambda: kernels.attention_tiles_kernel(KEYS, 32, 16),
    "flash": lambda: kernels.flash_fwd(32, 32, 16, 2),
    "fused_mlp": lambda: kernels.fused_mlp(3, 64, 64),
    "mlp": mlp("relu", "relu", "relu"),
    "mlp, gelu": mlp("gelu", "gelu"),
    "mlp, gelu_tanh": mlp("gelu_tanh", "gelu_tanh"),
    "mlp, silu": mlp("silu", "silu"),
    "mlp, columns divided": mlp("gelu", "gelu", across=3, columns=48),
    "mlp, ragged": mlp("relu", "sigmoid", None, widths=(84, 28, 44, 70), columns=32, resident=64),
    "rnn": cell(tile=(32, 64, 32), warps=(2, 2), stages=3, group=2),
    "lstm": cell(gates=4, tile=(32, 32, 32), warps=(2, 2), stages=4, align=(4, 4, 4, 4, 4)),
}


class Mistake(NamedTuple):
    """What stands in a file of graphene/kernels, what stands in its place, and the kernel that shows it."""

    file: str
    kernel: str
    text: str
    instead: str

    @property
    def name(self) -> str:
        """What a test calls it."""
        return f"{self.kernel}: {' '.join(self.instead.split())}"


def read(path: Path) -> list[Mistake]:
    """The mistakes of a file."""
    out = []
    for part in path.read_text().split("\n\n"):
        lines = [line for line in part.splitlines() if not line.startswith("#")]
        if lines:
            file, kernel = lines[0].split(": ")
            text, instead = ("\n".join(x[2:] for x in lines[1:] if x[0] == sign) for sign in "-+")
            out.append(Mistake(file, kernel, text, instead))
    return out


MISTAKES = read(Path(__file__).with_suffix(".txt"))


@contextlib.contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    """Within it the library has the mistake; meanings and arguments are those without."""
    module = importlib.import_module(f"graphene.kernels.{mistake.file}")
    source = Path(str(module.__file__)).read_text()
    assert mistake.text in source, mistake
    changed = dict(vars(module))
    exec(compile(source.replace(mistake.text, mistake.instead), str(module.__file__), "exec"), changed)
    patched = []
    for name, user in list(sys.modules.items()):
        if name == "graphene.kernels" or name.startswith("graphene.kernels."):
            for n, was in list(vars(user).items()):
                if getattr(was, "__module__", None) == module.__name__ and n in changed and vars(module).get(n) is was:
                    patched.append((user, n, was))
    for user, n, _ in patched:
        setattr(user, n, changed[n])
    try:
        yield
    finally:
        for user, n, was in patched:
            setattr(user, n, was)


def mistaken(mistake: Mistake) -> gr.Kernel:
    """The kernel with the mistake and the promise of the one without. Raises what building it raises."""
    right = KERNELS[mistake.kernel]()
    with planted(mistake):
        kernel = KERNELS[mistake.kernel]()
    assert str(kernel) != str(right), mistake
    p = right.promise
    assert p is not None
    return kernel.with_promise(p.means, p.read, p.arguments)
