"""From the figures of a benchmark to bar charts: what is compared, by case and by peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VALUES = ("tflops", "tb_per_s", "gb_per_s", "us", "ms", "value")  # of a row, in the order they are looked for
UNITS = {"tflops": "TFLOP/s", "tb_per_s": "TB/s", "gb_per_s": "GB/s", "us": "us", "ms": "ms"}


@dataclass
class Chart:
    """Groups of bars: ``bars[case][peer]``; ``marks``: a second figure of a bar, drawn above it."""

    title: str
    unit: str
    bars: dict[str, dict[str, float]] = field(default_factory=dict)
    marks: dict[tuple[str, str], str] = field(default_factory=dict)


def count_text(n: float) -> str:
    """1234567 as 1.2M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{n / scale:.1f}{unit}"
    return f"{n:g}"


def _tiles(figures: Mapping[str, Any]) -> list[Chart]:
    charts: dict[str, Chart] = {}
    for r in figures["rows"]:
        title = f"{r['experiment']}, {figures['size']}^3 fp16: conflicts above the bars"
        chart = charts.setdefault(title, Chart(title, "TFLOP/s"))
        case = r["block"] if r["experiment"] == "block tiles" else r["warp"]
        peer = "swizzled" if r["swizzled"] else "plain"
        chart.bars.setdefault(case, {})[peer] = r.get("tflops", r.get("expected_tflops", 0.0))
        chart.marks[case, peer] = count_text(r["conflicts"])
    return list(charts.values())


def _rows(figures: Mapping[str, Any]) -> list[Chart]:
    """Rows with a case, a peer and a value; one chart for every unit and, where rows have one, every `table`."""
    charts: dict[tuple[str, str], Chart] = {}
    for r in figures["rows"]:
        key = next((k for k in VALUES if isinstance(r.get(k), int | float)), None)
        if key is None:
            continue
        table = str(r.get("table", figures["benchmark"]))
        unit = str(r.get("unit", UNITS.get(key, key)))
        chart = charts.setdefault((table, unit), Chart(table, unit))
        chart.bars.setdefault(str(r["case"]), {})[str(r["peer"])] = float(r[key])
    return list(charts.values())


def charts(figures: Mapping[str, Any]) -> list[Chart]:
    """What a benchmark's figures show; empty where there is nothing to compare."""
    name = str(figures["benchmark"])
    rows = figures.get("rows")
    if name == "tiles":
        return _tiles(figures)
    out = _rows(figures) if isinstance(rows, list) and all("case" in r and "peer" in r for r in rows) else []
    for key, value in figures.items():
        if isinstance(value, dict) and value and all(isinstance(v, int | float) for v in value.values()):
            unit = "us" if key.startswith("us_") else UNITS.get(key)
            if unit is not None:
                out.append(Chart(name, unit, {peer: {unit: float(v)} for peer, v in value.items()}))
    for suffix, unit in (("_ms", "ms"), ("_gb_per_s", "GB/s")):
        found = {k.removesuffix(suffix): v for k, v in figures.items() if k.endswith(suffix)}
        if found:
            out.append(Chart(name, unit, {k: {unit: float(v)} for k, v in found.items()}))
    return out


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Writes the charts as one picture. Raises ImportError without matplotlib, ValueError where there is nothing."""
    found = charts(figures)
    if not found:
        raise ValueError(f"the figures of {figures['benchmark']} compare nothing")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    most = max(len(c.bars) * max(len(p) for p in c.bars.values()) for c in found)
    columns = 1 if len(found) <= 5 or most > 24 else 2
    rows = -(-len(found) // columns)
    size = (columns * min(14.0, max(6.0, 0.32 * most + 2)), 3.2 * rows)  # letters stay readable
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for chart, axis in zip(found, axes.flat, strict=False):
        peers = list(dict.fromkeys(p for group in chart.bars.values() for p in group))
        width = 0.84 / len(peers)
        for i, peer in enumerate(peers):
            at = [(x + (i - (len(peers) - 1) / 2) * width, g[peer], case)
                  for x, (case, g) in enumerate(chart.bars.items()) if peer in g]  # fmt: skip
            bars = axis.bar([x for x, _, _ in at], [v for _, v, _ in at], width, label=peer)
            texts = [chart.marks.get((case, peer), f"{v:.3g}" if v < 1000 else f"{v:.0f}") for _, v, case in at]
            axis.bar_label(bars, texts, fontsize=6, rotation=90 if width < 0.3 else 0, padding=2)
        axis.set_xticks(range(len(chart.bars)), list(chart.bars), rotation=30, ha="right", fontsize=8)
        axis.set_ylabel(chart.unit)
        axis.margins(y=0.18)
        axis.set_title(chart.title, fontsize=9)
        if len(peers) > 1:
            axis.legend(fontsize=7)
    gpus = ", ".join(figures.get("machine", {}).get("gpus", [])) or "no GPU"
    figure.suptitle(f"{figures['benchmark']}: {gpus}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
