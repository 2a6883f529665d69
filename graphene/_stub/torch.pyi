"""PyTorch's dispatcher: csrc/torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphene._stub.base import _Record

class RecipeLaunch(_Record):
    """A kernel of a recipe (a Launcher with a name), and its arguments as the recipe's constructor takes them."""

    kernel: Any
    arguments: list[Any]

class Recipe:
    """What a configuration of an operator does."""

    def __init__(self, outputs: Sequence[Any], returned: int, launches: Sequence[Any]) -> None: ...
    @property
    def launches_kernels(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def outputs(self) -> list[Any]: ...
    @property
    def returned(self) -> int: ...
    @property
    def launches(self) -> list[RecipeLaunch]: ...
    @staticmethod
    def copy(mask: int, reason: str) -> Recipe: ...
    @staticmethod
    def torch(reason: str) -> Recipe: ...

class CallDescription(_Record):
    """What a call of an operator would do.

    ``outcome``: "launch"; "copy", if the tensors ``copies`` must be made row-major first; "torch", if PyTorch computes
    the call; ``reason`` says why. ``outputs``: dtype and shape, ``returned`` of which are results. In ``launches`` a
    view is (source, shape, strides).
    """

    outcome: str
    reason: str
    copies: list[int]
    outputs: list[tuple[str, tuple[int, ...]]]
    returned: int
    launches: list[RecipeLaunch]

class Operator:
    """An operator on PyTorch's CUDA tensors.

    Where PyTorch's dispatcher must see a call, it returns what `otherwise` returns, or NotImplemented without one.
    """

    configured: int
    forms: int
    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, str, Sequence[str], int | str]],
        returned: int,
        configure: Callable[..., Recipe],
        otherwise: Callable[..., Any] | None = None,
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...
    def described(self, *args: Any) -> CallDescription: ...
    def check(self, *args: Any) -> None: ...
    def register(self, space: str, name: str, own: str, key: str) -> str: ...

def set_torch(names: Mapping[str, Any]) -> None: ...

class TorchState(_Record):
    """What a call of an operator in this thread meets.

    Whether PyTorch is asked without Python, whether something must see operators, whether gradients are wanted.
    """

    without_python: bool
    watched: bool
    gradients: bool

def torch_state() -> TorchState: ...
