"""Makes an environment that has of this one's packages those that pyproject.toml declares for tests, and no other.

``bare.py FOLDER`` makes a virtual environment in FOLDER of this Python, with links to the packages of this Python's
environment that ``pip install '.[test]'`` would have brought. So PyTorch, which is optional, is found neither by
an import nor by a process that a test starts, and a package that is used without being declared is missed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def declared(extra: str) -> tuple[str, list[str]]:
    """The name of this project, and what it requires with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own, found, extras = canonicalize_name(project["name"]), list(project["dependencies"]), [extra]
    for e in extras:  # which grows: an extra may name another one of the same project
        for text in project["optional-dependencies"][e]:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) == own:
                extras += [x for x in sorted(requirement.extras) if x not in extras]
            else:
                found.append(text)
    return own, found


def closure(requirements: Iterable[str]) -> set[str]:
    """The names of the installed packages that these need, directly or not."""
    todo = [(Requirement(r), "") for r in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), wanted)
            if key in seen:
                continue
            seen.add(key)
            try:
                needs = metadata.requires(requirement.name) or []
            except metadata.PackageNotFoundError:
                raise SystemExit(f"{requirement} is declared, but is not installed here") from None
            todo += [(Requirement(n), wanted) for n in needs]
    return {name for name, _ in seen}


def owned(package: str) -> set[str]:
    """The first parts of the paths that a package has put beside other packages; none if it is not installed."""
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        return set()
    return {f.parts[0] for f in files if f.parts[0] not in ("..", "__pycache__")}


def make(folder: Path, packages: Iterable[str]) -> Path:
    """Makes the environment, whose Python it returns."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    to = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    of = Path(sysconfig.get_path("purelib"))
    for name in sorted(set().union(*map(owned, packages))):
        (to / name).symlink_to(of / name)
    for tool in Path(sysconfig.get_path("scripts")).iterdir():
        if tool.is_file() and not (python.parent / tool.name).exists():
            put(tool, python)
    return python


def put(tool: Path, python: Path) -> None:
    """Puts a program into the environment: a script that names a Python in its first line names the new one."""
    first, _, rest = tool.read_bytes().partition(b"\n")
    to = python.parent / tool.name
    if first.startswith(b"#!") and b"python" in first:
        to.write_bytes(b"#!" + str(python).encode() + b"\n" + rest)
        to.chmod(0o755)
    else:
        to.symlink_to(tool)


if __name__ == "__main__":
    own, requirements = declared("test")
    print(make(Path(sys.argv[1]).absolute(), {own, "pip", "setuptools"} | closure(requirements)))
