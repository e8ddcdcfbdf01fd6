"""ones-release against programs that stand in for Slurm's at the process boundary."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.daemon.onesd.books.holds import HoldsBook
from ones.daemon.onesd.books.store import Store
from ones.daemon.presence import Heartbeat, absence, read_paths
from ones.daemon.release import PendingJob, main, parse_squeue
from ones.slurm_ext.snapshot import Snapshot

PRERM = Path(__file__).resolve().parents[2] / "debian" / "ones-controller.prerm"
MARK = "ONES1:sizes=1-4;request=2;held=1"


def a_line(
    job: int | str = 7,
    *,
    task: str = "",
    priority: int = 0,
    restarts: int = 0,
    reason: str = "JobHeldUser",
    nodes: str = "",
    comment: str = MARK,
    submitted: int = 1000,
    eligible: int | str = 1000,
) -> str:
    numbers = f"{job:<20}{task or job:<40}{priority:<20}{restarts:<12}{submitted:<20}{eligible:<20}"
    return f"{numbers}{reason:<64}{nodes:<64}{comment:<320}"


class Site:
    """A controller host without onesd: fake squeue and scontrol on PATH, a heartbeat, a store."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.calls = root / "calls"
        self.queue = root / "queue"
        self.heartbeat = root / "heartbeat"
        self.store = root / "ones.sqlite"
        self.holding()
        self.program("squeue", f"cat {self.queue}")
        self.program("scontrol", f'echo "$@" >> {self.calls}')
        monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")

    def program(self, name: str, body: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def holding(self, *lines: str) -> None:
        self.queue.write_text("".join(f"{line}\n" for line in lines))

    def beat(self, *, age: float = 0, hold: str = "yes", more: str = "") -> None:
        self.heartbeat.write_text(
            f"ones-heartbeat 1\ntime {time.time() - age:.0f}\nlifetime 30\nhold {hold}\n{more}"
        )

    def wrote_down(self, *rows: tuple[int, int, float | None]) -> None:
        """Rows of onesd's table of holds: job, restarts, released."""
        with sqlite3.connect(self.store) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS holds(job INTEGER PRIMARY KEY,"
                " restarts INTEGER NOT NULL, since REAL NOT NULL, released REAL)"
            )
            database.executemany("INSERT INTO holds VALUES(?, ?, 0, ?)", rows)

    def run(self, *options: str) -> Result:
        paths = ["--store", str(self.store), "--heartbeat", str(self.heartbeat)]
        return CliRunner().invoke(main, [*paths, *options])

    @property
    def released(self) -> Sequence[int]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [int(call.split()[1]) for call in calls if call.startswith("release ")]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_job_held_at_submission_is_released_unpinned_and_at_once(site: Site) -> None:
    site.holding(a_line(7))
    result = site.run()
    assert result.exit_code == 0
    assert result.output == "released job 7: held at submission, and onesd has no heartbeat\n"
    assert site.calls.read_text().splitlines() == [
        "update JobId=7 ReqNodeList= StartTime=now",
        "release 7",
    ]


def test_slurm_is_not_even_asked_while_onesd_lives_and_holds(site: Site) -> None:
    site.beat()
    site.program("squeue", f"echo asked >> {site.calls}")
    result = site.run()
    assert (result.exit_code, result.output) == (0, "")
    assert not site.calls.exists()


@pytest.mark.parametrize(
    "beat", [{"age": 31}, {"age": -120}, {"hold": "no"}], ids=["stale", "future", "no hold"]
)
def test_a_heartbeat_that_does_not_hold_now_counts_as_none(
    site: Site, beat: dict[str, float | str]
) -> None:
    site.beat(**beat)  # type: ignore[arg-type]
    site.holding(a_line(7))
    site.run()
    assert site.released == [7]


def test_nothing_to_do_is_success_and_silence(site: Site) -> None:
    assert (site.run().exit_code, site.run().output) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        a_line(comment=""),
        a_line(comment="somebody's comment"),
        a_line(comment=MARK.replace("held=1", "held=0")),
        a_line(priority=1, reason="Priority"),
        a_line(reason="JobHeldAdmin"),
        a_line(restarts=1, reason="launch failed requeued held"),
        a_line(task="7_2", comment=MARK.replace("held=1", "held=0")),
    ],
    ids=[
        "plain job",
        "plain job with comment",
        "held by its user at submission",
        "not held",
        "held by an administrator",
        "held by Slurm after a failed launch",
        "task of an array, held by its user",
    ],
)
def test_a_job_that_somebody_else_holds_is_left_alone(site: Site, line: str) -> None:
    site.holding(line)
    assert site.run().exit_code == 0
    assert site.released == []


def test_one_task_of_an_array_is_released_and_not_all_of_it(site: Site) -> None:
    held = MARK.replace("held=1", "held=0")
    requeued = "job requeued in held state"
    site.holding(a_line(7, task="7_3", restarts=1, reason=requeued, comment=held))
    assert site.run().exit_code == 0
    calls = site.calls.read_text().splitlines()
    assert calls == ["update JobId=7_3 ReqNodeList= StartTime=now", "release 7_3"]


def test_a_job_that_onesd_held_between_runs_is_released_whoever_seems_to_hold_it(
    site: Site,
) -> None:
    site.wrote_down((7, 1, None), (8, 2, None))
    site.holding(
        a_line(7, restarts=2, reason="job requeued in held state"),
        a_line(8, restarts=2, reason="JobHeldAdmin"),
    )
    result = site.run()
    assert site.released == [7, 8]
    assert "released job 7: held by onesd, and onesd has no heartbeat" in result.output


def test_a_hold_of_an_earlier_run_says_nothing_of_this_one(site: Site) -> None:
    site.wrote_down((7, 1, None))
    site.holding(a_line(7, restarts=3))
    site.run()
    assert site.released == []


def test_a_user_who_holds_his_job_after_its_release_keeps_it_held(site: Site) -> None:
    site.wrote_down((7, 0, time.time() - 60), (8, 1, time.time() - 60))
    site.holding(a_line(7), a_line(8, restarts=2))
    site.run()
    assert site.released == []


def test_what_was_released_is_written_down_and_not_released_again(site: Site) -> None:
    site.wrote_down((8, 0, None))
    site.holding(a_line(7), a_line(8, restarts=1))
    site.run()
    site.run()
    assert site.released == [7, 8]


def test_a_job_that_waits_for_the_lost_node_of_its_last_run_is_let_go_elsewhere(site: Site) -> None:
    lost = {"priority": 1, "restarts": 1, "nodes": "n1"}
    site.holding(
        a_line(7, **lost, reason="ReqNodeNotAvail, UnavailableNodes:n1"),
        a_line(8, **lost, reason="BeginTime"),  # not tried yet
        a_line(9, **lost | {"nodes": ""}, reason="Resources"),
        a_line(10, **lost, reason="Resources", comment=""),
    )
    assert site.run().output.startswith("released job 7: requeued onto nodes that onesd chose")
    assert site.released == [7]
    assert "update JobId=7 ReqNodeList= StartTime=now" in site.calls.read_text()


def test_without_the_database_a_requeued_and_held_elastic_job_counts_as_onesds(site: Site) -> None:
    requeued = "job_requeued_in_held_state"
    site.holding(
        a_line(7, restarts=2, reason=requeued),
        a_line(8, restarts=2, reason=requeued, comment=""),
        a_line(9, restarts=2, reason="JobHeldUser"),  # that is no hold of onesd's after a requeue
        a_line(10, restarts=2, reason="JobHeldAdmin"),
    )
    site.run()
    assert site.released == [7, 10]
    assert not site.store.exists()


def the_books(site: Site) -> Store:
    """onesd's own database, of this version."""
    return Store(site.store)


def test_a_users_hold_of_a_job_that_onesd_was_starting_is_his(site: Site) -> None:
    holds = HoldsBook(the_books(site))
    holds.keep(7, 0, released=True, now=time.time(), pinned=True)  # it was to start
    holds.keep(7, 0, released=False, now=time.time())  # and was about to be withdrawn
    site.holding(a_line(7, reason="JobHeldUser", nodes="n1"))
    site.run()
    assert site.released == []
    site.holding(a_line(7, reason="JobHeldAdmin"))
    site.run()
    assert site.released == [7]


def test_a_job_that_onesd_released_onto_nodes_which_are_not_free_is_let_go(site: Site) -> None:
    holds = HoldsBook(the_books(site))
    holds.keep(7, 0, released=True, now=time.time(), pinned=True)
    holds.keep(8, 0, released=True, now=time.time())
    pinned = {"priority": 1, "nodes": "n1", "reason": "Resources"}
    site.holding(a_line(7, **pinned), a_line(8, **pinned), a_line(9, **pinned))
    assert "released job 7: released onto nodes that onesd chose" in site.run().output
    assert site.released == [7]


def the_own_request(site: Site, job: int, own: str) -> None:
    """onesd has stopped a job that it had given another shape."""
    holds = HoldsBook(the_books(site))
    holds.keep(job, 0, released=False, now=time.time())
    holds.asked(job, {})
    with sqlite3.connect(site.store) as database:
        database.execute("UPDATE holds SET own = ? WHERE job = ?", (own, job))


OWN = '{"NumNodes": "2-2", "TresPerJob": "gres/gpu:8"}'


def test_a_job_to_which_onesd_gave_another_shape_is_released_at_its_own_request(site: Site) -> None:
    the_own_request(site, 7, OWN)
    site.holding(a_line(7, restarts=1, reason="job requeued in held state", eligible=1121))
    result = site.run()
    assert (result.exit_code, site.released) == (0, [7])
    assert site.calls.read_text().splitlines()[0] == (
        "update JobId=7 NumNodes=2-2 TresPerJob=gres/gpu:8 ReqNodeList= StartTime=now"
    )


def test_a_job_that_slurm_will_not_put_back_is_released_as_it_is(site: Site) -> None:
    the_own_request(site, 7, OWN)
    site.holding(a_line(7, restarts=1, reason="job requeued in held state"))
    site.program(
        "scontrol",
        f'case "$*" in *NumNodes*) echo "Not so" >&2; exit 1;; esac; echo "$@" >> {site.calls}',
    )
    result = site.run()
    assert (result.exit_code, site.released) == (0, [7])
    assert site.calls.read_text().startswith("update JobId=7 ReqNodeList= StartTime=now\n")
    assert result.stderr == (
        "ones-release: error: job 7 is not put back to its own request:"
        " scontrol update JobId=7: Not so\n"
    )


@pytest.mark.parametrize("own", ["", "oops", "[1]", "{}", "null"])
def test_an_own_request_that_makes_no_sense_keeps_no_job_held(site: Site, own: str) -> None:
    the_own_request(site, 7, own)
    site.holding(a_line(7, restarts=1, reason="job requeued in held state"))
    assert (site.run().exit_code, site.released) == (0, [7])


def test_a_job_that_nobody_holds_keeps_its_shape(site: Site) -> None:
    """It may have been started by the time at which the update is there."""
    the_own_request(site, 7, OWN)
    site.holding(a_line(7, restarts=1, priority=1, nodes="n1", reason="Resources"))
    site.run()
    assert site.released == [7]
    assert site.calls.read_text().startswith("update JobId=7 ReqNodeList= StartTime=now\n")


@pytest.mark.parametrize(
    ("restarts", "eligible", "begins"),
    [(0, 1000, "now"), (0, 9000, "later"), (1, 1121, "now"), (1, 9000, "later"), (1, "N/A", "now")],
)
def test_a_job_that_its_owner_has_begin_later_begins_then(
    site: Site, restarts: int, eligible: int | str, begins: str
) -> None:
    site.wrote_down((7, restarts, None))
    site.holding(a_line(7, restarts=restarts, reason="JobHeldAdmin", eligible=eligible))
    site.run()
    assert site.released == [7]
    assert ("StartTime=now" in site.calls.read_text()) == (begins == "now")


def test_a_hold_of_onesds_that_came_late_is_lifted_and_a_long_forgotten_one_is_not(
    site: Site,
) -> None:
    holds = HoldsBook(the_books(site))
    for job, at in ((7, time.time() - 60), (8, time.time() - 6000)):
        holds.keep(job, 0, released=True, now=at)
        holds.sending(job, 0, now=at)
    site.holding(a_line(7, restarts=1, reason="JobHeldAdmin"), a_line(8, reason="JobHeldAdmin"))
    site.run()
    assert site.released == [7]


def test_an_administrators_hold_of_a_job_that_onesd_knows_is_his(site: Site) -> None:
    store = the_books(site)
    site.holding(a_line(7, restarts=1, reason="JobHeldAdmin"))
    HoldsBook(store).take(
        Snapshot(taken=time.time(), jobs={}, nodes={}, switches={}), (), now=time.time()
    )
    site.run()
    assert site.released == [], "a hold of onesd's would be written down"


def test_what_was_released_into_a_database_of_this_version_is_not_released_again(
    site: Site,
) -> None:
    HoldsBook(the_books(site)).keep(7, 0, released=False, now=time.time())
    site.holding(a_line(7, reason="JobHeldAdmin"))
    site.run()
    site.run()
    assert site.released == [7]


def test_a_broken_database_does_not_keep_a_job_held(site: Site) -> None:
    site.store.write_text("not a database, whatever its name says" * 100)
    site.holding(a_line(7))
    assert site.run().exit_code == 0
    assert site.released == [7]


def test_moves_of_a_living_onesd_that_holds_no_new_jobs_are_left_to_it(site: Site) -> None:
    site.beat(hold="no", more="acts yes\n")
    site.wrote_down((7, 0, None))
    site.holding(a_line(7, restarts=1), a_line(8))
    site.run()
    assert site.released == [8]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(site: Site) -> None:
    site.holding(a_line(7))
    result = site.run("--dry-run")
    assert result.output == "would release job 7: held at submission, and onesd has no heartbeat\n"
    assert site.released == []


def test_one_refused_job_does_not_keep_the_others_held(site: Site) -> None:
    site.holding(a_line(7), a_line(8))
    site.program(
        "scontrol",
        f'case "$*" in *7*) echo "Access denied" >&2; exit 1;; esac; echo "$@" >> {site.calls}',
    )
    result = site.run()
    assert result.exit_code == 1
    assert site.released == [8]
    assert "job 7 is not released: scontrol update JobId=7: Access denied" in result.output


def test_an_unreachable_controller_is_one_line_and_exit_1(site: Site) -> None:
    site.program("squeue", 'echo "Unable to contact slurm controller" >&2; exit 1')
    result = site.run()
    assert result.exit_code == 1
    assert "Unable to contact slurm controller" in result.output
    assert len(result.output.splitlines()) == 1


def test_a_slurm_that_does_not_answer_in_time_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.daemon.release.TIMEOUT", 0.05)
    site.program("squeue", "exec sleep 5")
    assert "no answer" in site.run().output


def test_a_configuration_that_stops_onesd_does_not_stop_the_release(tmp_path: Path) -> None:
    config = tmp_path / "ones.toml"
    drop_ins = tmp_path / "ones.d"
    drop_ins.mkdir()
    config.write_text('store = "/a/store"\nheartbeat = "/a/beat"\nno_such_key = 1\n')
    (drop_ins / "10.toml").write_text('store = "/b/store"\n')
    (drop_ins / "20.toml").write_text("broken")
    assert read_paths(config) == {"store": Path("/b/store"), "heartbeat": Path("/a/beat")}
    missing = read_paths(tmp_path / "missing" / "ones.toml")
    assert missing["heartbeat"] == Path("/run/ones/heartbeat")


@pytest.mark.parametrize("text", ["", "x", "ones-heartbeat 1\ntime now\nlifetime 30\nhold yes\n"])
def test_a_broken_heartbeat_is_none(text: str) -> None:
    assert Heartbeat.parse(text) is None
    assert absence(Heartbeat.parse(text), time.time()) is not None


def test_a_mark_with_further_keys_and_a_comment_behind_it_is_read() -> None:
    comment = "ONES1:sizes=1,2,4;request=2;held=1;more=x held=0 says the operator"
    [job] = parse_squeue([a_line(comment=comment)])
    times = {"submitted": 1000.0, "eligible": 1000.0}
    assert job == PendingJob(7, 0, 0, "JobHeldUser", "", comment, **times)
    assert job.held_at_submission


def test_a_stage_in_job_that_waits_for_onesd_is_ended(site: Site) -> None:
    site.program("scancel", f'echo "scancel $@" >> {site.calls}')
    site.holding(a_line(8, comment="ONES-STAGE1:"), a_line(9, comment="ONES-STAGE1:", priority=3))
    assert "would end stage-in job 8" in site.run("--dry-run").output
    result = site.run()
    assert result.output == "ended stage-in job 8: onesd has no heartbeat\n"
    assert site.calls.read_text() == "scancel 8\n"


@pytest.mark.parametrize(
    "odd",
    [
        "squeue: warning: something else",
        a_line("\N{SUPERSCRIPT TWO}"),
        a_line(7).replace("0", "x", 1),
        a_line("9" * 20)[:30],
        "8",
        "\x1e\x85",
        a_line(8).replace("JobHeldUser", "Job\u2028Held\x0bUser"),
    ],
)
def test_a_line_that_makes_no_sense_keeps_no_other_job_held(site: Site, odd: str) -> None:
    site.holding(odd, a_line(7))
    result = site.run()
    assert 7 in site.released
    assert result.exit_code == 0


def test_a_line_that_makes_no_sense_is_named(site: Site) -> None:
    site.holding("8  oops", a_line(9, task="9_3", priority=3))
    result = site.run()
    assert result.stderr == (
        'ones-release: error: squeue printed "8 oops"; that line is left out\n'
    )


@pytest.mark.parametrize("name", ["10+0", "10+1", "10_3"])
def test_parts_of_a_job_of_somebody_else_are_no_oddities(site: Site, name: str) -> None:
    site.beat(hold="no")
    site.holding(a_line(11, task=name, priority=1, reason="Resources", comment="(null)"))
    result = site.run()
    assert (result.exit_code, result.output) == (0, "")


def test_a_long_queue_of_other_jobs_is_not_kept_in_memory(site: Site) -> None:
    site.holding(a_line(7))
    plain = a_line(8, reason="Priority", comment="")
    site.program("squeue", f"yes '{plain}' | head -n 20000; cat {site.queue}")
    tracemalloc.start()
    try:
        site.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert site.released == [7]
    assert peak < 2 * 2**20 < 20000 * len(plain)


def test_of_a_list_that_breaks_off_nothing_is_released(site: Site) -> None:
    site.program("squeue", f"echo '{a_line(7)}'; echo 'slurm_load_jobs error' >&2; exit 1")
    result = site.run()
    assert result.exit_code == 1
    assert "slurm_load_jobs error" in result.output
    assert site.released == []


def configured(site: Site, more: str = "") -> Path:
    config = site.root / "ones.toml"
    config.write_text(f'store = "{site.store}"\nheartbeat = "{site.heartbeat}"\n{more}')
    return config


def as_removal(site: Site, more: str = "", *options: str) -> Result:
    """As the package is removed: onesd is stopped, and its paths are where ones.toml says."""
    config = configured(site, more)
    return CliRunner().invoke(main, ["--config", str(config), "--onesd-is-gone", *options])


def test_onesd_that_is_gone_for_good_holds_nothing_however_fresh_its_heartbeat(site: Site) -> None:
    site.beat(more="acts yes\n")
    site.wrote_down((8, 0, None))
    site.holding(a_line(7), a_line(8, restarts=1))
    result = as_removal(site)
    assert result.exit_code == 0
    assert "released job 7: held at submission, and onesd is gone" in result.output
    assert site.released == [7, 8]
    assert not site.heartbeat.exists(), "job_submit.lua would hold new jobs by it"


def test_a_dry_run_leaves_the_heartbeat(site: Site) -> None:
    site.beat()
    site.holding(a_line(7))
    assert "would release job 7" in as_removal(site, "", "--dry-run").output
    assert site.heartbeat.exists()


def test_a_host_on_which_onesd_never_ran_releases_nothing(site: Site) -> None:
    """Login hosts have the package for onesctl alone."""
    site.holding(a_line(7))
    result = as_removal(site)
    assert (result.exit_code, result.output) == (0, "")
    assert site.released == []


def test_an_onesd_that_is_not_gone_keeps_what_it_holds(site: Site) -> None:
    site.beat()
    site.holding(a_line(7))
    site.wrote_down()
    lock = site.store.with_suffix(".lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = as_removal(site)
    assert result.exit_code == 1
    assert f"an onesd holds {lock}" in result.output
    assert site.released == []
    assert site.heartbeat.exists()


SEVERAL = '[standby]\ncontrollers = ["ctl2:7667"]\ntakeover = 0.4\n'


class Folder:
    """The terms of several onesd, beside the database."""

    def __init__(self, site: Site) -> None:
        self.path = site.root / "terms"
        self.path.mkdir()

    def record(self, number: int, host: str) -> None:
        record = {"host": host, "address": "ctl:7667", "store": "ones.sqlite"}
        (self.path / f"{number:010}").write_text(json.dumps(record))

    def beat(self, number: int, count: int, *, ended: bool = False) -> None:
        text = json.dumps({"count": count, "ended": ended})
        (self.path / f"{number:010}.beat").write_text(text)


def test_where_no_other_host_has_a_living_onesd_its_jobs_are_released(site: Site) -> None:
    terms = Folder(site)
    terms.record(1, "ctl1")
    terms.beat(1, 4, ended=True)
    site.beat()
    site.holding(a_line(7))
    assert as_removal(site, SEVERAL).exit_code == 0
    assert site.released == [7]


@pytest.mark.parametrize("how", ["beats", "takes over"])
def test_what_another_host_holds_is_left_to_it(site: Site, how: str) -> None:
    terms = Folder(site)
    terms.record(1, "ctl2" if how == "beats" else "ctl1")
    terms.beat(1, 4, ended=how != "beats")
    site.beat()
    site.holding(a_line(7))
    what = (lambda: terms.beat(1, 5)) if how == "beats" else (lambda: terms.record(2, "ctl2"))
    sign = threading.Timer(0.2, what)
    sign.start()
    result = as_removal(site, SEVERAL)
    sign.join()
    assert result.exit_code == 0
    assert result.output == "onesd is alive on ctl2; what it holds is left to it\n"
    assert site.released == []
    assert site.heartbeat.exists()


def test_the_removal_of_the_package_asks_where_the_configuration_says(site: Site) -> None:
    """debian/ones-controller.prerm, of which the rpm's scriptlet is made."""
    site.program("runuser", f'echo "$@" >> {site.calls}')
    site.program("scontrol", "exit 1")  # slurmctld is down
    text = PRERM.read_text().replace("#DEBHELPER#", "").replace("/run/systemd/system", "/none")
    subprocess.run(["sh", "-c", text, "prerm", "remove"], check=True)
    assert site.calls.read_text() == "-u ones -- /usr/bin/ones-release --onesd-is-gone\n"
    site.calls.unlink()
    subprocess.run(["sh", "-c", text, "prerm", "upgrade"], check=True)
    assert not site.calls.exists()


@pytest.mark.parametrize("where", ["a file that slurm.conf includes", "slurmctld's memory"])
def test_the_package_is_not_removed_while_slurm_calls_its_prolog(site: Site, where: str) -> None:
    """slurmctld requeues and holds every job whose prolog is missing."""
    folder = site.calls.parent / "etc"
    folder.mkdir()
    (folder / "slurm.conf").write_text("Include prologs.conf\n")
    (folder / "prologs.conf").write_text("# PrologSlurmctld=/usr/libexec/ones/ones-event\n")
    told = "PrologSlurmctld[0]      = (null)"
    if where == "slurmctld's memory":
        told = "PrologSlurmctld[0]      = /usr/libexec/ones/ones-event"
    else:
        (folder / "prologs.conf").write_text("PrologSlurmctld=/usr/libexec/ones/ones-event\n")
    site.program("scontrol", f"echo '{told}'")
    site.program("runuser", f'echo "$@" >> {site.calls}')
    text = PRERM.read_text().replace("#DEBHELPER#", "").replace("/run/systemd/system", "/none")
    text = text.replace("/etc/slurm/", f"{folder}/")
    command = ["sh", "-c", text, "prerm", "remove"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "ones-controller: error: Slurm still calls /usr/libexec/ones/ones-event;" in (
        refused.stderr
    )
    assert not site.calls.exists()


@given(st.text(), st.integers(0, 8))
@settings(deadline=None)
def test_whatever_squeue_prints_the_good_lines_count(noise: str, at: int) -> None:
    lines = [a_line(number) for number in range(1, 9)]
    lines.insert(at, noise.replace("\n", " "))
    found = {job.id for job in parse_squeue(lines)}
    assert found >= set(range(1, 9))


def test_bytes_that_are_no_text_keep_no_job_held(site: Site) -> None:
    site.queue.write_bytes(b"\xff\xfe\n" + a_line(7).encode() + b"\n")
    site.run()
    assert site.released == [7]


@pytest.mark.parametrize("field", ["time", "lifetime"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e999"])
def test_a_heartbeat_without_end_is_none(field: str, value: str) -> None:
    said = {"time": "1000", "lifetime": "30"} | {field: value}
    lines = [f"{name} {number}" for name, number in said.items()]
    assert Heartbeat.parse("\n".join(["ones-heartbeat 1", *lines, "hold yes"])) is None
