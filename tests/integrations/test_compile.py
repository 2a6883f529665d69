"""graphene.compile: which regions of a model's graphs are planned, and that results and gradients stay right.

Most graphs here are captured behind PyTorch's own passes and run as they are, so that no C++ is compiled; regions of
CPU tensors are planned for a named device and run on the simulator.
"""

from __future__ import annotations

import re
import tomllib
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import plan

torch = pytest.importorskip("torch")

from torch._inductor.compile_fx import compile_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from graphene.integrations import torch_compile  # noqa: E402
from graphene.integrations.torch_compile import inductor, regions  # noqa: E402
from graphene.integrations.torch_compile.choosing import Chooser  # noqa: E402
from graphene.integrations.torch_compile.expected import KERNEL_US, PLANNED_US, KernelTimes  # noqa: E402
from graphene.integrations.torch_compile.measuring import MeasuredKernelTimes  # noqa: E402
from graphene.select.model import LAUNCH_US  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning", "ignore:Your compiler for AOTAutograd")
ALWAYS = -1e9  # a gain that every region has


def captured(fn: Any, least_gain: float = ALWAYS, device: Any = "sm_90a", **named: Any) -> tuple[Any, Any, list[Any]]:
    """The function with its graphs as the pass leaves them, the regions, and the graphs."""
    backend, graphs = torch_compile.Backend(device=device), list[Any]()
    backend.least_gain = least_gain

    def inner(gm: Any, inputs: Any, **_: Any) -> Any:
        backend.visit(gm.graph)
        gm.graph.lint()
        gm.recompile()
        graphs.append(gm.graph)
        return gm

    torch._dynamo.reset()
    made = torch.compile(fn, backend=lambda g, i: compile_fx(g, i, inner_compile=inner), **named)
    return made, backend.plans, graphs


def operators(graphs: list[Any]) -> list[str]:
    return [str(n.target) for g in graphs for n in g.nodes if n.op == "call_function"]


def names(plans: Any) -> list[str]:
    return [r.name for r in plans if r.planned]


def near(got: Any, want: Any) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * float(want.detach().abs().max()))


class Block(torch.nn.Module):  # type: ignore[misc]
    """A normalised perceptron beside its input."""

    def __init__(self, dtype: Any = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.RMSNorm(64, eps=1e-5, dtype=dtype)
        self.up = torch.nn.Linear(64, 48, dtype=dtype)
        self.down = torch.nn.Linear(48, 64, bias=False, dtype=dtype)
        self.norm.weight.data.uniform_(0.5, 1.5)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def test_a_block_is_two_kernels_and_its_results_are_right() -> None:
    block, x = Block(), torch.randn(2, 5, 64).bfloat16()
    f, plans, graphs = captured(block)
    with torch.no_grad():
        near(f(x), block(x))
    assert names(plans) == ["norm_linear_add_gelu", "linear_add"]
    assert operators(graphs).count("graphene.planned_forward.default") == 2
    assert not [o for o in operators(graphs) if "mm" in o or "rsqrt" in o]
    assert "plan.gelu" not in plans[0].source()
    assert "gelu" in plans[0].source()
    assert len(plans.sources) == 2
    assert "planned  norm_linear_add_gelu" in str(plans)


def test_gradients_are_right_and_what_the_backward_needs_stays() -> None:
    block, x = Block(), torch.randn(2, 5, 64).bfloat16()
    f, plans, _ = captured(block)
    given, plain = (x.clone().requires_grad_() for _ in range(2))
    g = torch.randn_like(x)
    f(given).backward(g)
    got = [given.grad, *(p.grad for p in block.parameters())]
    block.zero_grad()
    block(plain).backward(g)
    for a, b in zip(got, [plain.grad, *(p.grad for p in block.parameters())], strict=True):
        near(a, b)
    assert names(plans)


def test_what_fp16_may_not_hold_is_not_computed_early() -> None:
    block, x = Block(torch.float16), torch.randn(2, 5, 64).half()
    f, plans, _ = captured(block)
    with torch.no_grad():
        near(f(x), block(x))
    assert names(plans) == ["linear_add_gelu", "linear_add"]  # x * gamma, without its row's factor, may be infinite


def test_lora_is_one_kernel() -> None:
    torch.manual_seed(0)
    w, a, b = torch.randn(64, 48).bfloat16() / 8, torch.randn(16, 48).bfloat16() / 8, torch.randn(64, 16).bfloat16() / 4
    x = torch.randn(10, 48).bfloat16()

    def lora(x: Any) -> Any:
        return F.linear(x, w) + 0.5 * F.linear(F.linear(x, a), b)

    f, plans, graphs = captured(lora)
    near(f(x), lora(x))
    assert names(plans) == ["linear3_add_mul"] or names(plans) == ["linear3_mul_add"]
    assert len([o for o in operators(graphs) if "planned" in o]) == 1


def _swiglu(x: Any, w: Any, v: Any) -> Any:
    return F.silu(x @ w) * (x @ v)


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "gate": (_swiglu, ["linear2_silu_mul"]),
    "cut": (lambda x, w, v: (x @ w)[..., :8] * 2, []),  # a part of the columns
    "repeated": (lambda x, w, v: (x.view(2, 5, 32) @ w) + (x @ v)[:5], []),  # rows of one operand are repeated
    "read twice": (lambda x, w, v: ((y := x @ w) * 2, y), []),  # what a region computes inside is read outside
    "of fp32": (lambda x, w, v: (x.float() @ w.float()).exp(), []),
    "a scalar tensor": (lambda x, w, v: (x @ w) * w.sum(), []),
    "integers": (lambda x, w, v: (x @ w).to(torch.int32) + 1, []),
    "dropout": (lambda x, w, v: F.dropout(x @ w, 0.0) + 1.5, ["linear_add"]),
    "transposed": (lambda x, w, v: (v.T @ x.T).T.exp(), []),
    "strides": (lambda x, w, v: (x.T.contiguous().T @ w[:, ::2]).exp(), ["linear_exp"]),
    "tanh": (lambda x, w, v: torch.tanh(torch.addmm(w[0], x, v)) / 3, ["linear_add_tanh_div"]),
    "scaled": (lambda x, w, v: torch.addmm(w[0], x, v, beta=2).exp(), []),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_what_is_read_rightly_is_replaced(name: str) -> None:
    fn, want = FUNCTIONS[name]
    torch.manual_seed(1)
    x, w, v = (torch.randn(*s).bfloat16() / 4 for s in ((10, 32), (32, 48), (32, 48)))
    f, plans, _ = captured(fn)
    got, right = f(x, w, v), fn(x, w, v)
    for a, b in zip(got, right, strict=True) if isinstance(got, tuple) else [(got, right)]:
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        near(a, b)
    assert names(plans) == want


def test_relu_hands_on_nan() -> None:
    x, w = torch.randn(16, 32).bfloat16(), torch.randn(32, 32).bfloat16()
    x[3, 5] = float("nan")
    f, plans, _ = captured(lambda x: F.relu(x @ w))
    got = f(x)
    assert names(plans) == ["linear_relu"]
    assert got[3].isnan().all()
    assert not got[:3].isnan().any()


def test_a_tensor_that_is_written_meanwhile_is_read_before() -> None:
    w = torch.randn(32, 48).bfloat16() / 4

    def fn(x: Any, r: Any) -> Any:
        y = x @ w
        out = torch.exp(y * 0.1) + r
        r.mul_(2)
        x.add_(1)
        return out, x.sum()

    def args() -> list[Any]:
        torch.manual_seed(2)
        return [torch.randn(10, 32).bfloat16(), torch.randn(10, 48).bfloat16()]

    f, plans, _ = captured(fn)
    a, b = args(), args()
    got, right = f(*a), fn(*b)
    near(got[0], right[0])
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y)
    assert names(plans) == ["linear_mul_exp_add"]


def test_autocast_and_symbolic_rows() -> None:
    block = Block(torch.float32)
    f, plans, graphs = captured(block)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for rows in (5, 9):
            x = torch.randn(1, rows, 64)
            torch._dynamo.mark_dynamic(x, 1)
            near(f(x), block(x))
    assert len(graphs) == 1  # of all numbers of rows
    assert names(plans)
    assert plans[0].plan.sizes == {"M": 5}


def test_vectors_along_symbolic_rows_stay_inputs_of_inductors_kernels() -> None:
    w = torch.randn(32, 48).bfloat16() / 4
    f, plans, _ = captured(lambda x, s: torch.exp(x @ w) * s)
    for rows in (5, 9):
        x, s = torch.randn(rows, 32).bfloat16(), torch.rand(rows, 1).bfloat16()
        for t in (x, s):
            torch._dynamo.mark_dynamic(t, 0)
        near(f(x, s), torch.exp(x @ w) * s)
    assert names(plans) == ["linear_exp"]


def blocks() -> dict[str, tuple[Any, list[str]]]:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
             "vocab_size": 64}  # fmt: skip
    decoder = {**small, "num_key_value_heads": 2, "head_dim": 16, "use_cache": False}
    llama, qwen, bert = (getattr(transformers, n) for n in ("LlamaConfig", "Qwen3Config", "BertConfig"))
    gated = [*["norm_linear"] * 3, "linear_add", "norm_linear2_silu_mul", "linear_add"]
    return {
        "llama": (transformers.AutoModel.from_config(llama(**decoder)), gated),
        "qwen3": (transformers.AutoModel.from_config(qwen(**decoder)), gated),
        "bert": (
            transformers.AutoModel.from_config(bert(**small)),
            ["linear_add", "linear_add_gelu", "linear_add", "linear_add_tanh"],
        ),
    }


@pytest.mark.parametrize("name", ["llama", "qwen3", "bert"])
def test_regions_of_a_block_of_transformers(name: str) -> None:
    torch.manual_seed(0)
    model, want = blocks()[name]
    model = model.bfloat16().eval()
    f, plans, graphs = captured(model)
    x = torch.randn(1, 8, 64).bfloat16()
    with torch.no_grad():
        near(f(inputs_embeds=x).last_hidden_state, model(inputs_embeds=x).last_hidden_state)
    assert names(plans) == want
    assert operators(graphs).count("graphene.planned_forward.default") == len(want)


def graph_of(fn: Any, *args: Any) -> Any:
    return torch.fx.experimental.proxy_tensor.make_fx(fn, tracing_mode="fake")(*args).graph


def test_what_is_not_expected_to_be_faster_stays_inductors() -> None:
    w = torch.empty(4096, 4096, dtype=torch.bfloat16)
    for rows, taken in ((16, True), (8192, False)):
        x = torch.empty(rows, 4096, dtype=torch.bfloat16)
        graph = graph_of(lambda x, w: F.silu(x @ w) * (x @ w.T), x, w)
        (region,) = Chooser(graph, KernelTimes(gr.select.of_arch("sm_90a"))).choose()
        assert region.planned == taken
        assert (region.plan_us < 0.95 * region.inductor_us) == taken
        assert taken or region.why == "slower"
        assert "def linear2_silu_mul(" in region.source()


def test_normalised_rows_must_save_what_their_expected_time_may_be_off() -> None:
    """512 rows by mma.sync took 1.36 x what was expected; few rows, and products of inputs, did not."""

    def needed(rows: int, instruction: str, normalised: bool) -> float:
        m, k, n = plan.axes(m=rows, k=256, n=256)
        with plan.graph("g") as g:
            x, w = g.input("x", [m, k], gr.bf16), g.input("w", [n, k], gr.bf16)
            a = x * plan.rsqrt(plan.mean(x * x, k)) * g.input("f", [k], gr.bf16) if normalised else x
            g.output("o", plan.relu(plan.dot(a, w, k)), [m, n], gr.bf16)
        p = g.plan("sm_90a", pin={"instruction": instruction})
        return KernelTimes(p.device).needed_gain(types.SimpleNamespace(plan=p))

    assert needed(512, "mma.sync", True) > 1 - 20.2 / 27.4
    assert max(needed(16, "mma.sync", True), needed(512, "mma.sync", False), needed(512, "wgmma", False)) < 0


def test_a_graph_without_planned_regions_is_what_inductor_would_get() -> None:
    seen = []

    def inner(gm: Any, inputs: Any, **_: Any) -> Any:
        backend = torch_compile.Backend(device="sm_90a")
        backend.least_gain = 1.0
        before = gm.graph.python_code("self").src, [dict(n.meta) for n in gm.graph.nodes]
        backend.visit(gm.graph)
        assert len(backend.plans) > 0
        seen.append(before == (gm.graph.python_code("self").src, [dict(n.meta) for n in gm.graph.nodes]))
        return gm

    torch._dynamo.reset()
    model = torch.nn.Sequential(
        torch.nn.RMSNorm(64), torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)
    )
    with torch.no_grad():
        made = torch.compile(model.bfloat16(), backend=lambda g, i: compile_fx(g, i, inner_compile=inner))
        made(torch.randn(512, 64).bfloat16())
    assert seen == [True]


def test_table_and_source_say_which_times_they_are() -> None:
    """A table's kernels follow one another in a CUDA graph; a plan's time is of a single call."""
    x, w = torch.empty(16, 256, dtype=torch.bfloat16), torch.empty(256, 256, dtype=torch.bfloat16)
    graph = graph_of(lambda x, w: torch.exp(x @ w), x, w)
    (region,) = Chooser(graph, KernelTimes(gr.select.of_arch("sm_90a"))).choose()
    single = region.plan.expected_us
    assert region.plan_us == pytest.approx(single - LAUNCH_US + PLANNED_US)
    assert f" (2 operators): {region.plan_us:.1f} us, Inductor " in str(region)
    assert " us, expected for a CUDA graph; " in str(region)
    assert f"expected {single:.1f} us for a single call, launch included." in region.source()


def test_times_may_be_measured() -> None:
    """The clock decides: planned kernels take one time, and everything else another one."""
    x, w = torch.randn(16, 32).bfloat16(), torch.randn(32, 48).bfloat16()
    for own, other in ((1.0, 10.0), (30.0, 10.0)):

        class Fixed(MeasuredKernelTimes):
            def planned_us(self, region: Any, us: float = own) -> float:
                return us

            def empty_us(self) -> float:
                return KERNEL_US  # what kernels take in a CUDA graph, so that times stay as they are

        def clock(call: Callable[[], object], us: float = other) -> float:
            call()
            return us

        times = Fixed(gr.select.of_arch("sm_90a"), clock, "cpu")
        (region,) = Chooser(graph_of(lambda x, w: torch.exp(x @ w), x, w), times).choose()
        assert region.measured
        assert region.planned == (own < other)
        assert region.inductor_us == 2 * other  # a product, and a kernel behind it


def test_the_plan_of_a_region_is_measured_with_its_neighbours() -> None:
    x, w = torch.randn(16, 64).bfloat16(), torch.randn(64, 32).bfloat16()
    calls = []

    def clock(call: Callable[[], object]) -> float:
        calls.append(call())
        return 1.0 + len(calls)

    times = MeasuredKernelTimes(gr.select.of_arch("sm_90a"), clock, "cpu")
    (region,) = Chooser(graph_of(lambda x, w: torch.exp(x @ w), x, w), times).choose()
    assert region.plan_us is not None
    assert len(calls) > 4


def test_compile_runs_inductor() -> None:
    """The whole way, with PyTorch's compiler of C++."""
    block, x = Block(), torch.randn(2, 5, 64).bfloat16()
    compiled = gr.compile(block, device="sm_90a", options={"force_disable_caches": True})
    with torch.no_grad():
        near(compiled(x), block(x))
    assert names(compiled.plans) == ["norm_linear_add_gelu", "linear_add"]
    assert compiled.state_dict().keys() == {f"_orig_mod.{k}" for k in block.state_dict()}


def test_the_pages_model_is_planned_as_printed_and_with_gradients_the_reason_is_told() -> None:
    page = (Path(__file__).parents[2] / "docs/planner.md").read_text().split("## Models: `gr.compile`")[1]
    code, printed = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("python", "text"))
    names: dict[str, Any] = {"gr": gr}
    exec(code, names)
    x = torch.randn(4, 64).bfloat16()
    names["compiled"], plans, _ = captured(names["block"], torch_compile.Backend().least_gain)
    near(names["infer"](x), names["block"](x))
    assert str(plans) == printed.strip()
    f, plans, _ = captured(names["block"], torch_compile.Backend().least_gain)
    f(x)
    assert [r.why.split("; ")[1] for r in plans] == [
        "its input and its result are kept for the backward pass",
        "its input is kept for the backward pass",
    ]


def test_a_result_that_the_graph_returns_is_a_reason() -> None:
    f, plans, _ = captured(FUNCTIONS["read twice"][0])
    f(*(torch.randn(16, 16).bfloat16() for _ in range(3)))
    assert [r.why.split("; ")[1:] for r in plans] == [["its result is returned by the graph"]]
    f, plans, _ = captured(lambda x, w: ((y := x.bfloat16()) @ w, y))
    f(torch.randn(16, 16), torch.randn(16, 16).bfloat16())
    assert [r.why.split("; ")[1:] for r in plans] == [[]]  # no norm stands before a product of what was given


def test_without_a_gpu_and_a_named_device_nothing_is_replaced() -> None:
    f, plans, graphs = captured(lambda x: torch.exp(x @ x), device=None)
    x = torch.randn(16, 16).bfloat16()
    near(f(x), torch.exp(x @ x))
    assert not plans
    assert str(plans) == "no region was looked at"
    assert not [o for o in operators(graphs) if "planned" in o]


def test_one_warning_where_hooks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_said", set())
    monkeypatch.setattr(inductor, "HOOK", "a_hook_that_does_not_exist")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda g, i, config_patches: g)
    f = gr.compile(lambda x: torch.exp(x @ x), device="sm_90a")
    g = gr.compile(lambda x: torch.cos(x @ x), device="sm_90a")
    x = torch.randn(16, 16).bfloat16()
    with pytest.warns(torch_compile.PlanWarning, match=r"has no a_hook_that_does_not_exist \[OP_TORCH\]"):
        f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch_compile.PlanWarning)
        g(x)


def test_a_failure_inside_leaves_the_graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_said", set())

    def broken(*_: Any) -> Any:
        raise RuntimeError("an attribute that a later PyTorch lacks")

    monkeypatch.setattr("graphene.integrations.torch_compile.choosing.text_of", broken)
    f, plans, graphs = captured(lambda x: torch.exp(x @ x))
    x = torch.randn(16, 16).bfloat16()
    with pytest.warns(torch_compile.PlanWarning, match="the region linear_exp to Inductor: .* a later PyTorch lacks"):
        near(f(x), torch.exp(x @ x))
    assert not names(plans)
    assert str(plans).startswith("Inductor linear_exp (2 operators): ")
    assert str(plans).endswith("; not replaced, RuntimeError: an attribute that a later PyTorch lacks")
    assert not [o for o in operators(graphs) if "planned" in o or "reshape" in o]


def test_what_was_replaced_before_a_failure_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_said", set())
    taken: list[Any] = []

    def once(plan: Any) -> str:
        taken.append(plan)
        if len(taken) == 2:
            raise RuntimeError("the second one fails")
        return regions.text_of(plan)

    monkeypatch.setattr("graphene.integrations.torch_compile.choosing.text_of", once)

    def fn(x: Any) -> Any:
        return torch.tanh(torch.exp(torch.sin(torch.exp(x @ x)) @ x).cos() @ x)

    f, plans, graphs = captured(fn)
    x = torch.randn(16, 16).bfloat16() / 8
    with pytest.warns(torch_compile.PlanWarning, match="the second one fails"):
        near(f(x), fn(x))
    assert [r.planned for r in plans] == [True, False, True]
    assert operators(graphs).count("graphene.planned_forward.default") == 2


def test_each_reason_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_said", set())
    why = ["one"]

    def broken(*_: Any) -> Any:
        raise RuntimeError(why[0])

    monkeypatch.setattr(inductor, "Chooser", broken)
    backend, x = torch_compile.Backend(device="sm_90a"), torch.empty(16, 16)
    for why[0], warns in (("one", True), ("one", False), ("another", True)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            backend.visit(graph_of(lambda x: x @ x, x))
        assert [str(w.message) for w in said] == warns * [
            f"graphene.compile leaves the graph to Inductor untouched: RuntimeError: {why[0]} [OP_TORCH]"
        ]


@pytest.mark.parametrize(
    ("given", "code"),
    [(({"fn": 3}), "OP_ARGUMENT"), ({"fn": abs, "mode": "fast"}, "OP_ARGUMENT"),
     ({"fn": abs, "options": 3}, "OP_ARGUMENT"), ({"fn": abs, "device": "sm_1"}, "TUNE_NO_CANDIDATE"),
     ({"fn": abs, "device": 0}, "KERNEL_ARGUMENT"), ({"fn": abs, "device": "gpu"}, "KERNEL_ARGUMENT"),
     ({"fn": abs, "device": torch.device("cpu")}, "KERNEL_ARGUMENT"),
     ({"fn": abs, "device": "cuda:99"}, "LAUNCH_DRIVER" if torch.cuda.is_available() else "LAUNCH_NO_DRIVER"),
     ({"fn": abs, "options": {"no.such": 1}}, "OP_ARGUMENT")],
)  # fmt: skip
def test_wrong_arguments(given: dict[str, Any], code: str) -> None:
    with pytest.raises(gr.GrapheneError) as error:
        gr.compile(**given)
    assert error.value.code == code
    if "device" in given and given["device"] != 0:
        assert "sm_90a" in str(error.value)


def test_a_torch_device_is_the_gpu_that_plans_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [gr.select.of_arch("sm_80"), gr.select.of_arch("sm_90a")]
    monkeypatch.setattr(inductor, "current_device", gpus.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = [inductor.planned_for(d) for d in ("cuda:0", torch.device("cuda", 1), "cuda", gpus[0], "sm_90a")]
    assert [d.arch for d in found] == ["sm_80", "sm_90a", "sm_90a", "sm_80", "sm_90a"]


def test_options_are_inductors() -> None:
    given = {"triton.cudagraphs": True, "max-autotune": True, "force_disable_caches": True, inductor.HOOK: None}
    want = {name.replace("-", "_"): value for name, value in given.items()}
    assert torch_compile.Backend(options=given).patches == want
    with pytest.raises(gr.GrapheneError, match=r"no option 'max_autotun'[^$]*max_autotune"):
        torch_compile.Backend(options={"max_autotun": True})


def test_the_backend_has_its_name() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    module, name = project["project"]["entry-points"]["torch_dynamo_backends"]["graphene"].split(":")
    assert module == torch_compile.__name__
    assert getattr(torch_compile, name) is torch_compile.backend
    assert gr.compile is torch_compile.compile


def test_uuid_says_what_decisions_depend_on() -> None:
    from graphene.integrations.torch_compile.inductor import make_pass

    one, same, other = (make_pass(torch_compile.Backend(device=d), []).uuid() for d in ("sm_90a", "sm_90a", "sm_80"))
    assert one == same
    assert one is None or one != other
    assert make_pass(torch_compile.Backend(), [lambda graph: None]).uuid() is None  # who knows what that depends on


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("rows", [1, 16])
def test_on_a_gpu(mode: str | None, rows: int) -> None:
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.RMSNorm(2048), torch.nn.Linear(2048, 4096), torch.nn.GELU()).cuda().bfloat16()
    x = torch.randn(rows, 2048, device="cuda").bfloat16()
    compiled = gr.compile(block, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            near(compiled(x), block(x))
    (region,) = compiled.plans
    assert region.plan is not None
    assert region.measured == (mode == "max-autotune-no-cudagraphs")
