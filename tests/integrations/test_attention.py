"""attn_implementation="graphene" gives what "eager" gives: first the masks, where a wrong one would go unnoticed."""

from __future__ import annotations

import copy
import io
import pickle
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import attention_reference  # noqa: E402
import networks  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402
from transformers import masking_utils as hf  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.errors import LaunchError  # noqa: E402
from graphene.integrations.transformers import _attention, _masks, _sdpa  # noqa: E402


@pytest.fixture(autouse=True)
def by_definition(monkeypatch):
    """Attention in fp64: what is tested is what it is asked for."""
    monkeypatch.setattr(ops, "attention", attention_reference.attention, raising=False)
    monkeypatch.setattr(ops, "attention_varlen", attention_reference.attention_varlen, raising=False)


# fp32 of both; the attention of one is in fp64. Differences grow by a small factor a layer.
CLOSE = dict(rtol=1e-4, atol=2e-5)


def states(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def seen_rows(inputs):
    return (
        inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones_like(inputs["input_ids"]).bool()
    )


PATTERNS = {
    "causal": (hf.causal_mask_function, True, None),
    "all": (hf.bidirectional_mask_function, False, None),
    "causal window": (hf.sliding_window_causal_mask_function(3), True, 3),
    "window": (hf.sliding_window_bidirectional_mask_function(2), False, 2),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "offsets", [(7, 7, 0, 0), (1, 7, 6, 0), (3, 7, 4, 0), (3, 7, 0, 0), (1, 7, 3, 0), (2, 5, 7, 4)], ids=str
)
@pytest.mark.parametrize("padding", [None, "right", "left", "none", "holes"])
def test_masks_say_what_transformers_says(pattern, offsets, padding) -> None:
    """Whatever form a mask takes, it means the boolean mask that scaled_dot_product_attention would get."""
    function, causal, _ = PATTERNS[pattern]
    q_length, kv_length, q_offset, kv_offset = offsets
    total = kv_offset + kv_length
    rows = None
    if padding is not None:
        rows = torch.ones(3, total, dtype=torch.bool)
        if padding == "right":
            rows[1, -2:] = rows[2, -4:] = False
        if padding == "left":
            rows[1, :2] = rows[2, :4] = False
        if padding == "holes":
            rows[1, 2] = rows[2, 0] = rows[2, 5] = False
    ask = dict(batch_size=3, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
               mask_function=function, attention_mask=rows)  # fmt: skip
    want = hf.sdpa_mask(**ask, allow_is_causal_skip=False).expand(3, 1, q_length, kv_length)
    got = integration.mask(**ask, allow_is_bidirectional_skip=True)
    q, k = torch.zeros(3, 1, q_length, 4), torch.zeros(3, 1, kv_length, 4)
    # The module's own word counts only where there is no mask.
    key, _, mask, _, is_causal, window = _attention._resolve(q, k, k, got, causal if got is None else not causal)
    full = _attention._full_mask(q, key, mask, is_causal, window)
    kept = key.shape[2]
    full = torch.ones(3, 1, q_length, kept, dtype=torch.bool) if full is None else full.expand(3, 1, q_length, kept)
    assert torch.equal(full, want[..., :kept])
    assert not want[..., kept:].any()
    if got is not None:  # what models read
        read = hf.eager_mask(**ask)
        assert torch.equal(got + 0, read.expand(3, 1, q_length, kv_length))
        assert _masks.facts_of(got) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_of_a_batch_are_not_written_out(pattern) -> None:
    function, causal, window = PATTERNS[pattern]
    assert _masks.pattern_of(function) == (causal, window)
    rows = torch.arange(64)[None] < torch.tensor([64, 20])[:, None]
    ask = dict(mask_function=function, allow_is_bidirectional_skip=True)
    got = integration.mask(2, 64, 64, attention_mask=rows, **ask)
    assert got.shape == (2, 1, 64, 64)
    assert _masks.facts_of(got)[1:] == (64, causal, window, None)
    assert _masks.facts_of(got).padding.untyped_storage().nbytes() == 2 * 64
    assert got._written is None
    got = integration.mask(2, 64, 64, attention_mask=rows | True, **ask)
    assert (got is None) == (pattern == "all")
    q = torch.zeros(2, 1, 64, 4)
    assert _attention._resolve(q, q, q, got, causal)[2] is None
    assert got is None or got._written is None


def test_a_mask_is_a_tensor_for_others() -> None:
    """It is read, copied and kept as what it says; what writes to it, or to a view, makes it another mask."""
    ask = dict(attention_mask=torch.arange(5)[None] < torch.tensor([[5], [3]]))
    want = hf.eager_mask(2, 5, 5, **ask)
    got = integration.mask(2, 5, 5, **ask)
    file = io.BytesIO()
    torch.save(got, file)
    file.seek(0)
    for other in (got * 1, copy.deepcopy(got), pickle.loads(pickle.dumps(got)), torch.load(file)):
        assert type(other) is torch.Tensor
        assert torch.equal(other, want)
    assert got.tolist() == want.tolist()
    assert (got.numpy() == want.numpy()).all()
    assert str(got) == str(want)
    assert _masks.facts_of(got) is not None
    got[:, :, 0, 2] = 0
    want[:, :, 0, 2] = 0
    assert torch.equal(got + 0, want)
    q = torch.randn(2, 1, 5, 4)
    _, _, mask, bias, causal, window = _attention._resolve(q, q, q, got, True)
    assert torch.equal(bias, want)
    assert (mask, causal, window) == (None, False, None)


def test_modules_that_do_not_say_what_they_are() -> None:
    """Splinter's attention has no is_causal; a decoder's may be told by its configuration not to be causal."""
    from transformers import AutoModel, SplinterConfig

    inputs = networks.batch()
    made = []
    for how in ("graphene", "eager"):
        torch.manual_seed(0)
        made.append(AutoModel.from_config(SplinterConfig(**networks.BERT_LIKE), attn_implementation=how).eval())
    torch.testing.assert_close(*(states(m, inputs) for m in made), **CLOSE)
    made = [networks.network("llama", how, is_causal=False) for how in ("graphene", "eager")]
    for inputs in (networks.batch(), networks.batch([11, 4, 7])):
        torch.testing.assert_close(*(states(m, inputs)[seen_rows(inputs)] for m in made), **CLOSE)


def test_other_mask_functions_are_written_out() -> None:
    function = hf.or_masks(hf.causal_mask_function, lambda b, h, q, k: k < 2)
    assert _masks.pattern_of(function) is None
    assert _masks.pattern_of(hf.chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.int))) is None
    got = integration.mask(2, 5, 5, mask_function=function, use_vmap=True)
    want = hf.sdpa_mask(2, 5, 5, mask_function=function, allow_is_causal_skip=False, use_vmap=True)
    assert torch.equal(_masks.facts_of(got).seen, want)
    assert torch.equal(got == 0, want)
    assert got.shape == (2, 1, 5, 5)


@pytest.mark.parametrize("side", ["full", "right", "left"])
@pytest.mark.parametrize("name", [*networks.ENCODERS, *networks.DECODERS])
def test_states_are_those_of_eager(name, side) -> None:
    inputs = networks.batch() if side == "full" else networks.batch([11, 4, 7], side=side)
    if name == "gemma2" and side == "left":
        pytest.skip("eager gives rows that see nothing the mean of the values")
    got, want = states(networks.network(name), inputs), states(networks.network(name, "eager"), inputs)
    seen = seen_rows(inputs)
    torch.testing.assert_close(got[seen], want[seen], **CLOSE)


@pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "mistral", "gemma2"])
def test_half_precision_is_no_worse_than_eager(name, dtype, monkeypatch) -> None:
    """The operator itself, on the simulator: against fp32, the error is at most 1.5 times eager's."""
    monkeypatch.undo()
    inputs = networks.batch([11, 4, 7])
    seen = seen_rows(inputs)
    exact = states(networks.network(name, "eager", dtype).float(), inputs)[seen]
    ours, eagers = (states(networks.network(name, how, dtype), inputs)[seen] for how in ("graphene", "eager"))
    assert (ours.float() - exact).norm() <= 1.5 * (eagers.float() - exact).norm()


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", networks.DECODERS)
def test_generate_gives_the_tokens_of_eager(name, cache) -> None:
    inputs = networks.batch([11, 4, 7], side="left")
    ask = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    if cache is not None:
        ask |= dict(cache_implementation=cache, disable_compile=True)
    got, want = (networks.network(name, how, causal_lm=True).generate(**inputs, **ask) for how in ("graphene", "eager"))
    assert torch.equal(got, want)
    assert got.shape == (3, 17)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_prompt_in_chunks(name, kind) -> None:
    """Queries that begin after the keys' beginning: aligned at the end, not at the beginning."""
    ids = networks.batch()["input_ids"]
    outs = []
    for how in ("graphene", "eager"):
        model = networks.network(name, how)
        made = {"dynamic": DynamicCache, "static": StaticCache}[kind]
        cache = made(config=model.config, **({"max_cache_len": 16} if kind == "static" else {}))
        chunks = [{"input_ids": ids[:, a:b], "past_key_values": cache} for a, b in ((0, 4), (4, 9), (9, 11))]
        outs.append(torch.cat([states(model, chunk) for chunk in chunks], 1))
    torch.testing.assert_close(*outs, **CLOSE)


def test_from_pretrained(tmp_path) -> None:
    """The name is not written into a configuration file, so that others can read the model."""
    from transformers import AutoModel

    model = networks.network("bert")
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="graphene").eval()
    assert loaded.config._attn_implementation == "graphene"
    assert torch.equal(states(loaded, networks.batch()), states(model, networks.batch()))
    assert "graphene" not in (tmp_path / "config.json").read_text()
    with pytest.raises(ValueError, match='attn_implementation="graphite"'):
        AutoModel.from_pretrained(tmp_path, attn_implementation="graphite")


def test_masks_of_the_users_own() -> None:
    """4-dimensional masks, boolean or additive, say everything: a decoder's causality too."""
    ids = networks.batch()["input_ids"]
    seen = torch.rand(3, 1, 11, 11, generator=torch.Generator().manual_seed(2)) < 0.5
    seen |= torch.eye(11, dtype=torch.bool)
    additive = torch.zeros(3, 1, 11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)
    for name in ("bert", "llama"):
        want = states(networks.network(name, "eager"), {"input_ids": ids, "attention_mask": additive})
        for mine in (seen, additive):
            got = states(networks.network(name), {"input_ids": ids, "attention_mask": mine})
            torch.testing.assert_close(got, want, **CLOSE)


def test_packed_sequences() -> None:
    """The keyword arguments with which transformers passes packed sequences to its attention functions."""
    lengths = [5, 3, 4]
    ends = torch.tensor([0, 5, 8, 12], dtype=torch.int32)
    ids = networks.batch(rows=1, length=12)["input_ids"]
    at = torch.cat([torch.arange(n) for n in lengths])[None]
    packed = {"input_ids": ids, "position_ids": at, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    packed |= {"max_length_q": 5, "max_length_k": 5}
    for name in ("llama", "mistral", "bert"):
        got = states(networks.network(name), packed)[0]
        eager = networks.network(name, "eager")
        want = [states(eager, {"input_ids": ids[:, a:b]})[0] for a, b in ((0, 5), (5, 8), (8, 12))]
        torch.testing.assert_close(got, torch.cat(want), **CLOSE)


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "opt"])
def test_weights_are_given_where_they_are_asked_for(name) -> None:
    """By the argument, which not every module passes on to its attention."""
    inputs = networks.batch([11, 4, 7])
    with torch.no_grad():
        got, want = (networks.network(name, how)(**inputs, output_attentions=True) for how in ("graphene", "eager"))
    assert len(got.attentions) == len(want.attentions) == 2
    seen = seen_rows(inputs)
    rows = seen[:, None].expand(-1, 2, -1)
    for a, b in zip(got.attentions, want.attentions, strict=True):
        torch.testing.assert_close(a[rows], b[rows], **CLOSE)


def test_there_are_no_weights_of_packed_sequences() -> None:
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    with pytest.raises(LaunchError, match="graphene's attention cannot give the weights of packed sequences"):
        networks.network("bert")(**networks.batch(rows=1, length=12), **packed, output_attentions=True)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral"])
def test_traced_by_jit(name, monkeypatch) -> None:
    """By PyTorch's attention, which is recorded; the trace holds for other sizes and masks."""
    monkeypatch.setattr(_attention, "_said", set())
    more = {} if name == "bert" else {"use_cache": False}
    model = networks.network(name, "graphene", return_dict=False, **more)
    inputs = networks.batch([11, 4, 7])
    with pytest.warns(UserWarning, match=r"torch\.jit\.trace: run by scaled_dot_product_attention"):
        traced = torch.jit.trace(model, example_kwarg_inputs=inputs, strict=False)
    for inputs in (inputs, networks.batch([8, 3], length=8), networks.batch([6, 6], length=6)):  # noqa: B020
        seen = seen_rows(inputs)
        with torch.no_grad():
            torch.testing.assert_close(traced(**inputs)[0][seen], model(**inputs)[0][seen], **CLOSE)
    if name == "llama":
        integration.accelerate(model.half(), only_faster=False, show=False)
        got = torch.jit.trace(model, example_kwarg_inputs=inputs, strict=False)(**inputs)[0][seen]
        with torch.no_grad():
            torch.testing.assert_close(got, model(**inputs)[0][seen], rtol=0.02, atol=0.02)


def test_what_jit_cannot_trace_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"no packed sequences, soft cap or sinks in torch\.jit\.trace") as error:
        torch.jit.trace(networks.network("gemma2", use_cache=False), (networks.batch()["input_ids"],), strict=False)
    assert error.value.code == "OP_ARGUMENT"


def test_training_with_dropout_runs_on_pytorch(monkeypatch) -> None:
    monkeypatch.setattr(_attention, "_said", set())
    model = networks.network("bert").train()
    with pytest.warns(UserWarning, match="dropout in attention: run by PyTorch's operators"):
        model(**networks.batch([11, 4, 7])).last_hidden_state.sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "pooler" not in n)


@pytest.mark.parametrize(
    ("dtype", "dim", "kernel"),
    [(torch.float16, 64, True), (torch.bfloat16, 256, True), (torch.float32, 64, False), (torch.float16, 20, False),
     (torch.float16, 264, False)],
)  # fmt: skip
def test_what_no_kernel_takes_on_a_gpu_is_left_to_pytorch(dtype, dim, kernel) -> None:
    """Its scaled_dot_product_attention, not the formula that the operator falls back on, which keeps all scores."""
    q = SimpleNamespace(shape=(2, 4, 8, dim), dtype=dtype, is_cuda=True, requires_grad=False)
    why = _attention._why_not(q, q, q, (None, None), 0.0)
    assert (why is None) == kernel
    assert kernel or "no kernel" in why


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_without_a_kernel_no_worse_than_eager(name, monkeypatch) -> None:
    """Also where the softcap needs the scores, and padding lies outside of every window."""
    monkeypatch.setattr(_attention, "kernel", lambda query: "no kernel takes it")
    inputs = networks.batch([11, 4, 1])
    seen = inputs["attention_mask"].bool()
    eager, model = (networks.network(name, how) for how in ("eager", "graphene"))
    exact = networks.each_alone(copy.deepcopy(eager).double(), inputs)
    limit = 2 * (states(eager, inputs)[seen] - exact).norm() + 1e-6 * exact.norm()
    assert (states(model, inputs)[seen] - exact).norm() <= limit


@pytest.mark.parametrize("causal", [False, True])
def test_by_pytorch_without_a_mask(causal) -> None:
    """Grouped heads, by the form of its attention that needs no mask."""
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    got = _attention._by_pytorch(q, k, v, None, causal, None, (None, None), 0.0, 0.3)
    seen = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril() if causal else None
    want = _attention._by_pytorch(q, k, v, seen, False, None, (None, None), 0.0, 0.3)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_ways_of_pytorch(causal) -> None:
    """Keys copied for each head, and scores that are written out, are the same attention; few scores alone are."""
    q, k, v = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    want = _attention._by_pytorch(q, k, v, None, causal, None, (None, None), 0.0, 0.3, "torch")
    for way in ("repeated", "scores"):
        got = _attention._by_pytorch(q, k, v, None, causal, None, (None, None), 0.0, 0.3, way)
        torch.testing.assert_close(got, want)
    one = _sdpa.with_scores(q[:, :, :1], k, v, False, None)
    torch.testing.assert_close(one, _sdpa.plain(q[:, :, :1], k, v, False, None))
    assert _sdpa.fits(q, 9)
    assert not _sdpa.fits(torch.empty(4, 16, 2048, 64, device="meta"), 2048)


@pytest.mark.parametrize("side", ["right", "left"])
def test_sinks(side) -> None:
    """A score for each head that takes part in the softmax: GPT-OSS, whose layers alternate with sliding windows."""
    from transformers import AutoModel, GptOssConfig

    sizes = networks.LLAMA_LIKE | dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=5)
    inputs = networks.batch([11, 4, 7], side=side)
    seen = seen_rows(inputs)
    made = []
    for how in ("graphene", "eager"):
        torch.manual_seed(0)
        made.append(AutoModel.from_config(GptOssConfig(**sizes), attn_implementation=how).eval())
        for layer in made[-1].layers:
            torch.nn.init.normal_(layer.self_attn.sinks)
    torch.testing.assert_close(*(states(m, inputs)[seen] for m in made), **CLOSE)
    q = torch.randn(1, 2, 5, 32)
    got, weights = integration.attention(
        torch.nn.Identity(), q, q, q, None, s_aux=torch.full((2,), 3.0), output_attentions=True
    )
    torch.testing.assert_close(
        got, integration.attention(torch.nn.Identity(), q, q, q, None, s_aux=torch.full((2,), 3.0))[0]
    )
    assert weights.shape == (1, 2, 5, 5)
    assert (weights.sum(-1) < 0.999).all()


def test_checkpoints_of_a_first_batch_without_padding(monkeypatch) -> None:
    """A mask that hides nothing is left out, and the kernel with a mask is loaded once: nothing to compute again."""
    monkeypatch.setattr(_attention, "_loaded", set())
    model = networks.network("llama", "graphene").train()
    inputs = networks.batch([11, 11, 11])
    want = torch.autograd.grad(model(**inputs).last_hidden_state.sum(), model.layers[0].mlp.up_proj.weight)[0]
    assert _attention._loaded
    monkeypatch.setattr(_attention, "_loaded", set())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(**inputs).last_hidden_state.sum().backward()
    torch.testing.assert_close(model.layers[0].mlp.up_proj.weight.grad, want)
