"""Compiles the kernels that come with the package (graphene/compiled), or says which are missing.

    python tools/ship_kernels.py [--check]

Writes a file for each kernel that a line of graphene/compiled/usual_calls.txt launches on an H200, and removes files of
other kernels. Run it before a release, after the last change of a kernel's text; a kernel that is not there costs a
user the time of NVRTC at the first call, and nothing else. GRAPHENE_NVRTC names the compiler: the oldest one that users
have, since a driver may not load what a newer one has made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCH = "sm_90a"


def compiled_by(folder: str) -> dict[str, dict[str, bytes]]:
    """Entries of a cache in `folder`, after all usual calls: by the hash of their request, their files."""
    os.environ |= {"GRAPHENE_CACHE_DIR": folder, "GRAPHENE_SHIPPED": "0", "GRAPHENE_PLANS": "1"}
    sys.path.insert(0, str(ROOT))
    from graphene import _core
    from graphene.cli.warm import warm_calls

    if warm_calls([], None, [ARCH], usual=True):
        raise SystemExit("a call failed")
    read = {key: _core.cache_read(key) for key in _core.cache_keys()}
    return {key.partition("-")[0]: files for key, files in read.items() if files and "kernel.cubin" in files}


def main() -> int:
    """Writes or checks the files; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing: 1 if a kernel is missing or left over")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        made = compiled_by(folder)
    from graphene import shipped

    spilled = [k for k, files in made.items() if json.loads(files["info.json"])["spill_bytes"]]
    there = {f.stem: f for f in shipped.FOLDER.glob("*.zip")}
    missing, over = sorted(made.keys() - there.keys()), sorted(there.keys() - made.keys())
    if not check:
        for key in missing:
            shipped.pack(made[key], shipped.FOLDER / f"{key}.zip")
        for key in over:
            there[key].unlink()
    total = sum(f.stat().st_size for f in shipped.FOLDER.glob("*.zip"))
    print(f"{len(made)} kernels, {len(missing)} of them new, {len(over)} left over, {len(spilled)} with spills; "
          f"{total >> 10} KiB of files")  # fmt: skip
    return 1 if check and (missing or over) else 0


if __name__ == "__main__":
    raise SystemExit(main())
