"""Gavel's rounds: shares are kept, nobody starves, leases are renewed, no GPU idles for nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from gavel_rounds_rig import Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import a_cluster, unusable

from ones.policies.catalogue import OFFERS
from ones.policies.gavel import POLICIES
from ones.policies.gavel.rounds_settings import RoundSettings
from ones.policies.model import JobId
from ones.policies.registry import Site, information, make, names


def a_rig(policy: str = "max_min_fairness", nodes: int = 1, gpus: int = 1, **more: object) -> Rig:
    types = more.pop("types", ("v100",))
    cluster = a_cluster(nodes, gpus, types=types)  # type: ignore[arg-type]
    return Rig(make(f"gavel:{policy}:hold=0"), cluster, **more)  # type: ignore[arg-type]


def test_two_jobs_on_one_gpu_get_half_of_the_time_each() -> None:
    rig = a_rig()
    one, other = rig.submit(1), rig.submit(2)
    rig.run(10)
    assert rig.seconds(one) == rig.seconds(other) == 5 * rig.round_seconds


def test_accounts_share_by_their_weights_whatever_the_number_of_their_jobs() -> None:
    for name in ("max_min_fairness", "max_min_fairness_water_filling_perf"):
        cluster = a_cluster(1, 4)
        rig = Rig(make(f"gavel:{name}:weights=physics=3:hold=0"), cluster)
        physics = [rig.submit(i, account="physics") for i in range(1, 5)]
        vision = [rig.submit(i, account="vision") for i in range(5, 11)]
        rig.run(40)
        total = 4 * 40 * rig.round_seconds
        assert sum(map(rig.seconds, physics)) == pytest.approx(0.75 * total, rel=0.01)
        assert sum(map(rig.seconds, vision)) == pytest.approx(0.25 * total, rel=0.03)


def test_accounts_have_their_shares_in_any_ten_rounds() -> None:
    """Three jobs of one and five of the other on four GPUs; two GPUs for each in every round."""
    cluster = a_cluster(2, 2, types=("k80", "v100"))
    rig = Rig(make("gavel:max_min_fairness_water_filling_perf:hold=0"), cluster)
    for i, account in enumerate("vllvlvll"):
        rig.submit(i, account=account, slow=1.0)
    held = []
    for _ in range(30):
        rig.run()
        running = [job for job in rig.jobs.values() if job.placement]
        held.append(sum(job.account == "v" for job in running))
    for first in range(20):
        assert sum(held[first : first + 10]) == pytest.approx(20, abs=1)


def test_what_an_account_holds_for_good_counts_as_its_share() -> None:
    rig = a_rig(gpus=2)
    blocker = rig.submit(1, account="a")
    rig.run()
    rig.fix(blocker, "not resizable in this run")
    for i in (2, 3, 4):
        rig.submit(i, account="a")
    other = rig.submit(5, account="b")
    rig.run(12)
    assert rig.seconds(other) == 9 * rig.round_seconds, "all but those in which newcomers ran"


def test_without_entities_every_job_counts_alike() -> None:
    rig = Rig(make("gavel:max_min_fairness:entities=none:hold=0"), a_cluster(1, 2))
    jobs = [rig.submit(1, account="physics")]
    jobs += [rig.submit(i, account="vision") for i in range(2, 5)]
    rig.run(20)
    assert {rig.seconds(job) for job in jobs} == {10 * rig.round_seconds}


def test_a_first_in_first_out_account_serves_its_oldest_job_first() -> None:
    name = "gavel:max_min_fairness_water_filling_perf:inside=fifo:hold=0"
    rig = Rig(make(name), a_cluster(1, 2))
    first, second = rig.submit(1, account="physics"), rig.submit(2, account="physics")
    vision = rig.submit(3, account="vision")
    rig.run(20)
    assert rig.seconds(vision) == pytest.approx(20 * rig.round_seconds)
    assert rig.seconds(first) > 18 * rig.round_seconds > 4 * rig.seconds(second)


@settings(max_examples=25, deadline=None)
@given(
    jobs=st.integers(2, 12),
    gang=st.sampled_from([1, 2]),
    accounts=st.lists(st.sampled_from("ab"), min_size=12, max_size=12),
    slow=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=12, max_size=12),
    policy=st.sampled_from(
        [
            "max_min_fairness",
            "max_min_fairness_perf",
            "max_min_fairness_water_filling_perf",
            "proportional_fairness_perf",
            "isolated",
        ]
    ),
)
def test_what_is_received_converges_to_the_target(
    jobs: int, gang: int, accounts: list[str], slow: list[float], policy: str
) -> None:
    rig = a_rig(policy, nodes=2, gpus=4, types=("v100", "k80"))
    for i in range(jobs):
        rig.submit(i, gang, account=accounts[i], slow=slow[i])
    rounds = 80
    rig.run(rounds)
    memory = rig.memory
    assert isinstance(memory, dict)
    for id_, (*_, shares, _) in memory["target"]["jobs"].items():
        wanted = sum(shares.values()) * rounds * rig.round_seconds
        # Work that nobody else wanted may come on top.
        assert rig.seconds(JobId(int(id_))) >= wanted - 3 * rig.round_seconds


@settings(max_examples=25, deadline=None)
@given(
    gangs=st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=8),
    name=st.sampled_from([name for name in names() if name.startswith("gavel:")]),
)
def test_no_gpu_idles_that_a_waiting_job_could_use(gangs: list[int], name: str) -> None:
    if "fifo" in name:
        return
    rig = Rig(make(name), a_cluster(4, 4, types=("v100", "k80")))
    for i, gang in enumerate(gangs):
        rig.submit(i, gang)
    for _ in range(4):
        rig.run()
        free = dict.fromkeys((node.name for node in rig.nodes), 4)
        for job in rig.jobs.values():
            for node, gpus in job.placement.gpus_on if job.placement else ():
                free[node] -= gpus
        waiting = [job for job in rig.jobs.values() if job.placement is None]
        for job in waiting:
            kinds = {
                shape
                for shape in job.shapes
                for half in (("n1", "n2"), ("n3", "n4"))
                if sum(free[node] >= shape.gpus_per_node for node in half) >= shape.nodes
            }
            assert not kinds, f"job {job.id} waits though it fits"


def test_what_gangs_cannot_be_given_is_lost_to_all_alike() -> None:
    """A program shares GPUs like water; five gangs and seven single GPUs do not fill 16 GPUs."""
    rig = Rig(make("gavel:max_min_fairness:hold=0"), a_cluster(4, 4, types=("v100", "k80")))
    for i, gang in enumerate([2, 4, 4, 1, 1, 4, 4, 1]):
        rig.submit(i, gang, account="ab"[i % 2])
    rig.run(40)
    jobs = rig.memory["target"]["jobs"]  # type: ignore[index]
    got = [
        rig.seconds(JobId(int(id_))) / (sum(shares.values()) * 40 * rig.round_seconds)
        for id_, (*_, shares, _) in jobs.items()
    ]
    assert min(got) > 0.8
    assert max(got) < 1.25 * min(got)


def test_a_newcomer_runs_in_its_first_round() -> None:
    rig = a_rig(gpus=2)
    for i in range(1, 7):
        rig.submit(i)
    rig.run(13)
    newcomer = rig.submit(7)
    rig.run()
    assert rig.seconds(newcomer) == rig.round_seconds


def test_newcomers_run_in_their_first_round_whatever_their_account_has() -> None:
    rig = a_rig(gpus=2)
    for i, account in enumerate("aabbbbbbbb"):
        rig.submit(i, account=account)
    rig.run(13)
    newcomers = [rig.submit(i, account="a") for i in (20, 21)]
    rig.run()
    assert {*map(rig.seconds, newcomers)} == {rig.round_seconds}


def test_a_wide_job_is_not_starved_by_narrow_ones() -> None:
    rig = a_rig("max_min_fairness_perf", nodes=2, gpus=4)
    wide = rig.submit(1, 8)
    for i in range(2, 14):
        rig.submit(i)
    for round_ in range(60):  # and more of them come all the time
        rig.run()
        rig.end(JobId(2 + round_))
        rig.submit(14 + round_)
    # Max-min counts shares of the cluster: 1/13 of it is 1/13 of the time of a gang of 8.
    assert rig.seconds(wide) >= 60 / 13 * rig.round_seconds - rig.round_seconds


def test_nodes_are_kept_for_a_wide_job_while_others_cannot_be_moved() -> None:
    rig = a_rig(nodes=2, gpus=2)
    blocker = rig.submit(1)
    rig.run()
    rig.fix(blocker, "not resizable in this run")
    for i in (2, 3, 4, 5):
        rig.submit(i)
    wide = rig.submit(6, 4)
    rig.run(12)
    assert rig.jobs[wide].placement is None
    assert rig.decided is not None
    assert rig.decided.plan.idle[wide] == "n1, n2: kept for its 4 GPUs as they get free"
    going_on = rig.running()
    rig.end(JobId(next(id_ for id_ in going_on if id_ != blocker)))
    rig.plan()
    assert rig.running() < going_on, "nobody is started in its way"
    rig.fix(blocker)
    rig.run()
    assert rig.running() == {wide}


def test_nodes_are_kept_for_an_hour_at_a_time() -> None:
    rig = a_rig(nodes=1, gpus=2)
    blocker = rig.submit(1)
    rig.run()
    rig.fix(blocker, "not resizable in this run")
    rig.submit(2, 2)
    idle = []
    for i in range(60):
        rig.submit(3 + i)
        rig.run()
        idle.append(rig.idle_gpus())
        rig.end(JobId(3 + i))
    assert 0 < sum(idle[10:]) < 50, "the other GPU idles, but not for ever"


def test_who_goes_on_keeps_its_nodes() -> None:
    rig = a_rig(nodes=2, gpus=4)
    stays = [rig.submit(i, 2) for i in (1, 2, 3)]
    rig.run()
    before = {job: rig.jobs[job].placement for job in stays}
    rig.submit(4, 2)
    rig.run(3)
    assert {job: rig.jobs[job].placement for job in stays} == before
    assert all(rig.moves[job] == 1 for job in stays)


def nodes_of(rig: Rig, job: JobId) -> int:
    placement = rig.jobs[job].placement
    return len(placement.nodes) if placement else 0


def test_a_gang_that_suffers_apart_is_kept_together_though_others_have_to_move() -> None:
    for apart, nodes in ((5.0, 1), (0.001, 2)):
        rig = a_rig("max_min_fairness_perf", nodes=2, gpus=2)
        rig.submit(1, 2)
        singles = [rig.submit(i) for i in (2, 3)]
        rig.plan()
        rig.end(JobId(1))
        # One of the two moves over, so that each is on a node of its own.
        moved = replace(rig.jobs[singles[1]].placement, gpus_on=(("n1", 1),))  # type: ignore[type-var]
        held = replace(rig.jobs[singles[0]].placement, gpus_on=(("n2", 1),))  # type: ignore[type-var]
        rig.jobs[singles[0]] = replace(rig.jobs[singles[0]], placement=held)
        rig.jobs[singles[1]] = replace(rig.jobs[singles[1]], placement=moved)
        gang = rig.submit(4, 2, apart=apart)
        rig.run()
        assert nodes_of(rig, gang) == nodes
        assert rig.running() == {2, 3, 4}


def test_a_gang_that_is_faster_apart_is_spread_where_speeds_decide() -> None:
    for name, nodes in (("max_min_fairness_perf", 2), ("max_min_fairness", 1)):
        rig = a_rig(name, nodes=2, gpus=2)
        gang = rig.submit(1, 2, apart=-0.2)
        rig.run(3)
        assert nodes_of(rig, gang) == nodes
        assert rig.moves[gang] == 1


def test_jobs_take_turns_only_when_somebody_is_materially_behind() -> None:
    moves = []
    for hold in (0, 60):  # restart costs of 10 s
        rig = Rig(make(f"gavel:max_min_fairness:hold={hold}"), a_cluster(1, 1))
        jobs = [rig.submit(1), rig.submit(2)]
        rig.run(40)
        moves.append(sum(rig.moves.values()))
        difference = abs(rig.seconds(jobs[0]) - rig.seconds(jobs[1]))
        assert difference <= hold * 10 + 2 * rig.round_seconds
    assert moves[1] < 0.7 * moves[0]


def test_a_job_moves_to_the_type_it_is_owed() -> None:
    rig = a_rig("max_min_fairness_perf", nodes=2, gpus=1, types=("v100", "k80"))
    picky, easy = rig.submit(1, slow=5.0), rig.submit(2, slow=1.0)
    rig.run(20)
    assert rig.seconds(picky, "v100") > 18 * rig.round_seconds
    assert rig.seconds(easy, "k80") > 18 * rig.round_seconds


def test_it_goes_on_from_its_memory_after_a_restart() -> None:
    """The rig passes the memory through JSON every round; a lost one is what makes a difference."""
    kept, lost = a_rig(), a_rig()
    for rig in (kept, lost):
        first = rig.submit(1)
        rig.run(4)
        second = rig.submit(2)
        rig.run(1)
        if rig is lost:
            rig.memory = None
        rig.policy = make("gavel:max_min_fairness:hold=0")
        rig.run(1)
        assert rig.seconds(first) + rig.seconds(second) == 6 * rig.round_seconds
    accounts = kept.memory["jobs"]  # type: ignore[index]
    assert accounts["1"][1] == {"v100": 5 * 360.0} or accounts["1"][1] == {"v100": 4 * 360.0}
    assert sum(account[1]["v100"] for account in accounts.values()) == 5 * 360.0


def test_a_moved_job_is_credited_for_each_type_it_was_on() -> None:
    rig = a_rig("isolated", nodes=2, gpus=1, types=("v100", "k80"))
    jobs = [rig.submit(i) for i in (1, 2)]
    rig.run(21)
    rig.plan()
    accounts = rig.memory["jobs"]  # type: ignore[index]
    for job in jobs:
        assert accounts[str(job)][1] == pytest.approx(rig.had[job])
        assert rig.seconds(job, "v100") == pytest.approx(10.5 * 360.0, abs=720.0)


def test_memory_forgets_jobs_that_have_ended() -> None:
    rig = a_rig()
    rig.run(1)
    for i in range(30):
        job = rig.submit(i)
        rig.run()
        rig.end(job)
    rig.run()
    memory = rig.memory
    assert isinstance(memory, dict)
    assert memory["jobs"] == {}
    assert memory["target"]["jobs"] == {}


def test_a_job_that_fits_on_no_type_waits_with_the_reason() -> None:
    rig = a_rig(nodes=2, gpus=4, types=("v100", "k80"))
    wide, narrow = rig.submit(1, 4), rig.submit(2)
    rig.jobs[wide] = replace(rig.jobs[wide], requested=8, shapes=())
    decided = rig.plan()
    assert decided.plan.idle[wide] == "no GPU type has the 8 GPUs that it asks for"
    assert rig.jobs[narrow].placement is not None


def test_jobs_that_cannot_be_moved_do_not_blur_who_of_the_others_is_behind() -> None:
    rig = a_rig(gpus=2)
    blocker = rig.submit(1)
    rig.run()
    rig.fix(blocker, "not resizable in this run")
    others = [rig.submit(i) for i in (2, 3, 4)]
    rig.run(150)
    seconds = [rig.seconds(job) for job in others]
    assert sum(seconds) == 150 * rig.round_seconds
    assert max(seconds) - min(seconds) <= 2 * rig.round_seconds


def test_a_cluster_without_gpu_types_is_shared_as_well() -> None:
    rig = a_rig(types=("",))
    one, other = rig.submit(1), rig.submit(2)
    rig.run(10)
    assert rig.seconds(one) == rig.seconds(other) == 5 * rig.round_seconds
    assert "of its time on GPUs" in next(iter(rig.decided.plan.assignments.values())).reason  # type: ignore[union-attr]


def test_a_node_that_fails_takes_its_share_with_it() -> None:
    rig = a_rig(nodes=2, gpus=1)
    jobs = [rig.submit(i) for i in (1, 2)]
    rig.run(2)
    rig.nodes[1] = unusable(rig.nodes[1])
    lost = next(id_ for id_ in jobs if rig.jobs[id_].placement.nodes == ("n2",))  # type: ignore[union-attr]
    rig.jobs[lost] = replace(rig.jobs[lost], placement=None, started=None)
    before = {job: rig.seconds(job) for job in jobs}
    rig.run(20)
    gained = {rig.seconds(job) - before[job] for job in jobs}
    assert gained == {10 * rig.round_seconds}


def test_a_program_without_an_answer_falls_back_to_equal_shares_and_says_so() -> None:
    rig = a_rig("allox", nodes=1, gpus=4)
    rig.submit(1, 2)
    decided = rig.plan()
    assert "AlloX serves jobs of one GPU only" in decided.plan.assignments[JobId(1)].reason


def test_a_type_without_a_price_is_named() -> None:
    name = "max_sum_throughput_normalized_by_cost_perf:prices=k80=0.14"
    rig = a_rig(name, nodes=2, gpus=1, types=("v100", "k80"))
    rig.submit(1)
    decided = rig.plan()
    assert "type v100: prices: has no price" in decided.plan.assignments[JobId(1)].reason


@pytest.mark.parametrize("remaining", [0.0, float("nan"), float("inf")])
def test_an_outlook_that_cannot_be_stops_no_round(remaining: float) -> None:
    for name in ("finish_time_fairness_perf", "min_total_duration_perf", "shortest_job_first"):
        rig = a_rig(name, gpus=2)
        rig.submit(1)
        rig.remaining = remaining
        rig.run()
        assert rig.running() == {1}


def test_nobody_overtakes_in_fifo_though_gpus_idle() -> None:
    rig = a_rig("fifo", gpus=4)
    rig.submit(1, 3)
    rig.submit(2, 2)
    rig.submit(3, 1)
    rig.run(3)
    assert rig.running() == {1}


def test_who_has_waited_too_long_comes_first() -> None:
    rig = Rig(make("gavel:max_min_fairness", max_wait=1000.0), a_cluster(1, 1))
    rig.submit(1)
    rig.run()
    late = rig.submit(2, waited=2000.0)
    rig.submit(3)
    rig.run(3)
    assert rig.running() == {late}


def test_deadlines_and_prices_have_to_be_set() -> None:
    for name, setting in (
        ("gavel:max_sum_throughput_normalized_by_cost_perf", "prices=v100=0.74"),
        ("gavel:max_sum_throughput_perf_SLOs", "slo=2"),
        ("gavel:max_sum_throughput_perf_SLOs", "stretch=1.1"),
    ):
        with pytest.raises(ValueError, match=setting.partition("=")[0]):
            make(name)
        assert make(f"{name}:{setting}").name == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gavel:max_min_fairness_packed", "the operator has to allow that: [sharing] allow"),
        ("gavel:gandiva", "the operator has to allow that: [sharing] allow"),
        ("gavel:max_min", "no policy 'gavel:max_min'; choose one of: fifo,"),
        ("gavel:isolated:entities=user", "its setting entities is account or none, not 'user'"),
        ("gavel:isolated:inside=lifo", "its setting inside is fairness or fifo, not 'lifo'"),
        ("gavel:isolated:weights=physics", "its setting weights is not NAME=NUMBER"),
        ("gavel:isolated:weights=physics=0", "weights: physics: 0 is not above 0"),
        ("gavel:isolated:weights=physics=nan", "weights: physics: nan is not above 0"),
        ("gavel:isolated:stretch=0.9", "its setting stretch must be 1 or more"),
        ("gavel:isolated:hold=-1", "its settings slo and hold must be finite and not below 0"),
        ("gavel:isolated:speed=1", "it has no setting 'speed'; known: entities, hold"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line(name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)) as caught:
        make(name)
    assert "\n" not in str(caught.value)


def test_packed_policies_are_there_where_an_operator_allows_sharing() -> None:
    for name in ("gavel:max_min_fairness_packed", "gavel:gandiva"):
        assert make(name, site=Site(sharing=True)).plans_pairs  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=r"\[sharing\] allow"):
            make(name)


def test_what_a_site_sets_holds_unless_the_name_says_otherwise() -> None:
    site = Site(gavel=RoundSettings(entities="none", weights={"physics": 2.0}))
    policy = make("gavel:isolated:weights=vision=3", max_wait=5.0, site=site)
    chosen = policy.settings  # type: ignore[attr-defined]
    assert (chosen.entities, chosen.weights, chosen.max_wait) == ("none", {"vision": 3.0}, 5.0)


def test_all_of_gavels_policies_are_offered_with_what_they_need() -> None:
    for prefix in ("gavel", "gavel-oracle"):
        offered = {name for name in OFFERS if name.startswith(f"{prefix}:")}
        assert offered == {f"{prefix}:{name}" for name in POLICIES}
    for name, policy in POLICIES.items():
        assert ("sharing of GPUs" in OFFERS[f"gavel:{name}"].needs) == policy.packed
    assert {name for name, offer in OFFERS.items() if not offer.needs} == {*names()}
    assert sum(offer.usual for offer in OFFERS.values()) == 12
    assert information("gavel:fifo_perf") == "family"
    assert information("gavel-oracle:fifo_perf") == "truth"


def test_the_order_in_which_jobs_are_listed_does_not_matter() -> None:
    def found(order: list[int]) -> object:
        rig = a_rig("max_min_fairness_perf", nodes=2, gpus=2, types=("v100", "k80"))
        for i in order:
            rig.submit(i, 1 + i % 2)
        rig.run(3)
        return {id_: rig.jobs[JobId(id_)].placement for id_ in sorted(order)}

    assert found([1, 2, 3, 4]) == found([4, 2, 1, 3])
