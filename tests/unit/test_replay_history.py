from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ones.daemon.ctl.main import main
from ones.daemon.onesd.books.store import Store
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.history import Recording, load, save
from ones.estimator.experience import GradientReport
from ones.estimator.progress import Finished
from ones.estimator.restart import RestartCost
from ones.estimator.speed import Observation
from ones.policies.model import JobId

JOB = JobId(7)
OBSERVED = Observation(
    job=JOB, family="ada/train", gpu_type="t4", nodes=1, gpus=2, batch=64.0, step_seconds=0.5
)
REPORTS = (
    OBSERVED,
    GradientReport(job=JOB, family="ada/train", epochs=1.0, batch=64.0, sqr=1.0, var=3.0),
    Finished(family="ada/train", total_samples=5000.0, job=JOB),
    RestartCost(job=JOB, family="ada/train", seconds=12.0),
)


def ctl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    save(Recording(REPORTS), file)
    found = load(file)
    assert [type(one) for one in found.reports] == [type(one) for one in REPORTS]
    assert found.of_family("ada/train").points[0].step_seconds == pytest.approx(0.5)
    assert list(found.of_family("ada/train").lengths) == [5000.0]
    assert found.restart_cost(JobId(1), "ada/train", prior=30.0) == 12.0


def test_former_jobs_are_never_taken_for_those_of_the_next_replay(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    save(Recording(REPORTS), file)
    once = load(file)
    once.observe(OBSERVED)
    save(once, file)
    jobs = [one.job for one in load(file).reports]
    assert all(job is not None and job < 0 for job in jobs)
    assert len(set(jobs)) == 2
    assert not load(file).of_job(JOB).points


def test_a_history_without_families_teaches_nothing_of_them(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    save(Recording(), file)
    assert load(file).reports == []


def test_the_database_of_onesd_is_a_history(tmp_path: Path) -> None:
    file = tmp_path / "ones.sqlite"
    store = Store(file)
    row = {"at": 1.0, "job": 7, "family": "ada/train"}
    measured = {"gpu_type": "t4", "nodes": 1, "gpus": 2, "batch": 64, "step_seconds": 0.5}
    store.put("observations", [{**row, **measured}])
    store.put("finished", [{**row, "samples": 5000.0}])
    store.write("INSERT INTO restart_costs VALUES(2.0, 7, 'ada/train', 12.0, 0)")
    store.close()
    found = load(file)
    assert list(found.of_family("ada/train").lengths) == [5000.0]
    assert len(found.of_family("ada/train").points) == 1
    assert found.restart_cost(JobId(1), "ada/train", prior=30.0) == 12.0


def test_what_is_no_history_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    file.write_text("no database at all, but long enough to be looked into" * 40)
    with pytest.raises(TraceError, match="is no history: file is not a database"):
        load(file)
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE other(x)")
    with pytest.raises(TraceError, match="neither of a replay nor of onesd"):
        load(file)
    save(Recording(REPORTS), tmp_path / "good.sqlite")
    with sqlite3.connect(tmp_path / "good.sqlite") as database:
        database.execute("UPDATE replayed SET report = '{\"job\": 1}' WHERE kind = 'gradient'")
    with pytest.raises(TraceError, match=r"good\.sqlite:2: column report: is no report"):
        load(tmp_path / "good.sqlite")
    with pytest.raises(TraceError, match="can't keep the history"):
        save(Recording(REPORTS), tmp_path)


@pytest.mark.parametrize(
    "report",
    [
        "[" * 20000,
        '{"job": [1], "family": "f", "seconds": 1.0}',
        '{"job": 1, "family": ["f"], "seconds": 1.0}',
        '{"job": 1, "family": "f", "seconds": "long"}',
        '{"job": 1, "family": "f", "seconds": null}',
        '{"job": null, "family": "f", "seconds": 1.0}',
        '{"job": 1, "family": "f", "seconds": 1' + "0" * 400 + "}",
        "[1]",
        "7",
    ],
)
def test_a_report_that_makes_no_sense_is_named_in_one_line(tmp_path: Path, report: str) -> None:
    file = tmp_path / "history.sqlite"
    save(Recording(REPORTS), file)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE replayed SET report = ? WHERE kind = 'restart'", [report])
    database.close()
    with pytest.raises(TraceError, match=r"history\.sqlite:4: column report: is no report: ") as it:
        load(file)
    assert len(str(it.value).splitlines()) == 1


def test_a_row_of_onesd_that_makes_no_sense_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "ones.sqlite"
    store = Store(file)
    store.write("INSERT INTO restart_costs VALUES(2.0, 7, 'ada/train', 'long', 0)")
    store.close()
    with pytest.raises(TraceError, match="table restart_costs can't be read: seconds is 'long'"):
        load(file)
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE observations(x)")
        database.execute("INSERT INTO observations VALUES(1)")
    database.close()
    with pytest.raises(TraceError, match="is no history: no such column: at"):
        load(file)


def test_a_replay_hands_its_history_to_the_next(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = "".join(f"{200 * k},train,u,2,900,1-8,no\n" for k in range(6))
    trace.write_text("submitted,name,user,gpus,duration_s,sizes,declared\n" + lines)
    kept = tmp_path / "history.sqlite"
    first = ctl(trace, "--policy=ones", "--save-history", kept, "--json")
    assert first.exit_code == 0, first.output
    learnt = len(load(kept).reports)
    assert learnt > 0
    second = ctl(trace, "--policy=ones", "--history", kept, "--save-history", kept, "--json")
    assert second.exit_code == 0, second.output
    assert len(load(kept).reports) > learnt
    jobs = [json.loads(done.stdout)["runs"][0]["jobs"] for done in (first, second)]
    assert jobs[0] != jobs[1]
