"""Which nodes reservations leave to a job, by their flags, their times and who asks."""

from __future__ import annotations

from typing import Any

import pytest
from fake_slurm import a_record

from ones.slurm_ext.elastic import elastic_jobs, plain_jobs
from ones.slurm_ext.errors import RecordFault
from ones.slurm_ext.holding import Known, Waits, held_for_onesd
from ones.slurm_ext.job_json import reservation_record
from ones.slurm_ext.reserved import Open, left_to, oddities, words
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Reservation, Snapshot

NOW = 1_700_000_000.0
NAMES = frozenset({"n1", "n2", "n3", "n4"})


def a_reservation(name: str = "class", nodes: str = "n1 n2", **changes: Any) -> Reservation:
    values: dict[str, Any] = {
        "name": name,
        "nodes": frozenset(nodes.split()),
        "start": NOW - 600,
        "end": NOW + 3600,
        "users": frozenset({"alice"}),
    }
    if isinstance(changes.get("flags"), str):
        changes["flags"] = frozenset(changes["flags"].split())
    return Reservation(**(values | changes))


def a_snapshot(*reservations: Reservation, used: dict[str, int] | None = None) -> Snapshot:
    nodes = {
        name: NodeRecord(
            name=name,
            states=frozenset({"IDLE"}),
            gpu_type="v100",
            gpus=4,
            gpus_used=(used or {}).get(name, 0),
            partitions=frozenset({"gpu"}),
        )
        for name in sorted(NAMES)
    }
    reserved = {each.name: each for each in reservations}
    return Snapshot(taken=NOW, jobs={}, nodes=nodes, switches={}, reservations=reserved)


def a_waiting(**changes: Any) -> JobRecord:
    return a_record(**({"user": "alice", "time_limit": 1800.0} | changes))


def left(job: JobRecord, *reservations: Reservation, **more: Any) -> str:
    return " ".join(sorted(left_to(job, NAMES, a_snapshot(*reservations, **more)).nodes))


def test_without_reservations_a_job_has_all_its_nodes() -> None:
    assert left(a_waiting()) == "n1 n2 n3 n4"


def test_a_job_in_a_reservation_runs_on_its_nodes_and_nowhere_else() -> None:
    assert left(a_waiting(reservation="class"), a_reservation()) == "n1 n2"


def test_other_jobs_have_the_other_nodes_though_they_are_of_the_same_user() -> None:
    assert left(a_waiting(), a_reservation()) == "n3 n4"


def test_a_reservation_to_come_leaves_its_nodes_to_jobs_that_end_in_time() -> None:
    coming = a_reservation(start=NOW + 3600, end=NOW + 7200)
    assert left(a_waiting(time_limit=3000.0), coming) == "n1 n2 n3 n4"
    assert left(a_waiting(time_limit=3590.0), coming) == "n3 n4"  # it would start a little later
    assert left(a_waiting(time_limit=None), coming) == "n3 n4"


def test_one_that_is_over_keeps_nothing() -> None:
    assert left(a_waiting(), a_reservation(start=NOW - 60, end=NOW - 1)) == "n1 n2 n3 n4"


def test_a_job_whose_reservation_has_not_begun_waits_and_says_so() -> None:
    coming = a_reservation(start=NOW + 3600, end=NOW + 7200)
    found = left_to(a_waiting(reservation="class"), NAMES, a_snapshot(coming))
    assert found.nodes == frozenset()
    assert found.closed.startswith("its reservation class begins at ")


@pytest.mark.parametrize(
    ("reservations", "closed"),
    [
        ((), "Slurm has no reservation class"),
        ((a_reservation(nodes=""),), "its reservation class has no nodes"),
        ((a_reservation(nodes="m1"),), "its reservation class has none of the nodes it may use"),
    ],
)
def test_a_job_whose_reservation_makes_no_sense_waits_and_says_why(
    reservations: tuple[Reservation, ...], closed: str
) -> None:
    found = left_to(a_waiting(reservation="class"), NAMES, a_snapshot(*reservations))
    assert found == Open(nodes=frozenset(), closed=closed)


def test_jobs_of_a_flexible_one_run_before_it_and_beside_it() -> None:
    coming = a_reservation(start=NOW + 600, end=NOW + 7200, flags="FLEX")
    other = a_reservation("other", "n4", users=frozenset({"bob"}))
    assert left(a_waiting(reservation="class"), coming, other) == "n1 n2 n3"


def test_jobs_of_a_reservation_are_kept_off_maintenance_on_its_nodes() -> None:
    maintenance = a_reservation("repair", "n2", flags="MAINT", users=frozenset({"root"}))
    own = a_reservation(flags="OVERLAP")
    assert left(a_waiting(reservation="class"), own, maintenance) == "n1"
    other = a_reservation("other", "n2", users=frozenset({"bob"}))
    assert left(a_waiting(reservation="class"), own, other) == "n1 n2"
    assert left(a_waiting(reservation="class"), a_reservation(), other) == "n1"
    assert left(a_waiting(reservation="repair", user="root"), own, maintenance) == "n2"


def test_of_several_that_it_named_a_job_takes_the_first_that_has_begun() -> None:
    coming = a_reservation("later", "n1", start=NOW + 3600, end=NOW + 7200)
    assert left(a_waiting(reservation="later,class"), coming, a_reservation(nodes="n2 n3")) == (
        "n2 n3"
    )
    both = (a_reservation("one", "n1 n2"), a_reservation("two", "n3 n4"))
    runs = a_waiting(reservation="one,two", state="RUNNING", gpus_on={"n3": 1})
    assert left(runs, *both) == "n3 n4"


def test_a_magnetic_one_takes_its_users_jobs_while_it_has_room_and_not_some_of_each() -> None:
    magnet = a_reservation(flags="MAGNETIC")
    assert left(a_waiting(), magnet) == "n1 n2"
    assert left(a_waiting(user="bob"), magnet) == "n3 n4"
    assert left(a_waiting(), magnet, used={"n1": 4, "n2": 4}) == "n3 n4"
    outside = a_waiting(state="RUNNING", gpus_on={"n3": 1})
    assert left(outside, magnet) == "n3 n4"


def test_slurms_lists_say_who_may_or_who_may_not() -> None:
    assert a_reservation(users=frozenset({"-bob"})).admits("alice", "lab")
    assert not a_reservation(users=frozenset({"-bob"})).admits("bob", "lab")
    accounts = a_reservation(users=frozenset(), accounts=frozenset({"lab"}))
    assert accounts.admits("bob", "lab")
    assert not accounts.admits("bob", "other")
    assert not a_reservation(users=frozenset(), groups="staff").admits("bob", "lab")


def test_a_running_job_that_could_start_nowhere_again_stays_as_it_is() -> None:
    repair = a_reservation(
        "repair", " ".join(NAMES), start=NOW + 3600, end=NOW + 7200, flags="MAINT"
    )
    runs = a_waiting(
        state="RUNNING",
        held=False,
        started=NOW - 60,
        nodes="n1",
        gpus_on={"n1": 2},
        time_limit=36000.0,
        admin_comment="ONES1:sizes=1-8;request=2;held=1;tasks=1;nodes=1;mem=no;cpu=no",
        tres_per_job="gres/gpu:2",
        requeue=True,
    )
    snapshot = a_snapshot(repair)
    jobs, ignored = elastic_jobs(
        Snapshot(
            taken=NOW,
            jobs={runs.id: runs},
            nodes=snapshot.nodes,
            switches={},
            reservations=snapshot.reservations,
        )
    )
    assert ignored == {}
    assert jobs[0].stays == "reservations leave it no nodes before its time limit would be over"
    assert jobs[0].fixed == ""
    assert jobs[0].shapes


def test_a_waiting_plain_job_gets_room_on_the_nodes_of_its_reservation() -> None:
    snapshot = a_snapshot(a_reservation())
    plain = a_waiting(
        id=3, reservation="class", reason="Resources", tres_per_job="gres/gpu:2", held=False
    )
    with_it = Snapshot(
        taken=NOW,
        jobs={3: plain},
        nodes=snapshot.nodes,
        switches={},
        reservations=snapshot.reservations,
    )
    assert [each.nodes for each in plain_jobs(with_it, [])] == [{"n1", "n2"}]


def test_explain_names_the_jobs_own_reservation_and_those_that_keep_it_off() -> None:
    soon = a_reservation("soon", "n3", start=NOW + 600, end=NOW + 86400 * 3)
    said = words(a_waiting(reservation="class"), a_snapshot(a_reservation(), soon))
    assert said[0].startswith("reservation class: n[1-2] until ")
    assert said[1].startswith("reservation soon keeps n3 from ")
    assert words(a_waiting(reservation="gone"), a_snapshot()) == [
        "reservation gone: Slurm has none of this name"
    ]


def test_reservations_without_nodes_are_named_unless_they_need_none() -> None:
    empty = a_reservation("empty", "")
    licences = a_reservation("licences", "", flags="ANY_NODES")
    assert oddities({each.name: each for each in (empty, licences)}) == [
        "reservation empty has no nodes: jobs that ask for it wait"
    ]


READ: dict[str, Any] = {
    "name": "class",
    "node_list": "n[1-2]",
    "start_time": {"set": True, "infinite": False, "number": 1000},
    "end_time": {"set": True, "infinite": False, "number": 2000},
    "flags": ["SPEC_NODES"],
    "users": "alice,bob",
    "accounts": "",
    "groups": "",
    "core_count": 32,
    "core_specializations": [],
    "licenses": "",
}


def test_a_reservation_is_read() -> None:
    assert reservation_record(READ) == Reservation(
        name="class",
        nodes=frozenset({"n1", "n2"}),
        start=1000.0,
        end=2000.0,
        flags=frozenset({"SPEC_NODES"}),
        users=frozenset({"alice", "bob"}),
    )
    some = READ | {"core_specializations": [{"node": "n1", "core": "0-3"}], "flags": []}
    assert reservation_record(some | {"core_count": 4}).part == "4 cores"


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_list": "n[1-99999999]"},
        {"node_list": 7},
        {"end_time": {"set": True, "infinite": False, "number": 10}},
        {"flags": "MAINT"},
        {"name": None},
        {"users": ["alice"]},
    ],
)
def test_a_reservation_that_makes_no_sense_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecordFault) as caught:
        reservation_record(READ | wrong)
    assert caught.value.record.startswith("reservation ")


@pytest.mark.parametrize("reason", ["Reservation class was deleted", "ReservationDeleted"])
def test_a_job_that_slurm_holds_since_its_reservation_ended_is_not_ours(reason: str) -> None:
    assert not held_for_onesd(Waits(reason=reason, restarts=0), Known())
