"""All parsers and doors that are fed."""

from __future__ import annotations

from fuzz import doors, files, messages, slurm_answers
from fuzz.target import Target

ALL = (*messages.TARGETS, *slurm_answers.TARGETS, *files.TARGETS, *doors.TARGETS)
TARGETS: dict[str, Target] = {target.name: target for target in ALL}
