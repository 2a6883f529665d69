"""Proves that a build used nothing but the compiler and what pyproject.toml declares.

``declared.py BUILD_DIR FOLDER...`` reads the headers that the compiler reported to ninja and the libraries that the
extension module is linked with. A header lies in one of the FOLDERs (the sources, the build's own environment, Python's
headers) or is the compiler's or the C library's; a library belongs to the C++ run time. What is neither is named, and
the exit status is 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SHOWN = 10
SYSTEM = Path("/usr/include")
# What the C library, the kernel and the compiler own of /usr/include; other packages have folders of their own.
SYSTEM_FOLDERS = {"asm", "asm-generic", "bits", "c++", "gnu", "linux", "sys"}
MULTIARCH = re.compile(r"[a-z0-9_]+-linux-(gnu|musl)\w*")
# The C library's headers that lie in no folder. Others' do as well (zlib.h), and none of them is declared.
C_HEADERS = re.compile(
    r"(aio|alloca|assert|byteswap|complex|ctype|dirent|dlfcn|elf|endian|err|errno|execinfo|fcntl|features|features-\w+|fenv|float"
    r"|fnmatch|getopt|glob|iconv|ifaddrs|inttypes|langinfo|libgen|libintl|limits|link|locale|malloc|math|memory|netdb|nl_types"
    r"|poll|pthread|pwd|regex|resolv|sched|search|semaphore|setjmp|signal|spawn|stdc-predef|stdint|stdio|stdlib|string|strings"
    r"|syscall|sysexits|syslog|termios|tgmath|threads|time|uchar|ucontext|unistd|utime|wait|wchar|wctype|wordexp)\.h"
)
LIBRARIES = re.compile(
    r"(libstdc\+\+|libc\+\+|libgcc_s|libm|libc|libdl|libpthread|librt|ld-linux[\w-]*|linux-vdso)\.so(\.\d+)*"
)


def is_systems_own(header: Path) -> bool:
    """Whether a header under /usr/include belongs to the C library, the kernel or the C++ library."""
    parts = header.relative_to(SYSTEM).parts
    if MULTIARCH.fullmatch(parts[0]) and len(parts) > 1:
        parts = parts[1:]
    return parts[0] in SYSTEM_FOLDERS or (len(parts) == 1 and C_HEADERS.fullmatch(header.name) is not None)


def undeclared_headers(headers: Iterable[Path], folders: Iterable[Path]) -> list[Path]:
    """Those headers that lie neither in a folder nor belong to the system's C and C++ libraries."""
    own = [Path(os.path.realpath(f)) for f in folders]
    wrong = []
    for header in sorted({Path(os.path.realpath(h)) for h in headers}):
        if any(header.is_relative_to(f) for f in own):
            continue
        if not header.is_relative_to(SYSTEM) or not is_systems_own(header):
            wrong.append(header)
    return wrong


def headers_of(build: Path) -> set[Path]:
    """Every file that a compilation of this build read, as ninja recorded it."""
    ninja = next(
        line.partition("=")[2]
        for line in (build / "CMakeCache.txt").read_text().splitlines()
        if "CMAKE_MAKE_PROGRAM:" in line
    )
    if not Path(ninja).exists():  # the isolated environment's own
        ninja = "ninja"
    text = subprocess.run([ninja, "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True).stdout
    return {build / line.strip() for line in text.splitlines() if line.startswith(" ") and line.strip()}


def compiler_folders(build: Path) -> list[Path]:
    """Where the headers lie that came with the compiler, outside of /usr/include."""
    cache = (build / "CMakeCache.txt").read_text()
    compiler = next(line.partition("=")[2] for line in cache.splitlines() if "CMAKE_CXX_COMPILER:" in line)
    where = subprocess.run([compiler, "-print-file-name=include"], check=True, capture_output=True, text=True).stdout
    return [Path(where.strip()).parent]


def undeclared_libraries(module: Path) -> list[str]:
    """What the extension module needs besides the C++ run time."""
    text = subprocess.run(["readelf", "-d", str(module)], check=True, capture_output=True, text=True).stdout
    return [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if not LIBRARIES.fullmatch(name)]


def main(build: Path, folders: list[Path]) -> int:
    """Says what was used and not declared."""
    headers = headers_of(build)
    json = [h for h in headers if h.name == "json.hpp" and h.parent.name == "nlohmann"]
    if not json:
        print(f"{build}: no compilation read nlohmann/json.hpp; is this a build of Graphene?")
        return 1
    wrong = [str(h) for h in undeclared_headers(headers, [*folders, *compiler_folders(build)])]
    for module in build.glob("_core*.so"):
        wrong += undeclared_libraries(module)
    for what in wrong[:SHOWN]:
        print(f"the build used {what}, which is neither the compiler's nor declared in pyproject.toml")
    if len(wrong) > SHOWN:
        print(f"... and {len(wrong) - SHOWN} more")
    if not wrong:
        print(f"{len(headers)} files, all of them the compiler's or declared; JSON: {json[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(a) for a in sys.argv[2:]]))
