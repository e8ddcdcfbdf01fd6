from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from page_types import mismatches
from policy_builders import on
from profile_builders import a_profile
from replay_builders import PlainApplication, a_trace_job, a_workload, a_world

from ones.daemon.ctl.main import main
from ones.daemon.ctl.quiet import without_output
from ones.daemon.replay import report
from ones.daemon.replay.curves import Curve, gpus_held, jobs_waiting
from ones.daemon.replay.figures import Figures, as_json, labels, remarks
from ones.daemon.replay.report import page
from ones.daemon.replay.simulation import ReplayError, Run, replay
from ones.daemon.replay.workload import Workload
from ones.policies.fifo import Fifo
from ones.policies.model import Assignment, Plan, Problem
from ones.policies.registry import make

HOSTILE = "<script>alert(1)</script><!--\"'&\x1b[31m\n\u202e\ud800"
SIMPLE = "submitted,name,user,gpus,duration_s,sizes\n"
NAMED = "name,time,application,num_replicas,batch_size\n"


def run(workload: Workload, policy: str = "fifo") -> Run:
    ticks = count()
    return replay(workload, make(policy), a_world(), clock=lambda: float(next(ticks)))


def drawn(*runs: Run) -> str:
    return page(runs, a_world().nodes, trace="trace.csv")


class Parsed(HTMLParser):
    """The tags of a page, and what stands in its script, style and data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: dict[str, str] = {}
        self.meta: dict[str, str] = {}
        self._at = ""
        self.feed(text)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.inside["application/json"])
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self._at = named.get("type") or tag
        if tag == "meta":
            self.meta[named.get("http-equiv") or named.get("name") or "charset"] = str(
                named.get("content")
            )

    def handle_data(self, data: str) -> None:
        self.inside[self._at] = self.inside.get(self._at, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._at = ""


def two_jobs() -> Workload:
    """On 16 GPUs, each asks for all of them: the second waits for the first."""
    return a_workload(
        a_trace_job("first", requested=16),
        a_trace_job("second", submitted=100.0, requested=16),
    )


def test_figures_count_from_submission_to_end() -> None:
    done = run(two_jobs())
    first, second = done.jobs
    assert first.finished is not None
    assert second.finished is not None
    figures = Figures.of(done)
    assert figures.average_jct_s == pytest.approx((first.finished + second.finished - 100) / 2)
    assert figures.makespan_s == second.finished
    assert figures.average_wait_s == pytest.approx(second.waited / 2)
    assert figures.gpu_hours == pytest.approx((first.gpu_seconds + second.gpu_seconds) / 3600)
    assert figures.utilisation == pytest.approx(figures.gpu_hours * 3600 / 16 / figures.makespan_s)
    assert figures.cost is None
    assert figures.decide_s_mean == 1.0  # the clock of these tests


def test_restarts_after_a_move_are_lost_and_first_starts_are_not() -> None:
    assert Figures.of(run(two_jobs())).lost_to_moves == 0.0
    done = run(two_jobs(), "tiresias")
    moved = [job for job in done.jobs if job.resizes]
    lost = sum(30.0 * job.resizes * 16 for job in moved)
    held = sum(job.gpu_seconds for job in done.jobs)
    assert Figures.of(done).lost_to_moves == pytest.approx(lost / held)
    assert (lost > 0) == bool(moved)


def test_gpus_cost_what_their_type_does_for_as_long_as_they_are_held() -> None:
    def cost(**prices: float) -> float | None:
        done = replay(two_jobs(), make("fifo"), a_world(prices=prices), clock=float)
        return Figures.of(done).cost

    hours = Figures.of(run(two_jobs())).gpu_hours
    assert cost(t4=0.5) == pytest.approx(0.5 * hours)
    assert cost(v100=0.5) is None


@dataclass(frozen=True)
class Moving:
    """Each job is on the first node, and from this time on on the second."""

    until: float
    name: str = "moving"

    def plan(self, problem: Problem, memory: object, rng: np.random.Generator) -> tuple[Plan, None]:
        where = on(n1=4) if problem.now < self.until else on(n2=4)
        given = {job.id: Assignment(where, None, "a test") for job in problem.jobs}
        return Plan(given), None


def test_what_is_lost_to_moves_is_the_time_of_restarts_but_for_the_first_start() -> None:
    def lost(until: float) -> float:
        ticks = count()
        workload = a_workload(a_trace_job())
        done = replay(workload, Moving(until), a_world(), clock=lambda: float(next(ticks)))
        return Figures.of(done).lost_to_moves

    assert lost(inf) == 0.0
    assert lost(120.0) == pytest.approx(30.0 / (2 * 30.0 + 1000 * 0.21))


def test_json_has_the_figures_and_every_job() -> None:
    found = as_json(run(two_jobs()))
    assert list(found) == [
        "policy",
        "average_jct_s",
        "median_jct_s",
        "p90_jct_s",
        "p99_jct_s",
        "makespan_s",
        "average_wait_s",
        "gpu_hours",
        "utilisation",
        "cost",
        "resizes_per_job",
        "lost_to_moves",
        "decide_s_mean",
        "decide_s_p99",
        "left_out",
        "jobs",
    ]
    assert found["left_out"] == []
    assert list(found["jobs"][0]) == [
        "id",
        "submitted_s",
        "started_s",
        "finished_s",
        "resizes",
        "at_limit",
    ]
    assert [job["id"] for job in found["jobs"]] == ["first", "second"]
    assert json.loads(json.dumps(found)) == found


def test_a_job_that_its_time_limit_ended_is_told_apart_from_those_that_were_done() -> None:
    done = run(a_workload(a_trace_job("cut", time_limit=60.0), a_trace_job("whole")))
    assert [job["at_limit"] for job in as_json(done)["jobs"]] == [True, False]
    (told,) = Parsed(drawn(done)).data["runs"]
    assert [lived[3] for lived in told["jobs"]] == [1, 0]
    assert told["notes"] == ["1 job was ended by its time limit before it was done"]
    both = run(a_workload(*(a_trace_job(time_limit=60.0) for _ in range(2))))
    assert remarks(both) == ["2 jobs were ended by their time limit before they were done"]


@dataclass(frozen=True)
class Failing:
    """First come, first served, but for some time it fails over one job, or over everything."""

    over: int | None
    until: float
    name: str = "failing"

    def plan(
        self, problem: Problem, memory: object, rng: np.random.Generator
    ) -> tuple[Plan, object]:
        met = self.over is None or any(job.id == self.over for job in problem.jobs)
        if met and problem.now < self.until:
            raise ValueError(f"no {self.over} & no plan")
        return Fifo().plan(problem, memory, rng)


def failing(over: int | None, until: float = 600.0) -> Run:
    return replay(two_jobs(), Failing(over=over, until=until), a_world(), clock=float)


def test_who_was_left_out_of_plans_is_named_with_the_reason() -> None:
    fault = "the policy failing fails: ValueError: no {} & no plan"
    for over, label in ((2, "second"), (None, None)):
        done = failing(over)
        (one,) = as_json(done)["left_out"]
        assert (one["id"], one["why"]) == (label, fault.format(over))
        assert one["rounds"] in (8, 10)  # of 10: the second is submitted after 100 s
        (told,) = Parsed(drawn(done)).data["runs"][0]["notes"]
        assert "no plan" in told


def test_a_job_that_is_left_out_for_ever_ends_the_replay_with_the_reason() -> None:
    with pytest.raises(ReplayError, match=r"'second'.* no 2 & no plan; take it out"):
        failing(2, inf)


def test_jobs_that_share_a_name_are_told_apart() -> None:
    done = run(a_workload(a_trace_job("j"), a_trace_job("k"), a_trace_job("j")))
    assert labels(done.jobs) == ["j", "k", "j#2"]


def test_the_report_stands_alone() -> None:
    text = drawn(run(two_jobs()), run(two_jobs(), "srtf"))
    found = Parsed(text)
    assert found.tags.count("script") == 2
    assert not {"img", "iframe", "object", "base"} & set(found.tags)
    addresses = re.findall(r"""(?:src|href)="([^"]*)"|url\(([^)]*)""", text)
    assert [one[:8] for one, _ in addresses] == ["data:ima"]
    assert set(re.findall(r"https?://[^\s\"'`]*", text)) == {"http://www.w3.org/2000/svg"}


def test_only_what_stands_in_the_report_may_run_there() -> None:
    found = Parsed(drawn(run(two_jobs())))
    policy = dict(
        one.strip().split(" ", 1) for one in found.meta["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for kind, inside in (("script-src", "module"), ("style-src", "style")):
        digest = hashlib.sha256(found.inside[inside].encode()).digest()
        assert policy[kind] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_the_report_has_every_job_under_every_policy() -> None:
    runs = run(two_jobs()), run(two_jobs(), "srtf")
    data = Parsed(drawn(*runs)).data
    assert [one[0] for one in data["jobs"]] == ["first", "second"]
    second = data["jobs"][1]
    assert [data["texts"][k] for k in second[1:4]] == ["plain", "ada", "lab"]
    assert second[4:6] == [100, 16]
    assert [one["policy"] for one in data["runs"]] == ["fifo", "srtf"]
    for done, told in zip(runs, data["runs"], strict=True):
        assert told["figures"]["average_jct_s"] == Figures.of(done).average_jct_s
        for job, lived in zip(done.jobs, told["jobs"], strict=True):
            finished, waited, resizes, at_limit, changes = lived
            assert finished == round(job.finished or 0)
            assert (waited, resizes, at_limit) == (round(job.waited), job.resizes, 0)
            assert sum(changes[::2]) == finished - round(job.trace.submitted)
            assert changes[1::2] == [16, 0]
        assert told["completions"] == sorted(told["completions"])


def test_the_data_have_the_types_that_the_modules_are_checked_by(tmp_path: Path) -> None:
    runs = [run(two_jobs(), policy) for policy in ("fifo", "tiresias")]
    assert mismatches(tmp_path, ("Report.Data", Parsed(drawn(*runs)).data)) == ""


def test_of_too_many_changes_the_longest_stretches_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = run(two_jobs())
    job = done.jobs[0]
    job.sizes[:] = [(0, 4), (100, 8), (101, 2), (200, 0), (202, 1), (300, 0)]
    monkeypatch.setattr(report, "MOST_CHANGES", 7)
    data = Parsed(drawn(done)).data
    assert data["coarse"] == 3
    assert data["runs"][0]["jobs"][0][4] == [0, 4, 101, 2, 101, 1, 98, 0]


def test_of_too_many_jobs_the_first_are_drawn_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "MOST_ROWS", 3)
    data = Parsed(drawn(run(two_jobs()), run(two_jobs(), "srtf"))).data
    assert data["jobs_in_all"] == 2
    assert [len(one["jobs"]) for one in (data, *data["runs"])] == [1, 1, 1]
    assert len(data["runs"][0]["completions"]) == 2


def test_hostile_names_are_nothing_but_data() -> None:
    done = run(a_workload(a_trace_job(HOSTILE, family=HOSTILE, user="x" * 10_000)))
    text = page([done], a_world().nodes, trace=HOSTILE)
    assert not {"\x1b", "\u202e", "\ud800"} & set(text)
    found = Parsed(text)
    assert found.tags.count("script") == 2
    assert "<" not in found.inside["application/json"]
    (job,) = found.data["jobs"]
    assert job[0].startswith("<script>alert(1)</script>")
    assert "⟨U+202E⟩" in job[0]
    assert max(map(len, found.data["texts"])) <= report.LONGEST_SHOWN
    assert len(page([done], a_world().nodes, trace=HOSTILE).encode()) < 150_000


def test_many_jobs_and_one_that_takes_no_time_are_drawn() -> None:
    jobs = [
        a_trace_job(f"j{k}", requested=1, application=PlainApplication(length=1))
        for k in range(120)
    ]
    done = run(a_workload(*jobs))
    done.jobs[0].sizes[:] = [(0.0, 1), (0.0, 0)]
    done.jobs[0].finished = 0.0
    data = Parsed(drawn(done)).data
    assert len(data["jobs"]) == 120
    assert data["runs"][0]["jobs"][0] == [0, 0, 0, 0, [0, 1, 0, 0]]


def test_curves_count_gpus_and_who_waits() -> None:
    done = run(two_jobs())
    first, second = (job.sizes for job in done.jobs)
    starts, middle, ends = (round(at) for at in (first[0][0], first[1][0], second[1][0]))
    begun = round(second[0][0])
    assert gpus_held(done) == Curve([starts, middle, begun, ends], [16.0, 0.0, 16.0, 0.0])
    assert jobs_waiting(done) == Curve([100, begun], [1.0, 0.0])


def test_a_curve_of_too_many_points_has_the_means_of_as_many_as_are_allowed() -> None:
    changes = [(float(at), 1 if at % 2 == 0 else -1) for at in range(1000)]
    curve = Curve.of(changes, most=11)
    assert len(curve.times) == 11
    assert curve.values == pytest.approx([0.5] * 10 + [0.0], abs=0.011)


def test_a_curve_of_nothing_is_empty() -> None:
    assert Curve.of([(3.0, 1), (3.0, -1)]) == Curve([], [])


def test_what_a_solver_prints_does_not_reach_our_output(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with without_output():
        libc.puts(b"chatter")
    print("answer")
    assert capfd.readouterr().out == "answer\n"


def ctl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def a_trace(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(SIMPLE + "".join(f"{line}\n" for line in lines))
    return file


def test_a_replay_prints_a_table(tmp_path: Path) -> None:
    done = ctl(a_trace(tmp_path, "0,a,u,4,600,", "30,b,u,4,600,2-8"), "--policy", "fifo,srtf")
    assert done.exit_code == 0, done.output
    heading, fifo, srtf = done.stdout.splitlines()
    assert heading.split()[:3] == ["POLICY", "AVG", "JCT"]
    assert fifo.split()[0] == "fifo"
    assert srtf.split()[0] == "srtf"
    assert done.stderr == ""


def test_a_replay_prints_json_and_draws_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    trace = a_trace(tmp_path, "0,a,u,4,600,")
    done = ctl(trace, "--policy", "fifo", "--nodes", 1, "--json", "--report", report)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["runs"]
    assert found["policy"] == "fifo"
    assert found["jobs"] == [
        {
            "id": "a",
            "submitted_s": 0.0,
            "started_s": 0.0,
            "finished_s": 630.0,
            "resizes": 0,
            "at_limit": False,
        }
    ]
    data = Parsed(report.read_text()).data
    assert data["runs"][0]["policy"] == "fifo"
    assert data["cluster"].startswith("1 node × 4 ")


def test_the_restart_cost_and_the_round_are_the_callers(tmp_path: Path) -> None:
    trace = a_trace(tmp_path, "10,a,u,4,600,")
    done = ctl(trace, "--policy=fifo", "--restart-cost=5", "--round=20", "--json")
    (job,) = json.loads(done.stdout)["runs"][0]["jobs"]
    assert (job["started_s"], job["finished_s"]) == (20.0, 625.0)


def test_two_runs_with_one_seed_are_the_same(tmp_path: Path) -> None:
    lines = [f"{10 * k},j{k},u,{k % 4 + 1},{300 + 40 * k},1-8" for k in range(8)]
    trace = a_trace(tmp_path, *lines)
    first, second = (
        json.loads(ctl(trace, "--policy=ones", "--seed=3", "--json").stdout)["runs"][0]["jobs"]
        for _ in range(2)
    )
    assert first == second


def test_a_profile_of_a_type_is_replayed_on_equal_nodes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(NAMED + "a,0,plain,2,32\n")
    profiles = a_profile(tmp_path / "p")
    done = ctl(trace, "--profiles", profiles, "--policy=fifo", "--json")
    assert done.exit_code == 0, done.output


def test_a_cluster_is_taken_from_its_description(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.csv"
    cluster.write_text("name,gpus,type\nbig,2,t4\n")
    trace = a_trace(tmp_path, "0,a,u,4,600,")
    done = ctl(trace, "--cluster", cluster, "--policy=fifo")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"onesctl: error: {trace}:2: column gpus: job 'a' needs 4 GPUs")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "best"), "no policy 'best'; choose one of: "),
        (("--policy", ","), "--policy names none"),
        (("--round", "0"), "0.0 is not in the range"),
        (("--nodes", "0"), "0 is not in the range"),
        (("--report", "/nowhere/at/all.html"), "there is no folder /nowhere/at"),
        (("--policy=fifo,srtf", "--save-history=x"), "name a single --policy"),
        (("--cluster", "/dev/null/x"), "does not exist"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = ctl(a_trace(tmp_path, "0,a,u,4,600,"), *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
