"""Networks of transformers on a GPU: values, CUDA graphs, torch.compile, generate, training."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402

pytestmark = pytest.mark.gpu

WIDE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "max_position_embeddings": 256}
SIZES = {n: WIDE for n in networks.ENCODERS | networks.DECODERS} | {
    "distilbert": {"dim": 256, "n_heads": 4, "hidden_dim": 512, "max_position_embeddings": 256},
    "opt": {"hidden_size": 256, "num_attention_heads": 4, "ffn_dim": 512, "word_embed_proj_dim": 256,
            "max_position_embeddings": 256},
    "gpt2": {"n_embd": 256, "n_head": 4, "n_positions": 256},
    "mistral": WIDE | {"num_key_value_heads": 2, "sliding_window": 32},
    "llama": WIDE | {"num_key_value_heads": 2},
    "gemma2": WIDE | {"num_key_value_heads": 2, "head_dim": 64, "sliding_window": 32},
}  # fmt: skip


def network(name, attn, dtype=torch.float16, **more):
    return networks.network(name, attn, dtype, device="cuda", **(SIZES[name] | more))


def padded(side="right"):
    return networks.batch([160, 33, 100, 1, 128, 64, 77, 159], rows=8, length=160, side=side, device="cuda")


def states(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["full", "padded"])
@pytest.mark.parametrize("name", SIZES)
def test_no_worse_than_eager(name, case, dtype) -> None:
    """Errors against fp32 of attention alone, of what was measured to be faster, and of all of it."""
    inputs = networks.batch(rows=8, length=160, device="cuda") if case == "full" else padded()
    seen = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    eager = network(name, "eager", dtype)
    exact = states(copy.deepcopy(eager).float(), inputs)[seen]
    limit = 1.5 * (states(eager, inputs)[seen].float() - exact).norm()
    models = {"attention": network(name, "graphene", dtype)}
    models["accelerated"] = integration.accelerate(network(name, "eager", dtype), show=False)
    models["everything"] = integration.accelerate(network(name, "eager", dtype), only_faster=False, show=False)
    for how, model in models.items():
        for _ in range(2):
            assert (states(model, inputs)[seen].float() - exact).norm() <= limit, how


@pytest.mark.parametrize("case", ["full", "padded"])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "gpt2"])
def test_in_a_cuda_graph(name, case) -> None:
    """After a warm-up with the same inputs, whose mask was left out or whose batch was packed."""
    inputs = padded()
    if case == "full":
        inputs["attention_mask"].fill_(1)
    model = integration.accelerate(network(name, "eager"), show=False)
    more = {"use_cache": False} if name in networks.DECODERS else {}
    seen = inputs["attention_mask"].bool()
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())  # the mask and the weights are written there
        with torch.cuda.stream(side):
            for _ in range(2):
                want = model(**inputs, **more).last_hidden_state
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = model(**inputs, **more).last_hidden_state
        got.zero_()
        graph.replay()
    torch.testing.assert_close(got[seen], want[seen], rtol=0.02, atol=0.02)
    inputs["input_ids"].copy_(inputs["input_ids"].flip(1))
    graph.replay()
    torch.testing.assert_close(got[seen], states(model, inputs | more)[seen], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_compiled(name) -> None:
    inputs = padded()
    seen = inputs["attention_mask"].bool()
    model = integration.accelerate(network(name, "eager"), show=False)
    want = states(model, inputs)
    torch._dynamo.reset()
    got = states(torch.compile(model, fullgraph=True), inputs)
    torch.testing.assert_close(got[seen], want[seen], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_generate(name, cache) -> None:
    """Tokens of greedy decoding are those of fp32 wherever its choice is clear."""
    inputs = networks.batch([24, 9, 17], length=24, side="left", device="cuda")
    ask = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    ask |= {} if cache is None else dict(cache_implementation=cache)
    exact = network(name, "eager", torch.float32, causal_lm=True)
    model = integration.accelerate(network(name, "eager", causal_lm=True), show=False)
    got = model.generate(**inputs, **ask)
    assert got.shape == (3, 36)
    mask = torch.cat([inputs["attention_mask"], torch.ones(3, 12, device="cuda", dtype=torch.long)], 1)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = exact(input_ids=got, attention_mask=mask, position_ids=position_ids).logits[:, 23:-1].float()
    chosen = logits.gather(-1, got[:, 24:, None])[..., 0]
    assert (chosen >= logits.max(-1).values - 0.02).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2"])
def test_generate_by_recorded_steps(name) -> None:
    """Tokens are those of transformers' own loop over the same kernels, wherever its choice is clear, in each call."""
    model = network(name, "eager", causal_lm=True)
    for lengths in (None, [24, 9, 17]):
        inputs = networks.batch(lengths, length=24, side="left", device="cuda")
        ask = dict(max_new_tokens=40, do_sample=False, pad_token_id=0, eos_token_id=None)
        integration.accelerate(model, show=False)
        want = model.generate(**inputs, **ask_scores(ask))
        for _ in range(2):
            got = model.generate(**inputs, **ask)
            (decoding,) = integration.accelerated(model).decoding
            assert decoding.refused is None
            assert any(step is not None and step.proofs == 2 for step in decoding.steps.known.values())
            scores = torch.stack([s.sort(-1).values for s in want.scores], 1).float()
            clear = (scores[..., -1] - scores[..., -2] > 0.05).int().cumprod(1).bool()
            assert torch.equal(got[:, 24:][clear], want.sequences[:, 24:][clear])


@pytest.mark.parametrize("name", ["t5", "bart", "whisper", "t5gemma", "llama"])
@pytest.mark.parametrize("beams", [1, 3])
def test_recorded_steps_of_beams_and_encoders(name, beams) -> None:
    """Tokens are those of transformers' own loop over the same kernels, wherever its choice is clear, in each call."""
    if (name, beams) == ("llama", 1):
        pytest.skip("test_generate_by_recorded_steps does that")
    make = dict(dtype=torch.float32, device="cuda")  # in which the best beam is clear
    plain = networks.network(name, "eager", causal_lm=True, **make)
    model = integration.accelerate(networks.network(name, "eager", causal_lm=True, **make), show=False)
    for seed in (0, 1):
        if name == "whisper":
            inputs = networks.sounds(seed, device="cuda")
        else:
            inputs = networks.batch([24, 9, 17][:: 1 - 2 * seed], length=24, side="left", device="cuda")
        ask = dict(max_new_tokens=30, do_sample=False, num_beams=beams, eos_token_id=None)
        assert torch.equal(model.generate(**inputs, **ask), plain.generate(**inputs, **ask))
        (decoding,) = integration.accelerated(model).decoding
        assert decoding.refused is None
        assert any(step is not None and step.proofs == 2 for step in decoding.steps.known.values())
        assert (decoding.steps.order is not None) == (beams > 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_generate_batch(dtype) -> None:
    """Continuous batching, whose steps transformers records: tokens are those of fp32 wherever its choice is clear."""
    from transformers.generation import ContinuousBatchingConfig, GenerationConfig

    prompts, new = [[5, 6, 7, 8, 9], [10, 11, 12], [20, 7] * 9], 12
    ask = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64, block_size=32)
    exact = network("llama", "eager", torch.float32, causal_lm=True)
    model = integration.accelerate(network("llama", "eager", dtype, causal_lm=True), show=False)
    made = model.generate_batch(prompts, generation_config=ask, continuous_batching_config=pages, progress_bar=False)
    for prompt, name in zip(prompts, sorted(made, key=lambda n: int(n.split("_")[-1])), strict=True):
        got = torch.tensor([prompt + made[name].generated_tokens], device="cuda")
        assert got.shape == (1, len(prompt) + new)
        with torch.no_grad():
            logits = exact(input_ids=got).logits[:, len(prompt) - 1 : -1]
        chosen = logits.gather(-1, got[:, len(prompt) :, None])[..., 0]
        assert (chosen >= logits.max(-1).values - (0.02 if dtype == torch.float16 else 1e-4)).all()


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_fp32_is_no_worse_than_sdpa(name) -> None:
    """No kernel takes fp32: attention is PyTorch's, by the way that was measured to be the fastest without a mask."""
    plain = network(name, "eager", torch.float32)
    model = integration.accelerate(network(name, "eager", torch.float32), show=False)
    full = padded()
    full["attention_mask"].fill_(1)
    for inputs in (padded(), full):
        seen = inputs["attention_mask"].bool()
        exact = networks.each_alone(copy.deepcopy(plain).double(), inputs)
        limit = 2 * (states(plain, inputs)[seen] - exact).norm() + 1e-6 * exact.norm()
        assert (states(model, inputs)[seen] - exact).norm() <= limit


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_generate_past_the_end_of_the_cache(name) -> None:
    """A criterion of the caller's own, which lets the search go on past max_new_tokens."""
    from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList

    plain = network(name, "eager", torch.float32, causal_lm=True)
    model = integration.accelerate(network(name, "eager", torch.float32, causal_lm=True), show=False)
    inputs = networks.batch(length=24, device="cuda")
    own = StoppingCriteriaList([MaxLengthCriteria(170)])
    ask = dict(max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None, stopping_criteria=own)
    assert torch.equal(model.generate(**inputs, **ask), plain.generate(**inputs, **ask))
    (decoding,) = integration.accelerated(model).decoding
    assert decoding.refused is None
    assert decoding.steps.length == 256


def ask_scores(ask):
    return ask | dict(return_dict_in_generate=True, output_scores=True)


def test_training() -> None:
    """Gradients against fp32's: no worse than eager's."""
    inputs = padded()
    seen = inputs["attention_mask"].bool()
    quiet = {"bert": {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}, "llama": {}}
    for name, more in quiet.items():
        grads = {}
        for how in ("exact", "eager", "accelerated"):
            model = network(name, "eager", torch.bfloat16, **more).train()
            model = model.float() if how == "exact" else model
            if how == "accelerated":
                integration.accelerate(model, show=False)
            model(**inputs).last_hidden_state[seen].float().pow(2).mean().backward()
            grads[how] = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
        wrong = {h: (grads[h] - grads["exact"]).norm() for h in ("eager", "accelerated")}
        assert wrong["accelerated"] <= 1.5 * wrong["eager"], name


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_losses_of_200_steps(name) -> None:
    """On a small text, in bf16: as near to fp32's as eager's are."""
    text = torch.randint(5, 99, (8, 64), generator=torch.Generator().manual_seed(2)).cuda()
    losses = {}
    for how in ("exact", "eager", "accelerated"):
        model = network(name, "eager", torch.bfloat16, causal_lm=True).train()
        model = model.float() if how == "exact" else model
        if how == "accelerated":
            integration.accelerate(model, show=False)
        optimizer, made = torch.optim.AdamW(model.parameters(), lr=3e-4), []
        for step in range(200):
            ids = text[step % 2 :: 2]
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(loss.detach().float())
        losses[how] = torch.stack(made)
    wrong = {h: (losses[h] - losses["exact"]).abs().mean() for h in ("eager", "accelerated")}
    assert losses["accelerated"][-1] < losses["accelerated"][0] / 2
    assert wrong["accelerated"] <= 1.5 * wrong["eager"] + 0.01, wrong


@pytest.mark.parametrize("name", ["bert", "albert", "llama", "gpt2"])
def test_recorded_passes(name) -> None:
    """Of full and padded batches, on two streams, with weights that change in place, in memory of their own."""
    plain, model = network(name, "sdpa"), integration.accelerate(network(name, "sdpa"), show=False)
    (passes,) = integration.accelerated(model).passes
    found = []
    for turn in range(6):
        for inputs in ({"input_ids": padded()["input_ids"]}, padded()):
            given = inputs | {"input_ids": 5 + (inputs["input_ids"] + 7 * turn) % 90}
            if turn == 4:
                with torch.no_grad():
                    for m in (plain, model):
                        next(p for p in m.parameters() if p.dim() == 1).mul_(1.5)
            seen = given["attention_mask"].bool() if "attention_mask" in given else ...
            stream = torch.cuda.Stream() if turn == 3 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got = states(model, given)
            torch.cuda.current_stream().wait_stream(stream)
            want = states(plain, given)
            torch.testing.assert_close(got[seen], want[seen], rtol=2e-2, atol=2e-2)
            found.append((got, got.clone()))
    assert all(torch.equal(a, b) for a, b in found)
    assert len(passes.known) + list(passes.refused.values()).count("a recorded pass takes as long") == 2
    assert passes.known
    integration.restore(model)
    assert not passes.known
