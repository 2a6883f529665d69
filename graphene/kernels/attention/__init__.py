"""Attention: forward, gradients, and the small kernels around them."""
