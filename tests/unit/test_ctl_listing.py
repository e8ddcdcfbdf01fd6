"""What every listing of onesctl can: choose, sort, cut, complete, and ask again; hostile names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ones.daemon.ctl import cluster, completing, jobs, listing
from ones.daemon.ctl.client import Unreachable
from ones.daemon.ctl.main import LATER, main
from ones.daemon.ctl.table import width

MARKUP = "<b>$(reboot)</b>\x1b[31m\r\n%n"
RIGHT_TO_LEFT = "\u202e\u05d0\u05d1 12"


def a_job(number: int, **others: Any) -> dict[str, Any]:
    usual = {
        **{"job": number, "name": f"train{number}", "user": "ana", "account": "lab"},
        **{"partition": "gpu", "state": "RUNNING", "sizes": "1-4", "gpus": 2, "nodes": "n1"},
        **{"batch": 64, "samples": 5, "total_samples": 50, "samples_per_second": 1.5},
        **{"submitted": 100.0, "waited": 90.0, "moves": 1, "note": ""},
    }
    return {**usual, **others}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that onesd lists; a test fills them in."""
    found: list[dict[str, Any]] = []

    def answer(*_: object, **__: object) -> Any:
        return {"meta": {}, "jobs": [dict(job) for job in found]}

    monkeypatch.setattr(jobs, "asks", answer)
    monkeypatch.setattr(completing, "ask", answer)
    return found


def onesctl(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def numbers(*words: str) -> list[str]:
    done = onesctl("jobs", "-n", "-o", "job", *words)
    assert done.exit_code == 0, done.output
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("-u", "ana"), "1 3"),
        (("--user=ana,bob",), "1 2 3"),
        (("-A", "lab"), "1 2"),
        (("-p", "gpu,debug"), "1 2 3"),
        (("-p", "debug"), "3"),
        (("-t", "PD"), "2"),
        (("-t", "pending,r"), "1 2 3"),
        (("-t", "all"), "1 2 3"),
        (("-j", "3,1"), "1 3"),
        (("-u", "ana", "-t", "R", "-j", "1,2"), "1"),
    ],
)
def test_jobs_are_chosen_as_with_squeue(
    listed: list[dict[str, Any]], words: tuple[str, ...], left: str
) -> None:
    listed += [
        a_job(1),
        a_job(2, user="bob", state="PENDING"),
        a_job(3, account="physics", partition="debug"),
    ]
    assert " ".join(numbers(*words)) == left


def test_json_has_the_same_jobs(listed: list[dict[str, Any]]) -> None:
    listed += [a_job(1), a_job(2, user="bob")]
    assert '"job": 2' in onesctl("jobs", "--json", "-u", "bob").stdout
    assert '"job": 1' not in onesctl("jobs", "--json", "-u", "bob").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-t", "XX"), "no state 'XX'; states are PENDING (PD), RUNNING (R), SUSPENDED (S), or"),
        (("-j", "12_3"), "'12_3' is not the number of a job"),
        (("-o", "best"), "no field 'best'; fields are job,"),
        (("-o", "name:x"), "'name:x': a width is a number of columns"),
        (("-o", "name:0"), "'name:0': a width is a number of columns"),
        (("-S", "-best"), "no field 'best'"),
        (("--watch", "--json"), "--json prints one answer"),
        (("-i", "0"), "0.0 is not in the range"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(
    listed: list[dict[str, Any]], words: tuple[str, ...], said: str
) -> None:
    done = onesctl("jobs", *words)
    assert done.exit_code == 2
    assert said in done.output.splitlines()[-1]


def test_rows_are_sorted_by_value_not_by_what_is_shown(listed: list[dict[str, Any]]) -> None:
    listed += [
        a_job(10, waited=5.0, nodes="n10", note="b"),
        a_job(9, waited=90000.0, nodes="n9", note="a"),
        a_job(100, waited=3600.0, nodes="n9", note=None),
    ]
    assert numbers("-S", "job") == ["9", "10", "100"]
    assert numbers("--sort=-waited") == ["9", "100", "10"]
    assert numbers("-S", "nodes,-job") == ["100", "9", "10"]
    assert numbers("-S", "note") == ["100", "9", "10"]


def test_long_names_are_cut_unless_more_room_is_asked_for(listed: list[dict[str, Any]]) -> None:
    listed.append(a_job(1, name="x" * 10_000))
    assert onesctl("jobs", "-n", "-o", "name").stdout == "x" * 23 + "+\n"
    assert onesctl("jobs", "-n", "-o", "name:5,job").stdout == "xxxx+  1\n"
    assert max(map(len, onesctl("jobs").stdout.splitlines())) < 160


def test_wide_letters_and_those_without_width_line_up(listed: list[dict[str, Any]]) -> None:
    listed += [
        a_job(1, name="\u6f22\u5b57"),
        a_job(2, name="e\u0301" * 3),
        a_job(3, name="\u6f22" * 99),
        a_job(4, name="a" + "\u0301" * 9999),
    ]
    rows = onesctl("jobs", "-n", "-o", "name,job").stdout.splitlines()
    assert [width(row) for row in rows] == [26] * 4
    assert all(len(row) < 200 for row in rows)
    assert rows[2].split()[0] == "\u6f22" * 11 + "+"


@pytest.mark.parametrize("name", [MARKUP, RIGHT_TO_LEFT, "\ud800", "\u2028", "\x00"])
def test_hostile_names_are_one_harmless_cell(listed: list[dict[str, Any]], name: str) -> None:
    listed += [a_job(1, name=name, user=name, account=name, nodes=name, note=name), a_job(2)]
    rows = onesctl("jobs", "-n").stdout.splitlines()
    assert len(rows) == 2
    plain = "".join(rows).replace("\u200e", "")
    assert plain.isprintable()
    assert "\u202e" not in plain


def test_letters_from_right_to_left_turn_nothing_else_round(listed: list[dict[str, Any]]) -> None:
    listed.append(a_job(1, name="\u05d0\u05d1 12"))
    assert onesctl("jobs", "-n", "-o", "name,job").stdout == "\u200e\u05d0\u05d1 12\u200e  1\n"
    cut = onesctl("jobs", "-n", "-o", "name:3,job").stdout
    assert cut == "\u200e\u05d0\u05d1+\u200e  1\n"


def tab(line: str) -> list[str]:
    """What the Tab key offers behind this line, as bash splits it."""
    words = [part for word in line.split(" ") for part in _as_bash_has_it(word)]
    environment = {
        "_ONESCTL_COMPLETE": "bash_complete",
        **{"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
    }
    done = CliRunner(env=environment).invoke(main, prog_name="onesctl")
    assert done.exit_code == 0, done.output
    return [offer.split(",", 1)[1] for offer in done.stdout.splitlines() if offer]


def _as_bash_has_it(word: str) -> list[str]:
    return [part for part in re.split("([:=])", word) if part] or [""]


def test_jobs_users_and_fields_are_completed(listed: list[dict[str, Any]]) -> None:
    listed += [a_job(12, user="ana"), a_job(13, user="bob", account="$(reboot)"), a_job(2)]
    assert tab("onesctl job 1") == ["12", "13"]
    assert tab("onesctl explain ") == ["12", "13", "2"]
    assert tab("onesctl jobs -j 2,1") == ["2,12", "2,13"]
    assert tab("onesctl jobs -u ") == ["ana", "bob"]
    assert tab("onesctl jobs -A ") == ["lab"]
    assert tab("onesctl jobs -o job,na") == ["job,name"]
    assert tab("onesctl jobs -S job,-wa") == ["job,-waited"]
    assert tab("onesctl jobs --sort=wai") == ["waited"]
    assert tab("onesctl jobs --states=") == ["RUNNING"]
    assert tab("onesctl sta") == ["status"]
    assert {*LATER} <= {*tab("onesctl ")}


def test_policies_are_completed_also_behind_a_colon() -> None:
    assert tab("onesctl policy set on") == ["ones", "ones-sc21"]
    assert "gavel:fifo" in tab("onesctl policy set g")
    assert tab("onesctl policy set gavel:fifo_pe") == ["fifo_perf"]
    assert "isolated" in tab("onesctl policy set gavel:")


def test_tab_offers_nothing_where_onesd_does_not_answer(tmp_path: Path) -> None:
    assert tab(f"onesctl --socket {tmp_path}/none job 1") == []


def test_watching_goes_on_while_onesd_is_gone(
    listed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed.append(a_job(1))
    answers = iter([None, Unreachable("gone\x1b[2J"), None])
    usual = jobs.asks

    def asks(method: str, path: str) -> Any:
        if fault := next(answers):
            raise fault
        return usual(method, path)

    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "asks", asks)
    monkeypatch.setattr(listing.time, "sleep", sleep)
    done = onesctl("jobs", "-n", "-o", "job,user", "-i", "2")
    assert done.exit_code == 0
    assert done.stdout.count("1    ana") + done.stdout.count("1  ana") == 2
    assert "onesctl: error: gone\\x1b[2J" in done.stderr
    assert pauses == [2.0] * 3


def test_help_tells_the_same_of_commands_that_are_loaded_late() -> None:
    for name, told in LATER.items():
        command = getattr(import_module(f"ones.daemon.ctl.{name}"), name)
        assert command.get_short_help_str(200).rstrip(".") == told.rstrip("."), name


def test_before_the_first_round_nothing_is_told_as_if_there_had_been_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = {"number": 0, "at": 0.0, "seconds": 0.0, "outcome": "not yet run"}
    gpus = dict.fromkeys(("total", "elastic", "other", "free", "unusable"), 0)
    answer = {
        **{"meta": {"version": "1"}, "paused": False, "mode": "act", "policy": "ones"},
        **{"admission": "hold", "reader": "commands", "round": nothing, "gpus": gpus, "gap": None},
        **{"jobs": dict.fromkeys(("running", "waiting", "moving"), 0), "decisions": []},
        "problems": ["no round has ended yet: the first one is under way"],
    }
    monkeypatch.setattr(cluster, "asks", lambda *_: dict(answer))
    told = onesctl("status").stdout
    assert "Round 0" not in told
    assert "0 in all" not in told
    assert "Note: no round has ended yet" in told
    assert "No round has ended yet" in onesctl("plan").stdout


def test_the_reason_of_a_pause_may_have_several_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(cluster, "asks", lambda *what: asked.append(what))
    assert onesctl("pause", "new", "disks").exit_code == 0
    assert asked == [("POST", "/v1/pause", {"reason": "new disks"})]


def test_a_start_is_planned_with_the_gpus_that_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {
        **{"job": 7, "kind": "start", "gpus": 0, "gpus_after": 4, "target": "4 on n1 (1x4)"},
        **{"batch": None, "reason": "now", "verdict": "begun"},
    }
    last = {"number": 3, "at": 1.0, "seconds": 0.1, "outcome": ""}
    answer = {"meta": {}, "round": last, "gap": None, "decisions": [start, {**start, "job": 8}]}
    monkeypatch.setattr(cluster, "asks", lambda *_: dict(answer))
    assert onesctl("plan", "-n", "-o", "job,gpus_after", "-j", "7").stdout == "7  4\n"


@pytest.mark.parametrize(
    "program",
    [
        *("ones.daemon.ctl.main", "ones.daemon.onesd.main", "ones.daemon.agent.main"),
        *("ones.daemon.release", "ones.slurm_ext.stage_in", "ones.slurm_ext.runtime.launcher"),
    ],
)
def test_every_program_tells_its_version(program: str) -> None:
    run = f"import sys; sys.argv[0] = 'x'; from {program} import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0.1.0" in done.stdout


LISTS_ONE_JOB = """
from ones.daemon.ctl import jobs
from ones.daemon.ctl.main import main
one = {"job": 1, "name": "caf\u00e9 \u8bad\u7ec3", "samples": 0, "total_samples": 0}
jobs.asks = lambda *_: {"meta": {}, "jobs": [one]}
main()
"""
NO_ROOM = "onesctl: error: can't write: No space left on device\n"


def child(program: str, *words: str, **others: Any) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "PYTHONUNBUFFERED": "", **others.pop("environ", {})}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, **others}
    words = (sys.executable, "-c", program, *words)
    return subprocess.run(words, check=False, env=environ, **given)


def test_a_name_that_the_terminal_has_no_letters_for_does_not_break_the_listing() -> None:
    latin = {"PYTHONIOENCODING": "latin-1"}
    done = child(LISTS_ONE_JOB, "jobs", "-n", "-o", "job,name", environ=latin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == b"1  caf\xe9 ??"


@pytest.mark.parametrize("words", [("jobs", "-n", "-o", "job"), ("--help",)])
def test_output_that_does_not_fit_is_told_in_one_line(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = child(LISTS_ONE_JOB, *words, stdout=full)
    assert (done.returncode, done.stderr.decode()) == (1, NO_ROOM)


def test_so_is_output_of_which_only_the_end_does_not_fit() -> None:
    """What is not flushed before: a command of ours that prints without click."""
    prints = "from ones.daemon.ctl import jobs, main; import click\n"
    prints += "main.main.add_command(click.Command('p', callback=lambda: print('x'))); main.main()"
    with Path("/dev/full").open("wb") as full:
        done = child(prints, "p", stdout=full)
    assert (done.returncode, done.stderr.decode()) == (1, NO_ROOM)


def test_a_full_disk_under_standard_error_costs_no_exit_code() -> None:
    with Path("/dev/full").open("wb") as full:
        done = child(LISTS_ONE_JOB, "jobs", stdout=full, stderr=full)
    assert done.returncode == 1


def test_a_reader_who_has_seen_enough_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = child(LISTS_ONE_JOB, "jobs", stdout=gone)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("command", ["jobs", "estimate"])
def test_who_has_no_name_on_this_host_is_told_so(
    listed: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#SBATCH --job-name=train\n")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    done = onesctl(command, "--me" if command == "jobs" else str(script))
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "onesctl: error: uid 4000000000 has no name on this host;"
        " is sssd or nslcd running? getent passwd 4000000000"
    ]
