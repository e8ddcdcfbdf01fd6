"""Four equal jobs of one user and name on 16 GPUs, of which nothing is known when they come."""

from __future__ import annotations

from random import Random

import pytest

from ones.daemon.config import Config
from ones.daemon.demo.trainings import INTERVAL, Training, Trainings
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.slurm_ext.moves import MoveLimits
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job, Wants
from ones.slurm_ext.simulated.settings import NodeSpec, Settings, Site
from ones.slurm_ext.simulated.state import Happening
from ones.slurm_ext.simulated.submission import Request
from ones.slurm_ext.simulated.world import World

ROUND = 30.0
SPEED, SCALE = 50.0, 0.9  # samples a second of one GPU; speed-up by size
EACH = (
    4  # GPUs for each, all the time: the best schedule of jobs that scale a little less than well
)
MUTE = {"batch_submitted": None, "batch_most": None, "batch_most_per_gpu": None}


class FourEqual:
    """onesd on the simulated Slurm, and the four jobs: one comes each second."""

    def __init__(self, *, sizes: str, asked: int, length: float, tells: dict[str, object]) -> None:
        nodes = tuple(NodeSpec(name=f"n{number}") for number in range(1, 5))
        site = Site(nodes=nodes, users={"alice": "vision"})
        settings = Settings(slurmd_timeout=60.0)
        self.world = World(site, settings, rng=Random(1), listener=self._happened)
        self.world.new_jobs_are_held(lambda: True)
        self.store = Store(":memory:")
        config = Config(policy="ones", mode="act", round=ROUND, store=":memory:")
        cluster = SimulatedCluster(self.world)
        self.metrics = Metrics()
        self.onesd = assemble(
            config, cluster, self.store, clock=lambda: self.world.now, metrics=self.metrics
        )
        service = self.onesd.service
        self.trainings = Trainings(self.world, Random(2), hear=service.hear, lease=service.lease)
        self.total = SPEED * EACH**SCALE * length
        self.tells = MUTE | tells
        self.jobs: list[int] = []
        self.request = Request(
            wants=Wants(tres_per_job=f"gres/gpu:{asked}"),
            name="train",
            elastic=sizes,
            time_limit=86400.0,
        )

    def _happened(self, what: Happening, job: Job) -> None:
        self.trainings.happened(what, job)

    def run(self) -> float:
        """Until all have ended; the seconds from the first one's submission."""
        began = self.world.now
        event = began + 1.0
        for second in range(20_000):
            if len(self.jobs) < 4:
                self._submit()
                event = self.world.now + 1.0
            if second % INTERVAL == 0:
                self.trainings.report()
            if second % ROUND == 0 or self.world.now == event:
                self.onesd.rounds.round()
            self.world.step(1.0)
            self.trainings.signals()
            self.onesd.rounds.tick()
            if len(self.jobs) == 4 and not self.world.state.alive():
                return self.world.now - began
        raise AssertionError("they never end")

    def _submit(self) -> None:
        number = self.world.by("alice").submit(self.request)
        self.jobs.append(number)
        self.trainings.of[number] = Training(
            job=number,
            user="alice",
            total=self.total,
            speed=SPEED,
            scale=SCALE,
            submitted=64,
            batch=64,
            most_batch=64,
            most_per_gpu=64,
            absurd=self.tells,
        )

    def kinds(self) -> list[str]:
        """Of the moves that were made."""
        rows = self.store.rows("SELECT json_extract(record, '$.kind') AS kind FROM moves")
        return [row["kind"] for row in rows]


DECLARED: dict[str, object] = {}
EPOCHS: dict[str, object] = {"total_samples": None, "epoch_samples": 5000}
NOTHING: dict[str, object] = {"total_samples": None}


@pytest.mark.parametrize(
    ("sizes", "asked", "tells"),
    [
        ("1-8", 2, DECLARED),
        ("1-8", 4, EPOCHS),
        ("1-16", 8, DECLARED),
        ("1-16", 8, EPOCHS),
        ("1-16", 8, NOTHING),
    ],
)
def test_four_equal_jobs_are_never_preempted_for_each_other(
    sizes: str, asked: int, tells: dict[str, object]
) -> None:
    length = 2400.0
    four = FourEqual(sizes=sizes, asked=asked, length=length, tells=tells)
    took = four.run()
    assert "preempt" not in four.kinds()
    assert took <= 1.15 * length


def test_the_share_of_gpu_time_that_is_lost_to_moves_is_a_metric() -> None:
    """Four jobs are restarted on 4 instead of 2 GPUs; each is back 2 s after its start there, as
    long after its stop at least as moves wait for the last run to be over."""
    four = FourEqual(sizes="1-8", asked=1, length=900.0, tells=DECLARED)
    four.run()
    assert four.kinds().count("resize") >= 4
    sample = four.metrics.registry.get_sample_value
    held = sample("ones_gpu_seconds_held_total") or 0.0
    lost = sample("ones_gpu_seconds_lost_to_moves_total", {"kind": "resize"}) or 0.0
    assert 14_000 < held < 16_000
    assert 4 * 4 * (2.0 + MoveLimits().settle) <= lost < 0.02 * held
