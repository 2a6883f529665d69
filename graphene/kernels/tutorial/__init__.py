"""Kernels for a tutorial: each is a whole algorithm in a hundred lines, without the library's options."""
