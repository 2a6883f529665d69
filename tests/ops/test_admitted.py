"""No call that an operator's checks admit ends in an error of a kernel's configuration: on any GPU, of any sizes.

Operators choose kernels here for GPUs that are not there; nothing is compiled or run.
``python -m tests.ops.test_admitted --seconds 20 --seed 1`` draws calls of each operator for that long.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from graphene.ops.core.define import Arg, defined  # noqa: E402
from tests.ops.admitted import admitted, chosen, other, sweep  # noqa: E402
from tests.ops.test_opcheck import CASES  # noqa: E402

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_admitted_is_computed(name: str, data: st.DataObject) -> None:
    def draw(values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    call = other(draw(CASES[name]()), defined[name], draw, draw(ARCHS))
    if admitted(defined[name], call):
        chosen(defined[name], call)


def rotary(dim: int, angle: str, align: int, interleaved: bool) -> list[Any]:
    def tensor(*shape: int, dtype: str = "float16") -> Arg:
        strides = tuple(int(torch.empty(shape, device="meta").stride(d)) for d in range(len(shape)))
        return Arg(shape, strides, dtype, "sm_90a", align)

    heads = [tensor(1, 33, n, dim) for n in (4, 1)]
    return [*heads, *(tensor(1, 33, dim, dtype=angle) for _ in range(2)), None, None, 1e-6, 0.0, interleaved]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("align", [2, 4, 8, 16])
@pytest.mark.parametrize("angle", ["float16", "float32"])
def test_heads_of_every_size_are_turned_by_a_kernel(angle: str, align: int, interleaved: bool) -> None:
    align = max(align, 4) if angle == "float32" else align
    for dim in (*range(2, 40, 2), 66, 80, 96, 128, 130, 160, 192, 250, 256, 384, 510, 512):
        assert chosen(defined["rotary"], rotary(dim, angle, align, interleaved)).launches_kernels, dim


def test_products_of_more_than_kernels_count_are_pytorchs() -> None:
    def call(m: int, k: int) -> list[Any]:
        a, b = (Arg(s, t, "float8_e4m3fn", "sm_90a", 128) for s, t in (((m, k), (k, 1)), ((k, 16), (1, k))))
        scale = Arg((1,), (1,), "float32", "sm_90a", 128)
        return [a, b, scale, scale, None, None, 15, False, None, None]

    for m, k in ((1, 2**31 - 16), (2**31, 16)):
        assert "counts sizes of more than" in chosen(defined["scaled_matmul"], call(m, k)).reason


def tried(name: str, rng: random.Random, _: int) -> str:
    """What became of a drawn call, for ``sweep``."""
    call = other(rng.choice(CASES[name]()), defined[name], rng.choice, rng.choice(ARCHS))
    if not admitted(defined[name], call):
        return "refused"
    try:
        return "kernels" if chosen(defined[name], call).launches_kernels else "pytorch"
    except Exception as e:
        return f"{type(e).__name__}: {e}".partition("\n")[0] + f"\n  {call}"


if __name__ == "__main__":
    sweep(__doc__, CASES, tried)
