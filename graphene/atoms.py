"""Atomic specs: one GPU instruction each, as data.

Matching, verification, printing, simulation and pictures are readers of the same entry. ``gr.atoms()`` maps names to
entries; ``gr.atom(name)`` gives an entry or a family of entries; ``gr.define_atom(...)`` adds one without rebuilding.
In an entry's name, the part after a '/' follows from the operands, such as the element type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import Atom, AtomOperand

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Atom", "AtomFamily", "AtomOperand", "atom", "atoms", "define_atom"]


class AtomFamily:
    """Entries among which a leaf's operands decide. ``atom=family`` picks the member that fits."""

    def __init__(self, name: str, entries: Sequence[Atom]) -> None:
        self._name = name
        self._entries = tuple(entries)
        if not self._entries or not all(isinstance(e, Atom) for e in self._entries):
            raise TypeError(f"the members of the family {name} are atoms, one or more, as gr.atom finds them")

    @property
    def name(self) -> str:
        """The members' name up to '/'."""
        return self._name

    @property
    def entries(self) -> tuple[Atom, ...]:
        """The members, in the order of registration."""
        return self._entries

    @property
    def kind(self) -> str:
        """The kind of spec that the members implement, such as "Move"."""
        return self._entries[0].kind

    @property
    def arch(self) -> str:
        """Architectures of the first member, such as "sm_80+"."""
        return self._entries[0].arch

    @property
    def done(self) -> str:
        """When the members are complete: "now", or a domain that gr.commit and gr.wait name."""
        return self._entries[0].done

    @property
    def doc(self) -> str:
        """What the first member does."""
        return self._entries[0].doc

    def __iter__(self) -> Iterator[Atom]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getattr__(self, name: str) -> AtomOperand:
        """An operand by its name, as of an entry: of the first member that holds it in registers, if one does.

        Raises AttributeError where no member has it.
        """
        found: list[AtomOperand] = []
        for entry in self.__dict__.get("_entries", ()):
            operand = getattr(entry, name, None)
            if isinstance(operand, AtomOperand):
                found.append(operand)
        if not found:
            raise AttributeError(f"{self.__dict__.get('_name', 'the family')} has no operand or attribute `{name}`")
        return next((o for o in found if "RF" in o.memories), found[0])

    def __repr__(self) -> str:
        return f"<atoms {self._name}: {len(self._entries)} entries>"


def name_of_atom(atom: Any) -> str:
    """The name of an entry, of a family, or the given name itself. Raises TypeError for anything else."""
    if isinstance(atom, str):
        return atom
    if isinstance(atom, (Atom, AtomFamily)):
        return atom.name
    raise TypeError(f"an atom, a family or its name is needed, got {atom!r}")


class _Atoms(Mapping[str, Atom]):
    """The registry, by name."""

    def __getitem__(self, name: str) -> Atom:
        found = _core.find_atom(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_core.atom_names())

    def __len__(self) -> int:
        return len(_core.atom_names())

    def __repr__(self) -> str:
        return f"<{len(self)} atomic specs>"


def atoms() -> Mapping[str, Atom]:
    """All atomic specs by name, in the order of registration: ``gr.atoms()["ldmatrix.x4"]``."""
    return _Atoms()


def atom(name: str) -> Any:
    """The Atom of that name, or the AtomFamily whose members' names continue it after a '/'.

    Raises SelectError ATOM_UNKNOWN, with similar names.
    """
    if not isinstance(name, str):
        raise TypeError(f"an atom's name is a string such as 'ldmatrix.x4', got {name!r}")
    found = _core.find_atom(name)
    if found is not None:
        return found
    return AtomFamily(name, _core.find_atom_family(name))


def define_atom(**fields: Any) -> list[Atom]:
    """Registers an instruction from Python, after the same checks as the built-in ones; returns its entries.

    Fields (strings hold Graphene's notation, see ``gr.atoms()["ldmatrix.x4"]``):

    - ``name``, ``kind`` ("Move", "MatMul", "UnaryPointwise", ...), ``arch`` ("sm_80+", "sm_90a"), ``doc``, ``source``
    - ``threads`` ("[1]", "[32]", "[(4,2):(1,16)]") and ``converge``, how many threads must arrive together
    - ``out``, ``in_`` (or ``in`` through ``**``), ``aux``: lists of operands, each a dict of ``name``, ``pattern``
      ("[2,2].[1,2].b16.RF", "[1,8:_,1].b16.SH"), ``tile`` ("m16,k16"), ``tv`` ("(4,8):(32,1);(2,2,2):(16,8,128)"),
      ``access`` ("read", "write", "update"), ``via`` ("natural", "lvalue"), ``reg`` ("r/2"), ``require``
      (["align(src) % 16 == 0"])
    - ``attrs``: dict of attribute -> accepted values, such as ``{"cache": ["lu"], "fill": ["*const"]}`` ("*const",
      "*byte", "*expr" for any number, integer from 0 to 255, or integer); a spec may give an attribute that is not
      listed only the kind's default
    - ``is_default``: if True, the default, the entry implements leaves that name no atom, and it is refused if another
      default would match one of them, too; if False, only ``atom=`` reaches it
    - ``ptx`` or ``cxx``: the text with holes: "$dst", "{$dst}" (all registers in braces), "$dst[1]", "$attribute";
      "{?x: ...}" is printed where attribute x differs from its kind's default ("$}" is a brace in there),
      "{?guard:...}" where an input may be outside; "$src.bytes" is how many of its bytes are inside; in C++ "$dst..."
      lists all values
    - ``helper``: C++ that the text calls; ``guard``: how a partial tile is realised ("refuse", "branch", "bytes",
      "redirect"); ``done``: "now", or the domain that gr.commit and gr.wait complete ("group:cp_async"); ``numerics``
    - ``family``: list of (parameter names, rows); "${N/8}" is substituted in every string
    - ``means``: of kind "Spec" alone, an instruction on registers with a meaning of one's own: a function of NumPy
      arrays, as ``gr.ptx`` describes it. ``gr.spec(outs, ins, atom=name)`` executes the entry.

    Raises SelectError ATOM_SYNTAX, ATOM_TV, ATOM_TEXT, ATOM_DEFINITION, ATOM_OVERLAP; TypeError for a field of the
    wrong type or an unknown one. Then nothing is registered. docs/add_an_instruction.md has examples.
    """
    if "in_" in fields:
        fields["in"] = fields.pop("in_")
    means, own = fields.pop("means", None), fields.get("kind") == "Spec"
    if own != callable(means) or (means is not None and not own):
        raise TypeError(f'an entry of kind "Spec", and no other, has means=, a function of arrays; got {means!r}')
    entries = _core.define_atom(fields)
    if own:
        MEANINGS.update({e.name: means for e in entries})
    return entries


MEANINGS: dict[str, Any] = {}
"""The functions that entries of kind "Spec" mean, by the entries' names."""
