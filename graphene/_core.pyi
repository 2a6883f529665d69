"""Types of the C++ core, which stand in `_stub`. The public names are those of the package `graphene`."""

from graphene._stub.atoms import *
from graphene._stub.base import *
from graphene._stub.ir import *
from graphene._stub.layout import *
from graphene._stub.plan import *
from graphene._stub.programs import *
from graphene._stub.runtime import *
from graphene._stub.sim import *
from graphene._stub.sym import *
from graphene._stub.torch import *
