"""Jobs and nodes that onesd leaves alone, though it plans for them."""

from __future__ import annotations

from simulated_onesd import AtWork

from ones.daemon.onesd.doors import views
from ones.policies.model import JobId, Placement
from ones.policies.moves import Move


def test_observe_decides_and_touches_nothing() -> None:
    at_work = AtWork(mode="observe", policy="ones")
    job = at_work.submit()
    before = at_work.job(job).record()
    at_work.live(600)
    (decision,) = views.plan(at_work.onesd.service, None)["decisions"]
    assert decision["job"] == job
    assert decision["verdict"].startswith("observe mode")
    assert at_work.job(job).record() == before
    assert [deed for deed in at_work.world.state.deeds if deed.by == "ones"] == []


def test_a_job_that_ignores_the_signal_is_left_alone_with_the_reason() -> None:
    at_work = AtWork()
    at_work.confirms = False
    job = at_work.submit()
    at_work.live(60, until=lambda: at_work.job(job).state == "RUNNING")
    at_work.live(90)
    at_work.move(Move(job=JobId(job), kind="resize", target=Placement.of({"n2": 2}), reason="-"))
    at_work.live(900, until=lambda: at_work.onesd.moves.open() == [])
    assert at_work.onesd.moves.open() == []
    assert "no checkpoint confirmed" in at_work.outcomes(job)[-1]
    at_work.live(30)
    (told,) = views.jobs(at_work.onesd.service, None)["jobs"]
    assert "not resizable" in told["note"]
    assert (at_work.job(job).state, at_work.job(job).restarts) == ("RUNNING", 0)


def test_a_silent_agents_node_is_not_taken_for_idle() -> None:
    at_work = AtWork()
    at_work.mute.add("n1")
    jobs = [at_work.submit(4, elastic="4") for _ in at_work.world.state.nodes]
    at_work.live(300)
    states = [at_work.job(job).state for job in jobs]
    assert (states.count("RUNNING"), states.count("PENDING")) == (len(jobs) - 1, 1)
    assert "n1" not in {node for job in jobs for node in at_work.job(job).nodes}
