"""What the simulated Slurm says of reservations, held against the real one, and as read by us."""

from __future__ import annotations

import pytest
from any_slurm import AnySlurm, quiet
from slurm_jobs import slurm_with_a_heartbeat

__all__ = ["quiet", "slurm_with_a_heartbeat"]  # the fixtures `quiet` and `slurm`
AGREED = ""
KEPT_OFF = "ReqNodeNotAvail, May be reserved for other job"


def pinned(slurm: AnySlurm, nodes: str, *options: str, user: str = "alice") -> int:
    """A job that is to start on these nodes, as onesd starts jobs."""
    number = slurm.submit("--hold", *options, user=user)
    assert slurm.by("root", "scontrol", "update", f"JobId={number}", f"ReqNodeList={nodes}") == ""
    assert slurm.by("root", "scontrol", "release", str(number)) == AGREED
    return number


def waits(slurm: AnySlurm, number: int, reason: str) -> None:
    what = f"job {number} waits for {reason}"
    slurm.eventually(lambda: slurm.facts(number).reason == reason, within=15, what=what)


def test_reservations_are_read(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n[1-2]", "alice,bob", flags="flex") == AGREED
    assert quiet.reserve("repair", "n3", "root", begins=600, flags="maint") == AGREED
    found = quiet.reservations()
    assert sorted(found) == ["class", "repair"]
    own, repair = found["class"], found["repair"]
    assert (own.nodes, own.users, own.part) == ({"n1", "n2"}, {"alice", "bob"}, "")
    assert own.active(own.start)
    assert own.end - own.start == pytest.approx(3600, abs=5)
    assert repair.start - own.start == pytest.approx(600, abs=5)
    assert "FLEX" in own.flags
    assert "MAINT" in repair.flags


def test_a_job_of_a_reservation_starts_on_its_nodes_alone(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n[1-2]", "alice", flags="") == AGREED
    number = pinned(quiet, "n3", "--gpus=1", "--reservation=class", "-t5")
    waits(quiet, number, "Reservation")
    words = quiet.by("root", "scontrol", "update", f"JobId={number}", "ReqNodeList=n2")
    assert words == AGREED
    quiet.wait(number, "RUNNING")
    assert (quiet.facts(number).nodes, quiet.reservation_of(number)) == ("n2", "class")


def test_reserved_nodes_are_for_no_other_job_though_of_the_same_user(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n[1-2]", "alice", flags="") == AGREED
    waits(quiet, pinned(quiet, "n1", "--gpus=1", "-t5"), KEPT_OFF)


def test_until_it_begins_its_nodes_are_for_jobs_that_end_before(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n1", "alice", begins=1200, flags="") == AGREED
    long = pinned(quiet, "n1", "--gpus=1", "-t30")
    short = pinned(quiet, "n1", "--gpus=1", "-t15", user="bob")
    own = pinned(quiet, "n1", "--gpus=1", "-t5", "--reservation=class")
    quiet.wait(short, "RUNNING")
    waits(quiet, long, KEPT_OFF)
    waits(quiet, own, "Reservation")


def test_jobs_of_a_flexible_one_start_before_it_and_beside_it(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n1", "alice", begins=1200, flags="flex") == AGREED
    number = pinned(quiet, "n[1-2]", "-N2", "--gpus-per-node=1", "-t30", "--reservation=class")
    quiet.wait(number, "RUNNING")


def test_a_magnetic_one_draws_jobs_but_not_onto_some_of_each(quiet: AnySlurm) -> None:
    assert quiet.reserve("magnet", "n1", "alice", flags="magnetic") == AGREED
    inside = pinned(quiet, "n1", "--gpus=1", "-t5")
    outside = pinned(quiet, "n2", "--gpus=1", "-t5")
    both = pinned(quiet, "n[1-2]", "-N2", "--gpus-per-node=1", "-t5")
    for number in (inside, outside):
        quiet.wait(number, "RUNNING")
    assert [quiet.reservation_of(number) for number in (inside, outside)] == ["magnet", ""]
    waits(quiet, both, KEPT_OFF)


def test_a_reservation_of_nodes_whose_jobs_would_run_into_it_is_refused(quiet: AnySlurm) -> None:
    number = pinned(quiet, "n1", "--gpus=1", "-t30")
    quiet.wait(number, "RUNNING")
    busy = "Requested nodes are busy"
    assert busy in quiet.reserve("class", "n1", "bob", begins=1200, flags="maint")
    assert quiet.reserve("class", "n1", "bob", begins=1200, flags="ignore_jobs") == AGREED
    overlaps = "Requested reservation overlaps with another reservation"
    assert overlaps in quiet.reserve("other", "n1", "bob", begins=1200, flags="ignore_jobs")
    later = quiet.reserve("other", "n1", "bob", begins=1200, flags="ignore_jobs,overlap")
    assert later == AGREED


def test_a_reservations_end_ends_its_jobs_and_holds_those_that_wait(quiet: AnySlurm) -> None:
    assert quiet.reserve("class", "n1", "alice", ends=12, flags="") == AGREED
    runs = pinned(quiet, "n1", "--gpus=1", "-t5", "--reservation=class")
    waiting = quiet.submit("--hold", "--gpus=1", "-t5", "--reservation=class")
    held = quiet.submit("--hold", "--gpus=1", "-t5", "--reservation=class")
    assert quiet.by("root", "scontrol", "hold", str(held)) == AGREED
    quiet.wait(runs, "RUNNING")
    quiet.eventually(lambda: quiet.state(runs) == "TIMEOUT", within=90, what="its job has ended")
    waits(quiet, waiting, "Reservation class was deleted")
    assert quiet.facts(waiting).held
    assert (quiet.facts(held).reason, quiet.reservation_of(held)) == ("JobHeldAdmin", "")
    assert quiet.by("alice", "scontrol", "release", str(waiting)) == AGREED
    quiet.wait(waiting, "RUNNING")
