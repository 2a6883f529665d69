"""A plugin of pytest for a suite that runs in two environments, the second of which has optional packages as well.

``-p in_two --passed-to=FILE`` writes which tests passed. ``-p in_two --but=FILE`` leaves these out, except for those
that mention an optional package, which may do something else where it is installed: in their own text, in that of a
fixture they get, or in that of what one of these names, directly or not, in its file or in a file of tests it imports.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

OPTIONAL = re.compile(r"torch|transformers|triton")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both take a text file with one test in each line."""
    parser.addoption("--passed-to", type=Path)
    parser.addoption("--but", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist report to the first process, which alone writes."""
    if hasattr(config, "workerinput"):
        return
    # pytest looks for its settings beside each argument that is a file, before it knows which are values of options.
    if config.rootpath != config.invocation_params.dir:
        raise pytest.UsageError(f"the settings of {config.rootpath} were read; write --but=FILE, not --but FILE")
    if config.getoption("--passed-to") is not None:
        config.pluginmanager.register(Passed(config.getoption("--passed-to")))


class Passed:
    """Gathers the tests that passed in all of their phases."""

    def __init__(self, to: Path) -> None:
        self.to = to
        self.outcomes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for the setup, the call and the teardown of each test."""
        self.outcomes[report.nodeid] = self.outcomes.get(report.nodeid, True) and report.passed

    def pytest_sessionfinish(self) -> None:
        """Also of a run that failed. A file all of whose tests passed has a line, too, which ends with two colons."""
        passed = {test for test, did in self.outcomes.items() if did}
        files = {_file(test) for test in passed} - {_file(test) for test in self.outcomes.keys() - passed}
        self.to.write_text("".join(f"{line}\n" for line in sorted(passed | files)))


def _file(test: str) -> str:
    """The file of a test, and two colons."""
    return test.partition("::")[0] + "::"


class Statements:
    """What the statements of a file that are not nested define, what they name, and which of them mention a package."""

    def __init__(self, path: Path) -> None:
        self.named: dict[str, set[str]] = {}  # by what names them, "" for statements that define nothing
        self.mentioning: set[str] = set()
        text = path.read_text()
        lines = text.splitlines()
        end = 0
        for statement in ast.parse(text).body:
            # A comment counts as part of the statement after it.
            begin, end = end, statement.end_lineno or 0
            names = set(_names(statement))
            defined = _defined(statement) or {""}
            mentions = OPTIONAL.search("\n".join(lines[begin:end])) is not None or any(
                OPTIONAL.search(f.read_text()) for f in _imported(statement, path)
            )
            for name in defined:
                self.named.setdefault(name, set()).update(names)
                if mentions:
                    self.mentioning.add(name)
        if OPTIONAL.search("\n".join(lines[end:])):
            self.mentioning.add("")

    @property
    def any(self) -> bool:
        """Whether any statement mentions a package."""
        return bool(self.mentioning)

    def mention(self, name: str) -> bool:
        """Whether what has this name mentions a package, or what it names does, and so on; so do all tests of a file
        where statements do that define nothing.
        """
        if name not in self.named:
            return True  # made in a way that is not understood here
        todo, seen = ["", name], set()
        while todo:
            this = todo.pop()
            if this in self.mentioning:
                return True
            if this not in seen:
                seen.add(this)
                todo += (n for n in self.named.get(this, ()) if n in self.named)
        return False


def _names(node: ast.AST) -> Iterator[str]:
    """All names in a statement; a text may name a fixture."""
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            yield n.id
        elif isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, ast.Attribute):
            yield n.attr
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.isidentifier():
            yield n.value


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement of a file binds; none if it does something else, which counts for all tests."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [n for target in targets for n in ast.walk(target) if not isinstance(n, ast.expr_context)]
        names = {n.id for n in parts if isinstance(n, ast.Name)}
        plain = all(isinstance(n, ast.Name | ast.Tuple | ast.Starred) for n in parts)  # else it changes an object
        return names if plain and "pytestmark" not in names else set()
    if isinstance(node, ast.Try | ast.If):
        handlers = [s for h in node.handlers for s in h.body] if isinstance(node, ast.Try) else []
        inner = [_defined(s) for s in (*node.body, *handlers, *node.orelse, *getattr(node, "finalbody", ()))]
        return set().union(*inner) if all(inner) else set()
    return set()


def _imported(node: ast.stmt, path: Path) -> Iterator[Path]:
    """The files of tests that a statement of `path` imports or writes the name of, in its folder or in those beside."""
    wanted: set[str] = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Import | ast.ImportFrom):
            dotted = [*(a.name for a in n.names), *([n.module or ""] if isinstance(n, ast.ImportFrom) else [])]
            wanted.update(part for name in dotted for part in name.split("."))
        elif isinstance(n, ast.Constant) and isinstance(n.value, str):
            wanted.update(re.findall(r"(\w+)\.py\b", n.value))
    for name in sorted(wanted - {""}):
        beside = path.parent / f"{name}.py"
        yield from [beside] if beside.is_file() else sorted(path.parent.parent.glob(f"*/{name}.py"))


@functools.cache
def statements(path: Path) -> Statements:
    """Of a file, once."""
    return Statements(path)


def mentions(item: pytest.Item) -> bool:
    """Whether a test or a fixture it gets mentions an optional package; if it is no function, whether its file does."""
    if not isinstance(item, pytest.Function):
        return OPTIONAL.search(item.path.read_text()) is not None
    if statements(item.path).mention(item.cls.__qualname__.partition(".")[0] if item.cls else item.originalname):
        return True
    root = item.config.rootpath
    for fixture in (f for defined in item._fixtureinfo.name2fixturedefs.values() for f in defined):
        path = Path(fixture.func.__code__.co_filename)
        if path.is_relative_to(root) and statements(path).mention(fixture.func.__qualname__.partition(".")[0]):
            return True
    return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which another run has shown all, and that mentions no package, is not even read."""
    if config.getoption("--but") is None or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    of = str(collection_path.relative_to(config.rootpath))
    return True if of in _whole(config.getoption("--but")) and not statements(collection_path).any else None


@functools.cache
def _whole(but: Path) -> set[str]:
    """The files all of whose tests passed."""
    return {line.removesuffix("::") for line in but.read_text().splitlines() if line.endswith("::")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what another run has shown."""
    if config.getoption("--but") is None:
        return
    passed = set(config.getoption("--but").read_text().splitlines())
    again: dict[object, bool] = {}  # by function, of which there may be many tests
    done = []
    for item in items:
        if item.nodeid in passed:
            key = (item.path, getattr(item, "originalname", item.name), getattr(item, "cls", None))
            if key not in again:
                again[key] = mentions(item)
            if not again[key]:
                done.append(item)
    config.hook.pytest_deselected(items=done)
    left_out = set(map(id, done))
    items[:] = [item for item in items if id(item) not in left_out]
