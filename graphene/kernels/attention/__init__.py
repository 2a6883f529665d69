"""Attention: forward, gradients, what queries that share keys and packed sequences need."""
