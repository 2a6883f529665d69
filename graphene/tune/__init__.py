"""The former name of what tunes: it lies in `graphene.select`, whose names these are."""

from graphene.select import *  # noqa: F403
from graphene.select import __all__ as __all__
