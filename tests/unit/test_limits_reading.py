"""What sacctmgr and scontrol print of limits: read where it makes sense, named where it doesn't."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable
from ones.slurm_ext.limits import Association, SiteLimits
from ones.slurm_ext.limits_reading import (
    Faults,
    amounts_in,
    associations_in,
    partitions_in,
    qos_in,
    read_limits,
    totals_in,
    used_in,
)

QOS = (  # of Slurm 24.11
    "normal|DenyOnLimit,OverPartQOS|cpu=44|gres/gpu=600||gres/gpu:v100=3,gres/gpu=4|gres/gpu=9"
    "|gres/gpu=5|gres/gpu=2|gres/gpu=1|7||10:00:00\n"
    "free||||||||||||\n"
)
ASSOCIATIONS = (
    "root||||||||||\n"
    "root|ones|||||||||\n"
    "vision|||root|gres/gpu=6,mem=100G||5|node=2||3|\n"
    "vision|alice|||gres/gpu=5|||node=2||2|01:40:00\n"
    "vision|bob|long|||||node=2||3|\n"
)
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL QoS=tight MaxNodes=2 MaxTime=1-00:00:00 MinNodes=0"
    " Nodes=n[1-4] State=UP JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=700 DefMemPerCPU=500"
    " MaxMemPerCPU=1000\n"
    "PartitionName=all QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=1 Nodes=n[1-4]"
    " JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
)
LICENSES = json.dumps(
    {
        "licenses": [
            {"LicenseName": "matlab", "Total": 4, "Used": 3, "LastDeficit": 0, "Remote": False},
            {"LicenseName": "ansys@server", "Total": 10, "Used": 0, "LastDeficit": 3},
        ]
    }
)
CONFIG = (
    "ClusterName             = ones\nAccountingStorageEnforce = associations,limits,qos\n"
    "DefMemPerCPU            = 250\nMaxMemPerNode           = 64000\n"
)
USED = (
    "QOS=normal(1) UsageRaw=0 GrpTRES=cpu=N(0) GrpTRESMins=cpu=N(12),mem=N(99),gres/gpu=600(61),"
    "gres/gpu:v100=N(61) GrpTRESRunMins=cpu=N(0)\n"
    "ClusterName=ones Account=vision UserName= Partition= ID=3 GrpTRESMins=gres/gpu=90(90) X=1\n"
    "ClusterName=ones Account=vision UserName=alice(2001) GrpTRESMins=gres/gpu=N(5) X=1\n"
)


class Printed(Commands):
    """Commands whose programs print what they are told to."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self._answer = answer
        self.asked: list[str] = []

    def run(self, program: str, *args: str, timeout: float | None = None) -> str:
        words = " ".join((program, *args))
        self.asked.append(words)
        return self._answer(words)


def printed(words: str) -> str:
    for part, text in (
        ("show config", CONFIG),
        ("show partition", PARTITIONS),
        ("show licenses", LICENSES),
        ("show qos", QOS),
        ("show assoc ", ASSOCIATIONS),
        ("assoc_mgr", USED),
    ):
        if part in words:
            return text
    raise AssertionError(words)


def test_all_limits_are_read_in_six_calls() -> None:
    commands = Printed(printed)
    found = read_limits(commands)
    assert len(commands.asked) == 6
    assert (found.enforced, found.unread, found.faults) == (True, "", ())
    normal = found.qos["normal"]
    assert normal.a_user == {"gres/gpu:v100": 3, "gres/gpu": 4}
    assert (normal.a_job, normal.a_node, normal.least) == (
        {"gres/gpu": 5},
        {"gres/gpu": 2},
        {"gres/gpu": 1},
    )
    assert (normal.jobs, normal.jobs_a_user, normal.wall) == (None, 7, 36000.0)
    assert "OverPartQOS" in normal.flags
    vision = found.associations["vision", "", ""]
    assert (vision.together, vision.jobs) == ({"gres/gpu": 6, "mem": 102400}, 5)
    alice = found.association("vision", "alice", "gpu")
    assert alice is not None
    assert (alice.own_jobs, alice.wall, alice.a_job) == (2, 6000.0, {"node": 2})
    assert found.association("vision", "bob", "gpu") is None
    assert [one.account for one in found.above("vision")] == ["vision", "root"]
    gpu = found.partitions["gpu"]
    assert (gpu.most_nodes, gpu.wall, gpu.qos) == (2, 86400.0, "tight")
    assert (gpu.most_memory, gpu.memory_per_cpu, gpu.memory_per_gpu) == (None, 500, 700)
    whole = found.partitions["all"]
    assert (whole.most_nodes, whole.most_memory) == (None, 64000)
    assert (whole.memory_per_cpu, whole.memory_per_gpu) == (250, 0)
    assert found.licenses == {"matlab": 4, "ansys@server": 7}
    assert found.used == {
        ("qos", "normal"): {"cpu": 12, "mem": 99, "gres/gpu": 61, "gres/gpu:v100": 61}
    }


def test_limits_that_slurm_does_not_apply_are_not_asked_for() -> None:
    config = CONFIG.replace("associations,limits,qos", "associations")
    commands = Printed(lambda words: config if "config" in words else printed(words))
    found = read_limits(commands)
    assert (found.enforced, found.qos, len(commands.asked)) == (False, {}, 3)
    assert found.licenses["matlab"] == 4
    assert found.partitions["gpu"].most_nodes == 2


def test_without_slurmdbd_the_partitions_limits_are_known_and_the_rest_is_said() -> None:
    def answer(words: str) -> str:
        if "sacctmgr" in words:
            raise SlurmError("sacctmgr show qos", "Connection refused")
        return printed(words)

    found = read_limits(Printed(answer))
    assert "Connection refused" in found.unread
    assert found.partitions["gpu"].most_nodes == 2


def test_without_words_on_licences_all_other_limits_are_known() -> None:
    found = read_limits(Printed(lambda words: "" if "licenses" in words else printed(words)))
    assert (found.enforced, found.licenses, bool(found.qos)) == (True, {}, True)
    assert found.faults[0].startswith("licences: ")


def test_without_slurmctld_nothing_is_concluded() -> None:
    def answer(words: str) -> str:
        raise SlurmUnreachable(words, "no answer")

    with pytest.raises(SlurmUnreachable):
        read_limits(Printed(answer))


@pytest.mark.parametrize(
    ("text", "found", "fault"),
    [
        ("", {}, ""),
        ("gres/gpu=-1", {}, ""),
        ("gres/gpu=4,node=2", {"gres/gpu": 4, "node": 2}, ""),
        ("mem=2T", {"mem": 2097152}, ""),
        ("mem=500", {"mem": 500}, ""),
        ("gres/gpu=-4,node=2", {"node": 2}, "'gres/gpu=-4' is no amount"),
        ("gres/gpu=many", {}, "'gres/gpu=many' is no amount"),
        ("gres/gpu=", {}, "'gres/gpu=' is no amount"),
        ("=4", {}, "'=4' is no amount"),
        ("gres/gpu=4,gres/gpu=2", {"gres/gpu": 2}, "gres/gpu is said twice"),
        ("gres/gpu=99999999999999999999999", {}, "is no amount"),
    ],
)
def test_an_amount_that_makes_no_sense_is_named_and_the_rest_counts(
    text: str, found: dict[str, int], fault: str
) -> None:
    faults = Faults()
    assert amounts_in(text, "QOS normal: GrpTRES", faults) == found
    assert bool(faults.words()) == bool(fault)
    if fault:
        assert fault in faults.words()[0]
        assert faults.words()[0].startswith("QOS normal: GrpTRES: ")


def test_limits_in_per_cent_of_the_cluster_are_no_counts() -> None:
    faults = Faults()
    found = qos_in(QOS.replace("OverPartQOS", "Relative"), faults)["normal"]
    assert (found.together, found.a_user, found.a_job, found.least) == ({}, {}, {}, {})
    assert (found.minutes, found.jobs_a_user) == ({"gres/gpu": 600}, 7)
    (words,) = faults.words()
    assert words == "QOS normal: its limits are in per cent (Relative); planned without them"


def test_licences_that_make_no_sense_are_named_and_the_rest_counts() -> None:
    faults = Faults()
    listed = [{"LicenseName": "a", "Total": -4}, 7, {"Total": 3}, {"LicenseName": "b", "Total": 2}]
    assert totals_in(listed, faults) == {"b": 2}
    assert faults.words()[0] == "licence a: its total is -4"


def test_accounts_that_go_round_are_named_and_each_counts_once() -> None:
    faults = Faults()
    text = "a|||b|gres/gpu=4|||||| \nb|||a|gres/gpu=2||||||\nc|||a|||||||\nd|||gone|||||||"
    found = SiteLimits(associations=associations_in(text, faults))
    assert [one.account for one in found.above("c")] == ["c", "a", "b"]
    assert [one.account for one in found.above("d")] == ["d"]
    assert len(faults.words()) == 1
    assert "is above itself" in faults.words()[0]


def test_so_many_faults_are_told_and_no_more() -> None:
    faults = Faults()
    for number in range(50):
        faults.add(f"fault {number}\n of a line")
    assert len(faults.words()) == 21
    assert faults.words()[-1] == "and 30 more limits that make no sense"
    assert "\n" not in "".join(faults.words())


PIPES = st.text(alphabet=st.sampled_from("ab|=,:-/0123456789gpunodeMGT. \n\0é"), max_size=200)


@given(PIPES)
def test_whatever_is_printed_is_read_or_named(text: str) -> None:
    faults = Faults()
    qos_in(text, faults)
    found = associations_in(text, faults)
    partitions_in(text, faults)
    used_in(text, [("qos", "normal")])
    amounts = amounts_in(text, "QOS normal", faults)
    assert all(amount >= 0 for amount in amounts.values())
    limits = SiteLimits(associations=found)
    for account, _, _ in found:
        assert len(list(limits.above(account))) <= len(found)
    assert len(faults.words()) <= 21


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdefg"), max_size=6))
def test_a_tree_of_any_kind_has_an_end(parents: dict[str, str]) -> None:
    tree = {
        (name, "", ""): Association(account=name, parent=parent) for name, parent in parents.items()
    }
    for name in parents:
        names = [one.account for one in SiteLimits(associations=tree).above(name)]
        assert len(names) == len(set(names)) >= 1


@given(
    st.dictionaries(
        st.sampled_from(("cpu", "node", "gres/gpu", "gres/gpu:v100", "mem")),
        st.integers(0, 10**9),
    )
)
def test_what_slurm_prints_of_amounts_is_read_back(amounts: dict[str, int]) -> None:
    faults = Faults()
    text = ",".join(f"{name}={amount}" for name, amount in amounts.items())
    assert amounts_in(text, "", faults) == amounts
    assert faults.words() == ()
