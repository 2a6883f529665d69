"""The kernel: recorded by running Python once under ``with gr.Kernel(name) as kernel:``."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from graphene import _core, shipped
from graphene import check as _check
from graphene import promise as _promise
from graphene import report as _report
from graphene import simulate as _simulate
from graphene import watched as _watched
from graphene.errors import GrapheneError, SelectError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from graphene._core import Binary, KernelIR, LaunchManifest, Program, Statement
    from graphene.check import CheckResult, Mutant
    from graphene.dtypes import DType
    from graphene.promise import Arguments, Promise
    from graphene.report import Report
    from graphene.simulate import SimulationStats, Sync
    from graphene.watched import Steps, Watched

__all__ = ["Kernel", "parse"]


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a kernel is read from text, got {text!r}")
    return text


class Kernel(_core.Launcher):
    """A kernel: specs over data tensors and thread tensors.

    ``with gr.Kernel("name") as kernel:`` records what is called inside; afterwards the kernel cannot be changed.

    ``print(kernel)`` shows its IR, ``gr.parse(str(kernel)) == kernel``. ``kernel(*args, **named)`` runs it. For CUDA
    tensors it is compiled once per device and launched on the current stream; for NumPy arrays and CPU tensors the
    simulator runs it. Arguments are given in the order of declaration or by name, and written in place.

    ``means``: a NumPy function of the arguments by name that says what the kernel computes; ``check`` holds the kernel
    to it. ``read``: a function that reads outputs first, where only another kernel understands them. ``arguments``:
    ``prepare(args, rng)`` or ``gr.Arguments``, which make sensible arguments. ``sums``: the type that sums are kept in,
    by default fp32, or fp64 if all outputs are (docs/simulator.md). These four belong to this object; text, JSON and
    pickles do not carry them (``with_promise``).

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
        self._usual_arch: str | None = None  # the architecture that `arch=None` means

    def __getattr__(self, name: str) -> Any:
        """Raises VerifyError KERNEL_UNRECORDED for a kernel that was never made: by ``Kernel.__new__`` alone."""
        if "_closed" not in self.__dict__ and name.startswith("_") and not name.startswith("__"):
            _core.fail("KERNEL_UNRECORDED", "a kernel that was made without its name", [f"misses: {name}"],
                       "make it by gr.Kernel(name); a class of your own calls super().__init__(name)")  # fmt: skip
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

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
        """The recorded kernel as the C++ core holds it. Raises VerifyError KERNEL_UNRECORDED before recording ended."""
        if self._closed is None:
            _core.fail("KERNEL_UNRECORDED", f"the kernel {self._name} has not been recorded", [],
                       "leave its `with` block first")  # fmt: skip
        return self._closed

    @property
    def promise(self) -> Promise | None:
        """The kernel's promise; None for a kernel without ``means``, and for a parsed one."""
        return self._promise

    def with_promise(
        self,
        means: Callable[..., Any] | None = None,
        read: Callable[..., Any] | None = None,
        arguments: Callable[..., None] | Arguments | None = None,
        sums: DType | None = None,
    ) -> Kernel:
        """The same kernel with another promise, as ``gr.Kernel`` takes it: for a parsed kernel, or to promise less.

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
        return f"<graphene.Kernel {self.__dict__.get('_name', 'without a name')}>"

    def _repr_html_(self) -> str:
        """The IR, for notebooks; the plain representation while the kernel is being recorded."""
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
        """A kernel is pickled and copied as its JSON, with Python lines. Raises KERNEL_UNRECORDED while recording."""
        return Kernel.from_json, (self.to_json(locations=True),)

    # Code.

    def lowered(self, arch: str | None = None) -> Program:
        """The kernel verified and lowered for ``arch`` ("sm_80", "sm_90a", ...). The result is kept.

        None means the lowest architecture from sm_80 up that has every named atom, or sm_90a if only that has an
        instruction for every leaf, or the shared memory.

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
            except (SelectError, VerifyError) as refused:
                if isinstance(refused, VerifyError) and refused.code != "LOWER_SHARED_LIMIT":
                    raise
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
        """Compiles for ``arch`` with NVRTC, or takes the cubin from the disk cache or the package. This needs no GPU.

        The result has ``.ptx .cubin .registers .spill_bytes .shared_bytes``. Raises CompileError besides what
        ``lowered`` raises.
        """
        binary = self._binaries.get(_core.architecture(arch))
        if binary is None:
            program = self.lowered(arch)
            source = program.cuda_source()
            shipped.offer(source, program.entry, arch)
            binary = _core.compile_source(source, program.entry, arch, self._name)
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

        Arguments are given in the order of declaration or by name. ``arch``: the architecture whose atoms run, chosen
        as in ``lowered``. ``seed``: decides the order of blocks and warps. ``skip``: ids from ``syncs()`` of
        synchronisation statements that are left out, to see whether they are needed. ``relax``: ids of waits that leave
        one more group of copies in flight or wait for the other phase, and of arrivals that expect half of their bytes.
        ``trace``: the result's ``.trace`` is a timeline of the first block, which notebooks draw. ``roundings``: the
        result's ``.roundings`` are the points where values become narrower than fp32 and are then computed with.
        ``memory_bytes``: how much memory the run may hold beside the arguments. Raises SimulationError at the first
        hazard, in whatever order threads ran, and SIM_MEMORY if it needs more memory; LaunchError for arguments that do
        not fit.
        """
        return _simulate.simulate(self, args, named, arch, seed, skip, relax, trace, roundings, memory_bytes)

    def watch(
        self,
        name: str,
        *args: object,
        block: int | None = None,
        thread: int | None = None,
        limit: int = 10_000,
        arch: str | None = None,
        seed: int = 0,
        **named: object,
    ) -> Watched:
        """Runs the kernel on the simulator, and says what a register or tensor held after each statement that wrote it.

        ``name``: of registers, or of a tensor in shared or global memory. The arguments are those of a call, and are
        written in place. ``block``, ``thread``: of which block and thread alone, by their linear numbers; None means
        all. ``limit``: how many values are kept. The result is a sequence of ``Wrote`` that prints as a table; where a
        hazard ended the run, ``.error`` is it. Of what copies wrote it says what their issuer's thread was. Raises
        SimulationError SIM_ARGUMENT for a name, block or thread that the kernel does not have, and what ``simulate``
        raises before the run begins.
        """
        return _watched.watch(self, name, args, named, block, thread, limit, arch, seed)

    def steps(
        self,
        *args: object,
        block: int = 0,
        thread: int = 0,
        limit: int = 100_000,
        arch: str | None = None,
        seed: int = 0,
        **named: object,
    ) -> Steps:
        """Runs the kernel on the simulator, and says what one thread executed, statement by statement.

        The result is a sequence of ``Step``: the statement, its Python line, and what it wrote by place; ``.held(i)``
        is all that the thread had written last when step i was done. One may go forwards and backwards. Statements that
        write nothing, such as barriers, are left out. Else it is as ``watch``.
        """
        return _watched.steps(self, args, named, block, thread, limit, arch, seed)

    def check(
        self,
        *args: object,
        arch: str | None = None,
        seed: int = 0,
        memory_bytes: int = _check.MEMORY_BYTES,
        **sizes: int,
    ) -> CheckResult:
        """Runs calls that show mistakes, and holds outputs and decomposed specs to what they promise.

        Sizes, data and scalars are chosen from the kernel's text (docs/simulator.md). ``args``: one call, which alone
        runs, unchanged. ``sizes``: values of the kernel's symbols in every call. With both, the arguments only give
        further sizes. The result is true if nothing was found. Its ``.errors`` name hazards, else elements of outputs
        that lie outside of their interval, with the smallest call that shows it, and the innermost spec that is wrong.
        ``memory_bytes``: how much memory this process may allocate meanwhile. Raises SimulationError SIM_ARGUMENT for
        sizes that the symbols' facts exclude, SIM_MEMORY for sizes that need more memory, CHECK_MEANS for a meaning
        that does not fit.
        """
        return _check.check(self, args, arch, seed, sizes, memory_bytes=memory_bytes)

    def mutants(self, *args: object, arch: str | None = None, seed: int = 0, **sizes: int) -> list[Mutant]:
        """The hazard that is found without each synchronisation statement: it says what the statement is needed for.

        There is one entry for every statement left out, one for every wait that leaves one more group of copies in
        flight or waits for the other phase, and one for every arrival that expects half of its bytes. Statements with
        ``hazard=None`` are redundant at these sizes. Sizes are given as for ``check``; a ring of S stages needs 2 S + 1
        steps for every removal to show. Raises what ``check`` raises.
        """
        return _check.mutants(self, args, arch, seed, sizes)

    def report(self, *args: object, arch: str | None = None, all_blocks: bool = False, **sizes: int) -> Report:
        """Counts the work of the memory system: bank conflicts and sectors of every access, registers, occupancy.

        ``args``: a call, which gives sizes and integers. Without it ``sizes`` are values of the kernel's symbols (the
        others are chosen as in ``check``), and integers in data are the smallest that their facts allow.
        ``all_blocks``: counts the whole of a large grid instead of its first, middle and last blocks. The result prints
        as a table; ``.why_narrow()`` says what limits each access of less than 16 bytes a thread. Raises
        SimulationError SIM_ARGUMENT for sizes that the symbols' facts exclude.
        """
        return _report.report(self, args, arch, all_blocks, sizes)

    def statements(self) -> tuple[Statement, ...]:
        """The statements in textual order, as data: kind, tensors, instruction, text, line, and those within each."""
        return _core.ir_statements(self.ir)

    def syncs(self) -> list[Sync]:
        """The synchronisation statements in textual order: id, IR text and Python ``file:line`` of each."""
        return _simulate.syncs(self)


def parse(text: str) -> Kernel:
    """Reads a kernel from the text that ``str(kernel)`` prints (docs/ir_text.md): ``gr.parse(str(kernel)) == kernel``.

    Raises VerifyError (IR_PARSE, IR_UNDEFINED, IR_TYPE_MISMATCH, ...) with line, column and the line itself.
    """
    return Kernel._from_ir(_core.ir_parse(_text(text)))
