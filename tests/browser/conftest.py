"""One browser for all of these tests, and a served onesd on a simulated Slurm for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")]

from served_page import ServedPage  # noqa: E402
from surfer import Surfer, a_browser  # noqa: E402

from ones.daemon.onesd.audit import log as audit_log  # noqa: E402


@pytest.fixture(scope="session")
def chromium() -> Iterator[Surfer]:
    """Skipped where there is none."""
    with a_browser() as surfer:
        yield surfer


@pytest.fixture
def browser(chromium: Surfer) -> Iterator[Surfer]:
    """A browser that has been nowhere; at the end nothing may have gone wrong in it."""
    chromium.forget()
    yield chromium
    assert chromium.complaints() == []


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ServedPage]:
    """Its page, with a few jobs on four nodes under policy ones."""
    with ServedPage(tmp_path) as served:
        yield served


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The audit log."""
    caplog.set_level("WARNING", audit_log.name)
    return caplog
