"""Errors, timings, records: csrc/base."""

from typing import dataclass_transform

@dataclass_transform(frozen_default=True)
class _Record:
    """Results with named fields: made by position or by name, compared, printed and pickled by their values."""

class Stage:
    """with Stage(name): what runs within is timed under that name."""

    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

class StageTime(_Record):
    """One stage: milliseconds that were spent in it, but not in stages within it, and how often it was entered."""

    name: str
    ms: float
    calls: int

def stage_times() -> list[StageTime]: ...
def stages_timed() -> bool: ...
def time_stages(on: bool) -> None: ...
def forget_stage_times() -> None: ...

class ErrorCode(_Record):
    """One code: the exception class of its errors, and what it means."""

    name: str
    raises: str
    meaning: str

def error_codes() -> list[ErrorCode]: ...
