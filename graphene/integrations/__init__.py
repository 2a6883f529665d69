"""Graphene inside other libraries. Each module needs its library, which ``import graphene`` does not."""
