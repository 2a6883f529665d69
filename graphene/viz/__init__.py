"""Pictures of layouts, swizzles, thread-value layouts, tilings and thread groups: SVG, shown in notebooks."""

from graphene.viz.grid import Cell, draw_grid, ramp, shade
from graphene.viz.nest import draw_kernel
from graphene.viz.pictures import draw_layout, draw_levels, draw_swizzle, draw_tiling, draw_tv, svg
from graphene.viz.timeline import Trace, TraceEvent, draw_timeline

__all__ = [
    "Cell",
    "Trace",
    "TraceEvent",
    "draw_grid",
    "draw_kernel",
    "draw_layout",
    "draw_levels",
    "draw_swizzle",
    "draw_tiling",
    "draw_timeline",
    "draw_tv",
    "ramp",
    "shade",
    "svg",
]
