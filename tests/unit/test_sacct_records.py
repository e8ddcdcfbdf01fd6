"""What stands in a site's `sacct` after years: one record that makes no sense stops no replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ones.daemon.ctl.main import main
from ones.daemon.replay import traces
from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.workload import TraceJob

HEADING = "JobIDRaw|JobName|User|Account|Submit|ElapsedRaw|State|AllocTRES|AdminComment"
GOOD = [f"{number}|train|ada|lab|{1000 + number}|60|COMPLETED|gres/gpu=1|" for number in range(40)]
OFFERED = "[[nodes]]\nnames = 'n[1-2]'\ngpus = 4\n"


def read(tmp_path: Path, *lines: str | bytes, heading: str = HEADING) -> tuple[list[TraceJob], str]:
    """The jobs of these lines of `sacct -P`, and what was said of the others."""
    file, notes = tmp_path / "sacct.txt", list[str]()
    coded = [line.encode() if isinstance(line, str) else line for line in (heading, *lines)]
    file.write_bytes(b"\n".join(coded) + b"\n")
    return list(traces.read(file, note=notes.append).jobs), "\n".join(notes)


def read_json(tmp_path: Path, *records: dict[str, Any]) -> tuple[list[TraceJob], str]:
    file, notes = tmp_path / "sacct.json", list[str]()
    file.write_text(json.dumps({"jobs": records}))
    return list(traces.read(file, note=notes.append).jobs), "\n".join(notes)


def a_json(number: int, gpus: int = 1, **times: Any) -> dict[str, Any]:
    return {
        "job_id": number,
        "name": "train",
        "time": {"submission": 1000, "start": 1000, "end": 1060, **times},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": gpus}]},
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("99|a|b|ada|lab|1000|60|COMPLETED|gres/gpu=1|", "42: has 10 columns where the heading"),
        ("99|train|ada|lab|never|60|COMPLETED|gres/gpu=1|", "'never' is not a time"),
        ("99|train|ada|lab|Unknown|60|COMPLETED|gres/gpu=1|", "names no time"),
        ("99|train|ada|lab|1000|-5|COMPLETED|gres/gpu=1|", "'-5' is less than 0"),
        ("99|train|ada|lab|1000|86832000|COMPLETED|gres/gpu=1|", "it ran for 1,005 days"),
        ("99|train|ada|lab|9999999999|60|COMPLETED|gres/gpu=1|", "years from the others"),
    ],
)
def test_one_line_that_makes_no_sense_is_left_out_and_named(
    tmp_path: Path, line: str, said: str
) -> None:
    found, notes = read(tmp_path, *GOOD, line)
    assert len(found) == len(GOOD)
    assert "1 records that make no sense are left out; the first: " in notes
    assert said in notes


def test_many_that_make_no_sense_are_another_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="'never' is not a time"):
        read(tmp_path, *GOOD[:10], *["99|train|ada|lab|never|60|DONE|gres/gpu=1|"] * 2)


def test_what_held_no_gpus_may_say_what_it_likes(tmp_path: Path) -> None:
    found, notes = read(tmp_path, *GOOD, "99|train|ada|lab|never|-1|COMPLETED|cpu=4|")
    assert (len(found), notes.count("make no sense")) == (len(GOOD), 0)
    odd = a_json(2, gpus=0, submission=0, end=1)
    odd["tres"]["allocated"].append({"type": "gres", "name": "gpumem", "count": 2**64 - 2})
    found, notes = read_json(tmp_path, a_json(1), odd)
    assert (len(found), notes.count("make no sense")) == (1, 0)


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    latin = "99|Prüfung|ada|lab|1000|60|COMPLETED|gres/gpu=1|".encode("latin-1")
    found, notes = read(tmp_path, *GOOD, latin)
    assert (len(found), notes) == (len(GOOD) + 1, "")
    assert any(job.family == "Pr�fung" for job in found)


def test_an_end_before_the_start_is_left_out(tmp_path: Path) -> None:
    """As on the night when clocks are put back, which local times do not tell."""
    heading = "JobIDRaw|Submit|Start|End|AllocTRES"
    good = [f"{number}|1000|1000|1060|gres/gpu=1" for number in range(20)]
    night = "99|2026-10-25T02:00:00|2026-10-25T02:50:00|2026-10-25T02:10:00|gres/gpu=1"
    found, notes = read(tmp_path, *good, night, heading=heading)
    assert len(found) == 20
    assert "column End: lies before Start" in notes
    found, notes = read_json(tmp_path, *map(a_json, range(1, 21)), a_json(21, end=999))
    assert len(found) == 20
    assert "jobs[20] ends before it starts" in notes


def test_time_in_which_a_job_was_suspended_is_no_work(tmp_path: Path) -> None:
    ((job,), _) = read_json(tmp_path, a_json(1, end=1000 + 86400, elapsed=3600))
    ((same,), _) = read(tmp_path, GOOD[0].replace("|60|", "|3600|"))
    assert list(job.application.epochs) == list(same.application.epochs)


def test_a_number_that_two_jobs_have_had_is_two_jobs(tmp_path: Path) -> None:
    found, _ = read(
        tmp_path,
        "7|long|ann|lab|1000|86400|COMPLETED|gres/gpu=8|",
        "7|short|bob|lab|900000|60|COMPLETED|gres/gpu=1|",
    )
    assert [(job.name, job.user, job.requested) for job in found] == [
        ("7", "ann", 8),
        ("7#2", "bob", 1),
    ]


@pytest.mark.parametrize(
    "last", ["7|a|ann|lab|2000|50|RUNNING|gres/gpu=1|", "7|a|ann|lab|2000|0|PENDING||"]
)
def test_a_job_whose_last_run_has_not_ended_is_left_out_whole(tmp_path: Path, last: str) -> None:
    found, notes = read(tmp_path, *GOOD[:3], "7|a|ann|lab|1000|600|NODE_FAIL|gres/gpu=1|", last)
    assert len(found) == 3
    assert "2 records that never ran, still run or had no GPUs" in notes


def test_runs_of_a_requeued_job_together_may_be_longer_than_its_limit(tmp_path: Path) -> None:
    """Slurm's limit is for each of them."""
    day = 86400
    runs = [f"7|a|ann|lab|{1000 + at}|72000|PREEMPTED|gres/gpu=2||1440" for at in range(3)]
    ((job,), _) = read(tmp_path, *runs, heading=HEADING + "|TimelimitRaw")
    assert job.time_limit == pytest.approx(3 * 72000)
    ((short,), _) = read(tmp_path, runs[0], heading=HEADING + "|TimelimitRaw")
    assert short.time_limit == day


def replayed(tmp_path: Path, *lines: str, cluster: str = OFFERED) -> Result:
    trace, there = tmp_path / "sacct.txt", tmp_path / "cluster.toml"
    trace.write_text("\n".join([HEADING + "|Reservation", *lines]) + "\n")
    there.write_text(cluster)
    return CliRunner().invoke(
        main, ["replay", str(trace), "--cluster", str(there), "--policy", "slurm"]
    )


def test_reservations_and_licences_that_are_gone_keep_nobody_from_starting(tmp_path: Path) -> None:
    gone = "99|x|bob|lab|1500|60|COMPLETED|gres/gpu=1,license/matlab=2||class2025"
    done = replayed(tmp_path, *(f"{line}|" for line in GOOD), gone)
    assert done.exit_code == 0, done.output
    assert "1 jobs asked for reservation class2025, which --cluster does not have" in done.stderr
    assert "1 jobs asked for licence matlab, which --cluster does not have" in done.stderr


def test_a_job_that_can_never_start_is_named_with_what_it_waits_for(tmp_path: Path) -> None:
    wide = "99|x|bob|lab|1500|60|COMPLETED|gres/gpu=1,license/matlab=2||"
    done = replayed(tmp_path, GOOD[0] + "|", wide, cluster=OFFERED + "[licenses]\nmatlab = 1\n")
    assert done.exit_code == 1
    assert (
        "('99') is never started by slurm: it asks for 1 GPUs and waits for Licenses" in done.stderr
    )
