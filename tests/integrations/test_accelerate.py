"""accelerate(model): the same states, the same keys, undone by restore; every pattern found where it is."""

from __future__ import annotations

import copy
import gc
import inspect
import io

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
from surroundings import ALL, HALF, by_definition, everywhere, states  # noqa: E402, F401

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.errors import LaunchError  # noqa: E402
from graphene.integrations.transformers import (  # noqa: E402
    _accelerate,
    _attention,
    _fused,
    _measure,
    _modules,
    _packing,
)

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")

# Values


@pytest.mark.parametrize("name", ALL)
def test_no_worse_than_eager(name) -> None:
    """Every operator on the simulator. The error against fp32 is at most 1.5 times eager's; keys and weights stay."""
    inputs = networks.batch([11, 4, 7])
    seen = inputs["attention_mask"].bool()
    model = networks.network(name, "eager", HALF)
    exact = states(copy.deepcopy(model).float(), inputs)[seen]
    before = states(model, inputs)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    everywhere(model)
    got = states(model, inputs)
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert all(p is parameters[k] for k, p in model.named_parameters())
    assert (got[seen].float() - exact).norm() <= 1.5 * (before[seen].float() - exact).norm()
    if name in networks.ENCODERS:
        assert not got[~seen].any()  # packed
    integration.restore(model)
    assert torch.equal(states(model, inputs), before)
    assert not [m for m in model.modules() if hasattr(type(m), "_graphene_original")]
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_on_a_cpu_everything_stays(name, dtype, calls, monkeypatch) -> None:
    """PyTorch's operators are faster there: bit by bit the same, however much of a batch is padding."""
    monkeypatch.setattr(_packing, "SAVED_ROWS", 1)
    inputs = networks.batch([11, 4, 7])
    model = networks.network(name, "sdpa", dtype)
    want = states(model, inputs)
    integration.accelerate(model, show=False)
    assert torch.equal(states(model, inputs), want)
    assert not calls
    rows = integration.accelerated(model).rows
    assert {r.now for r in rows} == {"left"}
    assert "on cpu, PyTorch's operators are faster" in {r.why for r in rows if r.where.endswith(": attention")}
    # Attention that was asked for by name stays what was asked for, without packing.
    model = integration.accelerate(networks.network(name, "graphene"), show=False)
    states(model, inputs)
    assert set(calls) == {"attention"}


EXPECTED = {
    "bert": {"layer_norm+residual": 4, "layer_norm": 1, "matmul": 3, "attention_varlen": 2},
    "roberta": {"layer_norm+residual": 5, "layer_norm": 0, "matmul": 3, "attention_varlen": 2},
    "albert": {"layer_norm+residual": 4, "layer_norm": 1, "matmul": 2, "attention_varlen": 2},
    "gpt2": {"layer_norm+residual": 2, "layer_norm": 3, "matmul": 2, "attention": 2},
    "llama": {"rms_norm+residual": 2, "rms_norm": 3, "gated": 2, "attention": 2, "rotary": 2},
    "mistral": {"rms_norm+residual": 2, "rms_norm": 3, "gated": 2, "attention": 2, "rotary": 2},
    "gemma2": {"rms_norm+residual": 2, "rms_norm": 7, "gated": 2, "attention": 2, "rotary": 2},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_pattern_is_one_operator(name, calls) -> None:
    """So many calls in a forward. Positions that are the same for every sequence make no sum of one shape."""
    model = everywhere(networks.network(name, "eager", HALF))
    states(model, networks.batch([11, 4, 7]))
    wanted = EXPECTED[name]
    assert {k: calls.get(k, 0) for k in wanted} == wanted


def test_training() -> None:
    """Gradients of the weights, against fp32's, are no worse than eager's."""
    inputs = networks.batch([11, 4, 7])
    seen = inputs["attention_mask"].bool()
    for name in ("bert", "albert", "gpt2", "llama"):
        grads = {}
        for how in ("exact", "eager", "accelerated"):
            model = networks.network(name, "eager", HALF)
            model = model.float() if how == "exact" else everywhere(model) if how == "accelerated" else model
            model.train()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            for key in ("attention_probs_dropout_prob", "attn_pdrop", "attention_dropout"):
                if hasattr(model.config, key):
                    setattr(model.config, key, 0.0)
            (model(**inputs).last_hidden_state[seen].float().pow(2).mean() * 64).backward()
            grads[how] = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
        wrong = {h: (grads[h] - grads["exact"]).norm() for h in ("eager", "accelerated")}
        assert wrong["accelerated"] <= 1.5 * wrong["eager"], name


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generate(name, cache) -> None:
    inputs = networks.batch([11, 4, 7], side="left")
    ask = dict(max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None)
    if cache is not None:
        ask |= dict(cache_implementation=cache, disable_compile=True)
    want = networks.network(name, "eager", causal_lm=True).generate(**inputs, **ask)
    assert torch.equal(everywhere(networks.network(name, "eager", causal_lm=True)).generate(**inputs, **ask), want)


def test_compiled() -> None:
    """One graph, of the operators; without packing, whose sizes depend on values."""
    graphs = []

    def backend(module, example):
        graphs.append(module)
        return module.forward

    inputs = networks.batch([11, 4, 7])
    seen = inputs["attention_mask"].bool()
    for name in ("bert", "llama"):
        model = everywhere(networks.network(name, "eager"))
        want = states(model, inputs)
        torch._dynamo.reset()
        graphs.clear()
        got = states(torch.compile(model, backend=backend, fullgraph=True), inputs)
        torch.testing.assert_close(got[seen], want[seen], rtol=1e-4, atol=1e-5)
        assert len(graphs) == 1


# Joined weights


def test_joined_weights_see_every_change(tmp_path) -> None:
    """In place, by load_state_dict and by optimizers; weights that move away are read where they are."""
    inputs = networks.batch()
    model, plain = everywhere(networks.network("bert", "eager", HALF)), networks.network("bert", "graphene", HALF)
    attention = model.encoder.layer[0].attention.self
    assert attention.query.weight.untyped_storage().data_ptr() == attention.value.weight.untyped_storage().data_ptr()
    other = {k: v + 0.1 * torch.randn_like(v) for k, v in plain.state_dict().items()}

    def same() -> None:
        torch.testing.assert_close(states(model, inputs), states(plain, inputs), rtol=0.02, atol=0.02)

    same()
    for m in (model, plain):
        m.load_state_dict(other)
    same()
    for m in (model, plain):
        with torch.no_grad():
            m.encoder.layer[1].attention.self.key.weight.mul_(-2)
            m.encoder.layer[0].attention.self.value.bias.add_(1)
    same()
    for m in (model, plain):
        m.encoder.layer[0].attention.self.query.weight.data = torch.ones(32, 32, dtype=HALF)
    same()
    for m in (model, plain):
        m.load_state_dict({k: v.clone() for k, v in other.items()}, assign=True)
    same()
    model.save_pretrained(tmp_path)
    loaded = type(plain).from_pretrained(tmp_path, dtype=HALF)
    assert all(torch.equal(v, other[k]) for k, v in loaded.state_dict().items())


def test_a_gate_and_what_it_gates_are_one_product(calls, monkeypatch) -> None:
    """The operator reads the halves of its result where they are."""
    model = networks.network("llama", "eager", HALF)
    want = states(model, networks.batch())
    everywhere(model)
    shapes = []
    product = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, w, b=None: (shapes.append(tuple(w.shape)), product(x, w, b))[1]
    )
    torch.testing.assert_close(states(model, networks.batch()), want, rtol=0.02, atol=0.02)
    assert shapes.count((2 * 64, 32)) == 2  # in both layers
    assert shapes.count((64, 32)) == 2  # queries, keys and values


def test_a_bias_that_one_layer_lacks_is_zero(calls) -> None:
    """Whisper's keys have none; one that appears later counts, and restored layers have their own again."""
    model, plain = networks.network("whisper", "eager"), networks.network("whisper", "eager")

    def encoded(m):
        with torch.no_grad():
            return m.model.encoder(**networks.sounds()).last_hidden_state

    everywhere(model)
    rows = [r for r in integration.accelerated(model).rows if "k_proj(x), v_proj(x)" in r.where]
    assert {r.now for r in rows} == {"graphene"}
    torch.testing.assert_close(encoded(model), encoded(plain), rtol=1e-4, atol=1e-5)
    attention = model.model.encoder.layers[0].self_attn
    assert attention.k_proj.bias is None
    assert [j.holds() for j in integration.accelerated(model).joined if attention.k_proj in j.modules] == [True]
    for m in (model, plain):
        m.model.encoder.layers[0].self_attn.k_proj.bias = torch.nn.Parameter(torch.ones(32))
        m.model.encoder.layers[0].self_attn.v_proj.bias.data += 1
    torch.testing.assert_close(encoded(model), encoded(plain), rtol=1e-4, atol=1e-5)
    assert [j.holds() for j in integration.accelerated(model).joined if attention.k_proj in j.modules] == [False]
    torch.testing.assert_close(encoded(integration.restore(model)), encoded(plain), rtol=1e-4, atol=1e-5)


def test_joined_weights_in_training(calls) -> None:
    model = everywhere(networks.network("llama", "eager", HALF))
    model(**networks.batch()).last_hidden_state.sum().backward()
    attention = model.layers[0].self_attn
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert layer.weight.grad.shape == layer.weight.shape
        assert layer.weight.grad.any()


def test_joined_weights_keep_no_memory(calls) -> None:
    """What a model leaves when it moves is free, and addresses that are used again join nothing."""
    from torch.multiprocessing.reductions import StorageWeakRef

    model = everywhere(networks.network("bert", "eager", HALF))
    attention = model.encoder.layer[0].attention.self
    old = StorageWeakRef(attention.query.weight.untyped_storage())
    assert not old.expired()
    model.float()
    gc.collect()
    assert old.expired()
    # One that goes alone is noticed when they are used.
    model = everywhere(networks.network("llama", "eager", HALF))
    joined = integration.accelerated(model).joined[0]
    states(model, networks.batch())
    assert joined.weight is not None
    model.layers[0].self_attn.k_proj.weight.data = model.layers[0].self_attn.k_proj.weight.data.clone()
    states(model, networks.batch())
    assert joined.weight is None


# What it says, keeps and undoes


def test_the_table(capsys) -> None:
    model = integration.accelerate(networks.network("bert", "eager"))
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["module", "now", "why"]
    rows = {" ".join(line.split()) for line in said[1:]}
    assert "2 BertModel: attention left on cpu, PyTorch's operators are faster" in rows
    assert "2 BertOutput: LayerNorm(a + b) left on cpu, PyTorch's operators are faster" in rows
    assert "2 BertIntermediate: intermediate_act_fn(dense(x)) left on cpu, PyTorch's operators are faster" in rows
    assert "1 BertEncoder: padded batches left on cpu, PyTorch's operators are faster" in rows
    assert str(integration.accelerated(model)).splitlines() == said
    assert integration.accelerated(integration.restore(model)) is None
    assert model.config._attn_implementation == "eager"
    assert integration.restore(model) is model
    everywhere(model, pack=True)
    rows = {(r.count, r.where, r.now, r.why) for r in integration.accelerated(model).rows}
    assert (2, "BertModel: attention", "graphene.ops.attention", "was 'eager'") in rows
    assert (1, "BertEncoder: padded batches", "packed inside", "only_faster=False") in rows


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(LaunchError) as error:
        integration.accelerate(None)
    assert str(error.value) == (
        "accelerate takes a torch.nn.Module   [OP_ARGUMENT]\n  got:  NoneType\n"
        "  fix: pass a model of transformers, or a module that contains some"
    )
    assert integration.accelerated(None) is None
    assert integration.restore(None) is None


def test_copies_and_files_are_of_the_original_classes() -> None:
    model = everywhere(networks.network("albert", "eager"))
    inputs = networks.batch([11, 4, 7])
    plain = states(networks.network("albert", "eager"), inputs)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"graphene.integrations" not in file.getvalue()  # it can be read without
    file.seek(0)
    wrapped = copy.deepcopy(torch.nn.ModuleList([model]))[0]
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False), wrapped):
        assert integration.accelerated(other) is None
        assert not [m for m in other.modules() if hasattr(type(m), "_graphene_original")]
        assert {m.config._attn_implementation for m in other.modules() if hasattr(m, "config")} == {"eager"}
        assert torch.equal(states(other, inputs), plain)
    assert model.config._attn_implementation == "graphene"


@pytest.mark.parametrize("first", ["outer", "inner"])
@pytest.mark.parametrize("undone", [("outer", "inner"), ("inner", "outer")])
def test_models_inside_of_models(first, undone) -> None:
    """Whichever was accelerated first, and whichever is restored first: at the end all is as it was."""
    outer = networks.network("bert", "eager", HALF)
    inputs = networks.batch([11, 4, 7])
    want = states(outer, inputs)
    parts = {"outer": outer, "inner": outer.encoder.layer[1]}
    for name in (first, *(n for n in parts if n != first)):
        everywhere(parts[name])
    torch.testing.assert_close(states(outer, inputs)[0], want[0], rtol=0.02, atol=0.02)  # the sequence without padding
    for name in undone:
        integration.restore(parts[name])
    assert not [m for m in outer.modules() if hasattr(type(m), "_graphene_original")]
    assert outer.config._attn_implementation == "eager"
    assert torch.equal(states(outer, inputs), want)


@pytest.mark.parametrize("how", ["restore", "accelerate"])
def test_what_is_left_of_a_model_that_is_no_more(how) -> None:
    inner = everywhere(torch.nn.ModuleList([networks.network("bert", "eager", HALF)]))[0]
    gc.collect()
    assert [m for m in inner.modules() if hasattr(type(m), "_graphene_original")]
    if how == "accelerate":
        rows = integration.accelerated(everywhere(inner)).rows
        assert not [r for r in rows if "already" in r.why]
    integration.restore(inner)
    assert not [m for m in inner.modules() if hasattr(type(m), "_graphene_original")]
    assert inner.config._attn_implementation == "eager"


def test_one_model_in_two_wrappers() -> None:
    model = networks.network("bert", "eager", HALF)
    wrappers = [everywhere(torch.nn.ModuleList([model])) for _ in range(2)]
    whys = {r.why for r in integration.accelerated(wrappers[1]).rows if r.now == "left"}
    assert whys == {"accelerate replaced it already, for a model around it or in it"}
    integration.restore(wrappers[0])
    assert model.config._attn_implementation == "graphene"  # as the other one wants it
    integration.restore(wrappers[1])
    assert model.config._attn_implementation == "eager"
    assert not [m for m in model.modules() if hasattr(type(m), "_graphene_original")]


def test_rewritten_methods_can_be_read() -> None:
    model = everywhere(networks.network("bert", "eager"))
    text = inspect.getsource(type(model.encoder.layer[0].output).forward)
    assert "hidden_states = _graphene.add_norm(self.LayerNorm, hidden_states, input_tensor)" in text


def test_twice_is_once() -> None:
    model = networks.network("bert", "eager")
    first = everywhere(everywhere(model))
    assert all(not hasattr(c, "_graphene_original") for m in first.modules() for c in type(m).__mro__[2:])
    integration.restore(first)
    assert model.config._attn_implementation == "eager"


def test_hooks_and_replaced_modules_are_respected(calls) -> None:
    """A hook sees its module called; a module of another class is called as it is."""
    model = everywhere(networks.network("bert", "eager", HALF))
    seen, everyone = [], []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, *_: everyone.append(m))
    states(model, networks.batch())
    hook.remove()
    assert {m for m in model.modules() if _modules.kind_of(m) is not None} <= {*everyone}
    model.encoder.layer[0].output.LayerNorm.register_forward_hook(lambda *_: seen.append("norm"))
    model.encoder.layer[1].intermediate.dense.register_forward_hook(lambda *_: seen.append("linear"))
    states(model, networks.batch())
    assert seen == ["norm", "linear"]

    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    before = states(model, networks.batch())
    model.encoder.layer[0].intermediate.dense.__class__ = Doubled
    assert not torch.allclose(states(model, networks.batch()), before)


def test_under_autocast_pytorch_decides() -> None:
    inputs = networks.batch([11, 4, 7])
    model = networks.network("bert", "sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        want = states(model, inputs)
        got = states(everywhere(model, pack=False), inputs)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.1)


# Choices


def test_choices_follow_measurements(monkeypatch) -> None:
    rules = _fused.Rules(measured={("norm", 32): ("torch", "graphene", "torch")})
    assert [rules.way(("norm", 32), n) for n in (1, 15, 16, 1023, 1024)] == ["torch"] * 2 + ["graphene"] * 2 + ["torch"]
    assert [rules.way((kind, 64), 1) for kind in ("norm", "linears")] == ["graphene", "torch"]
    said = [
        _accelerate._in_words(w)
        for w in (("torch",) * 3, ("torch", "graphene", "graphene"), ("two", "graphene", "two"))
    ]
    assert said == ["left", "left below 16 rows, then one kernel", "the activation by a kernel below 16 rows, then "
                    "one kernel below 1024 rows, then the activation by a kernel"]  # fmt: skip
    assert _measure.best({"torch": 10.0, "graphene": 9.9, "epilogue": 11.0}) == "torch"
    assert _measure.best({"torch": 10.0, "graphene": 9.0, "epilogue": 9.5}) == "graphene"
    monkeypatch.setattr(_measure, "TOKENS", 10)
    keys = (("norm", 32), ("add_norm", 32), ("linear_act", 32, 64, "gelu_tanh"), ("gated", 32, "silu"),
            ("linears", 32, (16, 8)), _attention.problem(4, 2, 16, True, False),
            _attention.problem(2, 2, 16, False, True))  # fmt: skip
    for key in keys:
        for norm in ("layer", "rms"):
            found = {n: f() for n, f in _measure.ways(key, 5, HALF, "cpu", norm).items()}
            assert len(found) > 1
            for name, value in found.items():  # they compute the same
                torch.testing.assert_close(value, found["torch"], rtol=1e-2, atol=1e-2, msg=f"{key} {norm} {name}")


def test_modules_of_one_class_may_differ(calls) -> None:
    """One layer has another norm, and another an activation that no operator has: each is rewritten for itself."""
    model, plain = networks.network("bert", "eager", HALF), networks.network("bert", "eager", HALF)
    for m in (model, plain):
        m.encoder.layer[0].output.LayerNorm = torch.nn.LayerNorm(32, elementwise_affine=False)
        m.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.LeakyReLU()
    everywhere(model)
    inputs = networks.batch()
    got = states(model, inputs)
    assert calls["layer_norm+residual"] == 3
    assert calls["matmul"] == 2  # an intermediate layer and the pooler
    torch.testing.assert_close(got, states(plain, inputs), rtol=0.02, atol=0.02)


def test_a_measured_model(monkeypatch) -> None:
    """Where there is something to measure: one measurement for equal parts, the fastest way taken, the times told."""
    import contextlib

    measured = []

    def microseconds(call):
        measured.append(call())
        return 10.0 if len(measured) % 2 else 5.0  # PyTorch's way comes first

    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "microseconds", microseconds)
    monkeypatch.setattr(_measure, "ROWS", (1, 2, 3))
    monkeypatch.setattr(_measure, "QUERIES", (1, 2, 3, 4))
    monkeypatch.setattr(_measure, "TOKENS", 6)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    model = integration.accelerate(networks.network("llama", "eager", HALF), show=False)
    rows = {r.where: (r.count, r.now, r.why) for r in integration.accelerated(model).rows}
    told = (
        "1 rows: torch 10.0, graphene 5.0 us; 2 rows: torch 10.0, graphene 5.0 us; 3 rows: torch 10.0, graphene 5.0 us"
    )
    assert rows["LlamaRMSNorm(32)"] == (3, "one kernel", told)
    assert rows["LlamaMLP: act_fn(gate_proj(x)) * up_proj(x)"] == (2, "one kernel", told)
    assert rows["LlamaAttention: q_proj(x), k_proj(x), v_proj(x)"][1] == "one product"
    times = (f"{n} queries: torch 10.0, graphene 5.0 us" for n in _measure.QUERIES)
    assert rows["LlamaModel: attention"] == (2, "graphene.ops.attention", f"was 'eager'; {'; '.join(times)}")
    assert rows["LlamaMLP: gate_proj(x), up_proj(x)"][1] == "one product"
    # Attention by its numbers of queries; norms, sums and norms, gates, two of joined layers, rotations by rows; ways.
    assert len(measured) == 4 * 2 + 6 * 3 * 2
    assert len(integration.accelerated(model).joined) == 4

    def no_memory(call):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(_measure, "microseconds", no_memory)
    model = integration.accelerate(networks.network("bert", "eager", HALF), show=False)
    rows = integration.accelerated(model).rows
    assert {(r.now, r.why) for r in rows if "dense" in r.where} == {("left", "there is no memory to measure it")}


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_ways_of_attention_in_fp32(name, monkeypatch) -> None:
    """No kernel takes it: PyTorch's ways are measured, and the fastest runs."""
    asked = []
    fastest = {n: {"torch": 3.0, "repeated": 2.0 if n == 128 else 3.0, "scores": 1.0} for n in _measure.QUERIES}

    def choose(key, dtype, device, norm="layer"):
        if key[0] != "attention":
            return {}
        for n, queries in enumerate(_measure.QUERIES[:2]):
            q = 4 if n else 1
            made = _measure._attention_ways(list(key[1:]), q, dtype, torch.randn)
            asked.append(sorted(made))
            results = [way() for way in made.values()]
            for other in results[1:]:
                torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)
            if queries == 128:
                fastest[queries].pop("scores", None)
        return fastest

    monkeypatch.setattr(_measure, "TOKENS", 16)
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", choose)
    monkeypatch.setattr(_attention, "kernel", lambda query: "no kernel takes it")
    plain = networks.network(name, "eager")
    model = integration.accelerate(networks.network(name, "eager"), show=False)
    shared = ["repeated"] if name == "llama" else []
    assert asked == [[*shared, "scores", "torch"]] * 2
    (row, *_) = (r for r in integration.accelerated(model).rows if r.where.endswith(": attention"))
    after = "left, keys repeated below 256 queries"
    assert row.now == f"two products below 2 queries, then {after}, then two products"
    ways = []
    by_pytorch = _attention._by_pytorch
    monkeypatch.setattr(_attention, "_by_pytorch", lambda *args: (ways.append(args[-1]), by_pytorch(*args))[1])
    torch.testing.assert_close(states(model, networks.batch()), states(plain, networks.batch()), rtol=1e-4, atol=1e-4)
    assert set(ways) == {"repeated"}
    with torch.autocast("cpu", torch.bfloat16):  # of which nothing was measured
        model(**networks.batch())
    assert set(ways) == {"repeated", None}
    integration.restore(model)
    assert not any(_attention.WAYS in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "t5", "whisper"])
def test_attention_that_is_faster_by_pytorch(name, calls, monkeypatch) -> None:
    """It is left where it was measured to be slower: without a mask, for these numbers of queries, until restored."""
    monkeypatch.setattr(_attention, "_load_masked", lambda *_: None)
    slower = {n: {"torch": 1.0, "graphene": 2.0 if n == 128 else 1.0} for n in _measure.QUERIES}
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", lambda key, *_: slower if key[0] == "attention" else {})
    plain = networks.network(name, "eager", HALF)
    model = integration.accelerate(networks.network(name, "eager", HALF), show=False)
    attentions = [m for m in model.modules() if hasattr(m, "is_causal")]
    assert all(_attention.WAYS in m.__dict__ for m in attentions)
    (row, *_) = (r for r in integration.accelerated(model).rows if r.where.endswith(": attention"))
    assert row.now == "graphene.ops.attention below 2 queries, then left below 256 queries, then graphene.ops.attention"
    inputs = networks.sounds() if name == "whisper" else networks.batch([11, 11, 11])
    padded = networks.batch([11, 4, 7])
    if name in networks.ENCODER_DECODERS:
        inputs["decoder_input_ids"] = padded["decoder_input_ids"] = networks.batch()["input_ids"]
    else:
        padded["use_cache"] = inputs["use_cache"] = False
    inputs = {k: v.half() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
    calls.clear()
    for m in (plain, model):
        with torch.no_grad():
            m.out = m(**inputs)[0]
    torch.testing.assert_close(model.out, plain.out, rtol=0.02, atol=0.02)
    left = 6 if name == "t5" else 0  # T5's attentions have a bias of positions
    assert calls.get("attention", 0) == left
    if name != "whisper":
        with torch.no_grad():
            model(**padded)
        assert calls.get("attention", 0) + calls.get("attention_varlen", 0) > left
    integration.restore(model)
    assert not any(_attention.WAYS in m.__dict__ for m in attentions)


@pytest.mark.parametrize(
    "faster", [("graphene", "torch", "torch", "torch"), ("graphene", "torch", "graphene", "graphene")]
)
def test_measured_attention_is_compiled_and_exported_for_all_lengths(faster, monkeypatch) -> None:
    """A compiler is told no border of a length that may vary: one graph, whatever was measured."""
    took = {
        n: {"torch": 1.0, "graphene": 2.0 if w == "torch" else 1.0}
        for n, w in zip(_measure.QUERIES, faster, strict=True)
    }
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", lambda key, *_: took if key[0] == "attention" else {})
    plain = networks.network("llama", "eager", HALF, use_cache=False)
    model = integration.accelerate(networks.network("llama", "eager", HALF, use_cache=False), show=False)
    assert any(_attention.WAYS in m.__dict__ for m in model.modules())
    graphs = []
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=lambda g, _: (graphs.append(g), g.forward)[1])
    for length in (8, 12, 17):
        inputs = networks.batch(rows=2, length=length)
        torch.testing.assert_close(states(compiled, inputs), states(plain, inputs), rtol=0.02, atol=0.02)
    assert len(graphs) == 1
    length = torch.export.Dim("length", min=2, max=4096)
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, dynamic_shapes={"input_ids": {1: length}})
    inputs = networks.batch(rows=2, length=9)
    torch.testing.assert_close(states(program.module(), inputs), states(plain, inputs), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("way", ["torch", "graphene", "two", "epilogue"])
@pytest.mark.parametrize("bias", [True, False])
def test_every_way_of_an_activation(way, bias) -> None:
    from transformers.activations import ACT2FN
    from transformers.pytorch_utils import Conv1D

    class OneWay(_fused.Rules):
        def way(self, key, rows):
            return way

    helpers = _fused.Helpers(OneWay(everything=True), {}, _modules.activation_of)
    act, x = ACT2FN["gelu_new"], torch.randn(2, 5, 16).half()
    for layer in (torch.nn.Linear(16, 24, bias=bias), Conv1D(24, 16)):
        layer.half().requires_grad_(False)
        want = act(layer.float()(x.float()))
        got = helpers.linear_act(layer.half(), act, x)
        assert got.shape == (2, 5, 24)
        torch.testing.assert_close(got.float(), want, rtol=2e-3, atol=2e-3)


def test_while_a_cuda_graph_is_captured(calls, monkeypatch) -> None:
    """Nothing depends on values then: masks stay, batches are not packed."""
    from transformers.utils import import_utils

    for name in ("bert", "llama"):
        model = everywhere(networks.network(name, "eager"))
        for inputs in (networks.batch([11, 4, 7]), networks.batch([11, 11, 11])):
            seen = inputs["attention_mask"].bool()
            want = states(model, inputs)[seen]
            calls.clear()
            with monkeypatch.context() as m:
                m.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)
                m.setattr(torch.Tensor, "tolist", None)
                m.setattr(torch.Tensor, "item", None)
                got = states(model, inputs)[seen]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            assert calls["attention"] == 2
            assert "attention_varlen" not in calls


def test_an_interrupted_accelerate_leaves_the_model_as_it_was(monkeypatch) -> None:
    model = networks.network("bert", "eager")
    monkeypatch.setattr(_accelerate._Accelerator, "encoder", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        integration.accelerate(model, show=False)
    assert integration.accelerated(model) is None
    assert model.config._attn_implementation == "eager"
    assert not [m for m in model.modules() if hasattr(type(m), "_graphene_original")]


def test_a_layer_is_joined_with_one_other() -> None:
    """DeBERTa projects keys beside values, and beside queries elsewhere: a weight lies next to one of them."""
    sizes = dict(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    relative = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], share_att_key=True, position_buckets=8)
    torch.manual_seed(0)
    model = networks.AutoModel.from_config(networks.CONFIG_MAPPING["deberta-v2"](**sizes, **relative)).eval()
    want = states(model, networks.batch())
    torch.testing.assert_close(states(everywhere(model), networks.batch()), want, rtol=1e-4, atol=1e-5)
    rows = {r.where.split(": ")[1]: r.now for r in integration.accelerated(model).rows if "_proj(x)" in r.where}
    assert rows == {"key_proj(x), value_proj(x)": "graphene", "query_proj(x), key_proj(x)": "left"}
    assert all(j.holds() for j in integration.accelerated(model).joined)
