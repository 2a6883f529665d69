"""Forward passes of an accelerated model as CUDA graphs, where no gradient is wanted and the host is what limits.

A form is what a pass depends on apart from the values of its tensors: their names, shapes and dtypes, other arguments,
and what is known of the padding. The second pass of a form is run by itself, watched, recorded, replayed, and both ways
are compared and timed; so is the next one. Inputs are copied into tensors that stay, and results out of the graph's.

A recorded pass repeats launches, not Python. So nothing is recorded that draws random numbers, writes to tensors of the
model, reads numbers from the device, or changes its modules; and what the modules hold is compared at each call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import output_capturing
from transformers.utils.generic import ModelOutput

from graphene.integrations.transformers import _generate, _masks, _measure, _packing, _steps
from graphene.nn._hooks import globally_hooked

FORMS = 16  # as many forms are recorded; of more, the one that was used longest ago is given up
SIGHTED = 256  # as many arguments are remembered, to know a second pass
REFUSALS = 4  # after as many refused forms, and none recorded, no other one is tried
CHANGES = 4  # nor after as many changes of the model's modules
PROOFS = 2  # as many passes of a form run both ways
ROUNDINGS = 4  # the distance of results whose products have other numbers of rows, in those of `_steps.SAME`
MEMORY = 0.1  # the part of free memory that a recorded pass may take
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
KEPT = (dict, OrderedDict, list, set)  # what of a module's attributes is compared by its elements
aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
         aten.is_nonzero.default, aten._unique2.default, aten.repeat_interleave.Tensor}  # fmt: skip

INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
CHOICES = (torch.bool, torch.uint8)  # of indices that choose as many elements as there are


class Refused(Exception):  # noqa: N818  (it is no error: the pass runs as it would without a recording)
    """Why a pass is not recorded, in words."""


class PassForm(NamedTuple):
    """What a pass depends on apart from the values of its tensors, and these tensors by name."""

    key: tuple[Any, ...]
    tensors: dict[str, Any]


class Padding(NamedTuple):
    """What is known of a mask's padding in all passes of a form. ``rows``, ``longest``: not fewer than there are."""

    shape: tuple[int, ...]
    rows: int
    longest: int
    first: bool
    full: bool
    pays: bool


def padding_of(mask: Any) -> Padding:
    """What is to be known of the padding of a mask (batch, keys). Waits for the device."""
    seen, count = _masks.counted(mask.bool()), mask.numel()
    if seen.full:
        return Padding(tuple(mask.shape), count, mask.shape[1], seen.first, True, False)
    step = max(64, 1 << max(seen.rows.bit_length() - 5, 0))  # at most a 16th is computed for nothing
    rows, longest = (min(-(-n // by) * by, end) for n, by, end in
                     ((seen.rows, step, count), (seen.longest, 64, mask.shape[1])))  # fmt: skip
    return Padding(tuple(mask.shape), rows, longest, seen.first, False, _packing.pays(seen.rows, count))


class PassWatch(TorchDispatchMode):  # type: ignore[misc]
    """Watches a pass: raises Refused at what a recording would not repeat, and collects tensors from outside of it.

    ``inputs``: the tensors that the pass is given; ``mask``: the one whose padding is known.
    """

    def __init__(self, inputs: list[Any], mask: Any) -> None:
        super().__init__()
        self.inputs = {_memory(t) for t in inputs}
        self.on_gpu = any(t.is_cuda for t in inputs)
        self.of_mask = set() if mask is None else {_memory(mask)}  # memory of what follows from the mask alone
        self.of_nothing: set[int] = set()  # memory of what is the same in each pass of a form
        self.made: set[int] = set()
        self.outer: dict[int, Any] = {}  # tensors that are neither inputs nor made in the pass
        self.asleep = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, and looks at its tensors."""
        kwargs = kwargs or {}
        if self.asleep:
            return func(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        given = [t for t in given if type(t) is not _masks.Mask]  # what it is written from is seen by itself
        if func in WAITS or (func in INDEXES and any(i is not None and i.dtype in CHOICES for i in args[1])):
            raise Refused("it reads numbers from the device")
        for t in given:
            if type(t) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise Refused(f"it computes with a {type(t).__name__}")
            if (at := _memory(t)) not in self.made and at not in self.inputs:
                self.outer.setdefault(at, t)
        written = list(_written(func, args, kwargs))
        if any(_memory(t) not in self.made for t in written):
            raise Refused("it writes to tensors that it keeps, or to its inputs")
        out = func(*args, **kwargs)
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and type(t) is not _masks.Mask]
        if self.on_gpu and len({t.is_cuda for t in (*given, *results) if t.dim() and t.numel()}) > 1:
            raise Refused("it copies tensors between the host and the device")
        constant = all(_memory(t) in self.of_nothing for t in given)
        follows = not constant and all(_memory(t) in self.of_mask or _memory(t) in self.of_nothing for t in given)
        for t in results:
            if (at := _memory(t)) not in self.outer and at not in self.inputs:
                self.made.add(at)
        for at in map(_memory, (*results, *written)):
            for which, holds in ((self.of_nothing, constant), (self.of_mask, follows)):
                (which.add if holds else which.discard)(at)
        return out

    @contextmanager
    def sleep(self) -> Iterator[None]:
        """Looks away."""
        self.asleep = True
        try:
            yield
        finally:
            self.asleep = False

    def follows(self, padding: Any, mask: Any) -> bool:
        """Whether a tensor of tokens follows from the mask alone."""
        return mask is not None and padding.shape == mask.shape and _memory(padding) in self.of_mask

    def is_constant(self, padding: Any) -> bool:
        """Whether a tensor of tokens is the same in each pass."""
        return _memory(padding) in self.of_nothing


def _memory(t: Any) -> int:
    return int(t.untyped_storage()._cdata)


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The tensors that an operator writes to."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (t for t in tree_leaves(value) if isinstance(t, torch.Tensor))


class HeldState:
    """What the modules and configurations of a model hold, to see whether it changed.

    Lists, sets and dictionaries are compared by their elements, other objects by what they are.
    """

    def __init__(self, model: Any) -> None:
        modules = list(model.modules())
        configs = {id(c): c for m in modules if (c := m.__dict__.get("config")) is not None and hasattr(c, "__dict__")}
        outer: list[Any] = [m.__dict__ for m in modules] + [vars(c) for c in configs.values()]
        self.live: list[Any] = []
        seen: set[int] = set()
        while outer:
            held = outer.pop()
            if id(held) not in seen:
                seen.add(id(held))
                self.live.append(held)
                outer += [v for v in (held.values() if isinstance(held, dict) else held) if type(v) in KEPT]
        self.held = [held.copy() for held in self.live]
        self.modules, self.types = modules[1:], [type(m) for m in modules[1:]]
        self.tensors = [*model.parameters(), *model.buffers()]
        self.at = [t.data_ptr() for t in self.tensors]
        self.written = [0 if t.is_inference() else t._version for t in self.tensors]

    def unchanged(self) -> None:
        """Raises Refused where a pass changed something."""
        if not self.holds():
            raise Refused("its modules change in each pass")
        if self.written != [0 if t.is_inference() else t._version for t in self.tensors]:
            raise Refused("it writes to tensors that it keeps, or to its inputs")

    def holds(self) -> bool:
        """Whether everything is as it was."""
        try:
            same = self.live == self.held and list(map(type, self.modules)) == self.types
            return same and [t.data_ptr() for t in self.tensors] == self.at
        except Exception:  # what cannot be compared is not the same
            return False


class RecordedPass:
    """A recorded pass: what it reads and gives, and what must stay as long as it is used."""

    def __init__(self, form: PassForm, padding: Padding | None) -> None:
        self.tensors = {n: t.clone(memory_format=torch.contiguous_format) for n, t in form.tensors.items()}
        self.padding = padding
        self.graph: Any = None
        self.outer: list[Any] = []
        self.proofs = 0

    def replay(self, tensors: dict[str, Any]) -> Any:
        """The results for a call's tensors."""
        for name, t in tensors.items():
            self.tensors[name].copy_(t)
        self.graph.replay()
        return copied(self.graph.result)


class PlainPass(NamedTuple):
    """A call of a model, which computes its results without a recording."""

    run: Callable[..., Any]
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def results(self) -> Any:
        """Its results."""
        return self.run(self.model, *self.args, **self.kwargs)


class Passes:
    """The recorded forward passes of a model, which are called in place of its forward.

    ``names``: of the forward's positional arguments. ``say``: told why no pass is recorded any more.
    """

    def __init__(self, model: Any, names: list[str], say: Callable[[str], None]) -> None:
        self.model, self.names, self.say = weakref.ref(model), names, say
        self.lock = threading.Lock()
        self.why: str | None = None  # why no pass is recorded any more
        self.sighted: OrderedDict[Any, None] = OrderedDict()
        self.known: OrderedDict[Any, RecordedPass] = OrderedDict()
        self.refused: dict[Any, str] = {}
        self.state: HeldState | None = None
        self.changes = 0
        self.stream: Any = None  # all recorded passes share memory, so they run on one stream
        self.pool: Any = None

    def release(self) -> None:
        """Frees what was recorded."""
        self.known.clear()
        self.sighted.clear()
        self.state = self.pool = None

    def __call__(self, run: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a pass, which ``run`` computes."""
        form = self.form(model, args, kwargs)
        if form is None or not self.second(form.key) or not self.lock.acquire(blocking=False):
            return run(model, *args, **kwargs)
        try:
            return self.locked(PlainPass(run, model, args, kwargs), form)
        finally:
            self.lock.release()

    def second(self, key: Any) -> bool:
        """Whether a pass with such arguments ran before."""
        if key in self.sighted:
            return True
        self.sighted[key] = None
        if len(self.sighted) > SIGHTED:
            self.sighted.popitem(last=False)
        return False

    def form(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PassForm | None:
        """The form of a pass as far as it is known without waiting for the device; None where nothing is recorded."""
        if kwargs.get("past_key_values") is not None or len(args) > len(self.names) or not usual(model, self.model()):
            return None
        given = dict(zip(self.names, args, strict=False))
        if given.keys() & kwargs.keys():
            return None
        device = next(model.parameters()).device
        key: list[Any] = list(_surroundings())
        tensors: dict[str, Any] = {}
        for name, value in (given | kwargs).items():
            if type(value) is torch.Tensor and value.layout is torch.strided and value.device == device:
                tensors[name] = value
                key.append((name, tuple(value.shape), value.dtype))
            elif isinstance(value, PLAIN):
                key.append((name, type(value), value))
            else:
                return None
        return PassForm((len(args), *key), tensors) if tensors else None

    def locked(self, call: PlainPass, form: PassForm) -> Any:
        """The results of a pass whose arguments were seen before."""
        if self.state is not None and not self.state.holds():
            self.release()
            self.changes += 1
            self.end("its modules change between passes" if self.changes > CHANGES else None)
            return call.results()
        mask = form.tensors.get("attention_mask")
        padding = padding_of(mask) if mask is not None and mask.dim() == 2 else None
        if padding is not None and not padding.longest:
            return call.results()
        key = (form.key, padding)
        found = self.known.get(key)
        try:
            if found is None:
                return call.results() if key in self.refused else self.recording(call, key, form, padding)
            self.known.move_to_end(key)
            if found.proofs >= PROOFS:
                return found.replay(form.tensors)
            want = call.results()
            if not alike(want, found.replay(form.tensors), ROUNDINGS):
                raise Refused("a recorded pass gave other results than one that was not recorded")
            found.proofs += 1
            return want
        except Refused as why:
            self.refuse(key, str(why))
            return call.results()

    def refuse(self, key: Any, why: str) -> None:
        """Records this form no more."""
        self.known.pop(key, None)
        if len(self.refused) > SIGHTED:
            self.refused.clear()
        self.refused[key] = why
        counted = [w for w in self.refused.values() if w != SLOWER]
        if len(counted) >= REFUSALS and not self.known:
            self.end(counted[-1])

    def end(self, why: str | None) -> None:
        """Records nothing any more, if there is a reason."""
        if why is not None:
            self.why = why
            self.release()
            self.say(why)

    def recording(self, call: PlainPass, key: Any, form: PassForm, padding: Padding | None) -> Any:
        """Runs a pass, and records it. Returns the results of the pass that was not recorded."""
        state, random = HeldState(call.model), _random(call.model)
        want = call.results()
        try:
            if _random(call.model) != random:  # what a pass changes, another one would change again
                raise Refused("it draws random numbers")
            state.unchanged()
            self.known[key] = self.recorded(call, form, padding, want)
            self.state = self.state or state
        except Refused as why:
            self.refuse(key, str(why))
        except Exception as error:  # what a model does in a pass may be anything
            said = str(error).strip().splitlines()
            self.refuse(key, f"a pass cannot be recorded: {said[0] if said else type(error).__name__}")
        if len(self.known) > FORMS:
            self.known.popitem(last=False)
        return want

    def recorded(self, call: PlainPass, form: PassForm, padding: Padding | None, want: Any) -> RecordedPass:
        """A recorded pass, whose results are those that are wanted. Raises Refused."""
        model = call.model
        if any(_generate.watched(m) for m in model.modules() if m is not model):
            raise Refused("something hooks into its modules, or replaced their forward")
        on_gpu = next(model.parameters()).is_cuda
        stream = torch.cuda.current_stream() if on_gpu else None
        if self.known and stream != self.stream:
            raise Refused("its passes run on several streams")
        made, random = RecordedPass(form, padding), _random(model)
        held = dict(zip(self.names, call.args, strict=False)) | call.kwargs | made.tensors

        mask: Any = None if padding is None else made.tensors["attention_mask"]
        counts: list[_masks.Tokens] = []  # of masks that are the same in each pass

        def run(watch: PassWatch, recording: bool = True) -> Any:
            constant = iter(counts)

            def tokens(seen: Any) -> _masks.Tokens:
                if watch.is_constant(seen):
                    if recording:
                        return next(constant)._replace(lengths=seen.sum(-1, dtype=torch.int32))
                    with watch.sleep():
                        counts.append(_masks.counted(seen))
                    return counts[-1]
                with watch.sleep():
                    known = watch.follows(seen, mask) and (recording or torch.equal(seen, mask.bool()))
                if padding is None or not known:
                    raise Refused("it makes masks of its own")
                lengths = seen.sum(-1, dtype=torch.int32)
                return _masks.Tokens(lengths, padding.rows, padding.longest, padding.first, padding.full, padding.pays)

            with _masks.known(tokens), watch:
                result = call.run(model, **held)
            made.outer += watch.outer.values()  # a graph holds no memory that was made before it
            return result

        def watch() -> PassWatch:
            return PassWatch(list(made.tensors.values()), mask)

        first = copied(run(watch(), recording=False))
        if not alike(want, first, ROUNDINGS):
            raise Refused("it depends on more of its mask than is known before")
        if _random(model) != random:
            raise Refused("it draws random numbers")
        with _few_bytes(on_gpu):
            if on_gpu and self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            made.graph = _steps.GraphOfLaunches(lambda: run(watch()), self.pool)
        if not alike(first, made.replay(form.tensors), 1):
            raise Refused("a recorded pass gave other results than one that was not recorded")
        if not quicker(lambda: made.replay(form.tensors), call.results, on_gpu):
            raise Refused(SLOWER)
        self.stream, made.proofs = stream, 1
        return made


def unfit(model: Any) -> str | None:
    """Why no pass of this model is recorded; None if some may."""
    if "forward" in model.__dict__:
        return "something else replaced its forward"
    if getattr(model, "hf_quantizer", None) is not None or hasattr(model, "hf_device_map"):
        return "it is quantized or spread over devices"
    return None if _generate.on_one_gpu(model) else "it is not on one GPU"


SLOWER = "a recorded pass takes as long"


def usual(model: Any, recorded: Any) -> bool:
    """Whether nothing around a call of a model sees more than its results."""
    device = next((p.device for p in model.parameters()), None)
    if model is not recorded or device is None or not _measure.possible(device):
        return False
    if torch.is_autocast_enabled(device.type) or torch._C._are_functorch_transforms_active() or globally_hooked():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._is_torch_function_mode_enabled() or torch.jit.is_tracing():
        return False
    if device.type == "cuda" and (
        torch.cuda.is_current_stream_capturing() or device.index != torch.cuda.current_device()
    ):
        return False
    return not output_capturing._active_collector.get()


def _surroundings() -> tuple[Any, ...]:
    """What a pass depends on that stands around it."""
    cuda = torch.backends.cuda.matmul
    return (
        torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), cuda.allow_fp16_reduced_precision_reduction,
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark,
        torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0,
    )  # fmt: skip


def names_of(run: Callable[..., Any]) -> list[str]:
    """The names of a forward's positional arguments."""
    found = []
    for parameter in list(inspect.signature(run).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            break
        found.append(parameter.name)
    return found


def _grows(x: Any) -> bool:
    """Whether a result is a cache of keys and values that holds nothing else."""
    return type(x) is DynamicCache and not x.offloading and all(type(n) is DynamicLayer for n in x.layers)


def copied(x: Any) -> Any:
    """Results in memory of their own. Raises Refused for anything but tensors, numbers and collections of them."""
    if type(x) is torch.Tensor:
        return x.clone()
    if isinstance(x, PLAIN):
        return x
    if _grows(x):
        cache = copy.copy(x)
        cache.layers = [copy.copy(n) for n in x.layers]
        for layer in cache.layers:
            layer.keys, layer.values = copied(layer.keys), copied(layer.values)
        return cache
    if isinstance(x, ModelOutput):
        return type(x)(**{k: copied(v) for k, v in x.items()})
    if type(x) in (tuple, list):
        return type(x)(copied(v) for v in x)
    if type(x) is dict:
        return {k: copied(v) for k, v in x.items()}
    raise Refused(f"its results hold a {type(x).__name__}")


def alike(want: Any, got: Any, roundings: float) -> bool:
    """Whether results are the same but for as many roundings."""
    if type(want) is not type(got):
        return False
    if isinstance(want, torch.Tensor):
        if want.shape != got.shape or want.dtype != got.dtype:
            return False
        if not want.is_floating_point():
            return bool(torch.equal(want, got))
        near = roundings * _steps.SAME.get(want.dtype, _steps.SAME[torch.float32])
        there, a, b = want.isfinite(), want.float(), got.float()
        other = a.eq(b) | (a.isnan() & b.isnan())
        off, size = (torch.where(there, t, 0) for t in (a - b, a))
        if not bool((there | other).all()) or not bool(got.isfinite().eq(there).all()):
            return False
        return bool(off.norm() <= near * size.norm()) and bool(off.abs().sum() == 0 or _most(off, size) <= 32 * near)
    if _grows(want):
        a, b = ([(n.keys, n.values) for n in x.layers] for x in (want, got))
        return alike(a, b, roundings)
    if isinstance(want, dict):  # such as ModelOutput
        return want.keys() == got.keys() and all(alike(v, got[k], roundings) for k, v in want.items())
    if isinstance(want, (tuple, list)):
        return len(want) == len(got) and all(alike(v, w, roundings) for v, w in zip(want, got, strict=True))
    return bool(want == got)


def _most(off: Any, size: Any) -> float:
    """The largest difference, in the largest value."""
    return float(off.abs().max() / size.abs().max())


def quicker(replay: Callable[[], Any], usually: Callable[[], Any], on_gpu: bool) -> bool:
    """Whether a recorded pass takes less time than one that is not recorded."""

    def seconds(run: Callable[[], Any]) -> float:
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    both = [(seconds(replay), seconds(usually)) for _ in range(3)]
    return min(a for a, _ in both) <= _measure.GAIN * min(b for _, b in both)


def _random(model: Any) -> tuple[Any, ...]:
    """The states of random numbers."""
    on_gpu = next(model.parameters()).is_cuda
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]
    return tuple(s.numpy().tobytes() for s in states)


@contextmanager
def _few_bytes(on_gpu: bool) -> Iterator[None]:
    """Raises Refused where what is done inside takes much of the device's free memory."""
    before = torch.cuda.memory_reserved() if on_gpu else 0
    free = _generate._free(torch.device("cuda")) if on_gpu else 0.0
    try:
        yield
    except torch.OutOfMemoryError:
        raise Refused("there is no memory to record it") from None
    if on_gpu and torch.cuda.memory_reserved() - before > MEMORY * free:
        raise Refused(f"a recorded pass takes more than {MEMORY:.0%} of the free memory")


def methods(original: Any, passes: Passes) -> dict[str, Any]:
    """The forward of a class of models, with recorded passes."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or self.training or passes.why is not None:
            return original.forward(self, *args, **kwargs)
        return passes(original.forward, self, args, kwargs)

    return {"forward": forward}
