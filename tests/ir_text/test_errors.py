"""Every error of the two readers, verbatim: what, where (line, column, caret; JSON pointer), want and got, the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphene as gr

TEXT = """\
kernel "k" format=1
symbol M multiple_of=8
%1:[M,64:64,1].fp16.GL = input "A" align=16
%2:[64].fp32.GL = output "B"
#3:[(M + 127)//128].block
#4:[64].thread
#5:[2:32].[32].thread = #4.tile([32])
(@w, @lane) = #5.indices()
scalar s max=3 = 0
%6:[8,64:64,1].fp16.SH <- Allocate(name="t")
for(i=0; i < 8; i += 1) {
  %7:[M,1:64,0].[1,64:64,1].fp16.GL = %1.tile([1,_])
  %8:[].fp32.GL = %2[i]
  %8 <- Init<<<[].block, [].thread>>>(value=0.5)
}
"""

JSON = """\
{
 "graphene_ir": 1,
 "name": "k",
 "symbols": [{"name": "M", "multiple_of": 8}],
 "args": [{"id": 1, "name": "A", "role": "input",
   "type": {"levels": [{"shape": ["M", 64], "stride": [64, 1]}], "dtype": "fp16", "memory": "GL"}, "align": 16}],
 "grid": {"id": 3, "levels": [{"shape": "(M + 127)//128", "stride": 1}]},
 "block": {"id": 4, "levels": [{"shape": 64, "stride": 1}]},
 "body": [
  {"stmt": "scalar", "var": "s", "value": 0, "max": 3},
  {"stmt": "for", "var": "i", "start": 0, "stop": 8, "step": 1, "unroll": 1, "body": [
   {"stmt": "view", "id": 7, "type": {"levels": [{"shape": 64, "stride": 1}], "dtype": "fp16", "memory": "GL"},
    "offset": "i*64", "of": 1, "index": ["i", null]},
   {"stmt": "spec", "kind": "Init", "outs": [7], "ins": [], "blocks": "each_block", "threads": "each_thread",
    "attrs": {"value": {"number": 0.5}}}
  ]}
 ]
}
"""

# What is changed in TEXT or JSON, and the whole message that follows: one row a change, by form.
ERRORS = json.loads((Path(__file__).parent / "errors.json").read_text())
TEXT_ERRORS, JSON_ERRORS = (
    [(row["name"], row["old"], row["new"], "\n".join(row["error"])) for row in ERRORS[form]]
    for form in ("text", "json")
)


def test_the_unchanged_forms_are_fine() -> None:
    text = gr.parse(TEXT)
    assert gr.parse(str(text)) == text
    document = gr.Kernel.from_json(JSON)
    assert gr.parse(str(document)) == document


@pytest.mark.parametrize(("old", "new", "error"), [e[1:] for e in TEXT_ERRORS], ids=[e[0] for e in TEXT_ERRORS])
def test_text_errors(old: str, new: str, error: str) -> None:
    assert old in TEXT
    with pytest.raises((gr.VerifyError, gr.LayoutError)) as caught:
        gr.parse(TEXT.replace(old, new, 1))
    assert str(caught.value) == error.rstrip("\n")


@pytest.mark.parametrize(("old", "new", "error"), [e[1:] for e in JSON_ERRORS], ids=[e[0] for e in JSON_ERRORS])
def test_json_errors(old: str, new: str, error: str) -> None:
    assert old in JSON
    with pytest.raises((gr.VerifyError, gr.LayoutError)) as caught:
        gr.Kernel.from_json(JSON.replace(old, new, 1))
    assert str(caught.value) == error.rstrip("\n")


def test_every_code_of_the_readers_is_met() -> None:
    met: set[str] = set()
    for *_, error in [*TEXT_ERRORS, *JSON_ERRORS]:
        met |= {
            line.rsplit("[", 1)[1].rstrip("]") for line in error.splitlines() if line.endswith("]") and "   [" in line
        }
    codes = {c.name for c in gr._core.error_codes() if c.name.startswith("IR_")}
    assert codes <= met
