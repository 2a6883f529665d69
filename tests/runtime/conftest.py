"""Every test gets a disk cache of its own; what was learnt about NVRTC is shared, because probing it is slow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphene
from graphene import _core


@pytest.fixture(scope="session")
def nvrtc_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvrtc_memory")


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, nvrtc_memory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cache"
    own = path / "graphene-v1"
    if any(nvrtc_memory.iterdir()):
        shutil.copytree(nvrtc_memory, own)
    for name in ("GRAPHENE_CACHE", "GRAPHENE_CACHE_LIMIT", "GRAPHENE_NVRTC", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(path))
    yield path
    files = [f for f in (own / "nvrtc").glob("?" * 32 + ".json") if f.is_file()]
    if files and (own / "GRAPHENE_CACHE").is_file() and not (own / "nvrtc").is_symlink():
        (nvrtc_memory / "nvrtc").mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, nvrtc_memory / "nvrtc")
        shutil.copy(own / "GRAPHENE_CACHE", nvrtc_memory)


@pytest.fixture(autouse=True)
def same_package_in_subprocesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is installed or built in place: not what happens to lie in the working directory."""
    paths = [str(Path(graphene.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


class Make:
    """Manifests in few words: `make(A=make.tensor("fp16", "M K", "K 1"), n=make.scalar("i32"))`."""

    @staticmethod
    def dims(extents: str, strides: str) -> list[list[Any]]:
        def read(text: str) -> list[Any]:
            return [int(x) if x.lstrip("-").isdigit() else x for x in text.split()]

        return [list(p) for p in zip(read(extents), read(strides), strict=True)]

    @classmethod
    def tensor(
        cls,
        dtype: str,
        extents: str = "",
        strides: str = "",
        access: str = "read",
        align: int = 1,
        count: int = 0,
        flat: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        return {
            "kind": "tensor",
            "dtype": dtype,
            "dims": cls.dims(extents, strides),
            "access": access,
            "flat": cls.dims(*flat) if flat else [],
            "align_bytes": align,
            "list_count": count,
        }

    @staticmethod
    def scalar(dtype: str) -> dict[str, Any]:
        return {"kind": "scalar", "dtype": dtype}

    @staticmethod
    def symbol(name: str, **facts: Any) -> dict[str, Any]:
        base = {"min": 0, "max": 2**63 - 1, "multiple_of": 1, "from": "shape", "is_param": True, "bits": 64}
        return {"name": name} | base | facts

    @classmethod
    def text(
        cls,
        *,
        kernel: str = "k",
        entry: str | None = None,
        symbols: Any = (),
        facts: Any = (),
        grid: Any = (1, 1, 1),
        threads: int = 32,
        shared: Any = 0,
        cluster: Any = (1, 1, 1),
        waits_itself: bool | None = None,
        maps: Any = (),
        **args: dict[str, Any],
    ) -> str:
        """`symbols`: names, or what symbol() returns. `facts`: (condition, text, where)."""
        return json.dumps(
            {
                "schema": 1,
                "kernel": kernel,
                "entry": entry or kernel,
                "args": [{"name": n} | a for n, a in args.items()],
                "symbols": [cls.symbol(s) if isinstance(s, str) else s for s in symbols],
                "facts": [dict(zip(("condition", "text", "where"), f, strict=True)) for f in facts],
                "grid": list(grid),
                "cluster": list(cluster),
                "block_threads": threads,
                "dynamic_shared_bytes": shared,
                **(
                    {"maps": [dict(zip(("arg", "dims", "box", "swizzle"), m, strict=True)) for m in maps]}
                    if maps
                    else {}
                ),
                **({} if waits_itself is None else {"waits_itself": waits_itself}),
            }
        )

    def __call__(self, **kw: Any) -> _core.LaunchManifest:
        return _core.LaunchManifest.from_json(self.text(**kw))


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@pytest.fixture(scope="session")
def check() -> Callable[..., dict[str, Any]]:
    def call(manifest: _core.LaunchManifest, *args: Any, **named: Any) -> dict[str, Any]:
        return _core.check_call(manifest, args, named)

    return call
