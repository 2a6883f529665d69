"""What `.ci/run` calls declared: a build that opens anything else is refused by name."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from graphene import _core

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("declared", ROOT / ".ci" / "declared.py")
assert spec is not None
assert spec.loader is not None
declared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(declared)


@pytest.mark.parametrize(
    "header",
    [
        "/usr/include/nlohmann/json.hpp",
        "/usr/include/x86_64-linux-gnu/nlohmann/json.hpp",
        "/usr/include/zlib.h",
        "/usr/include/pybind11/pybind11.h",
        "/usr/local/include/nlohmann/json.hpp",
        "/opt/include/stdio.h",
        "/build/../elsewhere/a.h",
    ],
)
def test_other_packages_headers_are_refused(header: str) -> None:
    assert declared.undeclared_headers([Path(header)], [Path("/build"), Path("/env")]) == [Path(header).resolve()]


@pytest.mark.parametrize(
    "header",
    [
        "/usr/include/stdio.h",
        "/usr/include/features-time64.h",
        "/usr/include/c++/12/vector",
        "/usr/include/x86_64-linux-gnu/c++/12/bits/c++config.h",
        "/usr/include/x86_64-linux-gnu/sys/mman.h",
        "/usr/include/linux/limits.h",
        "/env/nlohmann_json/include/nlohmann/json.hpp",
        "/build/csrc/base/diag.h",
    ],
)
def test_the_compilers_and_the_declared_are_taken(header: str) -> None:
    assert declared.undeclared_headers([Path(header)], [Path("/build"), Path("/env")]) == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_the_extension_needs_the_cxx_run_time_alone() -> None:
    assert declared.undeclared_libraries(Path(_core.__file__)) == []


@pytest.mark.parametrize("name", ["libstdc++.so.6", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libc++.so.1"])
def test_libraries_of_the_run_time(name: str) -> None:
    assert declared.LIBRARIES.fullmatch(name)


@pytest.mark.parametrize("name", ["libz.so.1", "libfmt.so.9", "libstdc++fs.so", "libcuda.so.1", "libpython3.11.so.1.0"])
def test_other_libraries(name: str) -> None:
    assert not declared.LIBRARIES.fullmatch(name)
