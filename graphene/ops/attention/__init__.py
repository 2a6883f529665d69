"""graphene.ops.attention and attention_varlen: forward, backward, checks, and both by PyTorch's operators."""
