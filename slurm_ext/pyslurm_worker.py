"""The process that calls libslurm for the pyslurm reader, one request a line, one JSON line back.

Its own process, because libslurm's calls hold Python's interpreter lock while they wait for
slurmctld (9 s when it is down), and because a `fatal` in libslurm ends its process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
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


def read(pyslurm: Any, exact: Any) -> Answer:
    """All jobs, nodes and switches, in four calls to slurmctld whatever their number."""
    return {
        "jobs": [exact.job_fields(job) for job in pyslurm.Jobs.load().values()],
        "nodes": [exact.node_fields(node) for node in pyslurm.Nodes.load().values()],
        "topology": exact.topology(),
    }


REQUESTS: dict[str, Callable[[Any, Any], Answer]] = {"releases": releases, "read": read}


def answer(request: str) -> Answer:
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
        return REQUESTS[request](pyslurm, exact)
    except pyslurm.RPCError as error:
        return {"error": str(error), "unreachable": error.errno in UNREACHABLE}


def main() -> None:
    """Answer until the reader closes the pipe."""
    # What libslurm or PySlurm print must not end up among the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        json.dump(answer(line.strip()), answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
