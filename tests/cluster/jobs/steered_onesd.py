"""onesd as it is, steered by a test: with a policy of the test's, killed at a chosen point.

usage: steered_onesd.py [--die-at N] [--before STEP COMMAND] -- ONESD ARGUMENTS

--die-at N: SIGKILL to ourselves at the N-th point, where every write of the journal and every
touch of Slurm has one point before and one after it. --before ACTION COMMAND: run a shell command
just before an action of that name, when our decision to act is already made.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from ones.daemon.onesd import main as onesd
from ones.daemon.onesd.moves import live as live_mover
from ones.daemon.onesd.moves import restart as mover
from ones.policies import catalogue, registry
from ones.policies import round as rounds
from ones.policies.guard import Verdict
from ones.policies.model import Assignment, Plan
from ones.policies.placement import Room
from ones.slurm_ext.actuator import Actuator

ASKED = Path("/run/ones/asked.json")  # {"JOB": GPUs}


class Seesaw:
    """Every job at its least size, then at its most, then at its least again."""

    name = "seesaw"

    def plan(self, problem, memory, rng):
        assignments = {}
        for job in problem.jobs:
            if job.fixed or (job.placement is None and not job.startable):
                continue
            now = job.placement.gpus if job.placement else 0
            wanted = job.sizes.most if now == job.sizes.least else job.sizes.least
            others = [one.placement for one in problem.jobs if one.placement and one.id != job.id]
            others += [each.placement for each in assignments.values()]
            shapes = sorted(shape for shape in job.shapes if shape.gpus == wanted)
            found = Room.of(problem.nodes, others).place_job(job, shapes)
            if found is not None:
                assignments[job.id] = Assignment(found, None, f"seesaw to {wanted}")
            elif job.placement is not None:
                assignments[job.id] = Assignment(job.placement, None, "no room to seesaw")
        return Plan(assignments), None


class LargestBatch:
    """Every job stays where it is, or starts at its least size; then with its largest batch."""

    name = "largest-batch"

    def plan(self, problem, memory, rng):
        assignments = {}
        for job in problem.jobs:
            if job.placement is not None and job.batches is not None:
                least, most = job.batches.bounds(np.array(job.placement.gpus))
                batch = int(most) if most >= least else None
                assignments[job.id] = Assignment(job.placement, batch, "its largest batch")
            elif job.placement is None and job.startable and not job.fixed:
                others = [one.placement for one in problem.jobs if one.placement]
                shapes = sorted(shape for shape in job.shapes if shape.gpus == job.sizes.least)
                found = Room.of(problem.nodes, others).place_job(job, shapes)
                if found is not None:
                    assignments[job.id] = Assignment(found, None, "it starts")
        return Plan(assignments), None


class Asked:
    """Every job at the size that a file asks for, 0: stopped; as it is, where that doesn't name it.

    One that waits, and isn't named, starts at its request.
    """

    name = "asked"

    def plan(self, problem, memory, rng):
        asked = json.loads(ASKED.read_text()) if ASKED.exists() else {}
        stop = {
            job.id: "asked for none" for job in problem.jobs if asked.get(str(int(job.id))) == 0
        }
        assignments = {}
        for job in problem.jobs:
            wanted = asked.get(str(int(job.id)), job.placement.gpus if job.placement else None)
            wanted = wanted or job.requested
            if job.fixed or (job.placement is None and not job.startable) or job.id in stop:
                continue
            if job.placement is not None and job.placement.gpus == wanted:
                continue
            stay = [one for one in problem.jobs if one.id != job.id and one.id not in stop]
            others = [one.placement for one in stay if one.placement]
            room = Room.of(problem.nodes, others)
            shapes = sorted(shape for shape in job.shapes if shape.gpus == wanted)
            found = room.place_job(job, shapes)
            if found is not None:
                assignments[job.id] = Assignment(found, None, f"asked for {wanted}")
        return Plan(assignments, stop), None


def main() -> None:
    ours, _, theirs = " ".join(sys.argv[1:]).partition("-- ")
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--before", nargs="+", default=[])
    options = parser.parse_args(ours.split())
    # The guard refuses moves that gain nothing, as these do; it is not what is tested here.
    rounds.check = lambda moves, *_: Verdict(tuple(moves), ())
    for policy in (Seesaw(), LargestBatch(), Asked()):
        registry._POLICIES[policy.name] = lambda *_, made=policy: made
        catalogue.OFFERS[policy.name] = catalogue.Offer(about="a test's", resizes=True)
    points = 0

    def point() -> None:
        nonlocal points
        points += 1
        if points == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    write, perform = mover.Mover._record, Actuator.perform
    write_live = live_mover.LiveMover._record

    def dying_write(self, before, after):
        if after == before:
            return
        point()
        write(self, before, after)
        point()

    def dying_perform(self, action):
        if options.before and type(action).__name__ == options.before[0]:
            subprocess.run(" ".join(options.before[1:]), shell=True, check=False)
        point()
        answer = perform(self, action)
        point()
        return answer

    def dying_live_write(self, before, after, record):
        point()
        write_live(self, before, after, record)
        point()

    mover.Mover._record = dying_write
    live_mover.LiveMover._record = dying_live_write
    Actuator.perform = dying_perform
    sys.argv = ["onesd", *theirs.split()]
    onesd.main()


main()
