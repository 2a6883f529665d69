"""Kernels that work row by row: normalisations, softmax, their gradients."""
