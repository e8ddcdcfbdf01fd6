"""Run on the controller: prints what each reader makes of Slurm, as one line of JSON."""

import sys

import msgspec

from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import OnesError

commands = Commands()
answers = {}
for name in sys.argv[1:]:
    try:
        answers[name] = choose_reader(name, commands).snapshot()
    except OnesError as fault:
        answers[name] = str(fault)
print(msgspec.json.encode(answers).decode())
