"""A job's number on the command line."""

from __future__ import annotations

import re

import click

_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
MOST = 10_000  # of one list


def job_number(text: str) -> int:
    """A job by the number that its own environment and `squeue -O JobID` say, of a task, too.

    `12_3` is no number; of that task it is another one than 12, and than 123.
    """
    if not _NUMBER.fullmatch(text):
        raise click.BadParameter(
            f"'{text[:40]}' is not the number of a job, such as 123; see onesctl jobs"
        )
    return int(text)


def job_numbers_of(text: str) -> frozenset[int]:
    """Several of them, between commas."""
    return frozenset(job_number(word) for word in text.split(",", MOST))
