"""`onesctl replay`: what if jobs had opted in, on a site's own records."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from replay_builders import a_trace_job, a_world

from ones.daemon.ctl.main import main
from ones.daemon.replay import side_by_side as runs_of
from ones.daemon.replay.fairness import Fairness
from ones.daemon.replay.faults import ReplayError, TraceError
from ones.daemon.replay.opting import Opting, sizes_about
from ones.daemon.replay.recorded import Recorded
from ones.daemon.replay.side_by_side import ONE_THREAD, Task, perform, side_by_side
from ones.daemon.replay.workload import TraceJob, Workload
from ones.estimator.assess import Knowledge
from ones.policies.sizes import Sizes


def a_record(name: str, user: str = "ada", *, gpus: int = 2, **changes: Any) -> TraceJob:
    own = Sizes((gpus,))
    application = Recorded(name=name, gpus=gpus, seconds=600.0, sizes=own)
    given = {"account": "lab", "submitted": 0.0, **changes}
    return a_trace_job(
        name,
        user=user,
        family=name,
        requested=gpus,
        sizes=own,
        batch=None,
        application=application,
        opted_in=False,
        **given,
    )


def chosen(opting: Opting, *jobs: TraceJob) -> list[TraceJob]:
    return [job for job in opting.of(Workload(jobs), 64).jobs if job.opted_in]


def many(families: int = 50) -> list[TraceJob]:
    return [
        a_record(f"n{number}", f"u{number % 5}", submitted=float(number))
        for number in range(families)
        for _ in range(1 + number % 4)
    ]


def test_a_share_of_the_jobs_opts_in_by_whole_families() -> None:
    jobs = many()
    found = chosen(Opting(share=0.2), *jobs)
    assert len(found) == pytest.approx(0.2 * len(jobs), abs=2)
    families = {(job.user, job.family) for job in found}
    assert len(found) == sum((job.user, job.family) in families for job in jobs)


def test_who_opts_in_depends_on_the_seed_alone() -> None:
    jobs = many()
    first, again, other = (
        {(job.user, job.family) for job in chosen(Opting(share=0.2, seed=seed), *jobs)}
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_of_one_large_family_it_opts_in_whole() -> None:
    jobs = [a_record("same") for _ in range(10)]
    assert len(chosen(Opting(share=0.2), *jobs)) == 10
    assert len(chosen(Opting(share=1.0), *jobs)) == 10


def test_names_and_accounts_are_chosen_by_a_pattern() -> None:
    jobs = [a_record("train-1"), a_record("eval"), a_record("prep", account="vision")]
    assert [job.name for job in chosen(Opting(pattern="train*"), *jobs)] == ["train-1"]
    assert [job.name for job in chosen(Opting(pattern="vision"), *jobs)] == ["prep"]
    with pytest.raises(ReplayError, match=r"no job's name or account is like 'nix'.*eval, prep"):
        chosen(Opting(pattern="nix"), *jobs)


def test_a_job_that_opts_in_takes_halves_and_doubles_of_its_request() -> None:
    assert str(sizes_about(4, 4, 64)) == "1,2,4,8,16"
    assert str(sizes_about(6, 2, 64)) == "1,3,6,12"
    assert str(sizes_about(4, 4, 10)) == "1,2,4,8"
    assert str(sizes_about(1, 1, 64)) == "1"
    (job,) = chosen(Opting(share=1.0, growth=2), a_record("a", gpus=4))
    assert str(job.sizes) == str(job.application.sizes) == "1,2,4,8"


def records(path: Path, count: int = 30, **changes: object) -> Path:
    """A small site's `sacct --json`: on 16 GPUs it is busy now and then."""
    listed = []
    for number in range(count):
        begun = 1000000 + 200 * number
        listed.append(
            {
                "job_id": number + 1,
                "name": f"train{number % 6}",
                "user": f"u{number % 3}",
                "account": f"lab{number % 2}",
                "comment": {"administrator": ""},
                "time": {"submission": begun, "start": begun, "end": begun + 900 + 60 * number},
                "tres": {
                    "allocated": [{"type": "gres", "name": "gpu", "count": 1 << (number % 4)}]
                },
                **changes,
            }
        )
    file = path / "sacct.json"
    file.write_text(json.dumps({"jobs": listed}))
    return file


def ctl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def test_the_first_line_says_what_opting_in_would_have_saved(tmp_path: Path) -> None:
    done = ctl(records(tmp_path), "--elastic-share=20%", "--nodes=4")
    assert done.exit_code == 0, done.output
    answer, heading, rigid, ones, _, groups, *rows = done.stdout.splitlines()
    assert groups.startswith("ones AGAINST slurm")
    assert [row.split()[0] for row in rows] == ["plain", "elastic", *2 * ["account"], *3 * ["user"]]
    assert answer.startswith("Had 5 of 30 jobs (17%) opted in, under ones instead of slurm they")
    assert "sooner" in answer
    assert "; the other 25 end" in answer
    assert answer.endswith(("GPU-hours more spent", "GPU-hours saved"))
    assert heading.startswith("POLICY")
    assert [rigid.split()[0], ones.split()[0]] == ["slurm", "ones"]
    assert done.stderr == ""


def test_json_tells_fairness_by_class_account_and_user(tmp_path: Path) -> None:
    done = ctl(records(tmp_path), "--elastic=train1", "--policy=fifo,ones", "--nodes=4", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (fairness,) = found["fairness"]
    assert (fairness["policy"], fairness["rigid"]) == ("ones", "fifo")
    assert {name: group["jobs"] for name, group in fairness["classes"].items()} == {
        "elastic": 5,
        "plain": 25,
    }
    assert set(fairness["accounts"]) == {"lab0", "lab1"}
    assert set(fairness["users"]) == {"u0", "u1", "u2"}
    assert len(fairness["classes"]["plain"]["deciles"]) == 9
    assert fairness["answer"].startswith("Had 5 of 30 jobs")


def test_where_nobody_opted_in_ones_changes_nothing_and_says_so(tmp_path: Path) -> None:
    done = ctl(records(tmp_path), "--policy=fifo,ones", "--nodes=4")
    assert done.exit_code == 0, done.output
    answer, _, rigid, ones, *_ = done.stdout.splitlines()
    assert answer.startswith("None of the 30 jobs opted in, so ones would have changed nothing")
    assert rigid.split()[1:10] == ones.split()[1:10]


def test_policies_run_in_processes_of_one_thread_and_tell_the_same(tmp_path: Path) -> None:
    workload = Opting(share=0.3).of(Workload(tuple(many(8))), 16)
    tasks = [
        Task(
            name=name,
            workload=workload,
            world=a_world(),
            knowledge=Knowledge(),
            scheduler="fifo",
        )
        for name in ("fifo", "ones")
    ]
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    told = Counter[str]()
    here = [perform(task) for task in tasks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_of, "FEW", 1)
        there = side_by_side(tasks, lambda policy, *_: told.update([policy]), processes=2)
    assert {name: os.environ.get(name) for name in ONE_THREAD} == before
    for one, other in zip(here, there, strict=True):
        assert one.policy == other.policy
        assert [job.sizes for job in one.jobs] == [job.sizes for job in other.jobs]
    assert told.keys() <= {"fifo", "ones"}


def test_a_fault_in_a_process_comes_out_whole(tmp_path: Path) -> None:
    workload = Workload((*many(8), a_record("wide", gpus=64)))
    task = Task(
        name="fifo", workload=workload, world=a_world(), knowledge=Knowledge(), scheduler="fifo"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_of, "FEW", 1)
        with pytest.raises(ReplayError, match=r"\('wide'\) accepts 64 GPUs"):
            side_by_side([task, task], lambda *_: None, processes=2)
    fault = TraceError(Path("t"), "is bad", line=3, column="c")
    rebuild, arguments = fault.__reduce__()
    assert str(rebuild(*arguments)) == str(fault) == "t:3: column c: is bad"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--elastic-share=0",), "--elastic-share: '0' is no share of the jobs"),
        (("--elastic-share=200%",), "--elastic-share: '200%' is no share of the jobs"),
        (("--elastic-share=-5%",), "--elastic-share: '-5%' is no share of the jobs"),
        (("--elastic-share=many",), "--elastic-share: 'many' is no share of the jobs"),
        (("--elastic=nothing*",), "--elastic: no job's name or account is like 'nothing*'"),
    ],
)
def test_a_choice_of_nobody_is_refused_in_one_line(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = ctl(records(tmp_path), *options)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"onesctl: error: {said}")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


TIMES = {"submission": 1000000, "start": 1000000, "end": 1000900}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"jobs": [{"job_id": 1, "ti', "is not JSON"),
        ('{"jobs": [{"job_id": ' + "9" * 5000 + "}]}", "is not JSON"),
        ('{"jobs": []}', "has no jobs that ran on GPUs"),
    ],
)
def test_records_that_are_cut_off_are_named_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "sacct.json"
    file.write_text(text)
    done = ctl(file, "--elastic-share=20%")
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({**TIMES, "end": 10**12}, "job '31': it ran for 11,574,062 days, which no job does"),
        ({"submission": 10**13, "start": 10**13, "end": 10**13 + 9}, "years from the others"),
        ({**TIMES, "end": -1}, "is not a number of 0 or more"),
    ],
)
def test_a_record_that_makes_no_sense_is_left_out_and_named_in_one_line(
    tmp_path: Path, times: dict[str, int], said: str
) -> None:
    file = records(tmp_path)
    listed = json.loads(file.read_text())["jobs"]
    listed.append({**listed[0], "job_id": 31, "time": times})
    file.write_text(json.dumps({"jobs": listed}))
    done = ctl(file, "--elastic-share=20%")
    assert done.exit_code == 0, done.stderr
    (left_out,) = (line for line in done.stderr.splitlines() if "make no sense" in line)
    assert "1 records that make no sense are left out; the first:" in left_out
    assert said in left_out
    # Where they are many the file is not what it seems.
    listed += [{**listed[0], "job_id": 32 + more, "time": times} for more in range(3)]
    file.write_text(json.dumps({"jobs": listed}))
    done = ctl(file, "--elastic-share=20%")
    assert done.exit_code == 1
    assert said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_against_itself_is_fair(tmp_path: Path) -> None:
    task = Task(
        name="fifo",
        workload=Opting(share=0.5).of(Workload(tuple(many(12))), 16),
        world=a_world(),
        knowledge=Knowledge(),
        scheduler="fifo",
    )
    run = perform(task)
    for group in Fairness.of(run, run).classes.values():
        assert set(group.deciles) == {1.0}
        assert (group.worst, group.worse_off, group.worse_by) == (1.0, 0.0, 1.0)
