"""How a kernel is held to what it promises: calls chosen from its text, numbers that know their error, verdicts."""
