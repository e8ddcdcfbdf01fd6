"""The elastic job that sbatch would make of a batch script and the options beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ones.slurm_ext.batch_script import (
    COUNT,
    ScriptError,
    asked_by,
    count_of,
    named,
    options_in,
)
from ones.slurm_ext.described import Described

_NOT_NOW = ("begin", "dependency", "hold")  # options of a job that waits for more than GPUs


def read_elastic(file: Path, more: Sequence[str] = ()) -> Described:
    """The elastic job that sbatch would make of a script; `more` are options on its command line.

    Raises ScriptError.
    """
    options = options_in(file)
    for word in named(more):
        name, _, given = word.partition("=")
        options[name] = given, 0

    def value(name: str) -> str:
        return options.get(name, ("", 0))[0]

    if "elastic" not in options:
        raise ScriptError(f"{file}: no --elastic, and only where elastic jobs end can be told")
    if "array" in options:
        raise ScriptError(f"{file}: --array makes several jobs of it; ask about one")
    if "nodelist" in options:
        raise ScriptError(f"{file}: --elastic leaves the choice of nodes to onesd; no --nodelist")
    if later := next((name for name in _NOT_NOW if name in options), ""):
        raise ScriptError(f"{file}: with --{later} it would not begin now, of which it is asked")
    asked = asked_by(file, options)
    nodes = COUNT.fullmatch(value("nodes"))
    try:
        return msgspec.convert(
            {
                "sizes": value("elastic"),
                "name": asked.name,
                "account": value("account"),
                "partition": value("partition"),
                "qos": value("qos"),
                "reservation": value("reservation"),
                "features": value("constraint"),
                "excluded": value("exclude"),
                "gpus": value("gpus"),
                "gpus_per_node": value("gpus-per-node"),
                "gpus_per_task": value("gpus-per-task"),
                "gres": value("gres"),
                "nodes": int(nodes[1]) if nodes else 0,
                "most_nodes": int(nodes[2] or 0) if nodes else 0,
                "tasks": count_of(file, options, "ntasks") or 0,
                "tasks_per_node": count_of(file, options, "ntasks-per-node") or 0,
                "time_limit": asked.time_limit,
            },
            Described,
        )
    except msgspec.ValidationError as fault:
        raise ScriptError(f"{file}: {str(fault).replace('$.', '')}") from None
