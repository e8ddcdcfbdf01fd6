"""`onesctl replay`: the files it reads and writes, and options that make no sense."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ones.daemon.ctl.main import main
from ones.daemon.onesd.books.store import Store
from ones.daemon.replay import history, outputs
from ones.daemon.replay import side_by_side as runs_of
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.history import load, save

TRACE = "submitted,name,user,gpus,duration_s,sizes\n0,a,u,2,600,1-4\n100,b,u,4,900,1-8\n"
CLUSTER = '[[nodes]]\nnames = "n[1-2]"\ngpus = 4\n'
RECORDS = "JobIDRaw|JobName|User|Submit|ElapsedRaw|AllocTRES|AdminComment\n" + "".join(
    f"{number}|train{number % 3}|ada|{number * 60}|600|gres/gpu=2|\n" for number in range(1, 7)
)


def ctl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    return file


@pytest.fixture
def records(tmp_path: Path) -> Path:
    file = tmp_path / "sacct.txt"
    file.write_text(RECORDS)
    return file


def refused(done: Result, said: str) -> None:
    assert done.exit_code in (1, 2), done.output
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""
    if done.exit_code == 1:
        assert len(done.stderr.splitlines()) == 1


def test_the_answer_is_printed_though_the_report_cannot_be_written(trace: Path) -> None:
    done = ctl(trace, "--policy=fifo", "--report=/dev/full", "--json")
    assert json.loads(done.stdout)["runs"]
    assert done.stderr == "onesctl: error: /dev/full: can't be written: No space left on device\n"
    assert done.exit_code == 1


def test_a_history_that_cannot_be_kept_costs_neither_the_answer_nor_the_report(
    trace: Path, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise TraceError(tmp_path / "h", "can't keep the history: disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ones.daemon.ctl.replay.save", full)
        done = ctl(
            trace,
            "--policy=fifo",
            *("--save-history", tmp_path / "h"),
            *("--report", tmp_path / "r.html"),
            "--json",
        )
    assert json.loads(done.stdout)["runs"]
    assert "can't keep the history: disk is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.exit_code == 1
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("option", ["--report", "--save-history"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/nowhere/at/all", "there is no folder /nowhere/at"),
        ("/proc/none", "can't be written"),
        ("/sys/none", "can't be written"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_replayed(
    trace: Path, option: str, target: str, said: str
) -> None:
    refused(ctl(trace, "--policy=fifo", option, target), said)


def test_what_a_replay_reads_is_never_written_over(trace: Path, tmp_path: Path) -> None:
    cluster, kept, network = (tmp_path / name for name in ("cluster.toml", "h.db", "net.json"))
    cluster.write_text(CLUSTER)
    network.write_text("{}")
    save(history.Recording(), kept)
    linked = tmp_path / "linked"
    linked.symlink_to(trace)
    before = {file: file.read_bytes() for file in (trace, cluster, kept, network)}
    options = ("--policy=fifo", "--cluster", cluster, "--history", kept)
    for target, what in (
        (trace, "TRACE"),
        (linked, "TRACE"),
        (cluster, "--cluster"),
        (kept, "--history"),
    ):
        refused(ctl(trace, *options, "--report", target), f"is the file of {what}")
    refused(ctl(trace, *options, "--save-history", trace), "is the file of TRACE")
    both = tmp_path / "both"
    refused(
        ctl(trace, *options, "--save-history", both, "--report", both),
        "is the file of --save-history",
    )
    assert {file: file.read_bytes() for file in before} == before
    assert not both.exists()


@contextmanager
def no_room(most: int) -> Iterator[None]:
    """Files can't grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_report_is_put_in_place_whole_or_not_at_all(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    outputs.write(report, "first")
    with no_room(10), pytest.raises(TraceError, match=r"report\.html: can't be written: File too"):
        outputs.write(report, "second " * 1000)
    assert report.read_text() == "first"
    assert list(tmp_path.iterdir()) == [report]


def test_a_report_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    report, link = tmp_path / "report.html", tmp_path / "latest.html"
    fresh = tmp_path / "fresh"
    fresh.touch()
    outputs.write(report, "first")
    assert report.stat().st_mode == fresh.stat().st_mode
    report.chmod(0o640)
    link.symlink_to(report)
    outputs.write(link, "second")
    assert link.is_symlink()
    assert report.read_text() == "second"
    assert report.stat().st_mode & 0o777 == 0o640


def test_a_report_goes_straight_into_a_pipe() -> None:
    out, into = os.pipe()
    outputs.write(Path(f"/dev/fd/{into}"), "drawn")
    os.close(into)
    assert os.read(out, 100) == b"drawn"
    os.close(out)


def test_a_report_into_standard_output_stands_behind_the_answer(
    trace: Path, tmp_path: Path
) -> None:
    command = "from ones.daemon.ctl.main import main; main()"
    with (tmp_path / "both").open("wb") as both:
        subprocess.run(
            [sys.executable, "-c", command, "replay", trace, "--report=/dev/stdout"],
            stdout=both,
            check=True,
        )
    said = (tmp_path / "both").read_text()
    assert said.startswith("POLICY")
    assert said.rstrip().endswith("</html>")


def test_a_trace_of_a_name_without_letters_is_drawn(tmp_path: Path) -> None:
    trace = tmp_path / os.fsdecode(b"trace\xff.csv")
    trace.write_text(TRACE)
    done = ctl(trace, "--policy=fifo", "--report", tmp_path / "r.html")
    assert done.exit_code == 0, done.output


def test_the_database_of_another_program_is_never_altered(trace: Path, tmp_path: Path) -> None:
    foreign, onesd = tmp_path / "grades.db", tmp_path / "onesd.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE grades(x)")
    database.close()
    Store(onesd).close()
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be looked into" * 40)
    for file, said in (
        (foreign, "is a database of something else (it has a table grades)"),
        (onesd, "is a database of something else"),
        (text, "can't keep the history: file is not a database"),
        (Path("/dev/full"), "is no file; a history is kept in one"),
    ):
        before = None if file.is_char_device() else file.read_bytes()
        refused(ctl(trace, "--policy=fifo", "--save-history", file), said)
        assert before is None or file.read_bytes() == before


@contextmanager
def a_pipe(text: str) -> Iterator[Path]:
    out, into = os.pipe()
    os.write(into, text.encode())
    os.close(into)
    yield Path(f"/dev/fd/{out}")
    os.close(out)


def test_a_trace_and_a_cluster_may_come_through_pipes(trace: Path, tmp_path: Path) -> None:
    with a_pipe(TRACE) as piped:
        done = ctl(piped, "--policy=fifo", "--json")
    assert done.exit_code == 0, done.output
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER + "[prices]\ngpu = 2\n")
    from_file = ctl(trace, "--policy=slurm", "--cluster", cluster, "--json")
    with a_pipe(TRACE) as piped, a_pipe(cluster.read_text()) as described:
        done = ctl(piped, "--policy=slurm", "--cluster", described, "--json")
    assert done.exit_code == 0, done.output
    found, expected = (json.loads(each.stdout)["runs"][0] for each in (done, from_file))
    assert found["jobs"] == expected["jobs"]
    assert found["cost"] == expected["cost"] is not None


@pytest.mark.parametrize("option", ["--round", "--restart-cost", "--max-slowdown"])
def test_what_is_not_a_number_is_refused(records: Path, option: str) -> None:
    refused(ctl(records, option, "nan"), "nan is not a number")


def test_what_if_options_that_would_do_nothing_are_refused(trace: Path, records: Path) -> None:
    opted = "all 2 jobs of the trace have opted in already"
    refused(ctl(trace, "--elastic-share=50%"), f"--elastic-share: {opted}")
    refused(ctl(trace, "--elastic=a*"), f"--elastic: {opted}")
    refused(ctl(records, "--elastic-growth=2"), "--elastic-growth: who grows is told by")
    refused(ctl(records, "--elastic="), "--elastic names nobody")
    refused(ctl(trace, "--max-slowdown=1.1"), "--max-slowdown: the guard is there beside plain")
    refused(
        ctl(records, "--policy=fifo,slurm", "--max-slowdown=1.1"),
        "--max-slowdown: no policy of fifo,slurm moves a job",
    )


@pytest.mark.parametrize("few", [1, 200])
def test_a_what_if_keeps_the_history_of_the_policy_that_was_named(
    records: Path, tmp_path: Path, few: int
) -> None:
    kept = tmp_path / "h.db"
    options = ("--elastic-share=50%", "--policy=ones", "--save-history", kept, "--nodes=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_of, "FEW", few)
        patch.setattr(runs_of, "cores", lambda: 2)
        done = ctl(records, *options)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["slurm", "ones"]
    assert load(kept).reports
