"""The former name of `graphene.select.rows`."""

from graphene.select.rows import ROWS, RowProblem

__all__ = ["ROWS", "RowProblem"]
