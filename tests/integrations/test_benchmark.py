"""`python -m benchmarks hf`: its networks can be made and cut, its rows can be drawn, all but the device's times."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import tape  # noqa: E402

from graphene.integrations.transformers import _measure, _steps  # noqa: E402

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
SMALL = dict(vocab_size=1024, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64)

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which takes the CPU for its device and counts calls in place of times."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("figures", "hf_networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("hf_bench")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(module, "form", lambda model, attention, dtype=torch.float16: of_cpu(model, attention, dtype))
    monkeypatch.setattr(
        module, "alternately", lambda ways, rounds: {n: float(len(str(run()))) for n, run in ways.items()}
    )
    return module


def of_cpu(model: Any, attention: str, dtype: Any) -> Any:
    import copy

    new = copy.deepcopy(model).to(dtype)
    new.set_attn_implementation(attention)
    return new


def test_every_network_can_be_made_and_cut(hf: Any) -> None:
    for name, network in hf.NETWORKS.items():
        model = network.cut(1).model(device="meta")
        assert sum(hasattr(m, "is_causal") for m in model.modules()) in (1, 2), name  # 2: a decoder that is not read
        assert network.cut(None) is network
        assert network.cut(999) is network
    assert set(hf.GENERATE) | set(hf.TRAIN) <= set(hf.NETWORKS)


def test_what_is_asked_for(hf: Any) -> None:
    usual = list(hf.asked(None, ["full", "padded"]))
    assert [name for name, *_ in usual] == [*hf.PAPER, "gpt2", "llama"]
    assert list(hf.asked(["vit", "bert"], list(hf.TABLES))) == [
        ("vit", "forward", ["forward", "one", "fp32"]), ("bert", "forward", ["full", "padded"]),
        ("bert", "training", None),
    ]  # fmt: skip
    assert list(hf.asked(["qwen3-0.6b"], ["generation", "ragged"])) == [
        ("qwen3-0.6b", "forward", ["ragged"]), ("qwen3-0.6b", "generation", 1), ("qwen3-0.6b", "generation", 16),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_rows(kind: str, hf: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each peer of each table has one, with its error; a wrong result is no row."""
    network = hf.Network(kind, SMALL, 2, 16, cached=kind == "llama").cut(1)
    made = network.model
    monkeypatch.setattr(hf.Network, "model", lambda self, *args, device, **more: made(*args, **more))
    tables, peers = ["ragged", "one", "fp32"], ["eager", "sdpa", "graphene", "accelerated"]
    rows = hf.forward(network, kind, tables, 1, peers)
    assert [(r["table"], r["peer"]) for r in rows] == [(t, p) for t in tables for p in peers]
    assert all(r["parts"] for r in rows if r["peer"] in ("sdpa", "accelerated"))
    assert all(r["error"] < 0.01 for r in rows)
    assert {r["mean_length"] for r in rows if r["table"] == "one"} == {128}
    assert f"{kind:16} ragged" in capsys.readouterr().out
    monkeypatch.setattr(hf, "LEAST_ERROR", -1.0)
    with pytest.raises(RuntimeError, match="is wrong by"):
        hf.forward(network, kind, ["fp32"], 1, peers)


def test_steps_of_a_full_cache(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of a recorded step are those of a cache that ends where the search ended."""
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", lambda *args: {})
    monkeypatch.setattr(_steps, "GraphOfLaunches", tape.Recorded)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        hf, "alternately", lambda ways, rounds: {n: [run() for _ in range(23)] for n, run in ways.items()}
    )
    monkeypatch.setattr(hf, "PROMPT", 46)
    monkeypatch.setattr(hf, "NEW_TOKENS", 18)
    network = hf.Network("llama", SMALL | dict(max_position_embeddings=64), cached=True).cut(1)
    made = network.model
    monkeypatch.setattr(hf.Network, "model", lambda self, *args, **more: made(hf.HEADS["generation"]))
    rows = hf.generation(network, "llama", 2, 1, ["sdpa", "accelerated"])
    assert [r["peer"] for r in rows] == ["sdpa", "accelerated"]
    assert "step_ms" in rows[1]


def test_the_others_go_on(
    hf: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a failure, and in another process where the device takes no more calls; the rows of both are kept."""
    file, ran, broken = tmp_path / "rows.json", [], []
    more = ["--networks", "bert", "vit", "gpt2", "--tables", "full", "forward", "--json", str(file)]

    def forward(network: Any, name: str, *_: Any) -> Any:
        ran.append(name)
        if name == "vit":
            broken.append(name)
            raise RuntimeError("CUDA error: device-side assert triggered")
        return [{"case": name}]

    def run(command: list[str], check: bool) -> Any:
        with monkeypatch.context() as inside:
            inside.setattr(sys, "argv", command[1:])
            broken.clear()  # another process
            return types.SimpleNamespace(returncode=hf.main())

    monkeypatch.setattr(hf, "forward", forward)
    monkeypatch.setattr(hf, "has_device", lambda: True)
    monkeypatch.setattr(hf, "usable", lambda: not broken)
    monkeypatch.setattr(hf.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", [hf.__file__, *more])
    assert hf.main() == 1
    assert ran == ["bert", "vit", "gpt2"]
    kept = json.loads(file.read_text())
    assert [r["case"] for r in kept["rows"]] == ["bert", "gpt2"]
    assert "--start" not in kept["command"]
    assert "vit forward failed: CUDA error" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [hf.__file__, "--peers", "sdpa", "accelerated"])
    with pytest.raises(SystemExit):
        hf.main()
    assert "eager and accelerated, which must be among them" in capsys.readouterr().err
