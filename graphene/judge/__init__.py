"""Holds a kernel to its promise: calls chosen from its text, numbers that know their error, verdicts."""

from graphene.judge import functions as functions  # NumPy's, of numbers that know their error: before any is made
