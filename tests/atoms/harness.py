"""CUDA text around the template of one entry: a kernel that loads its registers, executes it and stores what it wrote.

It reads only what an entry publishes, so it compiles the instruction text by itself, without the package's own printer.
"""

from __future__ import annotations

import re

from graphene import Atom, AtomOperand, CompileError, _core

PRELUDE = """
using i8 = signed char; using u8 = unsigned char; using i16 = short; using u16 = unsigned short; using i32 = int;
using u32 = unsigned int; using i64 = long long; using u64 = unsigned long long; using half = unsigned short;
using bfloat16 = unsigned short;
"""

CONSTRAINT_TYPES = {"h": "u16", "r": "u32", "l": "u64", "f": "float", "d": "double"}
C_TYPES = {"fp16": "half", "fp32": "float", "tf32": "float", "fp64": "double", "pred": "bool", "bf16": "bfloat16"}
BITS = {"fp16": 16, "bf16": 16, "fp32": 32, "tf32": 32, "fp64": 64, "fp8e4m3": 8, "fp8e5m2": 8, "pred": 8}
BITS |= {f"{s}{n}": n for s in "iu" for n in (8, 16, 32, 64)}
BITS |= {"mbar": 64, "i4": 4, "u4": 4, "fp4e2m1": 4, "fp6e2m3": 8, "fp6e3m2": 8}
C_TYPES |= dict.fromkeys(("fp8e4m3", "fp8e5m2", "fp6e2m3", "fp6e3m2", "fp4e2m1", "u4"), "u8") | {"i4": "i8"}


def has_compiler(arch: str) -> bool:
    """Whether an NVRTC compiles for it: version 13 leaves out what is before sm_75."""
    try:
        _core.nvrtc_for(arch)
    except CompileError:
        return False
    return True


def c_type(dtype: str) -> str:
    return C_TYPES.get(dtype, dtype)


def plain(text: str) -> str:
    """The text without its optional parts."""
    return re.sub(r"\{\?\w+:(?:\$\}|[^}])*\}", "", text)


def literal(atom: Atom, attr: str) -> str:
    if attr == "to":
        return "0"
    accepted = atom.attrs[attr][0]
    if accepted in ("true", "false"):
        return "1" if accepted == "true" else "0"
    return accepted if accepted[0] != "*" else "64" if attr in ("threads", "registers") else "1"


def memory_of(o: AtomOperand) -> str:
    return "RF" if "RF" in o.memories else o.memories[0]


def kernel(atom: Atom, name: str) -> str:
    """`extern "C"` kernel `name` that executes the entry once."""
    if atom.cxx:
        return cxx_kernel(atom, name)
    params: list[str] = []
    before: list[str] = []
    after: list[str] = []
    outs: list[tuple[tuple[str, int], str]] = []  # (operand, register), inline-assembly operand
    ins: list[tuple[tuple[str, int], str]] = []
    for o in atom.operands.values():
        memory = memory_of(o)
        if o.via == "descriptor":
            params.append(f"u64 matrix_{o.name}")
            ins.append(((o.name, 0), f'"l"(matrix_{o.name})'))
        elif o.via == "tensor_map":
            params += [f"u64* global_{o.name}", f"int at_{o.name}"]
            ins += [((o.name, 0), f'"l"(global_{o.name})'), ((o.name, 1), f'"r"(at_{o.name})')]
        elif memory in ("SH", "DSM"):
            before.append(f"__shared__ __align__(16) u64 shared_{o.name}[64];")
            ins.append(((o.name, 0), f'"r"((u32)__cvta_generic_to_shared(&shared_{o.name}))'))
        elif memory == "GL":
            params.append(f"u64* global_{o.name}")
            ins.append(((o.name, 0), f'"l"(global_{o.name})'))
        else:
            constraint, _, count = o.registers
            c = CONSTRAINT_TYPES[constraint]
            params.append(f"{c}* data_{o.name}")
            for i in range(count):
                before.append(f"{c} {o.name}_{i} = data_{o.name}[{i}];")
                if o.access == "read":
                    ins.append(((o.name, i), f'"{constraint}"({o.name}_{i})'))
                else:
                    outs.append(((o.name, i), f'"{"+" if o.access == "update" else "="}{constraint}"({o.name}_{i})'))
                    after.append(f"data_{o.name}[{i}] = {o.name}_{i};")
    number = {key: f"%{k}" for k, (key, _) in enumerate([*outs, *ins])}

    def hole(m: re.Match[str]) -> str:
        operand, index = m.group("name"), m.group("index")
        if (operand, 1) in number and atom.operands[operand].via == "tensor_map":
            return f"{number[operand, 0]}, {{{number[operand, 1]}, {number[operand, 1]}}}"
        if (operand, 0) not in number:
            return literal(atom, operand)
        if index is not None:
            return number[operand, int(index)]
        listed = ", ".join(n for (of, _), n in number.items() if of == operand)
        return "{" + listed + "}" if m.group("open") else listed

    text = re.sub(r"\$\w+\.rank", "2d", re.sub(r"\$\w+\.major", "0", plain(atom.ptx)))
    text = re.sub(r"(?P<open>\{(?=\$\w+\}))?\$(?P<name>\w+)(?:\[(?P<index>\d+)\])?(?(open)\})", hole, text)
    operands = " : ".join(", ".join(o for _, o in part) for part in (outs, ins))
    body = "\n  ".join([*before, f'asm volatile("{text}" : {operands} : "memory");', *after])
    bounds = "__launch_bounds__(128, 1) " if "registers" in atom.attrs else ""
    return f'extern "C" __global__ void {bounds}{name}({", ".join(params)}) {{\n  {body}\n}}\n'


def cxx_kernel(atom: Atom, name: str) -> str:
    params = ", ".join(f"{c_type(o.dtypes[0])}* data_{o.name}" for o in atom.operands.values())

    def hole(m: re.Match[str]) -> str:
        return f"(*data_{m.group(1)})" if m.group(1) in atom.operands else literal(atom, m.group(1))

    text = re.sub(r"[$](\w+)", hole, atom.cxx)
    return f'extern "C" __global__ void {name}({params}) {{\n  {text}\n}}\n'


def source(atoms: list[Atom]) -> tuple[str, dict[str, str]]:
    """One translation unit for many entries, and the kernel of each."""
    names = {a.name: f"k{i}" for i, a in enumerate(atoms)}
    helpers = {a.helper for a in atoms if a.helper}
    return PRELUDE + "".join(sorted(helpers)) + "".join(kernel(a, names[a.name]) for a in atoms), names
