"""Rows of Slurm's accounting, a bounded number of jobs a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError

JOBS_A_CALL = 5000  # keeps the command line far below what the kernel takes


def sacct_rows(
    commands: Commands, jobs: Iterable[int], columns: Sequence[str], *options: str
) -> Iterator[dict[str, str]]:
    """What sacct has of all runs of these jobs, by column. Raises SlurmError."""
    wanted = sorted(set(jobs))
    for at in range(0, len(wanted), JOBS_A_CALL):
        text = commands.run(
            "sacct",
            "--duplicates",
            "--parsable2",
            "--noheader",
            *options,
            "--allusers",
            "--jobs=" + ",".join(map(str, wanted[at : at + JOBS_A_CALL])),
            "--format=" + ",".join(columns),
        )
        for line in text.splitlines():
            fields = line.split("|")
            if len(fields) != len(columns):
                raise SlurmError("sacct", f"a line has {len(fields)} fields, not {len(columns)}")
            yield dict(zip(columns, fields, strict=True))
