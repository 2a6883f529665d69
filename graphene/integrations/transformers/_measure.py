"""Times of both ways to compute a part of a network, on the device where it is, before one is chosen."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphene import _core
from graphene.errors import LaunchError
from graphene.integrations.transformers import _sdpa
from graphene.integrations.transformers._fused import ACTIVATIONS, HALF, epilogue, ops
from graphene.ops.core import plans
from graphene.ops.rotary import other

ROWS = (1, 128, 8192)  # one number for each part of the borders
QUERIES = (1, 128, 512, 2048)  # of attention: the same for its borders
TOKENS, STEP = 8192, (8, 1024)  # of all sequences together; sequences and keys of a single query
ROTARY_HEADS = (16, 4)  # of queries and keys
ANY_WIDTH = 4096  # where a width is not known before the call
LONG_S = 0.004  # calls that take longer together are fewer
GAIN = 0.97  # another way is taken if it needs at most this part of PyTorch's time

Ways = Mapping[str, Callable[[], Any]]


def possible(device: Any) -> bool:
    """Whether anything is measured there."""
    return bool(device.type == "cuda")


def microseconds(call: Callable[[], Any], calls: int = 10, repeats: int = 7) -> float:
    """The median time of a call among others of its kind: whatever limits it, host or device."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(1, min(calls, int(LONG_S / (time.perf_counter() - start))))
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return float(statistics.median(times))


def ways(key: tuple[Any, ...], rows: int, dtype: Any, device: Any, norm: str = "layer") -> Ways:
    """The ways to compute the part of that key for a number of rows, on random values; "torch" is PyTorch's.

    ``norm``: for norms "layer", or "rms", whose formula is then written out as networks do.
    """

    def random(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.float32).mul_(0.5).to(dtype)

    kind, *sizes = key
    if kind == "attention":
        return _attention_ways(sizes, rows, dtype, random)
    if kind in ("norm", "add_norm"):
        (width,) = sizes
        x, e, w, b = random(rows, width), random(rows, width), random(width), random(width)

        def plain(x: Any) -> Any:
            return F.layer_norm(x, (width,), w, b) if norm == "layer" else _rms_norm(x, w)

        def ours(residual: Any = None) -> Any:
            if norm == "layer":
                return ops.layer_norm(x, (width,), w, b, residual=residual)
            return ops.rms_norm(x, (width,), w, 1e-6, residual=residual)

        if kind == "norm":
            return {"torch": lambda: plain(x), "graphene": ours}
        return {"torch": lambda: plain(x + e), "graphene": lambda: ours(e)}
    if kind == "linear_act":
        width, out, name = sizes
        x, w, b = random(rows, width), random(out, width).div_(width**0.5), random(out)
        act = ACTIVATIONS[name]
        found = {
            "torch": lambda: act(F.linear(x, w, b)),
            "two": lambda: ops.gated(F.linear(x, w, b), None, name),
            "graphene": lambda: ops.matmul(x, w.t(), b, name),
        }
        if name in ("gelu_tanh", "relu") and hasattr(torch, "_addmm_activation"):
            found["epilogue"] = lambda: epilogue(x, w.t(), b, name)
        return found
    if kind == "linears":
        width, columns = sizes
        x, b = random(rows, width), random(sum(columns))
        w = random(sum(columns), width).div_(width**0.5)
        parts = list(zip(w.split(columns), b.split(columns), strict=True))
        return {
            "torch": lambda: [F.linear(x, v, c) for v, c in parts],
            "joined": lambda: F.linear(x, w, b).split(columns, -1),
        }
    if kind == "rotary":
        width, pairs, normed = sizes
        q, k = (random(1, rows, heads, width).transpose(1, 2) for heads in ROTARY_HEADS)
        cos, sin, w = random(1, rows, width), random(1, rows, width), random(width)
        apart = pairs == "neighbours"

        def turned(x: Any) -> Any:
            x = _rms_norm(x, w) if normed else x
            return x * cos.unsqueeze(1) + other(x, apart) * sin.unsqueeze(1)

        more = (w, w, 1e-6, 0.0) if normed else (None, None, 0.0, 0.0)
        return {
            "torch": lambda: (turned(q), turned(k)),
            "graphene": lambda: ops.rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin, *more, apart),
        }
    width, name = sizes if kind == "gated" else (ANY_WIDTH, *sizes)
    gate, up, act = random(rows, width), random(rows, width), ACTIVATIONS[name]
    return {"torch": lambda: act(gate) * up, "graphene": lambda: ops.gated(gate, up, name)}


def rows_of(key: tuple[Any, ...]) -> tuple[int, ...]:
    """The numbers of rows, or of queries, for which the part of that key is measured."""
    return QUERIES if key[0] == "attention" else ROWS


def _attention_ways(sizes: list[Any], queries: int, dtype: Any, random: Callable[..., Any]) -> Ways:
    """Attention without a mask, and with its gradient if asked for: Graphene's in half precision, else PyTorch's."""
    heads, kv_heads, dim, causal, gradient = sizes
    causal = causal and queries > 1
    batch, keys = STEP if queries == 1 else (max(TOKENS // queries, 1), queries)
    shapes = ((queries, heads), (keys, kv_heads), (keys, kv_heads))
    given = [random(batch, *shape, dim).requires_grad_(gradient) for shape in shapes]
    out_gradient = random(batch, queries, heads, dim) if gradient else None

    def by_pytorch(way: Callable[..., Any], **more: Any) -> Callable[[], Any]:
        return lambda: way(*(t.transpose(1, 2) for t in given), causal, None, **more)

    def ours() -> Any:
        return ops.attention(*given, causal=causal)

    def both(way: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(way(), given, out_gradient)

        return run

    found = {"torch": by_pytorch(_sdpa.plain)}
    if dtype in HALF:
        found["graphene"] = ours
    else:
        if heads != kv_heads:
            found["repeated"] = by_pytorch(_sdpa.plain, repeat=True)
        if not gradient and _sdpa.fits(given[0].transpose(1, 2), keys):
            found["scores"] = by_pytorch(_sdpa.with_scores)
    return {name: both(way) for name, way in found.items()} if gradient else found


def _rms_norm(x: Any, w: Any) -> Any:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def choose(key: tuple[Any, ...], dtype: Any, device: Any, norm: str = "layer") -> dict[int, dict[str, float]]:
    """Microseconds of each way by numbers of rows; of those that this device, and its free memory, take.

    They are kept in the cache, for this package, this version of PyTorch and this kind of device.
    """
    name = _memo(key, dtype, device, norm)
    if name is not None and (kept := _kept(name, rows_of(key))) is not None:
        return kept
    found = _choose(key, dtype, device, norm)
    if name is not None and len(found) == len(rows_of(key)):
        _core.memo_store(name, json.dumps(list(found.items())).encode())
    return found


def _memo(key: tuple[Any, ...], dtype: Any, device: Any, norm: str) -> str | None:
    """The name under which a measurement is kept; None if it is not."""
    stamp = plans.package_stamp() if device.type == "cuda" and os.environ.get("GRAPHENE_PLANS") != "0" else None
    if stamp is None:
        return None
    where = (torch.cuda.get_device_name(device), torch.__version__, stamp, torch.get_float32_matmul_precision())
    return str(_core.sha256(repr(("accelerate", key, str(dtype), norm, rows_of(key), where)).encode())[:32])


def _kept(name: str, rows: tuple[int, ...]) -> dict[int, dict[str, float]] | None:
    """A measurement that was kept; None if there is none, or it is damaged."""
    try:
        read = json.loads(_core.memo_load(name) or b"null")
        found = {int(n): {str(way): float(us) for way, us in times.items()} for n, times in read}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return found if tuple(found) == rows and all("torch" in times for times in found.values()) else None


def _choose(key: tuple[Any, ...], dtype: Any, device: Any, norm: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    with torch.no_grad(), torch.cuda.device(device):
        for rows in rows_of(key):
            try:
                calls = ways(key, rows, dtype, device, norm)
                found[rows] = {"torch": microseconds(calls["torch"])}
            except torch.OutOfMemoryError:
                break
            for name in [n for n in calls if n != "torch"]:
                try:
                    found[rows][name] = microseconds(calls[name])
                except (LaunchError, torch.OutOfMemoryError):
                    continue
    return found


def best(times: Mapping[str, float], usual: str = "torch") -> str:
    """The way to take: the usual one unless another gains."""
    if usual not in times:
        return usual
    name = min(times, key=lambda n: times[n])
    return name if times[name] <= GAIN * times[usual] else usual
