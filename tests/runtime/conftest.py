"""Every test gets a disk cache of its own; what was learnt about NVRTC is shared, because probing it is slow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def nvrtc_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvrtc_memory")


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, nvrtc_memory: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "cache"
    if any(nvrtc_memory.iterdir()):
        shutil.copytree(nvrtc_memory, path / "nvrtc")
    for name in ("GRAPHENE_CACHE", "GRAPHENE_CACHE_LIMIT", "GRAPHENE_NVRTC", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(path))
    yield path
    if (path / "nvrtc").is_dir():
        shutil.copytree(path / "nvrtc", nvrtc_memory, dirs_exist_ok=True)
