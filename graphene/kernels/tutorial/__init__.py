"""Kernels of a tutorial's size: each the whole algorithm in a hundred lines, without the library's options."""
