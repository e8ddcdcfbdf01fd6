"""What `onesctl job` says of a job's own report."""

from __future__ import annotations

from typing import Any

import pytest

from ones.daemon.ctl.jobs import in_words
from ones.daemon.wire import Report


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "0 samples"),
        ({"samples": 30, "total_samples": 120}, "30 of 120 samples (25%)"),
        (
            {"samples": 30, "step_seconds": 0.5, "batch": 64, "loss": 0.12345},
            "30 samples, 128 samples a second in batches of 64, loss 0.1235",
        ),
        ({"samples": 30, "step_seconds": 0.5}, "30 samples"),
    ],
)
def test_a_report_in_words(said: dict[str, Any], words: str) -> None:
    assert in_words(Report(job=1, **said)) == words
