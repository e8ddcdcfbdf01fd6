"""The process that calls libslurm for the pyslurm reader, one request a line, one JSON line back.

Of jobs it sends those that differ from what it sent last, and the numbers of those that are gone:
of ten thousand most are as they were a moment ago, and to write, read and check them costs more
than to ask for them.

Its own process, because libslurm's calls hold Python's interpreter lock while they wait for
slurmctld (9 s when it is down), and because a `fatal` in libslurm ends its process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

Answer = dict[str, Any]

NEEDS = "needs the one that slurm_ext/pyslurm_build/build makes for Slurm 24.11 and 26.05"
UNREACHABLE = range(1800, 1810)  # SLURMCTLD_COMMUNICATIONS_... of slurm_errno.h


def releases(pyslurm: Any, exact: Any) -> Answer:
    """Which releases PySlurm, the libslurm in use and slurmctld are of."""
    try:
        controller = exact.controller()
    except pyslurm.RPCError:
        controller = None  # not answering now; libslurm itself refuses one that it cannot talk to
    return {
        "built_for": exact.built_for(),
        "library": exact.library(),
        "built_for_library": exact.LIBRARY,
        "controller": controller,
    }


class Sent:
    """The jobs as the reader knows them: by number the values of their fields, in order."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, ...]] = {}

    def changes(self, jobs: Iterable[Answer]) -> Answer:
        """What there is to send of these, which are all that there are now."""
        before, now, changed = self._values, dict[int, tuple[Any, ...]](), list[Answer]()
        for job in jobs:
            number, values = job["id"], tuple(job.values())
            if before.get(number) != values:
                changed.append(job)
            now[number] = values
        self._values = now
        return {"jobs": changed, "gone": [number for number in before if number not in now]}


def read(pyslurm: Any, exact: Any, sent: Sent) -> Answer:
    """Changed jobs, all nodes and switches, in four calls to slurmctld whatever their number."""
    jobs = (exact.job_fields(job) for job in pyslurm.Jobs.load().values())
    return {
        "nodes": [exact.node_fields(node) for node in pyslurm.Nodes.load().values()],
        "topology": exact.topology(),
        **sent.changes(jobs),
    }


def answer(request: str, sent: Sent) -> Answer:
    """The answer to one request, or what was wrong under `error`."""
    try:
        pyslurm = importlib.import_module("pyslurm")
    except ImportError as error:
        return {"error": f"cannot be imported ({error}); it {NEEDS}", "unreachable": False}
    try:
        exact = importlib.import_module("pyslurm.exact")
    except ImportError as error:
        return {
            "error": f"this PySlurm has no exact fields ({error}); it {NEEDS}",
            "unreachable": False,
        }
    try:
        return read(pyslurm, exact, sent) if request == "read" else releases(pyslurm, exact)
    except pyslurm.RPCError as error:
        return {"error": str(error), "unreachable": error.errno in UNREACHABLE}


def main() -> None:
    """Answer until the reader closes the pipe."""
    # What libslurm or PySlurm print must not end up among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sent = Sent()
    for line in sys.stdin:
        json.dump(answer(line.strip(), sent), answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
