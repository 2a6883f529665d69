"""A plugin of pytest for a suite that runs in two environments, the second of which has optional packages as well.

``-p in_two --passed-to FILE`` writes which tests passed. ``-p in_two --but FILE`` leaves these out, except for those of
files that mention an optional package, which may do something else where it is installed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

OPTIONAL = re.compile(r"torch|transformers|triton")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both take a text file with one test in each line."""
    parser.addoption("--passed-to", type=Path)
    parser.addoption("--but", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist report to the first process, which alone writes."""
    if config.getoption("--passed-to") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(config.getoption("--passed-to")))


class Passed:
    """Gathers the tests that passed in all of their phases."""

    def __init__(self, to: Path) -> None:
        self.to = to
        self.outcomes: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for the setup, the call and the teardown of each test."""
        self.outcomes[report.nodeid] = self.outcomes.get(report.nodeid, True) and report.passed

    def pytest_sessionfinish(self) -> None:
        """Also of a run that failed."""
        self.to.write_text("".join(f"{test}\n" for test, passed in sorted(self.outcomes.items()) if passed))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what another run has shown."""
    if config.getoption("--but") is None:
        return
    passed = set(config.getoption("--but").read_text().splitlines())
    mentions = {path: OPTIONAL.search(path.read_text()) is not None for path in {item.path for item in items}}
    done = [item for item in items if item.nodeid in passed and not mentions[item.path]]
    config.hook.pytest_deselected(items=done)
    left_out = set(map(id, done))
    items[:] = [item for item in items if id(item) not in left_out]
