"""Accelerated models in use beside other features of PyTorch and transformers: eager's results, without a GPU.

Operators are computed by their formulas in fp32, so that a difference is the integration's.
"""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import by_formula  # noqa: E402
import networks  # noqa: E402
from torch.func import functional_call  # noqa: E402
from torch.nn.utils import parametrize, prune  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.integrations.transformers import _attention, _masks  # noqa: E402

ASK = dict(max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=None)
TIED = {"tie_word_embeddings": True}


@pytest.fixture(autouse=True)
def formulas(monkeypatch):
    by_formula.use(monkeypatch)


def pair(name="llama", **more):
    """A network with its head in eager, and the same with every part replaced."""
    plain = networks.network(name, "eager", causal_lm=True, **more)
    model = networks.network(name, "eager", causal_lm=True, **more)
    return plain, integration.accelerate(model, only_faster=False, show=False)


def logits(model, inputs=None):
    with torch.no_grad():
        return model(**(inputs or networks.batch())).logits


def same(plain, model, near=1e-4) -> None:
    torch.testing.assert_close(logits(model), logits(plain), rtol=near, atol=near)


def gradients_are_the_same(plain, model, near=1e-4) -> None:
    got = dict(model.named_parameters())
    for name, p in plain.named_parameters():
        assert (p.grad is None) == (got[name].grad is None), name
        if p.grad is not None:
            scale = float(p.grad.abs().max())
            torch.testing.assert_close(got[name].grad, p.grad, rtol=near, atol=near * scale + 1e-8, msg=name)


# Generation


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_a_conversation_goes_on_in_its_cache(name, cache) -> None:
    """A second prompt behind the first answer; windows are full by then."""
    plain, model = pair(name)
    more = {} if cache is None else {"cache_implementation": cache, "disable_compile": True}
    said = []
    for m in (plain, model):
        kept = None
        if cache == "static":
            from transformers import StaticCache

            kept = StaticCache(config=m.config, max_cache_len=48)
            more = {"disable_compile": True}
        first = m.generate(**networks.batch(), **ASK, **more, past_key_values=kept, return_dict_in_generate=True)
        second = torch.cat([first.sequences, networks.batch(length=4)["input_ids"]], 1)
        said.append(m.generate(second, **ASK, past_key_values=first.past_key_values, disable_compile=True))
    assert torch.equal(*said)


@pytest.mark.parametrize(
    "ask",
    [dict(prefill_chunk_size=4), dict(prompt_lookup_num_tokens=3), dict(repetition_penalty=1.3), dict(num_beams=2)],
    ids=str,
)
def test_ways_of_generate(ask) -> None:
    plain, model = pair("gemma2")
    inputs = networks.batch(rows=1) if "prompt_lookup_num_tokens" in ask else networks.batch([11, 4, 7], side="left")
    assert torch.equal(model.generate(**inputs, **(ASK | ask)), plain.generate(**inputs, **(ASK | ask)))


def test_an_assistant_guesses() -> None:
    (plain, model), (other, assistant) = pair(), pair()
    inputs = networks.batch(rows=1)
    want = plain.generate(**inputs, **ASK, assistant_model=other)
    assert torch.equal(model.generate(**inputs, **ASK, assistant_model=assistant), want)


def test_threads_share_a_model() -> None:
    plain, model = pair()
    want, found = plain.generate(**networks.batch(), **ASK), []
    threads = [
        threading.Thread(target=lambda: found.append(model.generate(**networks.batch(), **ASK))) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    assert all(torch.equal(f, want) for f in found)


# Training


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5"])
def test_losses_of_steps(name) -> None:
    """Of two batches, whose gradients are added up before each step of the optimizer."""
    losses = []
    draw = torch.Generator().manual_seed(2)
    text = torch.randint(5, 99, (4, 12), generator=draw)
    for m in pair(name, **({"dropout_rate": 0.0} if name == "t5" else {})):
        m.train()
        optimizer, made = torch.optim.AdamW(m.parameters(), lr=3e-3), []
        for _ in range(20):
            for ids in text.chunk(2):
                loss = m(input_ids=ids, labels=ids).loss / 2
                loss.backward()
                made.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        losses.append(torch.stack(made))
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-3, atol=1e-3)
    assert losses[1][-1] < 0.7 * losses[1][0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_either_kind(reentrant) -> None:
    plain, model = pair()
    for m in (plain, model):
        m.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
        m.enable_input_require_grads()
        m(**networks.batch(), labels=networks.batch()["input_ids"]).loss.backward()
    gradients_are_the_same(plain, model)


def test_frozen_weights_get_no_gradient() -> None:
    plain, model = pair()
    for m in (plain, model):
        for name, p in m.train().named_parameters():
            p.requires_grad_("q_proj" in name or "norm" in name)
        m(**networks.batch(), labels=networks.batch()["input_ids"]).loss.backward()
    gradients_are_the_same(plain, model)


def test_weights_that_are_passed(monkeypatch) -> None:
    """functional_call, and its gradient by torch.func: weights that lie next to each other are not the model's.

    Also where a mask of ones was left out before, after which kernels with a mask are loaded beside those without.
    """
    monkeypatch.setattr(_attention, "_loaded", set())
    monkeypatch.setattr(_masks, "dropped", {"cpu"})
    plain, model = pair()
    weights = {n: p.detach() * 1.1 for n, p in plain.named_parameters()}
    ids = networks.batch()["input_ids"]

    def loss(m):
        return lambda w: functional_call(m, w, (ids,), {"labels": ids}).loss

    want, got = (torch.func.grad(loss(m))(weights) for m in (plain, model))
    for name, g in want.items():
        torch.testing.assert_close(got[name], g, rtol=1e-4, atol=1e-6, msg=name)


# Changes of a model that is accelerated already


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class LowRank(torch.nn.Linear):
    """A linear layer with a product of two thin matrices beside it."""

    def __init__(self, linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False)
        torch.manual_seed(3)
        self.weight = linear.weight
        self.down = torch.nn.Parameter(torch.randn(2, linear.in_features) * 0.1)
        self.up = torch.nn.Parameter(torch.randn(linear.out_features, 2) * 0.1)

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


def parametrized(m) -> None:
    for module in (m.model.layers[0].mlp.gate_proj, m.model.layers[1].self_attn.q_proj, m.model.norm):
        parametrize.register_parametrization(module, "weight", Doubled())


def pruned(m) -> None:
    for module in (m.model.layers[0].mlp.up_proj, m.model.layers[0].self_attn.k_proj):
        prune.l1_unstructured(module, "weight", 0.5)


def adapted(m) -> None:
    """The first of the layers that are joined, and in another layer a later one."""
    for layer, names in zip(m.model.layers, (("q_proj", "gate_proj"), ("v_proj", "up_proj")), strict=True):
        for part, name in zip((layer.self_attn, layer.mlp), names, strict=True):
            setattr(part, name, LowRank(getattr(part, name)))


def patched(m) -> None:
    """Forwards of modules of their own, as hooks that move weights between devices set them."""
    first, second = m.model.layers
    for module in (first.self_attn.v_proj, first.mlp.up_proj, first.input_layernorm, second.post_attention_layernorm,
                   second.mlp.act_fn, m.model.norm):  # fmt: skip
        module.forward = lambda x, inner=module.forward: inner(x) * 3


def resized(m) -> None:
    torch.manual_seed(4)
    m.resize_token_embeddings(120)
    m.tie_weights()


def converted(m) -> None:
    m.to(torch.float64)
    m.to(torch.float32)


@pytest.mark.parametrize("change", [parametrized, pruned, adapted, patched, resized, converted])
def test_a_change_is_seen(change) -> None:
    plain, model = pair(**TIED)
    with torch.no_grad():
        for m in (plain, model):
            for p in m.parameters():  # so that every layer matters
                if p.dim() == 2:
                    p.mul_(3)
    before = logits(plain)
    for m in (plain, model):
        change(m)
    same(plain, model)
    if change is not converted:
        assert before.shape != logits(plain).shape or not torch.allclose(before, logits(plain), atol=1e-3)
    integration.restore(model)
    same(plain, model)


# Compiled and exported


def test_graphs_of_many_sizes() -> None:
    """One graph with symbolic sizes, forward and backward, without a break."""
    plain, model = pair()
    graphs = []

    def backend(module, example):
        graphs.append(module)
        return module.forward

    torch.compiler.reset()
    call = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for rows, length in ((2, 9), (3, 12), (4, 20), (2, 31)):
        inputs = networks.batch(rows=rows, length=length)
        torch.testing.assert_close(logits(call, inputs), logits(plain, inputs), rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1
    torch.compiler.reset()
    call = torch.compile(model.train(), backend="aot_eager", fullgraph=True)
    for m, f in ((plain.train(), plain), (model, call)):
        f(**networks.batch(), labels=networks.batch()["input_ids"]).loss.backward()
        m.eval()
    gradients_are_the_same(plain, model)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_exported_with_symbolic_sizes_and_kept(name, tmp_path) -> None:
    plain, model = pair(name)
    rows, length = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        model, (), networks.batch() | {"use_cache": False}, strict=False,
        dynamic_shapes={"input_ids": {0: rows, 1: length}, "use_cache": None},
    )  # fmt: skip
    torch.export.save(program, tmp_path / "program.pt2")
    inputs = networks.batch(rows=2, length=17)
    for p in (program, torch.export.load(tmp_path / "program.pt2")):
        torch.testing.assert_close(
            logits(p.module(), inputs | {"use_cache": False}), logits(plain, inputs), rtol=1e-4, atol=1e-4
        )
