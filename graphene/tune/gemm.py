"""The former name of `graphene.select.gemm`."""

from graphene.select.gemm import GEMM, GemmProblem, GemmTile

__all__ = ["GEMM", "GemmProblem", "GemmTile"]
