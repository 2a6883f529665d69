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

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "GrapheneError",
    "InternalError",
    "LaunchError",
    "LayoutError",
    "SelectError",
    "SimulationError",
    "VerifyError",
]
