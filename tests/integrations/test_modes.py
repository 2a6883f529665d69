"""Ways of use: a sample of what tests/integrations/modes.py judges, and windows under torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import modes  # noqa: E402
import networks  # noqa: E402
from test_architectures import ARCHITECTURES  # noqa: E402
from transformers import AutoModel  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from graphene.integrations.transformers import _heads  # noqa: E402

SAMPLE = [
    ("t5", ["beams"]),
    ("electra", ["passes"]),
    ("opt", ["passes"]),  # makes masks that are the same in each pass
    ("cohere2", ["generate", "checkpoints"]),
    ("afmoe", ["forward"]),  # takes views of what attention returns
    ("albert", ["autocast"]),
    ("mistral", ["autocast"]),  # rounds no worse than eager, but elsewhere
    ("gemma4_text", ["generate"]),  # layers of several head sizes
    ("moshi", ["forward"]),  # whose eager attention sees the future where it is given no mask
]


@pytest.mark.parametrize(("name", "ways"), SAMPLE)
def test_a_sample_of_ways(name, ways) -> None:
    """python tests/integrations/modes.py judges the others."""
    said = list(modes.judge(name, ways))
    assert not [s for _, s in said if not s.startswith("left")], said


@pytest.mark.parametrize("name", ["gemma2", "modernbert"])
def test_windows_under_compile(name) -> None:
    """The kernel gets a width, whose keys outside it never loads, and no mask of queries and keys."""
    graphs = []

    def backend(module, example):
        graphs.append(module)
        return module.forward

    torch.manual_seed(0)
    kind, settings = networks.DECODERS.get(name, (name, ARCHITECTURES.get(name)))
    model = AutoModel.from_config(CONFIG_MAPPING[kind](**settings), attn_implementation="eager").eval()
    inputs = networks.batch([11, 7, 4])
    seen = inputs["attention_mask"].bool()
    with torch.no_grad():
        want = model(**inputs).last_hidden_state
        model.set_attn_implementation("graphene")
        torch.compiler.reset()
        got = torch.compile(model, backend=backend, fullgraph=True)(**inputs).last_hidden_state
    torch.testing.assert_close(got[seen], want[seen], rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    calls = [n.args for n in graph.graph.nodes if str(n.target).startswith("graphene.attention_forward")]
    assert sorted(a[6:8] for a in calls) == ([(-1, -1), (4, 0)] if name == "gemma2" else [(-1, -1), (4, 4)])
    masks = [a[3].meta["example_value"].shape for a in calls]
    assert all(shape[2] == 1 for shape in masks), masks


def test_sizes_of_layers_that_differ() -> None:
    """A module that says no sizes has those of its layer's configuration."""
    config = modes.network("gemma4_text").config
    layers = [torch.nn.Module() for _ in range(3)]
    for layer, at in zip(layers, (0, 1, None), strict=True):
        layer.config, layer.layer_idx = config, at
    assert [_heads.sizes_of(n) for n in layers] == [(2, 2, 16), (2, 2, 512), None]
