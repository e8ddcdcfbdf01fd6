"""Which of several limits counts for a job, what is held of it, and what a shape would take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_slurm import a_record

from ones.policies.model import Cap, Job, JobId, Take
from ones.slurm_ext.allowed import too_long
from ones.slurm_ext.elastic import elastic_jobs, plain_jobs, waiting_plain_jobs
from ones.slurm_ext.limited import Used, caps, rules, stopped
from ones.slurm_ext.limits import Association, Partition, Qos, SiteLimits
from ones.slurm_ext.snapshot import JobRecord, NodeRecord, Reservation, Snapshot

GPU = "gres/gpu"
MARK = "ONES1:sizes=1-8;request=2;held=1"


def a_node(name: str, kind: str = "v100") -> NodeRecord:
    return NodeRecord(
        name=name,
        states=frozenset({"IDLE"}),
        gpu_type=kind,
        gpus=4,
        partitions=frozenset({"gpu"}),
    )


def a_job(number: int = 1, gpus: int = 0, **changes: Any) -> JobRecord:
    """Elastic, of 2 GPUs; running where it has some."""
    values: dict[str, Any] = {"tres_per_job": f"{GPU}:2", "admin_comment": MARK}
    if gpus:
        values |= {"state": "RUNNING", "held": False, "nodes": "n1", "gpus_on": {"n1": gpus}}
    return a_record(number, **(values | changes))


def plain(number: int, gpus: int, **changes: Any) -> JobRecord:
    return a_job(number, gpus, **({"admin_comment": ""} | changes))


def limits(*what: Qos | Association | Partition) -> SiteLimits:
    associations = [Association(account="vision"), Association(account="vision", user="alice")]
    associations += [one for one in what if isinstance(one, Association)]
    return SiteLimits(
        enforced=True,
        qos={"normal": Qos(name="normal")} | {q.name: q for q in what if isinstance(q, Qos)},
        associations={one.key: one for one in associations},
        partitions={one.name: one for one in what if isinstance(one, Partition)},
    )


def seen(*jobs: JobRecord, **nodes: NodeRecord) -> Snapshot:
    known = {name: a_node(name) for name in ("n1", "n2")} | nodes
    return Snapshot(taken=0.0, jobs={job.id: job for job in jobs}, nodes=known, switches={})


def planned(site: SiteLimits, snapshot: Snapshot) -> tuple[Job, ...]:
    jobs, ignored = elastic_jobs(snapshot, limits=site)
    assert ignored == {}
    return tuple(jobs)


def the_cap(site: SiteLimits, snapshot: Snapshot) -> Cap:
    jobs, used = planned(site, snapshot), Used(site, snapshot)
    met = stopped(used, waiting_plain_jobs(snapshot, jobs), jobs)
    found, unknown = caps(used, jobs, met)
    assert unknown == ()
    (cap,) = found
    return cap


def told(site: SiteLimits, record: JobRecord) -> list[tuple[str, int]]:
    return [(rule.words, rule.most) for rule in rules(site, record)]


def test_what_all_hold_is_counted_and_the_rest_is_left() -> None:
    site = limits(Qos(name="normal", a_user={GPU: 6}))
    snapshot = seen(a_job(1, 2), a_job(2), plain(3, 3), plain(4, 4, user="bob"))
    cap = the_cap(site, snapshot)
    assert cap.words == "QOS normal allows 6 GPUs a user; alice has 5"
    assert cap.left == 3.0  # what its own jobs hold may be shared out anew
    assert cap.takes == {JobId(1): Take(gpu=1.0), JobId(2): Take(gpu=1.0)}
    assert cap.held == {JobId(1): 2.0, JobId(2): 0.0}


def test_a_plain_job_that_a_limit_stops_wants_no_room_and_is_named_by_the_limit() -> None:
    """Slurm says so only once it has found nodes for it; until then others are ahead of it."""
    site = limits(Qos(name="normal", a_user={GPU: 6}))
    snapshot = seen(a_job(1, 2), plain(2, 4), plain(3, 0, held=False, reason="Priority"))
    jobs = planned(site, snapshot)
    assert [job.id for job in waiting_plain_jobs(snapshot, jobs)] == [3]
    met = stopped(Used(site, snapshot), waiting_plain_jobs(snapshot, jobs), jobs)
    assert met == {3: {(("qos", "normal", "user", "alice"), GPU): 2}}
    assert [job.id for job in plain_jobs(snapshot, jobs, stopped=met)] == [2]
    assert [job.id for job in plain_jobs(snapshot, jobs)] == [2, 3]
    words = "QOS normal allows 6 GPUs a user; alice has 6"
    assert the_cap(site, snapshot).awaited == f"{words}; job 3 waits for it"
    assert the_cap(site, snapshot).lacks == 2.0  # Slurm has none of it free


def test_one_that_elastic_jobs_stop_beyond_their_requests_still_wants_its_room() -> None:
    site = limits(Qos(name="normal", a_user={GPU: 8}))
    snapshot = seen(a_job(1, 4), plain(2, 4), plain(3, 0, held=False, reason="Resources"))
    jobs = planned(site, snapshot)
    assert stopped(Used(site, snapshot), waiting_plain_jobs(snapshot, jobs), jobs) == {}


def test_a_limit_out_of_reach_is_no_cap() -> None:
    site = limits(Qos(name="normal", together={GPU: 100}))
    snapshot = seen(a_job(1))
    assert caps(Used(site, snapshot), planned(site, snapshot), {}) == ((), ())


def test_a_partitions_qos_speaks_before_the_jobs_own() -> None:
    tight = Qos(name="tight", a_user={GPU: 2})
    own = Qos(name="normal", a_user={GPU: 6}, jobs_a_user=3)
    site = limits(own, tight, Partition(name="gpu", qos="tight"))
    assert told(site, a_job()) == [
        ("QOS tight allows 2 GPUs a user", 2),
        ("QOS normal allows 3 running jobs a user", 3),
    ]
    over = limits(replace(own, flags=frozenset({"OverPartQOS"})), tight, *site.partitions.values())
    assert told(over, a_job())[0] == ("QOS normal allows 6 GPUs a user", 6)


def test_what_a_qos_says_of_a_sum_an_association_has_no_say_in() -> None:
    account = Association(account="vision", parent="root", together={GPU: 4, "node": 2}, jobs=9)
    root = Association(account="root", together={GPU: 12})
    site = limits(account, root)
    assert told(site, a_job()) == [
        ("account vision allows 4 GPUs", 4),
        ("account vision allows 2 nodes", 2),
        ("account vision allows 9 running jobs", 9),
        ("account root allows 12 GPUs", 12),
    ]
    site = limits(account, root, Qos(name="normal", together={GPU: 8}))
    assert [most for _, most in told(site, a_job())] == [8, 2, 9]


@pytest.mark.parametrize(
    ("site", "most", "words"),
    [
        (limits(Qos(name="normal", a_job={GPU: 3})), 3, "QOS normal allows 3 GPUs a job"),
        (limits(Qos(name="normal", a_node={GPU: 1})), 2, "QOS normal allows 1 GPU of one node"),
        (limits(Qos(name="normal", a_job={"node": 1})), 4, "QOS normal allows 1 node a job"),
        (limits(Partition(name="gpu", most_nodes=1)), 4, "partition gpu allows 1 node a job"),
        (
            limits(Association(account="vision", user="alice", a_job={GPU: 1})),
            1,
            "account vision allows alice 1 GPU a job",
        ),
    ],
)
def test_a_limit_on_one_job_bounds_its_shapes(site: SiteLimits, most: int, words: str) -> None:
    (job,) = planned(site, seen(a_job()))
    assert max(shape.gpus for shape in job.shapes) == most
    assert job.limited == words


def test_a_qos_may_ask_for_a_least_size() -> None:
    (job,) = planned(limits(Qos(name="normal", least={GPU: 4})), seen(a_job()))
    assert min(shape.gpus for shape in job.shapes) == 4
    assert job.limited == "QOS normal asks for at least 4 GPUs a job"


def test_a_job_that_runs_keeps_its_shape_and_one_that_waits_without_any_says_why() -> None:
    site = limits(Qos(name="normal", a_job={GPU: 1}))
    (running,) = planned(site, seen(a_job(1, 4)))
    assert {shape.gpus for shape in running.shapes} == {1, 4}
    (waiting,) = planned(site, seen(a_job(1, admin_comment="ONES1:sizes=2-8;request=2;held=1")))
    assert (waiting.startable, waiting.fixed) == (False, "QOS normal allows 1 GPU a job")


def test_a_time_limit_beyond_what_is_allowed_keeps_a_job_from_starting() -> None:
    site = limits(Partition(name="gpu", wall=1800.0))
    assert too_long(site, a_job()) == "partition gpu allows 0:30:00; it asks for 1:00:00"
    site = limits(Qos(name="normal", wall=60.0, flags=frozenset({"PartitionTimeLimit"})))
    assert too_long(site, a_job()) == "QOS normal allows 0:01:00; it asks for 1:00:00"
    assert too_long(site, a_job(time_limit=30.0)) == ""


def test_limits_that_slurm_does_not_apply_count_for_nobody() -> None:
    site = replace(limits(Qos(name="normal", a_job={GPU: 1}, a_user={GPU: 1})), enforced=False)
    snapshot = seen(a_job())
    (job,) = planned(site, snapshot)
    assert max(shape.gpus for shape in job.shapes) == 8
    assert caps(Used(site, snapshot), [job], {}) == ((), ())


def test_what_is_not_there_is_named_once() -> None:
    site = SiteLimits(enforced=True, qos={})
    snapshot = seen(a_job(1), a_job(2))
    _, unknown = caps(Used(site, snapshot), planned(site, snapshot), {})
    assert "no association of alice in account vision: planned without its limits" in unknown
    assert len(unknown) == 3


def test_a_limit_on_one_type_counts_only_that() -> None:
    site = limits(Qos(name="normal", together={f"{GPU}:v100": 4}))
    snapshot = seen(a_job(1), plain(2, 2), plain(3, 4, nodes="n3", gpus_on={"n3": 4}), n3=K80)
    cap = the_cap(site, snapshot)
    assert (cap.left, cap.gpu_type) == (2.0, "v100")
    assert cap.words == "QOS normal allows 4 v100 GPUs in all; it has 2"


K80 = a_node("n3", "k80")


MATLAB = "license/matlab"


def test_memory_is_counted_over_all_jobs_and_grows_with_the_form_that_it_was_asked_for_in() -> None:
    site = limits(Qos(name="normal", a_user={"mem": 64 * 1024}))
    per_gpu: dict[str, Any] = {"memory_per_gpu": "gres/gpu:8192", "memory": 8192}
    running = a_job(1, 2, tres="cpu=2,mem=16G,node=1,gres/gpu=2", **per_gpu)
    plain_one = plain(2, 1, tres="cpu=1,mem=32G,node=1,gres/gpu=1")
    cap = the_cap(site, seen(running, plain_one))
    assert cap.words == "QOS normal allows 64G of memory a user; alice has 48G"
    assert (cap.left, cap.held) == (32 * 1024, {JobId(1): 16 * 1024})
    assert cap.takes == {JobId(1): Take(gpu=8192.0)}


def test_a_plain_job_that_memory_stops_wants_no_room() -> None:
    site = limits(Qos(name="normal", a_user={"mem": 8192}))
    waits = plain(3, 0, held=False, reason="Priority", tres="cpu=1,mem=6G,node=1,gres/gpu=2")
    snapshot = seen(plain(2, 1, tres="cpu=1,mem=4G,node=1,gres/gpu=1"), waits)
    met = stopped(Used(site, snapshot), waiting_plain_jobs(snapshot, ()), ())
    assert met == {3: {(("qos", "normal", "user", "alice"), "mem"): 6144}}


def test_memory_that_a_job_holds_beyond_its_request_stops_no_plain_one() -> None:
    """2 GPUs at its request: of its 4 GPUs' memory half is lent."""
    site = limits(Qos(name="normal", a_user={"mem": 8192}))
    form: dict[str, Any] = {"memory_per_gpu": "gres/gpu:1024", "memory": 1024}
    grown = a_job(1, 4, tres="cpu=4,mem=4G,node=1,gres/gpu=4", **form)
    waits = plain(3, 0, held=False, reason="Priority", tres="cpu=1,mem=6G,node=1,gres/gpu=2")
    snapshot = seen(grown, waits)
    jobs = planned(site, snapshot)
    assert stopped(Used(site, snapshot), waiting_plain_jobs(snapshot, jobs), jobs) == {}


@pytest.mark.parametrize(
    ("site", "most", "words"),
    [
        (Qos(name="normal", a_job={"mem": 3000}), 2, "QOS normal allows 3000M of memory a job"),
        (Qos(name="normal", a_node={"mem": 2048}), 4, "QOS normal allows 2G of memory of one node"),
    ],
)
def test_a_limit_on_the_memory_of_one_job_bounds_its_shapes(
    site: Qos, most: int, words: str
) -> None:
    form: dict[str, Any] = {"memory_per_gpu": "gres/gpu:1024", "tres": "cpu=1,mem=2G,gres/gpu=2"}
    (job,) = planned(limits(site), seen(a_job(**form)))
    assert max(shape.gpus for shape in job.shapes) == most
    assert job.limited == words


def test_a_qos_may_ask_for_a_least_of_memory() -> None:
    form: dict[str, Any] = {"memory_per_gpu": "gres/gpu:1024", "tres": "cpu=1,mem=2G,gres/gpu=2"}
    (job,) = planned(limits(Qos(name="normal", least={"mem": 4096})), seen(a_job(**form)))
    assert min(shape.gpus for shape in job.shapes) == 4
    assert job.limited == "QOS normal asks for at least 4G of memory a job"


def per_cpu(**changes: Any) -> JobRecord:
    """One task a GPU, with 1000 MiB a CPU."""
    mark = f"{MARK};tasks=2;nodes=1;mem=yes;cpu=no"
    form: dict[str, Any] = {"memory": 1000, "tasks": 2, "tres": "cpu=2,mem=2000M,gres/gpu=2"}
    return a_job(admin_comment=mark, **(form | changes))


def test_a_partition_bounds_the_memory_of_a_node_but_for_that_of_gpus() -> None:
    """As slurmctld does (24.11): MaxMemPerNode is for memory per node and per CPU."""
    site = limits(Partition(name="gpu", most_memory=3000))
    (job,) = planned(site, seen(per_cpu()))
    assert max(shape.gpus_per_node for shape in job.shapes) == 3
    assert job.limited == "partition gpu allows 3000M of memory of one node"
    (job,) = planned(site, seen(per_cpu(memory_per_gpu="gres/gpu:1000")))
    assert max(shape.gpus_per_node for shape in job.shapes) == 4


def clusters(total: int = 4) -> SiteLimits:
    return SiteLimits(licenses={"matlab": total})


def test_the_clusters_licences_are_counted_whoever_has_them() -> None:
    """Also where Slurm enforces no limits of QOS and associations, and whether with GPUs or not."""
    others = plain(3, 0, state="RUNNING", nodes="n2", licenses="ansys:9,matlab:1")
    snapshot = seen(a_job(1, 2, licenses="matlab:2"), a_job(2, licenses="matlab:2"), others)
    cap = the_cap(clusters(), snapshot)
    assert cap.words == "the cluster has 4 matlab licences; jobs have 3"
    assert (cap.left, cap.held) == (3.0, {JobId(1): 2.0, JobId(2): 0.0})
    assert cap.takes == {JobId(1): Take(once=2.0), JobId(2): Take(once=2.0)}


def test_licences_that_reservations_keep_from_a_job_are_not_for_it() -> None:
    """Also those of one to come, that begins before the job's time limit is over."""
    ours = a_job(1, licenses="matlab:2")
    theirs = a_job(2, licenses="matlab:2", reservation="lic")
    kept = Reservation(
        name="lic", nodes=frozenset(), start=1800.0, licenses="matlab:3", flags=ANY_NODES
    )
    snapshot = replace(seen(ours, theirs), reservations={"lic": kept})
    assert the_cap(clusters(), snapshot).left == 1.0
    words = "the cluster has 4 matlab licences, 3 of them reserved; jobs have 0"
    assert the_cap(clusters(), snapshot).words == words
    short = replace(snapshot, jobs={1: replace(ours, time_limit=900.0), 2: theirs})
    assert caps(Used(clusters(), short), planned(clusters(), short), {}) == ((), ())


ANY_NODES = frozenset({"ANY_NODES"})


def test_a_job_that_waits_for_a_licence_is_named_by_it_without_gpus_too() -> None:
    waits = plain(3, 0, tres_per_job="", held=False, reason="Licenses", licenses="matlab:4")
    snapshot = seen(a_job(1, 2, licenses="matlab:2"), waits)
    jobs = planned(clusters(), snapshot)
    met = stopped(Used(clusters(), snapshot), waiting_plain_jobs(snapshot, jobs), jobs)
    assert met == {3: {(("license/", "matlab"), MATLAB): 4}}
    words = "the cluster has 4 matlab licences; jobs have 2; job 3 waits for it"
    assert the_cap(clusters(), snapshot).awaited == words


def test_licences_are_a_limit_of_a_qos_as_well() -> None:
    site = limits(Qos(name="normal", together={MATLAB: 1}, a_job={MATLAB: 1}))
    (job,) = planned(site, seen(a_job(licenses="matlab:2")))
    assert (job.startable, job.limited) == (False, "QOS normal allows 1 matlab licence a job")
    snapshot = seen(a_job(1, 2, licenses="matlab"), a_job(2, licenses="matlab"))
    assert the_cap(site, snapshot).words == "QOS normal allows 1 matlab licence in all; it has 1"


def test_licences_of_which_nobody_can_tell_which_the_job_takes_count_for_nothing() -> None:
    snapshot = seen(a_job(1, licenses="matlab:5|ansys:5"), a_job(2, licenses="maple:5"))
    assert caps(Used(clusters(), snapshot), planned(clusters(), snapshot), {}) == ((), ())
