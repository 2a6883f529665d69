"""Rules, architectures, lowered kernels, printing: csrc/verify, csrc/lower, csrc/emit."""

from graphene._stub.base import _Record
from graphene._stub.ir import KernelIR
from graphene._stub.runtime import LaunchManifest

class Program:
    """A kernel lowered for one architecture."""

    @property
    def arch(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def block_threads(self) -> int: ...
    def cuda_source(self) -> str: ...
    def manifest(self) -> LaunchManifest: ...
    def manifest_json(self) -> str: ...

class Architecture(_Record):
    """An architecture, without the suffix of an exact one.

    ``shared_bytes``: of shared memory, what one block may have. ``warps``, ``blocks``, ``sm_shared_bytes``: what a
    multiprocessor holds at a time. ``reserved_bytes``: what the system takes of each block's shared memory, which is
    given out in steps of ``shared_unit`` bytes. 0 is what is not published.
    """

    name: str
    shared_bytes: int
    warps: int
    blocks: int
    sm_shared_bytes: int
    reserved_bytes: int
    shared_unit: int

def find_architecture(name: str) -> Architecture | None: ...
def architecture(arch: object) -> str: ...
def shared_limit_bytes(arch: str) -> int: ...
def lower(kernel: KernelIR, arch: str) -> Program: ...
def lower_unverified(kernel: KernelIR, arch: str) -> Program: ...
def verify(kernel: KernelIR) -> None: ...

class VerifyRule(_Record):
    """A rule of `verify`, and what it asks."""

    name: str
    doc: str

def verify_rules() -> list[VerifyRule]: ...
