"""The mechanism that makes an operator: its definition, its checks, views of its arguments, activations."""
