"""What operators are made of: the mechanism that makes one, its checks, views of its arguments, activations."""
