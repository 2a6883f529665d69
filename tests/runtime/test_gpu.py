"""Launches on a real device. `pytest -m gpu tests/runtime` runs only these."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import _core

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

# y[i] += a * x[i]; one element a thread.
AXPY = """
extern "C" __global__ void axpy(const float* x, float* y, float a, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaf(a, x[i], y[i]);
}
"""


class Kernel(_core.Launcher):
    def __init__(self, manifest: _core.LaunchManifest, source: str) -> None:
        super().__init__()
        self.manifest, self.source = manifest, source

    def _manifest(self, arch: str) -> _core.LaunchManifest:
        return self.manifest

    def _prepare(self, device_index: int, arch: str) -> _core.Binary:
        return _core.compile_source(self.source, self.manifest.entry, arch, self.manifest.kernel_name)

    def _call_host(self, *args: Any, **named: Any) -> None:
        raise AssertionError("no argument is on a GPU")


@pytest.fixture
def axpy(make) -> Kernel:
    m = make(
        kernel="axpy", symbols=["n"], x=make.tensor("fp32", "n", "1"), y=make.tensor("fp32", "n", "1", "readwrite"),
        a=make.scalar("fp32"), grid=["(n + 255) // 256", 1, 1], threads=256,
    )  # fmt: skip
    return Kernel(m, AXPY)


def vector(n: int, value: float = 1.0) -> Any:
    return torch.full((n,), value, device="cuda")


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_result(axpy: Kernel, n: int) -> None:
    x, y = (torch.randint(-1000, 1000, (n,), device="cuda").float() for _ in range(2))  # every sum is exact
    want = y + 3 * x
    axpy(x, y, 3.0)
    assert torch.equal(y, want)
    axpy(y=y, a=-3.0, x=x)
    axpy(x, y, 3)
    assert torch.equal(y, want)
    assert axpy.misses == 1


def test_parameters_of_every_width(make) -> None:
    """What the kernel receives is what was passed: each parameter's bytes, in order."""
    source = """
    struct List { const int* p[3]; };
    extern "C" __global__ void params(List xs, long long* out, signed char a, unsigned short h, float f, double d,
                                      long long big, bool b, long long n, int m) {
      out[0] = *xs.p[0]; out[1] = *xs.p[1]; out[2] = *xs.p[2];
      out[3] = a; out[4] = h; out[5] = __float_as_int(f); out[6] = __double_as_longlong(d);
      out[7] = big; out[8] = b; out[9] = n; out[10] = m;
    }
    """
    m = make(
        kernel="params", xs=make.tensor("i32", "1", "1", count=3), a=make.scalar("i8"), h=make.scalar("fp16"),
        out=make.tensor("i64", "n m", "m 1", "write"), f=make.scalar("fp32"), d=make.scalar("fp64"),
        big=make.scalar("i64"), b=make.scalar("pred"), symbols=["n", make.symbol("m", bits=32)],
    )  # fmt: skip
    xs = [torch.tensor([v], dtype=torch.int32, device="cuda") for v in (5, -6, 7)]
    out = torch.zeros((2, 8), dtype=torch.int64, device="cuda")
    for _ in range(2):
        Kernel(m, source)(xs, -3, 0.1, out, 0.1, 1e300, -(2**62), True)
        want = [5, -6, 7, -3, int(np.float16(0.1).view(np.uint16)), int(np.float32(0.1).view(np.int32))]
        want += [int(np.float64(1e300).view(np.int64)), -(2**62), 1, 2, 8]
        assert out.flatten()[:11].tolist() == want


def test_runs_on_the_current_stream(axpy: Kernel) -> None:
    """On another stream the addition would come before the zeroing."""
    n = 1 << 16
    x, y = vector(n), vector(n, 5.0)
    axpy(x, vector(n), 0.0)
    for use_keyword in (False, True):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            y.zero_()
            if not use_keyword:
                axpy(x, y, 2.0)
        if use_keyword:
            axpy(x, y, 2.0, stream=side)
        torch.cuda.synchronize()
        assert (y == 2).all()
    handle = torch.cuda.Stream()
    axpy(x, y, 2.0, stream=handle.cuda_stream)
    handle.synchronize()
    assert (y == 4).all()


def test_graph_capture(axpy: Kernel) -> None:
    x, y = vector(1000), vector(1000, 0.0)
    graph = torch.cuda.CUDAGraph()
    axpy(x, y, 0.0)
    with torch.cuda.graph(graph):
        for _ in range(3):
            axpy(x, y, 1.0)
    torch.cuda.synchronize()
    assert (y == 0).all()
    for k in range(1, 4):
        graph.replay()
        torch.cuda.synchronize()
        assert (y == 3 * k).all()


def test_first_call_inside_a_capture_is_an_error_and_nothing_more(axpy: Kernel) -> None:
    x, y = vector(64), vector(64, 0.0)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(gr.LaunchError) as e:
        with torch.cuda.graph(graph):
            axpy(x, y, 1.0)
    assert e.value.code == "LAUNCH_CAPTURE"
    assert "kernel.load(0)" in str(e.value)
    axpy.load(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        axpy(x, y, 1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 1).all()


def test_refused_calls_launch_nothing(axpy: Kernel) -> None:
    n = 1000
    x, y = vector(n), vector(n, 0.0)
    axpy(x, y, 0.0)
    base = vector(2 * n)
    bad = {
        "LAUNCH_DTYPE": (x.half(), y, 1.0),
        "LAUNCH_SHAPE": (vector(n + 1), y, 1.0),
        "LAUNCH_STRIDE": (base[::2], y, 1.0),
        "LAUNCH_DEVICE": (x.cpu(), y, 1.0),
        "LAUNCH_OVERLAP": (y, y, 1.0),
        "LAUNCH_SCALAR": (x, y, 1e300),
        "LAUNCH_TYPE": (x, y, "1"),
        "LAUNCH_ARITY": (x, y),
    }
    for code, args in bad.items():
        with pytest.raises(gr.LaunchError) as e:
            axpy(*args)
        assert e.value.code == code
        assert "nothing was launched" in str(e.value)
    torch.cuda.synchronize()
    assert (y == 0).all()


def test_tensors_without_storage(axpy: Kernel) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    y = vector(8, 0.0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.ones(8, device="cuda")
    for bad in (fake, torch.empty(8, device="meta")):
        with pytest.raises(gr.LaunchError) as e:
            axpy(bad, y, 1.0)
        assert e.value.code in ("LAUNCH_STORAGE", "LAUNCH_DEVICE")
    codes = []

    def mapped(x: Any) -> Any:
        with pytest.raises(gr.LaunchError) as e:
            axpy(x, y, 1.0)
        codes.append(e.value.code)
        return x

    torch.vmap(mapped)(torch.ones(3, 8, device="cuda"))
    torch.func.grad(lambda x: mapped(x).sum())(torch.ones(8, device="cuda"))
    assert codes == ["LAUNCH_STORAGE", "LAUNCH_STORAGE"]
    assert (y == 0).all()


def test_more_shared_memory_than_the_default(make) -> None:
    source = """
    extern "C" __global__ void turn(float* x, int n) {
      extern __shared__ float s[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = s[n - 1 - i];
    }
    """
    m = make(
        kernel="turn", x=make.tensor("fp32", "n", "1", "readwrite"), symbols=[make.symbol("n", bits=32)],
        threads=256, shared="n * 4",
    )  # fmt: skip
    k = Kernel(m, source)
    for n in (1000, 25_000, 16_000, 24_999):
        x = torch.arange(n, device="cuda", dtype=torch.float32)
        want = x.flip(0)
        k(x)
        assert torch.equal(x, want)
    with pytest.raises(gr.LaunchError, match="too much shared memory"):
        k(vector(100_000))


def test_clusters(make) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need sm_90")
    source = """
    extern "C" __global__ void who(int* out) {
      unsigned rank, size;
      asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
      if (threadIdx.x == 0) out[blockIdx.x] = rank * 100 + size;
    }
    """
    k = Kernel(make(kernel="who", out=make.tensor("i32", "8", "1", "write"), grid=[8, 1, 1], cluster=(4, 1, 1)), source)
    out = torch.zeros(8, dtype=torch.int32, device="cuda")
    k(out)
    assert out.tolist() == [4, 104, 204, 304] * 2


def test_a_thread_without_a_context(axpy: Kernel) -> None:
    x, y = vector(100), vector(100, 0.0)
    axpy(x, y, 0.0)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            axpy(x, y, 1.0)
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert errors == []
    assert (y == 1).all()


def test_two_devices(axpy: Kernel) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    torch.cuda.set_device(0)
    for d in (1, 0, 1):
        x, y = torch.ones(10, device=f"cuda:{d}"), torch.zeros(10, device=f"cuda:{d}")
        axpy(x, y, 2.0)
        torch.cuda.synchronize(d)
        assert (y == 2).all()
        assert torch.cuda.current_device() == 0
    with pytest.raises(gr.LaunchError, match="on another device"):
        axpy(torch.ones(10, device="cuda:0"), torch.zeros(10, device="cuda:1"), 1.0)


def test_cupy_arrays(axpy: Kernel) -> None:
    cupy = pytest.importorskip("cupy")
    x, y = cupy.ones(100, cupy.float32), cupy.zeros(100, cupy.float32)
    axpy(x, y, 3.0)
    cupy.cuda.get_current_stream().synchronize()
    assert (y == 3).all()
    stream = cupy.cuda.Stream(non_blocking=True)
    axpy(x, y, 3.0, stream=stream)
    stream.synchronize()
    assert (y == 6).all()
    with pytest.raises(gr.LaunchError, match="wrong dtype"):
        axpy(x.astype(cupy.float64), y, 1.0)


def test_the_device_compiles_for_its_own_architecture(axpy: Kernel) -> None:
    major, minor = torch.cuda.get_device_capability()
    info = _core.driver_info()["devices"][torch.cuda.current_device()]
    assert info["arch"] == f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    assert info["sm_count"] == torch.cuda.get_device_properties(0).multi_processor_count


def test_another_process_loads_from_the_cache(axpy: Kernel) -> None:
    axpy(vector(8), vector(8), 1.0)
    arch = _core.driver_info()["devices"][0]["arch"]
    code = (
        "import time\nfrom graphene import _core\nt = time.perf_counter()\n"
        f"b = _core.compile_source({AXPY!r}, 'axpy', {arch!r})\nprint(b.from_cache, time.perf_counter() - t)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out[0] == "True"


def test_a_built_kernel() -> None:
    """Fig. 8 of the paper with symbolic sizes, on integers whose sums fp16 holds exactly."""
    with gr.Kernel("simple_gemm") as kernel:
        M, N, K = (gr.sym(name, multiple_of=64, max=1 << 20) for name in "MNK")
        A = gr.input("A", gr.col_major(M, K), gr.fp16)
        B = gr.input("B", gr.col_major(K, N), gr.fp16)
        C = gr.inout("C", gr.col_major(M, N), gr.fp16)
        blocks, threads = gr.blocks(M // 64, N // 64), gr.threads(8, 8)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            (bm, bn), (tm, tn) = blocks.indices(), threads.indices()
            with gr.loop("k", K) as kk, gr.loop("m", 8) as i, gr.loop("n", 8) as j:
                a = A.tile([64, None])[bm, 0].tile([8, None])[tm, 0][i, kk]
                b = B.tile([None, 64])[0, bn].tile([None, 8])[0, tn][kk, j]
                c = C.tile([64, 64])[bm, bn].tile([8, 8])[tm, tn][i, j]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))

    def columns(rows: int, cols: int) -> Any:
        return torch.randint(-2, 3, (cols, rows), device="cuda").half().T

    for m, n, k in ((256, 128, 64), (64, 192, 320)):
        a, b, c = columns(m, k), columns(k, n), columns(m, n)
        want = c.double() + a.double() @ b.double()
        kernel(a, b, c)
        assert torch.equal(c.double(), want)
    assert kernel.misses == 2
    with pytest.raises(gr.LaunchError, match=r"M = 250 \(dimension 0 of 'A'\) is not a multiple of 64"):
        kernel(columns(250, 64), columns(64, 128), columns(250, 128))


def of_a_chain(name: str, rounds: int, waits: bool) -> gr.Kernel:
    """Y = X + rounds, by so many additions; the next kernel may start at once."""
    n = gr.sym("n")
    with gr.Kernel(name) as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 128)).indices(), gr.threads(128).indices()
        if waits:
            gr.wait_kernels()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.start_kernels()
        gr.move(r, x.tile([128])[b][t])
        with gr.loop("i", rounds):
            r[:] = r + 1.0
        gr.move(y.tile([128])[b][t], r)
    return kernel


@pytest.mark.parametrize("n", [1, 1000, 1 << 20])
@pytest.mark.parametrize("captured", [False, True])
def test_a_kernel_that_waits_itself_sees_what_those_before_it_wrote(n: int, captured: bool) -> None:
    """Four in a row, each slow enough that the next would read too early, and overwrite what another still reads."""
    first, then = of_a_chain("first", 2000, waits=False), of_a_chain("then", 2000, waits=True)
    x, y, z = (vector(n, float(i)) for i in range(3))

    def chain() -> None:
        first(x, y)
        then(y, z)
        then(z, y)
        then(y, x)

    chain()
    torch.cuda.synchronize()
    run = chain
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        run = graph.replay
    for _ in range(6):
        run()
    torch.cuda.synchronize()
    assert (x == 7 * 8000).all()
