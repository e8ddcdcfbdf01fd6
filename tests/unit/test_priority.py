"""Slurm's multifactor priority, computed as slurmctld does it; figures are those of `sprio -l`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_slurm import a_record
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.priority import (
    TIERS,
    Multifactor,
    QosFactors,
    Weights,
    tres_in,
)
from ones.slurm_ext.priority_reader import PriorityReader
from ones.slurm_ext.snapshot import JobRecord

TRES = "cpu=64,mem=125G,node=4,billing=64,gres/gpu=16,gres/gpu:k80=8,gres/gpu:v100=8"
CONFIG = """\
PreemptType             = (null)
PriorityMaxAge          = 01:00:00
PriorityFavorSmall      = no
PriorityFlags           =
PrioritySiteFactorPlugin = (null)
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000000
PriorityWeightAssoc     = 700
PriorityWeightFairShare = 10000
PriorityWeightJobSize   = 5000
PriorityWeightPartition = 2000
PriorityWeightQOS       = 3000
PriorityWeightTRES      = CPU=100,Mem=200,GRES/gpu=4000
"""
QOS = "normal|10|\nfast|50|normal\n"
ASSOCIATIONS = """\
root|||
language|||5
language|carol||
language|dave||5
vision|alice||7
vision|bob||20
"""
NO_NORMAL = frozenset({"NO_NORMAL_ALL"})  # which Slurm prints of each of the others, too
SHARES = """\
root|||
 language|||
  language|carol||1.000000
  language|dave||0.571429
 vision|||
  vision|alice||0.285714
"""


def partition(name: str, factor: int, tier: int) -> dict[str, object]:
    return {
        "name": name,
        "priority": {"job_factor": factor, "tier": tier},
        "maximums": {"time": {"set": True, "infinite": False, "number": 1440}},
        "tres": {"configured": TRES},
    }


PARTITIONS = [partition("gpu", 1, 1), partition("low", 10, 1), partition("high", 40, 5)]


class Answers(Commands):
    """Slurm's programs, some of which may be out of order."""

    def __init__(self, *, config: str = CONFIG, partitions: object = PARTITIONS) -> None:
        super().__init__()
        self.config = config
        self.partitions = partitions
        self.down: set[str] = set()
        self.associations = {"": ASSOCIATIONS}  # by cluster
        self.asked: list[str] = []

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        self.asked.append(program)
        if program in self.down:
            raise SlurmError(program, "Unable to contact it")
        match (program, *args):
            case ("scontrol", "show", "config"):
                return self.config
            case ("scontrol", "show", "partition", *_):
                return json.dumps({"partitions": self.partitions})
            case ("sinfo", *_):
                return "n1|16\nn1|16\nn2|16\nn3|16\nn4|16\n"
            case ("sshare", *_):
                return SHARES
            case ("sacctmgr", "-nP", "show", "qos", _):
                return QOS
            case ("sacctmgr", *_):
                named = [arg[8:] for arg in args if arg.startswith("cluster=")]
                return "".join(self.associations[name] for name in named or self.associations)
        raise AssertionError(program)


def reader(answers: Commands, clock: Callable[[], float] = lambda: 0.0) -> PriorityReader:
    return PriorityReader(answers, clock)


def waiting(number: int, user: str = "alice", **more: object) -> JobRecord:
    base = a_record(
        number,
        user=user,
        account="language" if user in ("carol", "dave") else "vision",
        tres="cpu=1,mem=500M,node=1,billing=1,gres/gpu=2",
    )
    return replace(base, **more)  # type: ignore[arg-type]


SPRIO = [
    (waiting(2), 56, 20474),
    (
        waiting(
            3,
            partition="high",
            qos="fast",
            nodes_wanted=(2, 2),
            cpus=2,
            tres="cpu=2,mem=1000M,node=2,billing=2,gres/gpu=4",
        ),
        56,
        25990,
    ),
    (
        waiting(
            4,
            partition="low",
            nice=50,
            cpus=4,
            tres="cpu=4,mem=4000M,node=1,billing=4,gres/gpu=1",
        ),
        56,
        20751,
    ),
    (waiting(5), 21, 10751),
    (waiting(8, "carol"), 56, 27371),
    (waiting(9, "carol", partition="high,low"), 56, 29321),
    (
        waiting(
            13,
            "dave",
            nodes_wanted=(4, 4),
            cpus=4,
            tres="cpu=4,mem=2000M,node=4,billing=4,gres/gpu=16",
        ),
        0,
        13204,
    ),
    (waiting(19, "dave", nice=100000), 0, 1),
]


@pytest.mark.parametrize(("job", "waited", "priority"), SPRIO)
def test_the_priority_is_sprios(job: JobRecord, waited: float, priority: int) -> None:
    order = reader(Answers()).order()
    found = order.priority(replace(job, held=True, priority=0), requested=0, waited=waited)
    assert found is not None
    assert abs(found - priority) <= 1


def test_a_job_counts_with_its_own_request_however_large_it_is_now() -> None:
    order = reader(Answers()).order()
    grown = waiting(
        2, nodes_wanted=(2, 2), cpus=4, tres="cpu=4,mem=2000M,node=2,billing=4,gres/gpu=8"
    )
    assert order.priority(grown, requested=2, waited=56) == order.priority(
        waiting(2), requested=2, waited=56
    )


def test_age_ends_where_slurm_ends_it() -> None:
    order = Multifactor(weights=Weights(age=1000.0, max_age=3600.0), partitions={})
    ages = [order.priority(waiting(1), requested=2, waited=t) for t in (-5.0, 1800.0, 9e9)]
    assert ages == [1, 500, 1000]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (Weights(job_size=1000.0), 132),  # (1/4 + 1/64) / 2
        (Weights(job_size=1000.0, favor_small=True), 867),
        (Weights(job_size=1000.0, flags=frozenset({"SMALL_RELATIVE_TO_TIME"})), 4),
        (Weights(partition=3.0, flags=frozenset({"NO_NORMAL_PART"})), 120),
        (Weights(qos=3.0, flags=frozenset({"NO_NORMAL_QOS"})), 30),
        (Weights(association=3.0, flags=frozenset({"NO_NORMAL_ASSOC"})), 21),
        (Weights(tres={"gres/gpu:v100": 800.0}), 200),
        (Weights(tres={"gres/gpu": 8.0}, flags=frozenset({"NO_NORMAL_TRES"})), 16),
        (Weights(partition=3.0, flags=NO_NORMAL), 120),
        (Weights(qos=3.0, flags=NO_NORMAL), 30),
        (Weights(association=3.0, flags=NO_NORMAL), 21),
        (Weights(tres={"gres/gpu": 8.0}, flags=NO_NORMAL), 16),
    ],
)
def test_slurms_flags_and_weights_are_followed(weights: Weights, expected: int) -> None:
    order = replace(reader(Answers()).order(), weights=weights)
    job = waiting(2, partition="high", time_limit=3600.0, tres="cpu=1,gres/gpu=2,gres/gpu:v100=2")
    assert order.priority(job, requested=2, waited=0) == expected


def test_a_job_of_many_nodes_and_few_cpus_is_as_large_as_its_nodes() -> None:
    weights = Weights(job_size=1e6, flags=frozenset({"SMALL_RELATIVE_TO_TIME"}))
    order = Multifactor(weights=weights, partitions={}, nodes=4, cpus=64)
    job = a_record(1, nodes_wanted=(2, 2), cpus=2, time_limit=3600.0, tres="cpu=2,node=2")
    assert order.priority(job, requested=0, waited=0.0) == 8333  # 32 of 64 CPUs for 60 minutes
    assert order.priority(replace(job, cpus=48), requested=0, waited=0.0) == 12500


def test_a_user_without_an_association_has_no_share() -> None:
    order = replace(reader(Answers()).order(), weights=Weights(fair_share=1000.0))
    assert order.priority(waiting(1, "mallory"), requested=2, waited=0) == 1


def test_an_association_of_the_partition_comes_before_that_of_the_account() -> None:
    shares = {("vision", "alice", ""): 0.5, ("vision", "alice", "low"): 0.25}
    order = Multifactor(weights=Weights(fair_share=100.0), partitions={}, fair_shares=shares)
    assert order.priority(waiting(1, partition="gpu"), requested=2, waited=0) == 50
    assert order.priority(waiting(1, partition="low"), requested=2, waited=0) == 25


def test_tiers_are_the_partitions_and_above_them_a_qos_that_may_preempt() -> None:
    order = reader(Answers()).order()
    names = ("gpu", "low", "high", "gpu,high", "gone")
    assert [order.tier(waiting(1, partition=name)) for name in names] == [1, 1, 5, 5, 1]
    assert order.tier(waiting(1, qos="fast")) == 1
    by_qos = replace(order, weights=replace(order.weights, by_qos=True))
    assert by_qos.tier(waiting(1, qos="fast")) == TIERS + 1
    assert by_qos.tier(waiting(1, qos="removed")) == 1


def test_qos_that_may_preempt_each_other_are_of_one_tier() -> None:
    qos = {
        "a": QosFactors(preempts=frozenset({"b"})),
        "b": QosFactors(preempts=frozenset({"a"})),
    }
    order = Multifactor(weights=Weights(by_qos=True), partitions={}, qos=qos)
    assert order.tier(waiting(1, qos="a")) == order.tier(waiting(1, qos="b"))


def test_without_multifactor_there_is_no_priority_and_still_a_tier() -> None:
    basic = CONFIG.replace("priority/multifactor", "priority/basic")
    order = reader(Answers(config=basic)).order()
    assert order.priority(waiting(2), requested=2, waited=56) is None
    assert order.tier(waiting(2, partition="high")) == 5
    assert not order.trouble


def test_what_has_no_weight_is_not_read() -> None:
    answers = Answers(config="PriorityType = priority/multifactor\nPriorityWeightAge = 5\n")
    assert not reader(answers).order().trouble
    assert sorted(set(answers.asked)) == ["scontrol", "sinfo"]


def test_reading_is_bounded_however_often_it_is_asked() -> None:
    answers, now = Answers(), [0.0]
    reading = reader(answers, lambda: now[0])
    for _ in range(100):
        reading.order()
        now[0] += 0.1
    assert len(answers.asked) == 6
    answers.down = {"sshare"}
    for _ in range(100):
        reading.order()
        now[0] += 1.0
    assert answers.asked.count("sshare") <= 5


def test_where_sshare_is_down_jobs_go_by_their_submission_and_that_is_said() -> None:
    answers = Answers()
    answers.down = {"sshare"}
    order = reader(answers).order()
    assert order.priority(waiting(2), requested=2, waited=56) is None
    assert order.tier(waiting(2, partition="high")) == 5
    assert order.trouble == "sshare: Unable to contact it: jobs go by their submission"


def test_associations_are_those_of_this_cluster_where_slurmdbd_knows_several() -> None:
    answers = Answers(config=f"{CONFIG}ClusterName             = ones\n")
    theirs = ASSOCIATIONS.replace("vision|bob||20", "vision|bob||7")
    answers.associations = {"ones": ASSOCIATIONS, "theirs": theirs}
    assert reader(answers).order().associations["vision", "bob", ""] == 20.0


def test_what_was_read_once_holds_while_a_program_is_down() -> None:
    answers, now = Answers(), [0.0]
    reading = reader(answers, lambda: now[0])
    before = reading.order().priority(waiting(2), requested=2, waited=56)
    answers.down, now[0] = {"sacctmgr"}, 1000.0
    order = reading.order()
    assert order.priority(waiting(2), requested=2, waited=56) == before
    assert "sacctmgr" in order.trouble
    answers.down, now[0] = set(), 2000.0
    assert not reading.order().trouble


def test_without_slurms_configuration_there_is_no_order() -> None:
    answers = Answers()
    answers.down = {"scontrol"}
    with pytest.raises(SlurmError):
        reader(answers).order()


def test_a_partition_that_makes_no_sense_is_left_out() -> None:
    odd: list[object] = [{"name": "odd"}, 7, {**partition("worse", 1, 1), "tres": None}]
    order = reader(Answers(partitions=[*PARTITIONS, *odd])).order()
    assert sorted(order.partitions) == ["gpu", "high", "low"]


def test_a_factor_of_the_sites_own_is_said_to_be_missing() -> None:
    config = CONFIG.replace("FactorPlugin = (null)", "FactorPlugin = site_factor/ours")
    assert "PrioritySiteFactorPlugin" in reader(Answers(config=config)).order().trouble


def test_amounts_are_read_with_their_units() -> None:
    assert tres_in("cpu=4,mem=125G,gres/gpu:v100=2,billing=4,mem2=x,=3,") == {
        "cpu": 4.0,
        "mem": 128000.0,
        "gres/gpu:v100": 2.0,
        "billing": 4.0,
    }


@given(text=st.text(max_size=200))
def test_no_text_breaks_the_reading_of_amounts(text: str) -> None:
    assert all(value >= 0 for value in tres_in(text).values())


@given(config=st.text(max_size=300), line=st.text(max_size=80))
def test_no_answer_of_slurms_breaks_its_order(config: str, line: str) -> None:
    answers = Answers(config=f"{CONFIG}{config}\nPriorityMaxAge={line}\n")
    found = reader(answers).order().priority(waiting(2), requested=2, waited=56)
    assert found is None or 1 <= found < 2**32
