"""graphene.ops.attention and attention_varlen: forward, backward, what is checked, and PyTorch's way of both."""
