"""The kernel: recorded by running Python once under ``with gr.Kernel(name) as kernel:``."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene import check as _check
from graphene import promise as _promise
from graphene import report as _report
from graphene import simulate as _simulate
from graphene.errors import GrapheneError, SelectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from graphene._core import Binary, KernelIR, LaunchManifest, Program
    from graphene.check import CheckResult, Mutant
    from graphene.dtypes import DType
    from graphene.promise import Arguments, Promise
    from graphene.report import Report
    from graphene.simulate import SimulationStats, Sync

__all__ = ["Kernel", "parse"]


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a kernel is read from text, got {text!r}")
    return text


class Kernel(_core.Launcher):
    """A kernel: specs over data tensors and thread tensors.

    ``with gr.Kernel("name") as kernel:`` records what is called inside; afterwards the kernel cannot be changed.

    ``print(kernel)`` shows its IR, ``gr.parse(str(kernel)) == kernel``. ``kernel(*args, **named)`` runs it: on CUDA
    tensors it is compiled once per device and launched on the current stream, NumPy arrays and CPU tensors go through
    the simulator; arguments in declaration order or by name, written in place.

    ``means``: what it computes, a NumPy function of its arguments by name, which ``check`` holds it to; ``read``: how
    its outputs are to be read first, where they only make sense so; ``arguments``: ``prepare(args, rng)`` or
    ``gr.Arguments``, what makes arguments sensible; ``sums``: the type that sums are kept in, fp32 unless all outputs
    are fp64 (docs/simulator.md). They belong to this object: text, JSON and pickles go without
    (``with_promise``).

    Raises VerifyError KERNEL_NESTED inside another kernel, KERNEL_CLOSED when it is recorded already, KERNEL_NAME
    unless the name is an identifier, KERNEL_ARGUMENT for a meaning that cannot be called.
    """

    def __init__(
        self,
        name: str,
        means: Callable[..., Any] | None = None,
        read: Callable[..., Any] | None = None,
        arguments: Callable[..., None] | Arguments | None = None,
        sums: DType | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._promise = _promise.make(means, read, arguments, sums)
        self._builder: _core.Builder | None = None
        self._stage = _core.Stage("build")
        self._closed: KernelIR | None = None
        self._programs: dict[str, Program] = {}
        self._binaries: dict[str, Binary] = {}
        self._usual_arch: str | None = None  # what None means

    @classmethod
    def _from_ir(cls, ir: KernelIR) -> Kernel:
        kernel = cls(ir.name)
        kernel._closed = ir
        return kernel

    def __enter__(self) -> Kernel:
        if self._builder is not None:
            _core.fail("KERNEL_NESTED", f"the kernel {self._name} is being recorded already", [],
                       "open it by one `with`")  # fmt: skip
        if self._closed is not None:
            _core.fail("KERNEL_CLOSED", f"the kernel {self._name} is recorded already", [],
                       "make another one: gr.Kernel(name)")  # fmt: skip
        self._builder = _core.Builder(self._name)
        self._stage.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        builder, self._builder = self._builder, None
        if builder is None:
            if kind is None:
                _core.fail("KERNEL_CLOSED", f"the kernel {self._name} is not being recorded", [],
                           "open it by `with`, which also closes it")  # fmt: skip
            return
        self._stage.__exit__()
        if kind is not None:
            builder.abandon()
            return
        try:
            self._closed = builder.close()
        finally:
            builder.abandon()

    @property
    def name(self) -> str:
        """The kernel's name, an identifier; also the function's in the generated code."""
        return self._name

    @property
    def ir(self) -> KernelIR:
        """The recorded kernel as the C++ core holds it. Raises VerifyError KERNEL_UNRECORDED before that has ended."""
        if self._closed is None:
            _core.fail("KERNEL_UNRECORDED", f"the kernel {self._name} has not been recorded", [],
                       "leave its `with` block first")  # fmt: skip
        return self._closed

    @property
    def promise(self) -> Promise | None:
        """What the kernel was said to mean; None for one without ``means``, and for a parsed one."""
        return self._promise

    def with_promise(
        self,
        means: Callable[..., Any] | None = None,
        read: Callable[..., Any] | None = None,
        arguments: Callable[..., None] | Arguments | None = None,
        sums: DType | None = None,
    ) -> Kernel:
        """The same kernel with a promise, as ``gr.Kernel`` takes it: for one that was parsed, or to promise less.

        Raises VerifyError KERNEL_ARGUMENT for a meaning that cannot be called.
        """
        kernel = Kernel._from_ir(self.ir)
        kernel._promise = _promise.make(means, read, arguments, sums)
        kernel._programs = self._programs
        return kernel

    # The text and JSON forms.

    def __str__(self) -> str:
        return _core.ir_print(self.ir)

    def __repr__(self) -> str:
        return f"<graphene.Kernel {self._name}>"

    def _repr_html_(self) -> str:
        """What notebooks show: the IR, or the plain representation while the kernel is being recorded."""
        if self._closed is None:
            return html.escape(repr(self))
        return f"<pre>{html.escape(str(self))}</pre>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kernel):
            return NotImplemented
        if self is other or self._closed is None or other._closed is None:
            return self is other
        return _core.ir_equal(self.ir, other.ir)

    def __hash__(self) -> int:
        return hash(self._name)

    def to_json(self, indent: int = -1, locations: bool = False) -> str:
        """The kernel as JSON, every field by name (docs/ir_text.md); ``locations`` adds Python file and line."""
        return _core.ir_to_json(self.ir, indent, locations)

    @staticmethod
    def from_json(text: str) -> Kernel:
        """The kernel that ``to_json`` wrote.

        Raises VerifyError: IR_JSON_SYNTAX with line and column, IR_FORMAT for another schema version, IR_JSON_VALUE
        with the JSON pointer of what is wrong.
        """
        return Kernel._from_ir(_core.ir_from_json(_text(text)))

    def __reduce__(self) -> tuple[Callable[[str], Kernel], tuple[str]]:
        """Pickled and copied as its JSON, with the Python lines. KERNEL_UNRECORDED while it is being recorded."""
        return Kernel.from_json, (self.to_json(locations=True),)

    # Code.

    def lowered(self, arch: str | None = None) -> Program:
        """The kernel verified and lowered for ``arch`` ("sm_80", "sm_90a", ...); kept.

        None: the lowest architecture from sm_80 up that has every named atom, or sm_90a where only that has an
        instruction for every leaf.

        Raises VerifyError (VERIFY_*, LOWER_*) and SelectError (NO_ATOM, ...) with every problem at once; SelectError
        ARCH_UNKNOWN for an architecture that does not exist.
        """
        if arch is None:
            return self._lowered_for_any()
        arch = _core.architecture(arch)
        program = self._programs.get(arch)
        if program is None:
            program = self._programs[arch] = _core.lower(self.ir, arch)
        return program

    def _lowered_for_any(self) -> Program:
        if self._usual_arch is None:
            self._usual_arch = _core.default_arch(self.ir)
            try:
                return self.lowered(self._usual_arch)
            except SelectError as refused:
                try:
                    program = self.lowered("sm_90a")
                except GrapheneError:
                    raise refused from None
                self._usual_arch = "sm_90a"
                return program
        return self.lowered(self._usual_arch)

    def cuda_source(self, arch: str) -> str:
        """The CUDA C++ that is compiled for ``arch``: header-free, one commented block per spec.

        Raises as lowered, and LayoutError TENSOR_INDEX where an index is outside of its view whatever the sizes are.

        For "gfx90a" it is HIP C++, which Graphene itself neither compiles nor launches.
        """
        return self.lowered(_core.architecture(arch)).cuda_source()

    def compile(self, arch: str) -> Binary:
        """Compiles for ``arch`` with NVRTC, or takes the cubin from the disk cache; needs no GPU.

        The result has ``.ptx .cubin .registers .spill_bytes .shared_bytes``. Raises CompileError besides what
        ``lowered`` raises.
        """
        binary = self._binaries.get(_core.architecture(arch))
        if binary is None:
            program = self.lowered(arch)
            binary = _core.compile_source(program.cuda_source(), program.entry, arch, self._name)
            self._binaries[arch] = binary
        return binary

    # Hooks of the launcher, called when it meets a device or arguments for the first time.

    def _manifest(self, arch: str, /) -> LaunchManifest:
        return self.lowered(arch).manifest()

    def _prepare(self, device_index: int, arch: str, /) -> Binary:
        return self.compile(arch)

    def _call_host(self, *args: object, **named: object) -> None:
        _simulate.simulate(self, args, named)

    # Running without a GPU.

    def simulate(
        self,
        *args: object,
        arch: str | None = None,
        seed: int = 0,
        skip: Iterable[int] = (),
        relax: Iterable[int] = (),
        trace: bool = False,
        roundings: bool = False,
        memory_bytes: int = _simulate.MEMORY_BYTES,
        **named: object,
    ) -> SimulationStats:
        """Runs the kernel on NumPy arrays or CPU tensors, in place, with every memory access checked.

        Arguments in declaration order or by name. ``arch``: whose atoms run; None: the lowest from sm_80 up that has
        every named atom. ``seed``: order of blocks and warps. ``skip``: ids from ``syncs()`` of synchronisation
        statements to leave out, to see that they are needed; ``relax``: of waits that leave one more group of copies in
        flight. ``trace``: the result's ``.trace`` is a timeline of the first block, drawn in notebooks. ``roundings``:
        its ``.roundings`` are the points where values become narrower than fp32 and are then computed with.
        ``memory_bytes``: what may be held beside the arguments. Raises SimulationError at the first hazard, whatever
        the order in which threads ran, SIM_MEMORY where more memory is needed; LaunchError for arguments that do not
        fit.
        """
        return _simulate.simulate(self, args, named, arch, seed, skip, relax, trace, roundings, memory_bytes)

    def check(
        self,
        *args: object,
        arch: str | None = None,
        seed: int = 0,
        memory_bytes: int = _check.MEMORY_BYTES,
        **sizes: int,
    ) -> CheckResult:
        """Runs calls that show mistakes, holds outputs to what the kernel promises, and decomposed specs to theirs.

        Sizes, data and scalars are chosen from the kernel's text (docs/simulator.md). ``args``: a call, which runs as
        it is, alone. ``sizes`` of the kernel's symbols: those of every call (with both, the call gives other sizes
        alone). The result is true if nothing was found; ``.errors`` name hazards, else elements of outputs outside of
        the interval that they should be in, with the smallest call that shows it, and the innermost spec that is wrong.
        ``memory_bytes``: what this process may take on meanwhile. Raises SimulationError SIM_ARGUMENT for sizes that
        the symbols' facts exclude, SIM_MEMORY for such as need more memory, CHECK_MEANS for a meaning that does not
        fit.
        """
        return _check.check(self, args, arch, seed, sizes, memory_bytes=memory_bytes)

    def mutants(self, *args: object, arch: str | None = None, seed: int = 0, **sizes: int) -> list[Mutant]:
        """What each synchronisation statement is needed for: the hazard that is found without it.

        One entry for every statement left out, and one for every wait that leaves one more group of copies in flight;
        those with ``hazard=None`` are redundant at these sizes. Sizes as for ``check``; a ring of S stages needs 2 S +
        1 steps for every removal to show. Raises what ``check`` raises.
        """
        return _check.mutants(self, args, arch, seed, sizes)

    def report(self, *args: object, arch: str | None = None, all_blocks: bool = False, **sizes: int) -> Report:
        """What the memory system makes of the kernel: bank conflicts and sectors of every access, registers, occupancy.

        ``args``: a call, whose sizes and integers are taken as they are; else ``sizes`` of the kernel's symbols, as
        ``check`` chooses them, and integers in data are the smallest that their facts allow.
        ``all_blocks``: count the whole of a large grid, else its first, middle and last blocks. The result prints as a
        table; ``.why_narrow()`` says of each access of less than 16 bytes a thread what limits it. Raises
        SimulationError SIM_ARGUMENT for sizes that the symbols' facts exclude.
        """
        return _report.report(self, args, arch, all_blocks, sizes)

    def syncs(self) -> list[Sync]:
        """The synchronisation statements in textual order: id, IR text and Python ``file:line`` of each."""
        return _simulate.syncs(self)


def parse(text: str) -> Kernel:
    """The kernel that ``str(kernel)`` printed (docs/ir_text.md): ``gr.parse(str(kernel)) == kernel``.

    Raises VerifyError (IR_PARSE, IR_UNDEFINED, IR_TYPE_MISMATCH, ...) with line, column and the line itself.
    """
    return Kernel._from_ir(_core.ir_parse(_text(text)))
