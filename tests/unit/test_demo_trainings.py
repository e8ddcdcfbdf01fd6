"""What the agents of the simulated cluster tell: of whose jobs, and how busy their GPUs are."""

from __future__ import annotations

from random import Random

import pytest
from simulated_world import a_world

from ones.daemon.demo.trainings import Training, Trainings
from ones.daemon.wire import Lease, LiveOrder, LivePart, NodeReport
from ones.slurm_ext.simulated.world import gpus


class Agents:
    """Those of a world of four nodes; what each has told last, and what onesd orders."""

    def __init__(self) -> None:
        self.told: dict[str, NodeReport] = {}
        self.orders: dict[int, LiveOrder] = {}
        self.batches: dict[int, tuple[int, int]] = {}  # job -> GPUs, and the batch for them
        self.world = a_world()
        self.world.new_jobs_are_held(lambda: False)
        self.trainings = Trainings(
            self.world, Random(1), hear=self._hear, lease=self._lease, varied=True
        )
        self.world.state.listener = self.trainings.happened

    def _hear(self, report: NodeReport) -> None:
        self.told[report.node] = report

    def _lease(self, job: int) -> Lease:
        size, batch = self.batches.get(job, (None, None))
        return Lease(job=job, gpus=size, batch=batch, order=self.orders.get(job))

    def train(self, count: int, *, nodes: int = 1) -> tuple[int, tuple[str, ...]]:
        """A live job that runs on so many GPUs, and its nodes."""
        wants = gpus(count, nodes=(nodes, nodes))
        number = self.world.submit("alice", wants=wants, elastic="1-8")
        self.trainings.of[number] = Training(
            job=number,
            user="alice",
            total=1e9,
            speed=100.0,
            scale=0.5,
            submitted=64,
            batch=64,
            most_batch=64,
            most_per_gpu=64,
            live=True,
        )
        self.world.step(5)
        return number, self.world.job(number).nodes

    def busy(self, node: str) -> list[tuple[tuple[int, ...], float]]:
        """The jobs and the utilisation of each GPU."""
        return [(gpu.jobs, gpu.utilization) for gpu in self.told[node].gpus]


def test_of_a_job_the_agent_of_its_first_node_tells() -> None:
    agents = Agents()
    broad, (first, second) = agents.train(8, nodes=2)
    small, (third,) = agents.train(1)
    other, (fourth,) = agents.train(4)
    agents.trainings.report()
    heard = {
        node: {word.message.job for word in report.received} for node, report in agents.told.items()
    }
    assert heard == {first: {broad}, second: set(), third: {small}, fourth: {other}}


def test_gpus_of_a_satellite_are_as_busy_as_those_of_its_base() -> None:
    agents = Agents()
    base, (node,) = agents.train(1)
    *_, idle, beside = (name for name in agents.world.state.nodes if name != node)
    agents.orders[base] = LiveOrder(number=1, restarts=0, add=(LivePart(node=beside, gpus=3),))
    agents.trainings.report()
    agents.world.step(5)
    agents.trainings.report()
    (satellite,) = agents.trainings.of[base].parts
    shared = pytest.approx(0.98 * 4**0.5 / 4)
    assert agents.busy(node) == [((base,), shared)] + 3 * [((), 0.0)]
    assert agents.busy(beside) == 3 * [((satellite,), shared)] + [((), 0.0)]
    assert agents.busy(idle) == 4 * [((), 0.0)]


def test_a_training_that_tunes_its_batch_only_with_its_size_takes_it_with_that() -> None:
    agents = Agents()
    number, (node,) = agents.train(1)
    training = agents.trainings.of[number]
    agents.batches[number] = (1, 128)
    agents.trainings.report()
    assert training.batch == 64, "while it runs as it is"
    agents.world.by("root").requeuehold(number)
    agents.world.step(5)
    agents.world.by("root").release(number)
    agents.world.step(200)  # what was requeued isn't started at once
    assert (training.running, training.restarts, training.batch) == (True, 1, 128)
    add = (LivePart(node=node, gpus=1),)
    agents.orders[number] = LiveOrder(number=1, restarts=1, add=add, batch=256)
    agents.trainings.report()
    agents.world.step(5)
    agents.trainings.report()
    assert (training.gpus, training.batch) == (2, 256)
