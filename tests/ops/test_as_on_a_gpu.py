"""Every operator by the kernels that GPUs get for it, on the simulator, against PyTorch's, with odd sizes and strides.

Beside the calls of ``test_admitted``, whose kernels do not run, these are small.
``python -m tests.ops.test_as_on_a_gpu --seconds 20 --seed 1`` runs calls of each operator for that long.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from graphene.errors import LaunchError  # noqa: E402
from graphene.ops.core.define import defined  # noqa: E402
from tests.ops.admitted import Draw, sweep  # noqa: E402
from tests.ops.as_on_a_gpu import differs, laid, run  # noqa: E402
from tests.ops.cpu_cases import quiet  # noqa: E402
from tests.ops.test_opcheck import CASES  # noqa: E402

__all__ = ["quiet"]

# Their arguments belong together: tests of gradients give them what a forward pass saved.
UNJUDGED = ("attention_backward", "attention_varlen_backward")


def tried(name: str, draw: Draw, seed: int) -> str:
    """What became of a call: "refused", "pytorch", "right", or what is wrong with its results."""
    op = defined[name]
    torch.manual_seed(seed)
    args = laid(draw(CASES[name]()), op, draw)
    if args is None:
        return "refused"
    arch = draw(("sm_80", "sm_90a"))
    also = [x.clone() if i == op._written else x for i, x in enumerate(args)]
    try:
        op.definition.results(*args)
        got = run(op, args, arch)
    except LaunchError as e:
        # What no kernel may read is refused by an operator; one that only gradients call may leave it to its kernels.
        if e.code.startswith("OP_") or (op.definition.part_of and e.code == "LAUNCH_DTYPE"):
            return "refused"
        raise
    if got is None:
        return "pytorch"
    want = op._reference(*also)
    want = [also[op._written]] if op._written is not None else list(want) if isinstance(want, tuple) else [want]
    wrong = None if name in UNJUDGED else differs(got, want, args)
    return "right" if wrong is None else f"{wrong}; on {arch}: {described(args)}"


def described(args: Any) -> str:
    return str([(x.dtype, tuple(x.shape), x.stride(), x.data_ptr() % 128) if isinstance(x, torch.Tensor) else x
                for x in args])  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), seed=st.integers(0, 9))
def test_the_kernels_of_gpus_are_right(name: str, data: st.DataObject, seed: int) -> None:
    found = tried(name, lambda values: data.draw(st.sampled_from(values)), seed)
    assert found in ("refused", "pytorch", "right"), found


def drawn(name: str, rng: random.Random, number: int) -> str:
    """What became of a drawn call, for ``sweep``."""
    try:
        return tried(name, rng.choice, number + 1)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


if __name__ == "__main__":
    sweep(__doc__, CASES, drawn)
