"""Compiling CUDA C++ text with NVRTC: no GPU is needed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core

COPY = """
// %1:[N].fp32.GL <- Move<<<#1:[4].block, #2:[32].thread>>>(%0:[N].fp32.GL)
extern "C" __global__ void copy(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""

SHARED = """
extern "C" __global__ void staged(float* x) {
  __shared__ float s[96];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[95 - threadIdx.x];
}
"""

LOCAL = """
extern "C" __global__ void local(float* x, int n) {
  float r[64];
  for (int i = 0; i < 64; i++) r[(i * n) & 63] = x[i];
  x[n] = r[n & 63];
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_compiles_to_a_cubin_of_the_architecture(arch: str) -> None:
    b = _core.compile_source(COPY, "copy", arch)
    assert b.cubin[:4] == b"\x7fELF"
    assert f".target {arch}" in b.ptx
    assert (b.arch, b.entry, b.spill_bytes, b.shared_bytes) == (arch, "copy", 0, 0)
    assert 4 <= b.registers <= 32
    assert not b.from_cache
    assert b.compile_ms > 0
    assert repr(b).startswith(f"Binary('copy', {arch}, {b.registers} registers, 0 spill bytes, 0 shared bytes")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("source", "entry"), [(COPY, "copy"), (SHARED, "staged"), (LOCAL, "local")])
def test_resources_in_the_cubin_equal_those_in_the_log(arch: str, source: str, entry: str) -> None:
    from_log = _core.compile_source(source, entry, arch)
    from_elf = _core.Binary(from_log.cubin, entry, arch)
    for field in ("registers", "shared_bytes", "local_bytes"):
        assert getattr(from_elf, field) == getattr(from_log, field), field


def test_resources_are_those_of_the_source() -> None:
    assert _core.compile_source(SHARED, "staged", "sm_90").shared_bytes == 96 * 4
    indexed = _core.compile_source(LOCAL, "local", "sm_80")
    assert (indexed.local_bytes, indexed.spill_bytes) == (64 * 4, 0)


def test_spills_are_counted() -> None:
    body = "".join(f"  float v{i} = x[{i}*n];\n" for i in range(96))
    total = " + ".join(f"v{i} * v{(i * 7 + 3) % 96}" for i in range(96))
    source = f'extern "C" __global__ void spill(float* x, int n) {{\n{body}  __syncthreads();\n  x[0] = {total};\n}}\n'
    options = [*_core.default_compile_options(), "-maxrregcount=24"]
    b = _core.compile_source(source, "spill", "sm_80", options=options)
    assert b.spill_bytes > 0
    assert b.registers <= 24


def test_products_and_sums_are_not_contracted() -> None:
    source = 'extern "C" __global__ void k(float* x, float a, float b) { *x = *x * a + b; }'
    assert "fma" not in _core.compile_source(source, "k", "sm_80").ptx
    assert "fma" in _core.compile_source(source, "k", "sm_80", options=["-default-device"]).ptx


def test_error_in_the_source_names_the_ir_line() -> None:
    with pytest.raises(gr.CompileError) as e:
        _core.compile_source(COPY.replace("x[i];", "zz[i];"), "copy", "sm_80", name="my_copy")
    version = _core.nvrtc_for("sm_80")["version"]
    assert e.value.code == "COMPILE_SOURCE"
    assert str(e.value).splitlines()[:4] == [
        f"my_copy: NVRTC {version} refused the source for sm_80   [COMPILE_SOURCE]",
        '  copy.cu(5): error: identifier "zz" is undefined',
        "    under: %1:[N].fp32.GL <- Move<<<#1:[4].block, #2:[32].thread>>>(%0:[N].fp32.GL)",
        "    line:  if (i < n) y[i] = zz[i];",
    ]


def wgmma(between: str) -> str:
    """Two wgmmas into one accumulator, with `between` before the second."""
    step = (
        'asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"'
        ' : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));'
    )
    return f"""
extern "C" __global__ void k(float* x, unsigned long long a, unsigned long long b) {{
  float d[4] = {{x[0], x[1], x[2], x[3]}};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  {step}
  {between}
  {step}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  x[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}}"""


def test_serialised_wgmma_is_an_error() -> None:
    """Whatever the compiler remarks on is refused; from 13.5 on it is known to remark on this."""
    assert _core.compile_source(wgmma(""), "k", "sm_90a").registers > 0
    touched = wgmma("d[0] += 1.0f; d[1] *= d[0];")
    version = tuple(int(n) for n in _core.nvrtc_for("sm_90a")["version"].split("."))
    for _ in range(2):  # nor does the cache make it pass
        try:
            binary = _core.compile_source(touched, "k", "sm_90a", name="gemm")
        except gr.CompileError as error:
            e = error
        else:
            assert "serialized" not in binary.log
            assert version < (13, 5)
            pytest.skip(f"NVRTC {version[0]}.{version[1]} does not remark on it")
        assert e.code == "COMPILE_REMARK"
        assert str(e).startswith("gemm: the assembler serialises the wgmma instructions   [COMPILE_REMARK]\n  ptxas: ")
        assert "wgmma.mma_async instructions are serialized due to" in str(e)


def test_missing_entry_is_an_error() -> None:
    with pytest.raises(gr.CompileError, match=re.escape("copy: the compiled source has no kernel 'other'")):
        _core.compile_source(COPY, "other", "sm_80", name="copy")


@pytest.mark.parametrize("arch", ["sm_", "80", "gfx90a", "sm_80x", "sm_9999", "", "sm_-8", "compute_80"])
def test_not_an_architecture(arch: str) -> None:
    with pytest.raises(gr.CompileError) as e:
        _core.compile_source(COPY, "copy", arch)
    assert e.value.code == "COMPILE_ARCH"
    assert f"'{arch}' is not an NVIDIA architecture" in str(e.value)


def test_named_library_is_the_only_one_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = _core.nvrtc_for("sm_80")
    monkeypatch.setenv("GRAPHENE_NVRTC", str(tmp_path / "libnvrtc.so"))
    with pytest.raises(gr.CompileError) as e:
        _core.nvrtc_for("sm_80")
    assert e.value.code == "COMPILE_NVRTC"
    assert "libnvrtc.so ($GRAPHENE_NVRTC): " in str(e.value)
    assert "fix: correct GRAPHENE_NVRTC, or unset it to search the usual places" in str(e.value)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("GRAPHENE_NVRTC", str(tmp_path / "pipe"))  # opening it would wait for a writer
    with pytest.raises(gr.CompileError, match=r"pipe is not a file"):
        _core.nvrtc_for("sm_80")
    monkeypatch.setenv("GRAPHENE_NVRTC", usual["path"])
    assert _core.nvrtc_for("sm_80")["why"] == "$GRAPHENE_NVRTC"
    monkeypatch.setenv("GRAPHENE_NVRTC", str(Path(usual["path"]).parent))
    assert Path(_core.nvrtc_for("sm_80")["path"]).samefile(usual["path"])


def test_a_file_that_is_no_nvrtc_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvrtc.so.13").write_text("no library")
    monkeypatch.setenv("GRAPHENE_NVRTC", str(tmp_path))
    with pytest.raises(gr.CompileError, match=r"libnvrtc\.so\.13 \(\$GRAPHENE_NVRTC\): .*(file too short|invalid ELF)"):
        _core.nvrtc_for("sm_80")


def fake_nvrtc(folder: Path, archs: list[int], version: tuple[int, int], more: str = "") -> None:
    """A library with NVRTC's interface that only tells its version and architectures; `more`: other functions of it."""
    names = "CreateProgram DestroyProgram CompileProgram GetProgramLogSize GetProgramLog GetPTXSize GetPTX"
    every = [n for n in [*names.split(), "GetCUBINSize", "GetCUBIN"] if f"nvrtc{n}(" not in more]
    empty = "".join(f"int nvrtc{n}() {{ return 1; }}\n" for n in every) + more
    code = f"""
#include <stdlib.h>
int nvrtcVersion(int* a, int* b) {{ *a = {version[0]}; *b = {version[1]}; return 0; }}
int nvrtcGetNumSupportedArchs(int* n) {{ *n = {len(archs)}; return 0; }}
int nvrtcGetSupportedArchs(int* a) {{ {"".join(f"a[{i}] = {v};" for i, v in enumerate(archs))} return 0; }}
const char* nvrtcGetErrorString(int r) {{ return r ? "refused" : "fine"; }}
{empty}"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "f.c").write_text(code)
    library = folder / f"libnvrtc.so.{version[0]}"
    subprocess.run([shutil.which("gcc") or "cc", "-shared", "-fPIC", "-o", library, folder / "f.c"], check=True)


def test_a_second_library_serves_what_the_first_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old architecture is compiled by the older NVRTC beside the newer one."""
    fake_nvrtc(tmp_path / "site/nvidia/cuda_nvrtc/lib", [50, 70, 80], (12, 8))
    fake_nvrtc(tmp_path / "site/nvidia/cu13/lib", [75, 80, 90], (13, 0))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert _core.nvrtc_for("sm_70")["version"] == "12.8"
    # Of two that both support it the newer one, whatever the wheels are called.
    assert _core.nvrtc_for("sm_80")["version"] == "13.0"
    assert _core.nvrtc_for("sm_50")["path"] == str(tmp_path / "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    found = [x["path"] for x in _core.nvrtc_libraries()]
    assert str(tmp_path / "site/nvidia/cu13/lib/libnvrtc.so.13") in found


def test_unsupported_architecture_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvrtc(tmp_path, [75, 80, 90], (13, 0))
    monkeypatch.setenv("GRAPHENE_NVRTC", str(tmp_path))
    for arch, fix in (
        ("sm_70", "NVRTC 12 has it: pip install nvidia-cuda-nvrtc-cu12"),
        ("sm_120a", "install a newer NVRTC: pip install -U nvidia-cuda-nvrtc"),
    ):
        with pytest.raises(gr.CompileError) as e:
            _core.compile_source(COPY, "copy", arch)
        assert str(e.value) == (
            f"no NVRTC found supports {arch}   [COMPILE_ARCH]\n"
            f"  NVRTC 13.0 at {tmp_path}/libnvrtc.so.13: sm_75 sm_80 sm_90\n"
            f"  fix: {fix}"
        )


HINTED = r"""extern "C" __global__ void hinted(const float* a, float* b) {
  __shared__ float s[4];
  asm volatile("{.reg .b64 p; createpolicy.fractional.L2::evict_last.b64 p, "
               "1.0; cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, "
               "p;}" ::"r"((unsigned)__cvta_generic_to_shared(s)), "l"(a));
  asm volatile("cp.async.wait_all;");
  b[0] = s[0];
}
"""


def test_an_instruction_that_no_gpu_decodes_is_compiled_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """As the assembler of CUDA 13.0 writes it for hints; here a library does that to a cubin of the usual one."""
    right = _core.compile_source(HINTED, "hinted", "sm_80")
    at = right.cubin.index(bytes.fromhex("ae7f"))  # LDGSTS [R], of which there is one; its form is in the second byte
    wrong = bytearray(right.cubin)
    wrong[at + 1] = 0x7D
    wrong[at + 8] &= 0xFE
    (tmp_path / "right").write_bytes(right.cubin)
    (tmp_path / "wrong").write_bytes(wrong)
    fake_nvrtc(
        tmp_path,
        [80],
        (13, 0),
        """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static char file[4096];
int nvrtcCreateProgram(void** p, const char* source, const char* n, int h, const char* const* a, const char* const* b) {
  const char* wrong = getenv("ALWAYS") || strstr(source, "cache_hint") || strstr(source, "p;}") ? "wrong" : "right";
  snprintf(file, sizeof file, "%s/%s", getenv("CUBINS"), wrong);
  return *p = file, 0;
}
int nvrtcDestroyProgram(void** p) { return 0; }
int nvrtcCompileProgram(void* p, int n, const char* const* o) {
  return dlopen("libnvrtc-builtins.so.13.0", RTLD_LAZY) == NULL;  // as NVRTC finds it
}
int nvrtcGetProgramLogSize(void* p, size_t* n) { return *n = 1, 0; }
int nvrtcGetProgramLog(void* p, char* to) { return *to = 0; }
int nvrtcGetPTXSize(void* p, size_t* n) { return *n = 1, 0; }
int nvrtcGetPTX(void* p, char* to) { return *to = 0; }
int nvrtcGetCUBINSize(void* p, size_t* n) {
  FILE* f = fopen(file, "rb");
  fseek(f, 0, SEEK_END);
  *n = ftell(f);
  return fclose(f);
}
int nvrtcGetCUBIN(void* p, char* to) {
  FILE* f = fopen(file, "rb");
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  n -= fread(to, 1, n, f);
  return fclose(f), (int)n;
}
""",
    )
    builtins = "libnvrtc-builtins.so.13.0"
    subprocess.run([shutil.which("gcc") or "cc", "-shared", "-fPIC", "-xc", "/dev/null", f"-Wl,-soname,{builtins}",
                    "-o", tmp_path / builtins], check=True)  # fmt: skip
    monkeypatch.setenv("GRAPHENE_NVRTC", str(tmp_path))
    monkeypatch.setenv("CUBINS", str(tmp_path))
    made = _core.compile_source(HINTED, "hinted", "sm_80")
    assert made.cubin == right.cubin
    assert "compiled without cache hints" in made.log
    # What an older version stored is not taken.
    (stored,) = (p for p in cache_dir.glob("graphene-v1/entries/*/*/log.txt") if "cache hints" in p.read_text())
    stored.with_name("kernel.cubin").chmod(0o600)
    stored.with_name("kernel.cubin").write_bytes(wrong)
    assert _core.compile_source(HINTED, "hinted", "sm_80").cubin == right.cubin
    monkeypatch.setenv("ALWAYS", "1")
    with pytest.raises(
        gr.CompileError, match=r"no GPU decodes\s+\[COMPILE_REMARK\]\s+NVRTC 13.0 at .*\s+found: LDGSTS"
    ):
        _core.compile_source(HINTED + "// another source", "hinted", "sm_80")


def test_line_information_names_the_source_in_the_cache(cache_dir: Path) -> None:
    """So a profiler shows the generated source, with its IR comments, beside its samples."""
    b = _core.compile_source(COPY, "copy", "sm_80", options=[*_core.default_compile_options(), "-lineinfo"])
    (source,) = cache_dir.glob("graphene-v1/entries/*/*/kernel.cu")
    assert source.read_text() == COPY
    assert re.search(rf'\.file\s+1 "{re.escape(str(source))}"', b.ptx)
    assert str(cache_dir) not in b.log


START = """
import sys, time
from graphene import _core
_core.nvrtc_start("sm_90a")
time.sleep(float(sys.argv[1]))
if sys.argv[2] == "compile":
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2.0f; }'
    print(_core.compile_source(source, "k", "sm_90a").registers > 0)
"""


@pytest.mark.parametrize("wait_s", [0, 0.01, 0.03, 0.3])
@pytest.mark.parametrize("then", ["compile", "end"])
def test_a_compiler_that_is_being_started_serves_a_compilation_and_outlives_no_process(
    wait_s: float, then: str, tmp_path: Path
) -> None:
    """Two of three processes aborted that ended while the library was being loaded."""
    done = subprocess.run([sys.executable, "-c", START, str(wait_s), then], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"GRAPHENE_CACHE_DIR": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["True"] if then == "compile" else [])


def test_default_options_are_public() -> None:
    plain = ["-std=c++17", "-default-device", "--fmad=false"]
    assert _core.default_compile_options() == plain
    code = "from graphene import _core; print(_core.default_compile_options())"
    for value, want in (("1", [*plain, "-lineinfo"]), ("0", plain), ("", plain)):
        env = os.environ | {"GRAPHENE_LINEINFO": value, "PYTHONPATH": str(Path(gr.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"{want}\n"


def test_damaged_cubin_is_refused_or_read_without_a_crash() -> None:
    cubin = _core.compile_source(SHARED, "staged", "sm_80").cubin
    for cut in range(0, int.from_bytes(cubin[40:48], "little"), 97):  # up to the table of sections
        with pytest.raises(gr.LaunchError):
            _core.Binary(cubin[:cut], "staged", "sm_80")
    for at in range(0, 0x100):
        for value in (0x00, 0xFF):
            damaged = bytearray(cubin)
            damaged[at] = value
            with contextlib.suppress(gr.LaunchError):
                _core.Binary(bytes(damaged), "staged", "sm_80")
