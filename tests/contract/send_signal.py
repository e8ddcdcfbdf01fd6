"""Run on the controller: signals a job's script as onesd does; prints as JSON what was refused."""

import json
import sys

from ones.slurm_ext.command_reader import CommandReader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.slurm import Slurm

commands = Commands()
refused = ""
try:
    Slurm(commands, CommandReader(commands)).signal(int(sys.argv[1]), "USR1", script=True)
except SlurmError as fault:
    refused = fault.reason
print(json.dumps(refused))
