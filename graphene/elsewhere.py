"""What CUDA, CuTe, Triton and NumPy call what has another name here: advice for names that do not exist."""

from __future__ import annotations

_THREADS = "block = gr.threads(256); (t,) = block.indices()"
_BLOCKS = "(m,) = gr.blocks(M).indices()"
_TYPE = "a type has a short name: gr.fp16, gr.bf16, gr.fp32, gr.i32, gr.u8, ..."
_ALLOC = 'gr.alloc("s", [64], gr.fp32, gr.SH), or gr.RF for registers'
_TOGETHER = 'gr.allreduce("add", r, on=block) for a register of each thread; gr.reduce for fragments'
_PYTHON = "kernels are recorded by Python: a plain Python value is a constant"
_FORMULA = "write it by gr.exp, gr.log, gr.sin, gr.cos, ..., or by gr.ptx"

_WORDS = {
    "syncthreads": "gr.barrier()", "__syncthreads": "gr.barrier()", "sync_threads": "gr.barrier()",
    "syncwarp": "gr.barrier(on=warp)", "debug_barrier": "gr.barrier()",
    "threadIdx": _THREADS, "tid": _THREADS, "thread_idx": _THREADS, "arange": _THREADS,
    "blockIdx": _BLOCKS, "block_idx": _BLOCKS, "program_id": _BLOCKS, "bid": _BLOCKS,
    "blockDim": "block.size", "gridDim": "blocks.size", "num_programs": "blocks.size",
    "shared": _ALLOC, "empty": _ALLOC, "allocate": _ALLOC, "smem": _ALLOC,
    "zeros": 'gr.let("sum", 0.0, gr.fp32), with shape=[...] for several', "full": 'gr.let("x", 1.0, gr.fp32)',
    "zeros_like": 'gr.let("sum", 0.0, gr.fp32)', "constexpr": _PYTHON, "static_range": "Python's range",
    "range": 'gr.loop("k", n), or Python\'s range for a loop that is unrolled', "for_": 'gr.loop("k", n)',
    "store": "gr.move(place, r), or place[...] = r", "copy": "gr.move", "dot": "gr.matmul", "gemm": "gr.matmul",
    "mma": "gr.matmul", "cdiv": "gr.ceil_div", "maximum": "gr.max", "minimum": "gr.min", "fabs": "gr.abs",
    "sum": _TOGETHER, "argmax": 'gr.allarg("max", ...)', "argmin": 'gr.allarg("min", ...)',
    "cumsum": 'gr.scan("add", r, on=block)', "associative_scan": "gr.scan with a function", "topk": "gr.top_k",
    "atomicAdd": 'gr.atomic("add", ...)', "atomic_add": 'gr.atomic("add", ...)',
    "atomicCAS": 'gr.atomic("cas", ..., expected=...)', "atomic_cas": 'gr.atomic("cas", ..., expected=...)',
    "atomicExch": 'gr.atomic("exchange", ...)', "printf": "gr.print", "device_print": "gr.print",
    "device_assert": "gr.assert_", "inline_asm": "gr.ptx", "asm": "gr.ptx", "reinterpret": "gr.bitcast",
    "jit": "gr.Kernel, or gr.forms for several forms of one", "autotune": "gr.tune",
    "sigmoid": "1 / (1 + gr.exp(-x))", "softmax": "gr.exp of x less the maximum of gr.allreduce, and the sum",
    "isnan": "x != x", "clamp": "gr.min(gr.max(x, low), high)", "clip": "gr.min(gr.max(x, low), high)",
    "sign": "gr.where(x > 0, 1, gr.where(x < 0, -1, 0))", "log1p": "gr.log(1 + x)", "expm1": "gr.exp(x) - 1",
    "tan": _FORMULA, "atan": _FORMULA, "atan2": _FORMULA, "asin": _FORMULA, "acos": _FORMULA, "sinh": _FORMULA,
    "cosh": _FORMULA, "log10": "gr.log2(x) * 0.30103", "rsqrtf": "gr.rsqrt", "expf": "gr.exp",
    "half": _TYPE, "float16": _TYPE, "bfloat16": _TYPE, "float32": _TYPE, "float64": _TYPE, "float": _TYPE,
    "int8": _TYPE, "int16": _TYPE, "int32": _TYPE, "int64": _TYPE, "uint8": _TYPE, "uint16": _TYPE, "uint32": _TYPE,
    "uint64": _TYPE, "bool": "gr.pred", "f16": _TYPE, "f32": _TYPE, "f64": _TYPE,
    "any": "gr.ballot(condition, on=warp) != 0", "all": "gr.ballot(~condition, on=warp) == 0",
    "activemask": "gr.ballot(condition, on=warp): the threads of a group are those of the layout",
    "warp_size": "32: gr.threads(256).tile(32) are warps", "reshape": "tensor.reshape", "view": "tensor.reshape",
    "make_tensor": "gr.input, gr.output, gr.alloc", "local_tile": "tensor.tile([...])[...]",
    "make_tiled_copy": "gr.move of tiles: its nest is made and shown", "make_tiled_mma": "gr.matmul of tiles",
    "cp_async": "gr.move(shared, global), gr.commit, gr.wait", "memcpy_async": "gr.move(shared, global)",
    "if_else": "gr.where, or gr.if_ and gr.else_", "elif_": "gr.else_ with gr.if_ in it", "return_": "gr.exit_if",
    "rand": "integers of gr.mulhi, ^ and +, as Philox makes them", "break_": "gr.while_ ends by a condition",
}  # fmt: skip

_OF_TENSORS = {
    "astype": "gr.cast(x, dtype) in an expression, gr.let(name, x, dtype) for new registers",
    "to": "gr.cast(x, dtype) in an expression, gr.let(name, x, dtype) for new registers",
    "sum": _TOGETHER, "max": _TOGETHER, "min": _TOGETHER, "mean": _TOGETHER, "exp": "gr.exp(x)", "abs": "gr.abs(x)",
    "load": "gr.load(x)", "store": "gr.move(x, r), or x[...] = r", "copy_": "gr.move(x, r)", "view": "x.reshape",
    "fill": "gr.init(x, value)", "fill_": "gr.init(x, value)", "zero_": "gr.init(x, 0)", "clear": "gr.init(x, 0)",
    "item": "gr.index(x, min=..., max=...)", "ndim": "len(x.shape)", "transpose": "x.T",
    "partition": "x.tile", "local_tile": "x.tile([...])[...]",
}  # fmt: skip


def advice(name: str) -> str:
    """What to write instead of a name of the package that does not exist, after a semicolon; empty if it is unknown."""
    word = _WORDS.get(name)
    if word is None:
        return ""
    return f"; write {word}" if word.startswith(("gr.", "1 ", "x ", "block", "(m", "tensor")) else f"; {word}"


def of_tensor(name: str) -> str:
    """The same for an attribute of a tensor."""
    word = _OF_TENSORS.get(name)
    return "" if word is None else f"; write {word}"
