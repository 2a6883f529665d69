"""`torch.compile`'s backend "graphene": Inductor, with a pass that puts planned kernels into its graphs."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphene.errors import LaunchError
from graphene.integrations.torch_compile.choosing import LEAST_GAIN, Chooser, Plans
from graphene.integrations.torch_compile.expected import KernelTimes
from graphene.integrations.torch_compile.measuring import MeasuredKernelTimes
from graphene.integrations.torch_compile.reading import tensor
from graphene.ops.core.plans import package_stamp
from graphene.ops.core.torch import fail, torch
from graphene.select.device import Device, architectures, current_device, the_device

NAME = "graphene.compile"
HOOK = "post_grad_custom_pre_pass"


class PlanWarning(UserWarning):
    """`graphene.compile` leaves a graph, or a region of it, to Inductor, because something is not as it expects."""


_said: set[tuple[str, str]] = set()


def warn_once(why: str, what: str = "the graph to Inductor untouched") -> None:
    """Warns once in a process for each reason."""
    if (what, why) not in _said:
        _said.add((what, why))
        warnings.warn(f"{NAME} leaves {what}: {why} [OP_TORCH]", PlanWarning, stacklevel=3)


def missing_hook() -> str:
    """What this PyTorch lacks; empty if it has everything."""
    try:
        import torch._inductor.config as config
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.custom_graph_pass import CustomGraphPass
    except ImportError as e:
        return f"PyTorch {torch.__version__} lacks what the pass needs: {e}"
    if not hasattr(config, HOOK) or not callable(compile_fx) or not hasattr(CustomGraphPass, "uuid"):
        return f"Inductor of PyTorch {torch.__version__} has no {HOOK}"
    return ""


def make_pass(backend: Backend, before: Any) -> Any:
    """The pass over Inductor's graphs; `before`: a pass that the user has set, which runs first."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class GraphenePass(CustomGraphPass):  # type: ignore[misc]
        """Replaces regions of an FX graph by planned kernels."""

        def __call__(self, graph: Any) -> None:
            for one in before:
                one(graph)
            backend.visit(graph)

        def uuid(self) -> Any:
            others = [one.uuid() if hasattr(one, "uuid") else None for one in before]
            stamp = package_stamp()
            if stamp is None or None in others:
                return None  # nothing is kept in a cache
            return ("graphene", stamp, repr(backend.device), backend.measures, *others)

    return GraphenePass()


class Backend:
    """A backend for ``torch.compile``. ``plans``: the regions of all graphs that it has seen."""

    def __init__(self, mode: str | None = None, options: Mapping[str, Any] | None = None, device: Any = None) -> None:
        modes = _modes()
        if mode is not None and mode not in modes:
            fail("OP_ARGUMENT", f"{NAME}: no mode is called {mode!r}", ["known: " + ", ".join(map(repr, modes))],
                 "pass one of them")  # fmt: skip
        if options is not None and not (isinstance(options, Mapping) and all(isinstance(k, str) for k in options)):
            fail("OP_ARGUMENT", f"{NAME}: options are a dictionary of Inductor's options", [f"got: {options!r}"],
                 'pass such as {"triton.cudagraphs": True}')  # fmt: skip
        self.patches = {**modes.get(mode or "default", {}), **_known_options(options or {})}
        self.device = None if device is None else planned_for(device)
        self.measures = (mode or "").startswith("max-autotune")
        self.plans = Plans()
        self.least_gain = LEAST_GAIN
        self._visits = 0

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Compiles a graph, as ``torch.compile`` asks for it."""
        from torch._inductor.compile_fx import compile_fx

        if why := missing_hook():
            warn_once(why)
            return compile_fx(graph, inputs, config_patches=dict(self.patches))
        import torch._inductor.config as config

        given = self.patches.get(HOOK, getattr(config, HOOK))
        before = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
        visits = self._visits
        made = compile_fx(graph, inputs, config_patches={**self.patches, HOOK: make_pass(self, before)})
        self.plans.cached += visits == self._visits
        return made

    def visit(self, graph: Any) -> None:
        """Puts planned kernels into an FX graph, which is not changed if something is not as expected."""
        import torch._inductor.config as config

        self._visits += 1
        if (device := self._device_of(graph)) is None or getattr(config, "emulate_precision_casts", False):
            return
        on_gpu = torch.cuda.is_available() and any(x.device.type == "cuda" for x in _tensors(graph))
        times = MeasuredKernelTimes(device) if self.measures and on_gpu else KernelTimes(device)
        with torch.no_grad():
            try:
                chooser = Chooser(graph, times, self.least_gain)
                chooser.choose()
            except Exception as e:  # no part of the graph has been changed
                warn_once(f"{type(e).__name__}: {e}")
                return
            chooser.replace()
        self.plans.add(chooser.listed())
        for name, why in chooser.failed:
            warn_once(why, f"the region {name} to Inductor")

    def _device_of(self, graph: Any) -> Device | None:
        """The device that plans are for: the one that was named, else that of the graph's tensors; None for others."""
        if self.device is not None:
            return self.device
        on = {x.device for x in _tensors(graph)}
        gpus = [d for d in on if d.type == "cuda"]
        if len(gpus) != 1 or torch.version.cuda is None:
            return None
        found = current_device(gpus[0].index or 0)
        return found if int(found.family.removeprefix("sm_") or 0) >= 80 else None


def _modes() -> dict[str, Any]:
    try:
        return {"default": {}, **torch._inductor.list_mode_options()}
    except AttributeError:
        return {"default": {}}


def _known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's options under their names, in which "-" may stand for "_", as in ``torch.compile``."""
    try:
        import torch._inductor.config as config

        known = {*torch._inductor.list_options(), *getattr(config, "_config", ())}  # these have other names of options
    except (AttributeError, ImportError):
        return dict(options)
    named = {name.replace("-", "_"): value for name, value in options.items()}
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3) or ["triton.cudagraphs", "max_autotune"]
            fail("OP_ARGUMENT", f"{NAME}: Inductor has no option {name!r}", ["such as: " + ", ".join(sorted(near))],
                 "pass a name of torch._inductor.list_options()")  # fmt: skip
    return named


def planned_for(device: Any) -> Device:
    """The device that plans are for: a Device, an architecture, or a CUDA device as PyTorch writes it, "cuda:0".

    Raises VerifyError KERNEL_ARGUMENT, SelectError TUNE_NO_CANDIDATE for an unknown architecture, and LaunchError
    LAUNCH_NO_DRIVER or LAUNCH_DRIVER for a CUDA device that this machine lacks.
    """
    if not isinstance(device, torch.device) and (not isinstance(device, str) or device.startswith("sm_")):
        return the_device(NAME, device, index=False)
    want = [f"want: the GPU that plans are for, by its architecture ({', '.join(architectures())}),",
            '      as a graphene.select.Device, or as a CUDA device of this machine ("cuda")',
            f"got: {device!r}"]  # fmt: skip
    fix = 'leave device= out, which plans for the GPU of the tensors, or pass an architecture such as "sm_90a"'
    try:
        where = torch.device(device)
    except RuntimeError:
        where = None
    if where is None or where.type != "cuda" or torch.version.hip is not None:
        fail("KERNEL_ARGUMENT", f"{NAME}: device does not fit", want, fix)
    index = where.index if where.index is not None else torch.cuda.current_device() if torch.cuda.is_available() else 0
    try:
        return current_device(index)
    except LaunchError as e:
        fail(str(e.code), f"{NAME}: this machine lacks the device {where}", want, fix)


def _tensors(graph: Any) -> list[Any]:
    return [x for x in map(tensor, graph.nodes) if x is not None]


def backend(
    graph: Any, inputs: Sequence[Any], mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """The backend under its name: ``torch.compile(fn, backend="graphene")``, with the modes and options of Inductor."""
    return Backend(mode, options)(graph, inputs)


def compile(
    fn: Callable[..., Any] | None = None, *, mode: str | None = None, options: Mapping[str, Any] | None = None,
    device: Any = None, fullgraph: bool = False, dynamic: bool | None = None,
) -> Any:  # fmt: skip
    """``torch.compile(fn, backend="graphene")``: Inductor, with planned kernels where these are expected to be faster.

    A region around matrix products, with the normalisation before it and what is computed from its result, becomes one
    kernel of `graphene.plan` if that is expected to be faster by 8% of the region's time; everything else is
    Inductor's. The result has ``plans``: the regions that were looked at, with the decision, its reason, both times and
    the kernel's source. `mode`, `options`, `fullgraph`, `dynamic` are those of ``torch.compile``; with a mode
    "max-autotune..." the times are measured. `device`: the GPU that plans are for, instead of that of the tensors: an
    architecture ("sm_90a"), a `graphene.select.Device`, or a CUDA device of this machine ("cuda:0"). With it regions of
    CPU tensors are replaced, too, and run on the simulator or by PyTorch's operators. Without `fn` it is a decorator.

    Where PyTorch lacks Inductor's pass, graphs stay Inductor's, and a `PlanWarning` says so once. Raises
    LaunchError OP_ARGUMENT, also for an unknown option; VerifyError KERNEL_ARGUMENT, SelectError TUNE_NO_CANDIDATE for
    an unknown device; LaunchError LAUNCH_NO_DRIVER, LAUNCH_DRIVER for a CUDA device that this machine lacks.
    """
    if fn is None:
        return lambda f: compile(f, mode=mode, options=options, device=device, fullgraph=fullgraph, dynamic=dynamic)
    if not callable(fn):
        fail("OP_ARGUMENT", f"{NAME} takes a function or a module", [f"got: {type(fn).__name__}"],
             "pass something that can be called")  # fmt: skip
    made = Backend(mode, options, device)
    compiled = torch.compile(fn, backend=made, fullgraph=fullgraph, dynamic=dynamic)
    object.__setattr__(compiled, "plans", made.plans)
    return compiled
