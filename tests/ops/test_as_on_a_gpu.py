"""Every operator by the kernels that GPUs get for it, on the simulator, against PyTorch's, with odd sizes and strides.

Beside the calls of ``test_admitted``, whose kernels do not run, these are small.
``python -m tests.ops.test_as_on_a_gpu --seconds 20 --seed 1`` runs calls of each operator for that long.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from graphene.errors import LaunchError  # noqa: E402
from graphene.ops.core.define import defined  # noqa: E402
from tests.ops.admitted import Draw  # noqa: E402
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operator", choices=sorted(CASES), action="append")
    options = parser.parse_args()
    failed = 0
    for name in options.operator or sorted(CASES):
        end, n, counts = (
            time.monotonic() + options.seconds,
            0,
            dict.fromkeys(("refused", "pytorch", "right", "wrong"), 0),
        )
        while time.monotonic() < end:
            rng = random.Random(f"{options.seed} {n}")
            n += 1
            try:
                found = tried(name, rng.choice, n)
            except Exception as e:
                found = f"{type(e).__name__}: {e}"
            counts[found if found in counts else "wrong"] += 1
            if found not in counts:
                print(f"{name}, call {n - 1}: {found}", flush=True)
        failed += counts["wrong"]
        print(f"{name}: {counts}", flush=True)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
