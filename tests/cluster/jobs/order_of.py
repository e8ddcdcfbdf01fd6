"""What our code makes of Slurm's order: JOB:REQUESTED:WAITED ... -> {job: [priority, tier]}."""

from __future__ import annotations

import json
import sys

from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.slurm import Slurm

commands = Commands()
slurm = Slurm(commands, CommandReader(commands))
jobs, order = slurm.snapshot().jobs, slurm.order()
found: dict[str, list[int | None]] = {}
for words in sys.argv[1:]:
    number, requested, waited = words.split(":")
    job = jobs[int(number)]
    priority = order.priority(job, requested=int(requested), waited=float(waited))
    found[number] = [priority, order.tier(job)]
json.dump({"jobs": found, "trouble": order.trouble}, sys.stdout)
