"""What claims found to differ between releases of Slurm: the only place of the tests that tells."""

from __future__ import annotations

# The first of the releases that are tried (24.11, 26.05) of which it holds.
OWNERS_SUSPEND = (26, 5)  # a user may suspend jobs of his own; before, operators alone
REQUEUE_DELAY = (26, 5)  # SchedulerParameters=requeue_delay counts (25.11 brought it)


def release_of(version: str) -> tuple[int, int]:
    """Of what `scontrol --version` says, such as "slurm-wlm 24.11.5"."""
    year, month, *_ = version.rsplit(maxsplit=1)[-1].split(".")
    return int(year), int(month)
