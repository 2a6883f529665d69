"""Rewrites methods of modules, so that one call replaces several.

A method is read as source, patterns in it are replaced, and the result is compiled with the method's own globals. The
replacement is local: everything else in a method (caches, keyword arguments, branches) stays. The patterns are:

- ``self.N(a + b)`` where N is a norm;
- ``s = a + b``, later ``self.N(s)`` in the same block, the sum being used elsewhere too;
- ``y = self.L(x)``, then ``y = self.A(y)``, or ``self.A(self.L(x))``, where L is a linear layer and A an activation;
- ``self.A(self.G(x)) * self.U(x)`` where G and U are linear layers, and ``self.A(a) * b`` of any values;
- ``q, k = f(q, k, cos, sin)`` where f computes a rotary embedding, with ``q = self.N(...)`` and ``k = self.M(...)``
  before it in the same block, perhaps transposed, where N and M are norms;
- ``self.Q(x)``, ``self.K(x)``, ... in neighbouring statements, where all are linear layers;
- ``apply_chunking_to_forward(f, size, dim, x)``, which inspects f's signature even if there is nothing to cut.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

from graphene._syntax import parsed
from graphene.integrations.transformers._turns import Turn, turn_of

HELPERS = "_graphene"


# Expressions that may evaluate a part of themselves not at all, or more than once.
_SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await,
              ast.Yield, ast.YieldFrom, ast.NamedExpr)  # fmt: skip


class Site(NamedTuple):
    """A replacement: its kind, the submodules by name, and what a function in it computes.

    The kinds are "add_norm", "linear_act", "gated", "act_mul", "linears", "rotary".
    """

    kind: str
    modules: tuple[str, ...]
    function: str = ""
    turn: Turn | None = None


class Rewritten(NamedTuple):
    """A function of the helpers that makes the method, and what was replaced in it."""

    make: Any
    sites: tuple[Site, ...]


def rewrite(method: FunctionType, kinds: Mapping[str, str]) -> Rewritten | None:
    """The method with its patterns replaced, or None if it has none or cannot be read.

    ``kinds``: of submodules by name, "norm", "linear" or "activation".
    """
    if hasattr(method, "__wrapped__") or method.__code__.co_freevars:
        return None
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(method)), "exec")
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    own = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {a.arg for a in ast.walk(definition) if isinstance(a, ast.arg)}
    rewriter = _Rewriter(kinds, {n: f for n, f in method.__globals__.items() if n not in own})
    definition.body = rewriter.block(definition.body)
    if not rewriter.sites and not rewriter.changed:
        return None
    for argument in [*definition.args.args, *definition.args.kwonlyargs, *definition.args.posonlyargs]:
        argument.annotation = None
    for star in (definition.args.vararg, definition.args.kwarg):
        if star is not None:
            star.annotation = None
    definition.returns = None
    made = ast.FunctionDef(
        name="make", body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))], decorator_list=[],
        args=ast.arguments(posonlyargs=[], args=[ast.arg(HELPERS)], kwonlyargs=[], kw_defaults=[], defaults=[]),
    )  # fmt: skip
    text = ast.unparse(ast.fix_missing_locations(ast.Module([made], []))) + "\n"
    file = f"<graphene: {method.__module__}.{method.__qualname__} {sorted(kinds.items())}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # tracebacks and inspect show it
    found: dict[str, Any] = {}
    exec(compile(text, file, "exec"), method.__globals__, found)

    def make(helpers: Any) -> Any:
        function = found["make"](helpers)
        function.__defaults__, function.__kwdefaults__ = method.__defaults__, method.__kwdefaults__
        function.__doc__, function.__qualname__ = method.__doc__, method.__qualname__
        function.__module__, function.__signature__ = method.__module__, inspect.signature(method)
        return function

    return Rewritten(make, tuple(rewriter.sites))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, kinds: Mapping[str, str], functions: Mapping[str, Any]) -> None:
        self.kinds, self.functions = kinds, functions
        self.sites: list[Site] = []
        self.changed = False  # whether something other than a site changed

    def of(self, node: ast.AST, kind: str) -> str | None:
        """The name of the submodule that a call with one argument calls, if it is of the kind."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return None
        f = node.func
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "self":
            return f.attr if self.kinds.get(f.attr) == kind else None
        return None

    def helper(self, kind: str, modules: tuple[str, ...], *args: ast.expr, name: str | None = None) -> ast.Call:
        self.sites.append(Site(kind, modules))
        passed: list[ast.expr] = [_self(m) for m in modules]
        return ast.Call(ast.Attribute(ast.Name(HELPERS, ast.Load()), name or kind, ast.Load()), [*passed, *args], [])

    # Expressions.

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _named(node.func, "apply_chunking_to_forward") and len(node.args) == 4 and not node.keywords:
            self.changed = True
            called = ast.Attribute(ast.Name(HELPERS, ast.Load()), "chunked", ast.Load())
            return ast.Call(called, [self.visit(a) for a in node.args], [])
        norm = self.of(node, "norm")
        if norm is not None and _is(node.args[0], ast.Add):
            a, b = self.visit(node.args[0].left), self.visit(node.args[0].right)  # type: ignore[attr-defined]
            return self.helper("add_norm", (norm,), a, b)
        act = self.of(node, "activation")
        linear = None if act is None else self.of(node.args[0], "linear")
        if act is not None and linear is not None:
            return self.helper("linear_act", (linear, act), self.visit(node.args[0].args[0]))  # type: ignore[attr-defined]
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Mult):
            act, up = self.of(node.left, "activation"), self.of(node.right, "linear")
            gate = None if act is None else self.of(node.left.args[0], "linear")  # type: ignore[attr-defined]
            if act is not None and up is not None and gate is not None:
                x = node.left.args[0].args[0]  # type: ignore[attr-defined]
                y = node.right.args[0]  # type: ignore[attr-defined]
                if isinstance(x, ast.Name) and isinstance(y, ast.Name) and x.id == y.id:
                    return self.helper("gated", (gate, act, up), x)
            for one, another in ((node.left, node.right), (node.right, node.left)):
                act = self.of(one, "activation")
                if act is not None and isinstance(another, ast.Name):
                    return self.helper("act_mul", (act,), self.visit(one.args[0]), another)  # type: ignore[attr-defined]
        return self.generic_visit(node)

    # Statements.

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A sequence of statements, rewritten."""
        body = self.turns(body)
        out: list[ast.stmt] = []
        i = 0
        while i < len(body):
            taken, made = self.several_linears(body[i:])
            if not taken:
                taken, made = self.linear_then_act(body[i : i + 2])
            if not taken:
                taken, made = self.sum_then_norm(body[i:])
            if not taken:
                taken, made = 1, [self.statement(body[i])]
            out += made
            i += taken
        return out

    def statement(self, node: ast.stmt) -> ast.stmt:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if inner:
                setattr(node, name, self.block(inner))
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.visit(value))
        return node

    def turns(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The block with rotary embeddings and the norms before them as one call each."""
        body = list(body)
        for at, node in enumerate(body):
            call = self.turn(node)
            if call is None:
                continue
            turn, names = call
            norms = [self.norm_before(body[:at], n) for n in names]
            value: Any = node.value  # type: ignore[attr-defined]
            modules: tuple[str, ...] = ()
            passed: ast.expr = ast.Constant(None)
            if all(norms) and len({n[0] for n in norms if n}) == 2:
                for place, name, inner, moved in (n for n in norms if n):
                    moved_call = ast.Attribute(inner, "transpose", ast.Load())
                    whole = ast.Call(moved_call, [ast.Constant(1), ast.Constant(2)], []) if moved else inner
                    body[place] = _assign(names[len(modules)], whole)
                    modules += (name,)
                moves = ast.Tuple([ast.Constant(bool(n and n[3])) for n in norms], ast.Load())
                passed = ast.Tuple([*(_self(m) for m in modules), moves], ast.Load())
            self.sites.append(Site("rotary", modules, value.func.id, turn))
            how = [value.func, ast.Constant(turn.pairs), ast.Constant(turn.heads_at), passed]
            extra = ast.Tuple(value.args[4:], ast.Load())
            named = ast.Dict([ast.Constant(k.arg) for k in value.keywords], [k.value for k in value.keywords])
            helper = ast.Attribute(ast.Name(HELPERS, ast.Load()), "rotary", ast.Load())
            made = ast.Call(helper, [*how, extra, named, *value.args[:4]], [])
            body[at] = ast.Assign(node.targets, made)  # type: ignore[attr-defined]
        return body

    def turn(self, node: ast.stmt) -> tuple[Turn, tuple[str, str]] | None:
        """``q, k = f(q, k, cos, sin, ...)``: what f computes, and the names q and k."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Tuple):
            return None
        call, into = node.value, node.targets[0].elts
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or len(into) != 2:
            return None
        plain = [a.id for a in call.args[:4] if isinstance(a, ast.Name)]
        constants = [*call.args[4:], *(k.value for k in call.keywords)]
        if len(plain) != 4 or len(set(plain)) != 4 or not all(isinstance(c, ast.Constant) for c in constants):
            return None
        if any(k.arg is None for k in call.keywords) or call.func.id not in self.functions:
            return None
        extra = tuple(a.value for a in call.args[4:] if isinstance(a, ast.Constant))
        named = tuple((str(k.arg), k.value.value) for k in call.keywords if isinstance(k.value, ast.Constant))
        turn = turn_of(self.functions[call.func.id], extra, named)
        return None if turn is None else (turn, (plain[0], plain[1]))

    def norm_before(self, body: list[ast.stmt], name: str) -> tuple[int, str, ast.expr, bool] | None:
        """The last statement about a name, if it is ``name = self.N(x)``, perhaps with ``.transpose(1, 2)`` behind it.

        Returns its place, N, x, and whether it is transposed.
        """
        about = [i for i, s in enumerate(body) if any(_named(n, name) for n in ast.walk(s))]
        if not about:
            return None
        to, value = _assigned(body[about[-1]])
        if to != name or value is None:
            return None
        moved = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".transpose")
        if moved and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if ast.unparse(ast.Tuple(value.args, ast.Load())) != "(1, 2)" or value.keywords:
                return None
            value = value.func.value
        norm = self.of(value, "norm")
        return None if norm is None else (about[-1], norm, value.args[0], moved)  # type: ignore[attr-defined]

    def linear_then_act(self, body: list[ast.stmt]) -> tuple[int, list[ast.stmt]]:
        if len(body) < 2:
            return 0, []
        (a, x), (b, y) = _assigned(body[0]), _assigned(body[1])
        if a is None or a != b or x is None or y is None:
            return 0, []
        linear, act = self.of(x, "linear"), self.of(y, "activation")
        if linear is None or act is None or not _named(y.args[0], a):  # type: ignore[attr-defined]
            return 0, []
        value = self.helper("linear_act", (linear, act), self.visit(x.args[0]))  # type: ignore[attr-defined]
        return 2, [_assign(a, value)]

    def several_linears(self, body: list[ast.stmt]) -> tuple[int, list[ast.stmt]]:
        """``a = self.Q(x)...``, ``b = self.K(x)...``, ...: each with one call of a linear layer on the same name."""
        calls: list[ast.Call] = []
        for statement in body:
            name, value = _assigned(statement)
            found = [n for n in ast.walk(value) if self.of(n, "linear")] if name and value else []
            if len(found) != 1 or not isinstance(found[0].args[0], ast.Name):  # type: ignore[attr-defined]
                break
            if any(isinstance(n, _SOMETIMES) for n in ast.walk(statement)):  # the call may be one that is not made
                break
            call: ast.Call = found[0]  # type: ignore[assignment]
            if calls and ast.dump(call.args[0]) != ast.dump(calls[0].args[0]):
                break
            calls.append(call)
            if _named(call.args[0], name or ""):  # x is another one from here on
                break
        modules = tuple(c.func.attr for c in calls)  # type: ignore[attr-defined]
        if len(calls) < 2 or len(set(modules)) < len(modules):
            return 0, []
        names = [f"_graphene_{m}" for m in modules]
        targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
        self.sites.append(Site("linears", modules))
        passed = ast.Tuple([_self(m) for m in modules], ast.Load())
        helper = ast.Attribute(ast.Name(HELPERS, ast.Load()), "linears", ast.Load())
        first = ast.Assign([targets], ast.Call(helper, [passed, calls[0].args[0]], []))
        put = {id(c): n for c, n in zip(calls, names, strict=True)}
        return len(calls), [first, *(_Put(put).visit(s) for s in body[: len(calls)])]

    def sum_then_norm(self, body: list[ast.stmt]) -> tuple[int, list[ast.stmt]]:
        """``s = a + b``, at most one ``if``, copies ``r = s``, ``n = self.N(s)``."""
        total, value = _assigned(body[0])
        if total is None or value is None or not _is(value, ast.Add):
            return 0, []
        i, branch = 1, None
        if len(body) > 1 and isinstance(body[1], ast.If) and not body[1].orelse and _pure(body[1].test, total):
            i, branch = 2, body[1]
        first = i
        while i < len(body) and _named(_assigned(body[i])[1], total) and _assigned(body[i])[0] != total:
            i += 1
        name, last = _assigned(body[i]) if i < len(body) else (None, None)
        norm = None if last is None else self.of(last, "norm")
        if name is None or norm is None or not _named(last.args[0], total):  # type: ignore[union-attr]
            return 0, []
        copies = body[first:i]
        a, b = value.left, value.right  # type: ignore[attr-defined]
        both = ast.Tuple([ast.Name(total, ast.Store()), ast.Name("_graphene_normed", ast.Store())], ast.Store())
        call = self.helper("add_norm", (norm,), a, b, name="add_norm_sum")
        fused: list[ast.stmt] = [ast.Assign([both], call), *copies]
        fused.append(_assign(name, ast.Name("_graphene_normed", ast.Load())))
        if branch is None:
            return i + 1, fused
        plain = [body[0], *self.block(branch.body), *copies, body[i]]
        return i + 1, [ast.If(branch.test, plain, fused)]


class _Put(ast.NodeTransformer):
    """Puts names in the place of calls."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = self.names.get(id(node))
        return self.generic_visit(node) if name is None else ast.Name(name, ast.Load())


def _self(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _is(node: ast.AST, operation: type[ast.operator]) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, operation)


def _named(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _assigned(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Name and value of ``name = value``."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return None, None


def _pure(test: ast.expr, but: str) -> bool:
    """Whether a condition only compares names, and not that one."""
    nodes = list(ast.walk(test))
    allowed = (ast.Compare, ast.Name, ast.Constant, ast.cmpop, ast.boolop, ast.BoolOp, ast.expr_context)
    return all(isinstance(n, allowed) for n in nodes) and not any(_named(n, but) for n in nodes)
