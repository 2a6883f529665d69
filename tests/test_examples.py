"""Every example runs as a user would run it: on the simulator where there is no GPU."""

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SAYS = {
    "01_layouts": "[2,2:1,8].[2,(2,2):2,(4,16)]",
    "02_ldmatrix": "thread 5 received [18, 19, 26, 27, 146, 147, 154, 155]",
    "03_simple_gemm": "relative error against float64",
    "04_tensor_core_tile": "largest error against float64",
    "05_amd_mfma": "; 1 promise of a spec kept",
    "06_choose_and_ship": "<graphene.Precompiled product for sm_80, sm_90a> takes A, B, C",
    "07_fused_mlp": " promises of specs kept",
    "08_lstm_cell": " promises of specs kept",
    "09_attention": " promises of specs kept",
    "10_hugging_face": "BertOutput: LayerNorm(a + b)",
    "11_tma_copy": "wait_phase(%21, phase=get_phase) left out: SIM_RACE",
    "12_gemm_sm90": " promises of specs kept",
    "13_plan": " promises of specs kept",
    "14_everyday": "transpose: ",
    "15_model_layers": "experts on Hopper: error",
    "16_plan_convolution": " promises of specs kept",
    "17_plan_loss": "head_merge ('top_of_parts', 'total_of_parts',",
}
NEEDS = {"10_hugging_face": ("torch", "transformers")}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(example.stem, ()):
        pytest.importorskip(package)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    import graphene

    env["PYTHONPATH"] = str(Path(graphene.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[example.stem] in done.stdout


KERNELS = [
    (path, node.name)
    for path in EXAMPLES
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "gr.Kernel"
]


@pytest.mark.parametrize(("example", "name"), KERNELS, ids=lambda x: x if isinstance(x, str) else x.stem)
def test_a_check_that_chooses_its_calls_passes(example: Path, name: str) -> None:
    sizes = (128, 128, 32) if name == "simple_gemm" else ()  # it has a tile of 128 columns and whole tiles alone
    result = runpy.run_path(str(example))[name](*sizes).check()
    assert result.ok, str(result)
    assert result.worst is not None, f"{name} promises no result"


def test_pictures(tmp_path: Path) -> None:
    import graphene

    env = os.environ | {"PYTHONPATH": str(Path(graphene.__file__).parents[1])}
    subprocess.run([sys.executable, str(ROOT / "examples/01_layouts.py"), "out"], cwd=tmp_path, env=env, check=True)
    pictures = sorted(p.name for p in (tmp_path / "out").glob("*.svg"))
    assert pictures == [f"fig{n}_{c}.svg" for n, letters in ((3, "ABCD"), (4, "BCD")) for c in letters]
