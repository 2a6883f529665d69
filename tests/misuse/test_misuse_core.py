"""Objects of the core used by other threads, kernels and encodings than they were made for: coded errors, no crash."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished import finished, refused, statements

import graphene as gr
from graphene import _core


def in_thread(work: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    t = threading.Thread(target=run)
    t.start()
    t.join()
    if failed:
        raise failed[0]


def text_inside(kernel: gr.Kernel, block: str) -> str:
    """The lines of a block that is open to the end of the kernel's text."""
    lines = str(kernel).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(block))
    return "".join(line for line in lines[at + 1 :] if line.startswith("  "))


def test_a_block_of_one_kernel_left_in_another() -> None:
    def generator() -> Any:
        with gr.Kernel("first"), gr.loop("i", 4):
            yield

    g = generator()
    next(g)
    in_thread(g.close)  # closes the kernel in another thread than records it
    with gr.Kernel("second") as k:
        x = gr.inout("x", [32], gr.fp32)
        gr.threads(32)
        with gr.loop("i", 4):
            del g
            gc.collect()
            gr.init(x, 1.0)
    assert text_inside(k, "for(i=") != ""


def test_iterators_that_outlive_their_kernel() -> None:
    with gr.Kernel("first"):
        loop = iter(gr.loop("i", 4))
        next(loop)
        with pytest.raises(StopIteration):
            next(loop)
        with pytest.raises(StopIteration):
            next(loop)
    with gr.Kernel("second") as k:
        x = gr.inout("x", [32], gr.fp32)
        gr.threads(32)
        with gr.loop("j", 4):
            del loop
            gc.collect()
            gr.init(x, 1.0)
    assert text_inside(k, "for(j=") != ""


def test_kernels_that_another_thread_closes_or_drops() -> None:
    """The thread that records one then has none open, whatever became of it."""
    kernel = gr.Kernel("k")
    kernel.__enter__()
    statements()
    in_thread(lambda: refused("KERNEL_NONE", statements))
    in_thread(lambda: kernel.__exit__(None, None, None))
    refused("KERNEL_NONE", statements)
    assert finished() == kernel
    held = [gr.Kernel("dropped")]
    held[0].__enter__()
    in_thread(held.clear)
    gc.collect()
    refused("KERNEL_NONE", statements)
    assert str(finished())


CLASSES = [c for c in vars(_core).values() if isinstance(c, type)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_objects_are_not_made_without_being_initialised(cls: type) -> None:
    if issubclass(cls, (_core.Launcher, BaseException)):
        return
    with pytest.raises(TypeError):
        cls.__new__(cls)
    with pytest.raises(TypeError):
        object.__new__(cls)


def test_copies_of_what_the_core_holds() -> None:
    """Equal ones, or a TypeError; never an object around nothing."""
    k = finished()
    for x in (gr.Layout(8, 2), gr.Swizzle(3, 3, 3), gr.fp16, gr.SH, gr.sym("N"), gr.atom("ld.global.b32"), k.ir):
        for copied in (copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))):
            try:
                other = copied(x)
            except TypeError:
                continue
            assert repr(other) == repr(x)


def repeat(n: int, modes: int) -> None:
    layout = gr.Layout(2)
    for _ in range(n):
        layout = gr.make_layout(*[layout] * modes)


def test_nested_layouts_are_bounded() -> None:
    refused("LAYOUT_LIMIT", lambda: repeat(100_000, 1))
    refused("LAYOUT_LIMIT", lambda: repeat(60, 2))
    t: Any = (1,)
    for _ in range(60):
        t = (t, t)
    began = time.monotonic()
    refused("LAYOUT_LIMIT", lambda: gr.Layout(t))
    t = []
    t.append(t)
    refused("LAYOUT_LIMIT", lambda: gr.Layout(t))

    class Grows:
        def __index__(self) -> int:
            grown.append(Grows())
            return 1

    grown: list[Any] = [Grows()]
    refused("LAYOUT_LIMIT", lambda: gr.Layout(grown))
    assert time.monotonic() - began < 5


NAMES = ["\ud800", "\udcff", "a\0b", "\0", "é" * 10, "", "-" * 100_000, "λ"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_any_characters(name: str) -> None:
    def record() -> None:
        with gr.Kernel(name):
            statements()

    with pytest.raises((gr.GrapheneError, TypeError)) as e:
        record()
    str(e.value).encode()
    with pytest.raises((gr.GrapheneError, TypeError)):
        gr.parse(name + "kernel")
    with pytest.raises((gr.GrapheneError, TypeError)):
        gr.Kernel.from_json('{"name": "' + name)
    for work in (lambda: gr.Layout(name), lambda: gr.atom(name), lambda: finished().lowered(name)):
        with pytest.raises((gr.GrapheneError, TypeError)):
            work()


def test_sources_in_files_of_any_name(tmp_path: Path) -> None:
    """The file and line of a statement are said whatever bytes the file's name has."""
    file = os.fsencode(tmp_path) + b"/caf\xe9 \xff.py"
    Path(os.fsdecode(file)).write_text(
        "import graphene as gr\n"
        "with gr.Kernel('k') as k:\n"
        "    blocks, threads = gr.blocks(1), gr.threads(32)\n"
        "    (t,) = threads.indices()\n"
        "    x = gr.inout('x', [32], gr.fp32)\n"
        "    gr.init(x[t], 1.0)\n"
        "again = gr.Kernel.from_json(k.to_json(locations=True))\n"
        "assert again == k\n"
        "k.check(); k.syncs(); str(k.report())\n"
        "try:\n    gr.Kernel('k').__exit__(None, None, None)\n"
        "except gr.GrapheneError: pass\n"
        "with gr.Kernel('k') as k:\n"
        "    try:\n        gr.loop('', 4).__enter__()\n"
        "    except gr.GrapheneError as e: print(ascii(e.diagnostics[0]['file']), str(e))\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(gr.__file__).parents[1]), "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, file], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"caf\\udce9 \\udcff.py" in done.stdout
    text = "with gr.Kernel('k') as k:\n  gr.threads(32)\n  gr.init(gr.inout('x', [32], gr.fp32), 1)"
    for name in ("\ud800", "a\0b"):
        scope: dict[str, Any] = {"gr": gr}
        exec(compile(text, "f", "exec").replace(co_filename=name), scope)
        assert gr.Kernel.from_json(scope["k"].to_json(locations=True)) == scope["k"]


def test_a_package_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """It is imported from there, and says the lines of its user, not its own."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff"))
    folder.mkdir()
    (folder / "graphene").symlink_to(Path(_core.__file__).parent, target_is_directory=True)
    file = tmp_path / "user.py"
    file.write_text(
        "import graphene as gr\n"
        "with gr.Kernel('k') as k:\n"
        "    (t,) = gr.threads(8).indices()\n"
        "    y = gr.output('y', [4], gr.fp32)\n"
        "    y[t] = 1.0\n"
        "print(ascii(gr.__file__), k.check())\n"
    )
    env = os.environ | {"PYTHONPATH": str(folder), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, file], env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path, _, said = done.stdout.partition(" user.py:5: ")
    assert "udcff/graphene/__init__.py" in path, done.stdout
    assert "SIM_OUT_OF_BOUNDS" in said, done.stdout


def test_half_of_a_surrogate_pair_is_text_that_is_malformed() -> None:
    for read, code in (
        (gr.parse, "IR_PARSE"),
        (gr.Kernel.from_json, "IR_JSON"),
        (gr.Swizzle, "LAYOUT_PARSE"),
        (gr.Layout, "LAYOUT_PARSE"),
    ):
        with pytest.raises(gr.GrapheneError, match=r"udc80") as caught:
            read("\udc80")
        assert caught.value.code.startswith(code)
