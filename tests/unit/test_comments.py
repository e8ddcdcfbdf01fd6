"""How a job goes, in its Slurm comment: where the site wants it, seldom, over nobody's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from simulated_onesd import AtWork
from simulated_world import a_world

from ones.daemon.config import ConfigError, SlurmConfig, load_config
from ones.slurm_ext.simulated.gate import PASS, Call, Refuse, Verdict
from ones.slurm_ext.simulated.world import gpus


class Watched:
    """onesd at work, with every comment that it writes."""

    def __init__(self, **slurm: float) -> None:
        self.at_work = AtWork(a_world(), slurm=SlurmConfig(**slurm))  # type: ignore[arg-type]
        self.at_work.says = {"samples": 620, "total_samples": 1000}
        self.written: list[tuple[float, int]] = []
        self.at_work.door.judge = self._see

    def _see(self, call: Call) -> Verdict:
        if call.name == "update" and "'Comment'" in str(call.arguments):
            number = call.arguments[0]
            assert isinstance(number, int)
            self.written.append((self.at_work.world.now, number))
        return PASS

    def comment(self, job: int) -> str:
        return self.at_work.job(job).comment


def test_it_says_how_far_the_job_is_and_its_size() -> None:
    watched = Watched(comment_every=60.0)
    job = watched.at_work.submit(4)
    watched.at_work.live(180)
    assert watched.comment(job) == "ONES: 62% done, 4 GPUs"


def test_a_job_that_waits_says_so() -> None:
    watched = Watched(comment_every=60.0)
    watched.at_work.submit(16, elastic="16")
    late = watched.at_work.submit(16, elastic="16")
    watched.at_work.live(120)
    assert watched.comment(late) == "ONES: waiting"


def test_nothing_is_written_unless_the_site_wants_it() -> None:
    watched = Watched()
    job = watched.at_work.submit(4)
    watched.at_work.live(180)
    assert watched.comment(job) == ""
    assert watched.written == []


def test_a_job_is_written_to_once_in_the_given_time() -> None:
    watched = Watched(comment_every=120.0)
    job = watched.at_work.submit(4)
    for second in range(600):
        watched.at_work.says["samples"] = second
        watched.at_work.second(second)
    times = [at for at, number in watched.written if number == job]
    assert len(times) >= 3
    assert all(after - before >= 120 for before, after in pairwise(times))


def test_a_comment_that_slurm_refuses_keeps_no_other_from_being_written() -> None:
    """Such as by a site's own job_submit.lua, for as long as the job is there."""
    watched = Watched(comment_every=60.0)

    def judge(call: Call) -> Verdict:
        watched._see(call)
        told = call.name == "update" and "'Comment'" in str(call.arguments)
        return Refuse("job_submit: not this one") if told and call.arguments[0] == 1 else PASS

    watched.at_work.door.judge = judge
    jobs = [watched.at_work.submit(2) for _ in range(3)]
    watched.at_work.live(300)
    assert [bool(watched.comment(job)) for job in jobs] == [False, True, True]
    assert len([at for at, job in watched.written if job == jobs[0]]) <= 300 / 60


def test_what_somebody_else_wrote_stays() -> None:
    watched = Watched(comment_every=60.0)
    before = watched.at_work.submit(4)
    watched.at_work.world.job(before).comment = "camera ready"
    after = watched.at_work.submit(4)
    watched.at_work.live(90)
    watched.at_work.world.job(after).comment = "mine"
    watched.at_work.says["samples"] = 900
    watched.at_work.live(180)
    assert watched.comment(before) == "camera ready"
    assert watched.comment(after) == "mine"


def test_a_job_that_did_not_opt_in_is_never_written_to() -> None:
    watched = Watched(comment_every=60.0)
    plain = watched.at_work.world.submit("bob", wants=gpus(4))
    watched.at_work.submit(4)
    watched.at_work.live(180)
    assert watched.comment(plain) == ""
    assert plain not in {job for _, job in watched.written}


def test_a_period_that_would_be_a_burden_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ones.toml"
    path.write_text("[slurm]\ncomment_every = 5\n")
    with pytest.raises(ConfigError, match=r"slurm.comment_every"):
        load_config(path)
