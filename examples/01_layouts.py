"""Layouts and tiles: the paper's Figs. 3 and 4, as text and as pictures.

python examples/01_layouts.py [folder for the SVG files]
"""

import sys
from pathlib import Path

import graphene as gr


def grid(tensor: gr.Tensor) -> str:
    """The offsets of a rank-2 tensor's elements, row by row."""
    rows, cols = tensor.shape
    return "\n".join(" ".join(f"{tensor[i, j].offset:2d}" for j in range(cols)) for i in range(rows))


def main() -> None:
    pictures = {}

    print("Fig. 3: four layouts of 4 x 8 elements\n")
    for name, layout in {
        "A, column-major": gr.col_major(4, 8),
        "B, row-major": gr.row_major(4, 8),
        "C, hierarchical": gr.Layout((4, (2, 4)), (2, (1, 8))),
        "D, hierarchical in both": gr.Layout(((2, 2), (2, 4)), ((1, 4), (2, 8))),
    }.items():
        tensor = gr.tensor(name[0], layout, gr.fp32)
        print(f"{name}: {tensor}\n{grid(tensor)}\n")
        pictures[f"fig3_{name[0]}"] = layout
    C = gr.Layout((4, (2, 4)), (2, (1, 8)))
    assert C(0, 3) == C(0, (1, 1)) == 9  # a hierarchical mode still takes a 2D coordinate

    print("Fig. 4: tiles of a column-major tensor\n")
    A = gr.tensor("A", gr.col_major(4, 8), gr.fp32)
    for name, tiler in {
        "B, contiguous": [2, 4],
        "C, every other row": [gr.Layout(2, 2), gr.Layout(4, 1)],
        "D, strided in both": [gr.Layout(2, 2), gr.Layout((2, 2), (1, 4))],
    }.items():
        tiled = A.tile(tiler)
        print(f"{name}: {tiled}")
        print(f"first tile, {tiled[0, 0]}:\n{grid(tiled[0, 0])}\n")
        pictures[f"fig4_{name[0]}"] = tiled

    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, thing in pictures.items():
            gr.svg(thing, folder / f"{name}.svg")
        print(f"{len(pictures)} pictures in {folder}")


if __name__ == "__main__":
    main()
