"""How a kernel is held to what it promises: calls chosen from its text, numbers that know their error, verdicts."""

from graphene.judge import functions as functions  # NumPy's, of numbers that know their error: before any is made
