"""A CUDA graph without a GPU: operators that are written down while they run, and run again on the same tensors.

Like the capture of a graph, recording changes no tensor and its results hold nothing yet; a replay runs no Python, so
numbers are those of the recording. What a capture refuses raises the same kind of error. A graph owns the memory of
tensors that were made in it and no other: a tensor from outside that nobody else holds is gone at the replay.
"""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
         aten.repeat_interleave.Tensor, aten._unique2.default, aten.is_nonzero.default}  # fmt: skip
REFUSED = "operation not permitted when stream is capturing"


class Outer:
    """A tensor from outside of a recording, whose memory the recording does not hold."""

    def __init__(self, tensor) -> None:
        self.memory = StorageWeakRef(tensor.untyped_storage())
        self.dtype, self.place = tensor.dtype, (tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self):
        """The tensor, where its memory is still held; AssertionError where a replay would read what was freed."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.memory.cdata)
        assert storage is not None, "a replay uses memory that nobody held after the recording"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.place)


class Tape(TorchDispatchMode):
    """Writes down every operator with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []
        self.made: set[int] = set()  # memory of tensors that the recording made
        self.before: dict[int, tuple] = {}  # tensors that it wrote to, and what they held
        self.numbers: set[int] = set()  # memory of numbers on the host, which a launch takes by their values

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func in (aten.index.Tensor, aten.index_put_.default) and any(
            t is not None and t.dtype == torch.bool for t in args[1]
        )
        if func in WAITS or by_mask:
            raise RuntimeError(f"{REFUSED}: {func}")
        for tensor in written(func, args, kwargs):
            at = tensor.untyped_storage().data_ptr()
            if at not in self.made and at not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[at] = (whole, whole.clone())
        out = func(*args, **kwargs)
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if not func.is_view and not any(True for _ in written(func, args, kwargs)):
            self.made |= {t.untyped_storage().data_ptr() for t in results}
        self.calls.append((func, args, kwargs, results))
        return out

    def take_back(self) -> None:
        """Gives every tensor what it held before the recording, and results nothing; lets go of outer tensors."""
        for whole, held in self.before.values():
            whole.copy_(held)
        self.before = {}
        for func, _, _, results in self.calls:
            for t in results:
                if t.untyped_storage().data_ptr() in self.made and not func.is_view and t.is_floating_point():
                    t.fill_(float("nan"))
        self.calls = [tree_map_only(torch.Tensor, self.own, call) for call in self.calls if not call[0].is_view]

    def own(self, tensor):
        """What the recording keeps of a tensor."""
        return tensor if tensor.untyped_storage().data_ptr() in self.made | self.numbers else Outer(tensor)

    def tensor(self, *args, device=None, **named):
        """What ``torch.tensor`` does meanwhile."""
        made = TENSOR(*args, **named)
        if device is not None and made.numel():
            raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")
        self.numbers.add(made.untyped_storage().data_ptr())
        return made

    def replay(self) -> None:
        """Runs the operators again; new results go where those of the recording are."""
        for call in self.calls:
            func, args, kwargs, results = tree_map_only(Outer, Outer.tensor, call)
            new = func(*args, **kwargs)
            for old, t in zip(results, (t for t in tree_leaves(new) if isinstance(t, torch.Tensor)), strict=True):
                if old.data_ptr() != t.data_ptr() or old.shape != t.shape:
                    old.copy_(t)


def written(func, args, kwargs):
    """The tensors that an operator writes to."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (t for t in tree_leaves(value) if isinstance(t, torch.Tensor))


TENSOR = torch.tensor


class Recorded:
    """In place of the integration's own; ``made`` counts them."""

    made: list = []  # noqa: RUF012

    def __init__(self, run, pool=None) -> None:
        self.replays, self.tape = 0, Tape()
        Recorded.made.append(self)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "tensor", self.tape.tensor)
            with self.tape:
                self.result = run()
        self.tape.take_back()

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            self.tape.replay()
