"""Graphene: an intermediate representation and JIT for optimized tensor computations on GPUs."""

from graphene.errors import (
    CompileError,
    GrapheneError,
    InternalError,
    LaunchError,
    LayoutError,
    SelectError,
    SimulationError,
    VerifyError,
)
from graphene.sym import IntExpr, ceil_div, max, min, sym

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "GrapheneError",
    "IntExpr",
    "InternalError",
    "LaunchError",
    "LayoutError",
    "SelectError",
    "SimulationError",
    "VerifyError",
    "ceil_div",
    "max",
    "min",
    "sym",
]
