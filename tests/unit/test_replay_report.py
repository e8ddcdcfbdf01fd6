from __future__ import annotations

import ctypes
import json
import re
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from profile_builders import a_profile
from replay_builders import PlainApplication, a_trace_job, a_workload, a_world

from ones.daemon.ctl.main import main
from ones.daemon.ctl.quiet import without_output
from ones.daemon.replay.figures import Figures, as_json, labels
from ones.daemon.replay.report import page
from ones.daemon.replay.simulation import Run, replay
from ones.daemon.replay.workload import Workload
from ones.policies.registry import make

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\n"
SIMPLE = "submitted,name,user,gpus,duration_s,sizes\n"
NAMED = "name,time,application,num_replicas,batch_size\n"


def run(workload: Workload, policy: str = "fifo") -> Run:
    ticks = count()
    return replay(workload, make(policy), a_world(), clock=lambda: float(next(ticks)))


def drawn(*runs: Run) -> str:
    return page(runs, a_world().nodes, trace="trace.csv")


class Tags(HTMLParser):
    """The names of the tags of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begun.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begun.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


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


def test_gpus_cost_what_their_type_does_for_as_long_as_they_are_held() -> None:
    def cost(**prices: float) -> float | None:
        done = replay(two_jobs(), make("fifo"), a_world(prices=prices), clock=float)
        return Figures.of(done).cost

    hours = Figures.of(run(two_jobs())).gpu_hours
    assert cost(t4=0.5) == pytest.approx(0.5 * hours)
    assert cost(v100=0.5) is None


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
        "decide_s_mean",
        "decide_s_p99",
        "jobs",
    ]
    assert list(found["jobs"][0]) == ["id", "submitted_s", "started_s", "finished_s", "resizes"]
    assert [job["id"] for job in found["jobs"]] == ["first", "second"]
    assert json.loads(json.dumps(found)) == found


def test_jobs_that_share_a_name_are_told_apart() -> None:
    done = run(a_workload(a_trace_job("j"), a_trace_job("k"), a_trace_job("j")))
    assert labels(done.jobs) == ["j", "k", "j#2"]


def test_the_report_stands_alone_and_is_well_formed() -> None:
    text = drawn(run(two_jobs()), run(two_jobs(), "srtf"))
    tags = Tags(text)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & set(tags.begun)
    assert "http" not in text.replace("http-equiv", "")
    assert tags.begun.count("svg") == 5  # one of both, two of each
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)


def test_the_report_has_a_line_a_job_and_policy() -> None:
    text = drawn(run(two_jobs()), run(two_jobs(), "srtf"))
    assert text.count('<g class="job">') == 4
    assert "srtf" in text
    assert "first: done in" in text


def test_hostile_names_are_escaped_wherever_they_stand() -> None:
    done = run(a_workload(a_trace_job(HOSTILE, family=HOSTILE)))
    text = page([done], a_world().nodes, trace=HOSTILE)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert Tags(text).open == []


def test_many_jobs_and_one_that_takes_no_time_are_drawn() -> None:
    jobs = [
        a_trace_job(f"j{k}", requested=1, application=PlainApplication(length=1))
        for k in range(120)
    ]
    text = drawn(run(a_workload(*jobs)))
    assert text.count('<g class="job">') == 120
    assert "nan" not in text
    assert "inf" not in re.sub(r"<title>.*?</title>", "", text)


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
        {"id": "a", "submitted_s": 0.0, "started_s": 0.0, "finished_s": 630.0, "resizes": 0}
    ]
    assert "<h2>Completion times</h2>" in report.read_text()


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
