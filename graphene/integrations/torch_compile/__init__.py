"""``graphene.compile``: PyTorch's compiler with planned kernels. docs/planner.md says what is replaced, and when."""

from __future__ import annotations

from graphene.integrations.torch_compile.choosing import Plans, Region
from graphene.integrations.torch_compile.inductor import Backend, PlanWarning, backend, compile

__all__ = ["Backend", "PlanWarning", "Plans", "Region", "backend", "compile"]
