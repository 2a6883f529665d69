"""Every error of the two readers, verbatim: what, where (line, column, caret; JSON pointer), want and got, the fix."""

from __future__ import annotations

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
 "params": [],
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

# A change of TEXT: (what, from, to, error).
TEXT_ERRORS: list[tuple[str, str, str, str]] = [
    (
        "no header",
        'kernel "k" format=1\n',
        "",
        """\
1:1: expected 'kernel', the start of the header line, got 'symbol'   [IR_PARSE]
    symbol M multiple_of=8
    ^
""",
    ),
    (
        "format",
        "format=1",
        "format=2",
        """\
1:19: a text of another format version   [IR_FORMAT]
    kernel "k" format=2
                      ^
  want: 1
  got:  2
  fix: read it with the version of Graphene that wrote it
""",
    ),
    (
        "kernel name",
        '"k"',
        '"k 1"',
        """\
1:8: a kernel's name must be an identifier   [KERNEL_NAME]
    kernel "k 1" format=1
           ^
  got: "k 1"
""",
    ),
    (
        "bracket",
        "[64].fp32",
        "[64.fp32",
        """\
4:7: expected ',', ':' or ']', got '.'   [IR_PARSE]
    %2:[64.fp32.GL = output "B"
          ^
""",
    ),
    (
        "strides",
        "[M,64:64,1].fp16.GL = input",
        "[M,64:64].fp16.GL = input",
        """\
3:9: strides that do not match the sizes   [IR_PARSE]
    %1:[M,64:64].fp16.GL = input "A" align=16
            ^
  sizes: (M,64)
  strides: 64
  fix: give one stride for each size
""",
    ),
    (
        "dtype",
        "[64].fp32.GL = output",
        "[64].float.GL = output",
        """\
4:9: no element type 'float'   [IR_PARSE]
    %2:[64].float.GL = output "B"
            ^
""",
    ),
    (
        "memory",
        "[64].fp32.GL = output",
        "[64].fp32.XX = output",
        """\
4:9: no memory 'XX'   [IR_PARSE]
    %2:[64].fp32.XX = output "B"
            ^
  want: GL, SH or RF
""",
    ),
    (
        "role after statement",
        "  %8:[].fp32.GL = %2[i]",
        '  %8:[].fp32.GL = input "C"',
        """\
13:19: an argument among the statements   [IR_PARSE]
      %8:[].fp32.GL = input "C"
                      ^
  fix: declare arguments before the first statement
""",
    ),
    (
        "statement",
        "scalar s max=3 = 0",
        "banana",
        """\
9:1: expected a statement, got 'banana'   [IR_PARSE]
    banana
    ^
""",
    ),
    (
        "string",
        '"t"',
        '"t',
        """\
10:41: a string without its closing quote on the same line   [IR_PARSE]
    %6:[8,64:64,1].fp16.SH <- Allocate(name="t)
                                            ^
""",
    ),
    (
        "escape",
        '"t"',
        '"\\q"',
        """\
10:42: an unknown escape in a string   [IR_PARSE]
    %6:[8,64:64,1].fp16.SH <- Allocate(name="\\q")
                                             ^
  fix: the escapes are \\" \\\\ \\n \\t \\r and \\x00 to \\x7f
""",
    ),
    (
        "character",
        "%2[i]",
        "%2[`i]",
        """\
13:22: a character that starts nothing here   [IR_PARSE]
      %8:[].fp32.GL = %2[`i]
                         ^
""",
    ),
    (
        "number",
        "max=3",
        "max=3x",
        """\
9:15: a letter right after a number   [IR_PARSE]
    scalar s max=3x = 0
                  ^
""",
    ),
    (
        "overflow",
        "max=3",
        "max=9223372036854775808",
        """\
9:14: an integer that does not fit in 64 bits   [IR_NUMBER]
    scalar s max=9223372036854775808 = 0
                 ^
""",
    ),
    (
        "float overflow",
        "0.5",
        "1e999",
        """\
14:45: a number outside the range of a 64-bit float   [IR_NUMBER]
      %8 <- Init<<<[].block, [].thread>>>(value=1e999)
                                                ^
""",
    ),
    (
        "undefined integer",
        "%2[i]",
        "%2[j]",
        """\
13:22: no integer 'j' here   [IR_UNDEFINED]
      %8:[].fp32.GL = %2[j]
                         ^
""",
    ),
    (
        "undefined coord",
        "%2[i]",
        "%2[@i]",
        """\
13:23: no coordinate '@i' here   [IR_UNDEFINED]
      %8:[].fp32.GL = %2[@i]
                          ^
  it is not a coordinate
""",
    ),
    (
        "coord without @",
        "%2[i]",
        "%2[lane]",
        """\
13:22: no integer 'lane' here   [IR_UNDEFINED]
      %8:[].fp32.GL = %2[lane]
                         ^
  it is a coordinate: '@lane'
""",
    ),
    (
        "undefined tensor",
        "= %2[i]",
        "= %9[i]",
        """\
13:19: no tensor '%9' here   [IR_UNDEFINED]
      %8:[].fp32.GL = %9[i]
                      ^
""",
    ),
    (
        "undefined threads",
        "= #4.tile",
        "= #9.tile",
        """\
7:25: no thread tensor '#9' here   [IR_UNDEFINED]
    #5:[2:32].[32].thread = #9.tile([32])
                            ^
""",
    ),
    (
        "out of scope",
        "(value=0.5)\n}\n",
        "(value=0.5)\n}\n%9 = %8.T\n",
        """\
16:6: no tensor '%8' here   [IR_UNDEFINED]
    %9 = %8.T
         ^
""",
    ),
    (
        "counter out of scope",
        "(value=0.5)\n}\n",
        "(value=0.5)\n}\n%9 = %2[i]\n",
        """\
16:9: no integer 'i' here   [IR_UNDEFINED]
    %9 = %2[i]
            ^
""",
    ),
    (
        "duplicate id",
        "%8:[].fp32.GL = %2[i]",
        "%7:[].fp32.GL = %2[i]",
        """\
13:3: the number 7 is taken   [IR_DUPLICATE]
      %7:[].fp32.GL = %2[i]
      ^
  fix: give '%7' a number that no other tensor or thread tensor has
""",
    ),
    (
        "duplicate name",
        "for(i=0; i < 8; i",
        "for(s=0; s < 8; s",
        """\
11:5: the name 's' is taken   [IR_DUPLICATE]
    for(s=0; s < 8; s += 1) {
        ^
""",
    ),
    (
        "duplicate launch",
        "#4:[64].thread\n",
        "#4:[64].thread\n#9:[64].thread\n",
        """\
7:1: a second launch of threads   [IR_DUPLICATE]
    #9:[64].thread
    ^
  the first: #4:[64].thread
  fix: tile the first one
""",
    ),
    (
        "duplicate attribute",
        "(value=0.5)",
        "(value=0.5, value=1)",
        """\
14:50: a second 'value'   [IR_DUPLICATE]
      %8 <- Init<<<[].block, [].thread>>>(value=0.5, value=1)
                                                     ^
""",
    ),
    (
        "reserved",
        "scalar s max=3",
        "scalar and max=3",
        """\
9:8: "and" cannot be the name of an integer   [KERNEL_NAME]
    scalar and max=3 = 0
           ^
  fix: use letters, digits and '_'; words of the grammar are no names
""",
    ),
    (
        "type",
        "[M,1:64,0].[1,64:64,1].fp16.GL = %1",
        "[M,1:64,0].[1,64:64,2].fp16.GL = %1",
        """\
12:3: %7 has another type   [IR_TYPE_MISMATCH]
      %7:[M,1:64,0].[1,64:64,2].fp16.GL = %1.tile([1,_])
      ^
  want: [M,1:64,0].[1,64:64,1].fp16.GL
  got:  [M,1:64,0].[1,64:64,2].fp16.GL
""",
    ),
    (
        "type threads",
        "#5:[2:32]",
        "#5:[2:16]",
        """\
7:1: #5 has another type   [IR_TYPE_MISMATCH]
    #5:[2:16].[32].thread = #4.tile([32])
    ^
  want: [2:32].[32].thread
  got:  [2:16].[32].thread
""",
    ),
    (
        "launch strides",
        "#4:[64].thread",
        "#4:[8,8:8,1].thread",
        """\
6:1: #4 has another type   [IR_TYPE_MISMATCH]
    #4:[8,8:8,1].thread
    ^
  want: [8,8:1,8].thread
  got:  [8,8:8,1].thread
""",
    ),
    (
        "coords",
        "(@w, @lane)",
        "(@w, @lane, @x)",
        """\
8:1: coordinates for every level are needed   [IR_OPERANDS]
    (@w, @lane, @x) = #5.indices()
    ^
  threads: [2:32].[32].thread
  want: 2 levels
  got:  3 levels
""",
    ),
    (
        "coords modes",
        "(@w, @lane)",
        "((@w, @x), @lane)",
        """\
8:1: a coordinate for every mode of level 0 is needed   [IR_OPERANDS]
    ((@w, @x), @lane) = #5.indices()
    ^
  threads: [2:32].[32].thread
  want: 1
  got:  2
""",
    ),
    (
        "operands",
        "(value=0.5)",
        "(%2, value=0.5)",
        """\
14:9: a wrong number of operands of Init   [IR_OPERANDS]
      %8 <- Init<<<[].block, [].thread>>>(%2, value=0.5)
            ^
  want: 1 output, 0 inputs
  got:  1 output, 1 input
""",
    ),
    (
        "kind",
        "Init<",
        "Fill<",
        """\
14:9: no spec of kind 'Fill'   [IR_PARSE]
      %8 <- Fill<<<[].block, [].thread>>>(value=0.5)
            ^
  want: Spec, Move, MatMul, UnaryPointwise, BinaryPointwise, TernaryPointwise, Reduction, Shfl or Init
""",
    ),
    (
        "groups",
        "<<<[].block, [].thread>>>",
        "<<<[].thread, [].thread>>>",
        """\
14:9: an execution configuration is <<<blocks, threads>>>   [SPEC_GROUP]
      %8 <- Init<<<[].thread, [].thread>>>(value=0.5)
            ^
  blocks:  [].thread
  threads: [].thread
""",
    ),
    (
        "attribute value",
        "value=0.5",
        "value=",
        """\
14:45: expected an expression, got ')'   [IR_PARSE]
      %8 <- Init<<<[].block, [].thread>>>(value=)
                                                ^
""",
    ),
    (
        "view",
        "%2[i]",
        "%2.cut(3)",
        """\
13:22: expected tile, T, permute, reshape, window, values or '[', got 'cut'   [IR_PARSE]
      %8:[].fp32.GL = %2.cut(3)
                         ^
""",
    ),
    (
        "view fails",
        "%1.tile([1,_])",
        "%1.tile([1])",
        """\
12:3: one tile size per dimension is needed   [TENSOR_TILE]
      %7:[M,1:64,0].[1,64:64,1].fp16.GL = %1.tile([1])
      ^
  tensor: [M,64:64,1].fp16.GL
  want: 2 sizes
  got: 1
  fix: None keeps a dimension whole
""",
    ),
    (
        "threads view fails",
        "#4.tile([32])",
        "#4.tile([48])",
        """\
7:1: threads must be tiled evenly   [THREAD_TILE]
    #5:[2:32].[32].thread = #4.tile([48])
    ^
  threads: [64].thread
  mode 0: 64 by 48
  fix: choose a tile size that divides the number of threads
""",
    ),
    (
        "index outside",
        "%2[i]",
        "%6[i, 64]",
        """\
13:3: an index past the end   [TENSOR_INDEX]
      %8:[].fp32.GL = %6[i, 64]
      ^
  tensor: [8,64:64,1].fp16.SH
  mode 1: want 0 to 63
  got: 64
""",
    ),
    (
        "step",
        "i += 1",
        "i += 0",
        """\
11:5: a loop's step must be known to be positive   [LOOP_STEP]
    for(i=0; i < 8; i += 0) {
        ^
  got: 0
""",
    ),
    (
        "counter",
        "i += 1",
        "j += 1",
        """\
11:17: expected the counter 'i', got 'j'   [IR_PARSE]
    for(i=0; i < 8; j += 1) {
                    ^
""",
    ),
    (
        "facts",
        "max=3 = 0",
        "min=4 max=3 = 0",
        """\
9:8: the facts of s contradict each other   [SYM_FACTS]
    scalar s min=4 max=3 = 0
           ^
  bounds: min 4 is above max 3
""",
    ),
    (
        "division by zero",
        "%2[i]",
        "%2[i//0]",
        """\
13:23: division of i by zero   [SYM_DIV_ZERO]
      %8:[].fp32.GL = %2[i//0]
                          ^
""",
    ),
    (
        "assign",
        "  %8:[].fp32",
        "  i = 3\n  %8:[].fp32",
        """\
13:3: no scalar 'i' to assign to   [IR_UNDEFINED]
      i = 3
      ^
  fix: declare it: scalar i = 0
""",
    ),
    (
        "unclosed",
        "(value=0.5)\n}",
        "(value=0.5)",
        """\
15:1: expected '}', got the end of the text   [IR_PARSE]
  opened at 11:25
""",
    ),
    (
        "extra brace",
        "(value=0.5)\n}",
        "(value=0.5)\n}}",
        """\
15:2: expected a statement, got '}'   [IR_PARSE]
    }}
     ^
""",
    ),
    (
        "else",
        "(value=0.5)\n}",
        "(value=0.5)\n} else {}",
        """\
15:3: expected the end of the line, got 'else'   [IR_PARSE]
    } else {}
      ^
""",
    ),
    (
        "alloc attribute",
        'name="t"',
        'name="t", colour=3',
        """\
10:46: an allocation has no attribute 'colour'   [IR_PARSE]
    %6:[8,64:64,1].fp16.SH <- Allocate(name="t", colour=3)
                                                 ^
  want: name, stages, swizzle, align, over, or shape, on and tv of a fragment
""",
    ),
    (
        "alloc global",
        ".SH <- Allocate",
        ".GL <- Allocate",
        """\
10:1: global memory is not allocated by a kernel   [TENSOR_TYPE]
    %6:[8,64:64,1].fp16.GL <- Allocate(name="t")
    ^
  got: [8,64:64,1].fp16.GL
  fix: declare it as an argument
""",
    ),
    (
        "alloc symbolic",
        "%6:[8,64:64,1]",
        "%6:[M,64:64,1]",
        """\
10:1: a kernel's own tensors have constant, positive sizes   [TENSOR_TYPE]
    %6:[M,64:64,1].fp16.SH <- Allocate(name="t")
    ^
  got: [M,64:64,1]
""",
    ),
    (
        "stages",
        'name="t"',
        'name="t", stages=2',
        """\
10:1: the outermost level must be the stages   [IR_TYPE_MISMATCH]
    %6:[8,64:64,1].fp16.SH <- Allocate(name="t", stages=2)
    ^
  want: [2...]
  got:  [8,64:64,1]
""",
    ),
    (
        "fragment",
        '.SH <- Allocate(name="t")',
        '.RF<tv> <- Allocate(name="t")',
        """\
10:1: a fragment has RF<...>, shape, on and tv: all or none of them   [IR_PARSE]
    %6:[8,64:64,1].fp16.RF<tv> <- Allocate(name="t")
    ^
""",
    ),
    (
        "swizzle",
        'name="t"',
        'name="t", swizzle=Sw<3,0,1>',
        """\
10:57: Swizzle(3, 0, 1): |shift| must be at least bits, or the bits read are themselves changed   [LAYOUT_SWIZZLE]
    %6:[8,64:64,1].fp16.SH <- Allocate(name="t", swizzle=Sw<3,0,1>)
                                                            ^
""",
    ),
    (
        "parens",
        "%2[i]",
        "%2[" + "(" * 300 + "i" + ")" * 300 + "]",
        """\
13:278: parentheses nested deeper than 256   [IR_DEPTH]
    ... ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((i))))) ...
                                                          ^
""",
    ),
    (
        "blocks",
        "%8 <- Init",
        "if(1) {" * 120 + "%8 <- Init",
        """\
14:702: blocks nested deeper than 100   [IR_DEPTH]
    ...  {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) {if(1) { ...
                                                          ^
""",
    ),
    (
        "not UTF-8 free text",
        "%2[i]",
        "%2[é]",
        """\
13:22: a character that starts nothing here   [IR_PARSE]
      %8:[].fp32.GL = %2[é]
                         ^
""",
    ),
    (
        "two on a line",
        "max=3 = 0",
        "max=3 = 0 s = 1",
        """\
9:20: expected the end of the line, got 's'   [IR_PARSE]
    scalar s max=3 = 0 s = 1
                       ^
""",
    ),
]

# A change of JSON: (what, from, to, error).
JSON_ERRORS: list[tuple[str, str, str, str]] = [
    (
        "syntax",
        '"params": []',
        '"params": [1,]',
        """\
5:15: syntax error while parsing value - unexpected ']'; expected '[', '{', or a literal   [IR_JSON_SYNTAX]
     "params": [1,],
                  ^
""",
    ),
    (
        "unclosed",
        " ]\n}\n",
        "",
        """\
18:1: syntax error while parsing array - unexpected end of input; expected ']'   [IR_JSON_SYNTAX]
""",
    ),
    (
        "duplicate key",
        '"name": "k"',
        '"name": "k", "name": "k2"',
        """\
a second key "name" in an object   [IR_JSON_VALUE]
""",
    ),
    (
        "not a kernel",
        JSON,
        "[]",
        """\
the whole text: expected a kernel: an object with "graphene_ir"   [IR_JSON_VALUE]
  got: []
""",
    ),
    (
        "version",
        '"graphene_ir": 1',
        '"graphene_ir": 2',
        """\
/graphene_ir: a kernel of another format version   [IR_FORMAT]
  want: 1
  got:  2
  fix: read it with the version of Graphene that wrote it
""",
    ),
    (
        "missing",
        '"name": "k",',
        "",
        """\
the whole text: no "name" here   [IR_JSON_VALUE]
""",
    ),
    (
        "unknown key",
        '"unroll": 1',
        '"unrol": 1',
        """\
/body/1: an unknown key "unrol"   [IR_JSON_VALUE]
  want: stmt, loc, var, start, stop, step, unroll, multiple_of, min, max, lo, hi, body
""",
    ),
    (
        "statement",
        '"stmt": "scalar"',
        '"stmt": "scaler"',
        """\
/body/0/stmt: expected a kind of statement   [IR_JSON_VALUE]
  got: "scaler"
""",
    ),
    (
        "type of value",
        '"stop": 8',
        '"stop": [8]',
        """\
/body/1/stop: expected an integer or the text of an expression   [IR_JSON_VALUE]
  got: [8]
""",
    ),
    (
        "expression",
        '"stop": 8',
        '"stop": "K + 1"',
        """\
/body/1/stop: 1:1: no integer 'K' here   [IR_UNDEFINED]
  K + 1
  ^
""",
    ),
    (
        "expression syntax",
        '"stop": 8',
        '"stop": "8 +"',
        """\
/body/1/stop: 1:4: expected an expression, got the end of the line   [IR_PARSE]
  8 +
     ^
""",
    ),
    (
        "undefined",
        '"of": 1',
        '"of": 2',
        """\
/body/1/body/0/of: no tensor '%2' here   [IR_UNDEFINED]
""",
    ),
    (
        "duplicate",
        '"id": 7',
        '"id": 4',
        """\
/body/1/body/0: the number 4 is taken   [IR_DUPLICATE]
  fix: give '%4' a number that no other tensor or thread tensor has
""",
    ),
    (
        "mismatch",
        '"shape": 64, "stride": 1}], "dtype": "fp16"',
        '"shape": 64, "stride": 2}], "dtype": "fp16"',
        """\
/body/1/body/0: %7 has another type   [IR_TYPE_MISMATCH]
  want: [64].fp16.GL
  got:  [64:2].fp16.GL
""",
    ),
    (
        "offset",
        '"i*64"',
        '"i*32"',
        """\
/body/1/body/0/offset: the value is another one   [IR_TYPE_MISMATCH]
  want: i*64
  got:  i*32
""",
    ),
    (
        "two views",
        '"index": ["i", null]',
        '"index": ["i", null], "transpose": true',
        """\
/body/1/body/0: one of tile, index, transpose, permute, reshape, window, values is needed   [IR_JSON_VALUE]
""",
    ),
    (
        "view fails",
        '"index": ["i", null]',
        '"index": ["i"]',
        """\
/body/1/body/0: one index per mode of the outermost level is needed   [TENSOR_INDEX]
  tensor: [M,64:64,1].fp16.GL
  want: 2
  got: 1
  fix: ':' keeps a mode
""",
    ),
    (
        "operands",
        '"ins": []',
        '"ins": [{"tensor": 1}]',
        """\
/body/1/body/1: a wrong number of operands of Init   [IR_OPERANDS]
  want: 1 output, 0 inputs
  got:  1 output, 1 input
""",
    ),
    (
        "range",
        '"max": 3',
        '"max": 9223372036854775808',
        """\
/body/0/max: an integer that does not fit in 64 bits   [IR_NUMBER]
""",
    ),
    (
        "float range",
        "0.5",
        "1e999",
        """\
a number in JSON outside the range of a 64-bit float   [IR_NUMBER]
""",
    ),
    (
        "dtype",
        '"fp16", "memory": "GL"}, "align"',
        '"half", "memory": "GL"}, "align"',
        """\
/args/0/type/dtype: expected an element type   [IR_JSON_VALUE]
  got: "half"
""",
    ),
    (
        "depth",
        '"stop": 8',
        '"stop": ' + "[" * 900 + "]" * 900,
        """\
JSON nested deeper than 800   [IR_DEPTH]
""",
    ),
    (
        "number",
        '{"number": 0.5}',
        '{"number": "half"}',
        """\
/body/1/body/1/attrs/value/number: expected a number, "inf", "-inf" or "nan"   [IR_JSON_VALUE]
  got: "half"
""",
    ),
    (
        "attribute",
        '{"number": 0.5}',
        "[]",
        """\
/body/1/body/1/attrs/value: expected a string, a boolean, an integer, {"number": ...} or {"expr": ...}   [IR_JSON_VALUE]
  got: []
""",
    ),
    (
        "attribute name",
        '{"value":',
        '{"a b":',
        """\
/body/1/body/1/attrs/a b: "a b" cannot be the name of an attribute   [KERNEL_NAME]
""",
    ),
]


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
    codes = {name for name, _, _ in gr._core.error_codes() if name.startswith("IR_")}
    assert codes <= met
