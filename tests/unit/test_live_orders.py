"""Orders at the base launcher: satellites come and go, and a failure leaves the job as it was."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ones.slurm_ext.runtime.live.agent_line import AgentLine, Order, read_order
from ones.slurm_ext.runtime.live.order_under_way import Orders
from ones.slurm_ext.runtime.live.orders import OrderFault, order
from ones.slurm_ext.runtime.live.submitting import (
    Ours,
    Submitted,
    Submitter,
    clean,
    options,
    script,
)
from ones.slurm_ext.runtime.live.terms import Slot

SAID = {
    "number": 700,
    "restarts": 2,
    "keep": [11],
    "add": [{"node": "n2", "gpus": 3}],
    "gpu_type": "v100",
    "batch": None,
    "patience": 60.0,
    "withdrawn": False,
}


def an_order(number: int = 700, **changes: Any) -> Order:
    fields: dict[str, Any] = {"keep": [], "number": number} | changes
    found = read_order({**SAID, **fields}, restarts=2)
    assert found is not None
    return found


def test_an_order_is_read_and_one_of_another_run_or_with_a_strange_node_is_not() -> None:
    order = read_order(SAID, restarts=2)
    assert order is not None
    assert (order.number, order.keep, order.add) == (700, frozenset({11}), (("n2", 3),))
    assert read_order(SAID, restarts=1) is None
    for fault in (
        {"add": [{"node": "n2 --uid=0", "gpus": 3}]},
        {"add": [{"node": "n2", "gpus": 0}]},
        {"gpu_type": "v100,x"},
        {"number": "many"},
        {"keep": 3},
        {"batch": 0},
        {"batch": 10**20},
    ):
        assert read_order({**SAID, **fault}, restarts=2) is None
    assert read_order(None, restarts=2) is None


class BaseLauncher:
    """A base launcher with a worker of its own, whose changes are done when a test says so."""

    def __init__(self) -> None:
        self.inside: dict[int, int] = {}
        self.at_door: set[int] = set()
        self.settled = True
        self.wanted: frozenset[int] = frozenset()
        self.present: frozenset[int] = frozenset({0})
        self.away: list[int] = []
        self.own_homes: dict[str, int] = {}

    def own(self) -> dict[str, int]:
        return dict(self.own_homes)

    def homes(self) -> dict[int, int]:
        return dict(self.inside)

    def waiting(self) -> frozenset[int]:
        return frozenset(self.at_door)

    def let_in(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            self.at_door.discard(job)
            self.inside[job] = len(self.inside) + 1

    def send_away(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            self.away.append(job)
            self.at_door.discard(job)
            self.inside.pop(job, None)

    def want(
        self, homes: frozenset[int], batch: int | None, *, without: frozenset[int] = frozenset()
    ) -> None:
        own = set(self.own_homes.values()) - without
        self.wanted, self.settled = homes | own, False

    def members(self) -> frozenset[Slot] | None:
        return frozenset(Slot(home, 0) for home in self.present) if self.settled else None

    def change(self) -> None:
        """The workers have come together."""
        self.settled, self.present = True, self.wanted | {0}
        self.inside = {job: home for job, home in self.inside.items() if home in self.wanted}


class Slurm:
    """sbatch and scancel, whose answers a test gives."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers = True
        self.fault = ""
        self.cancelled: list[int] = []

    def ask(self, order: int, node: str, gpus: int, gpu_type: str) -> Any:
        class Asked:
            job: int | None = None
            fault = ""

        self.asked.append(Asked())
        return self.asked[-1]

    def look(self, satellite: Any) -> bool:
        if self.answers and satellite.job is None:
            satellite.fault = self.fault
            satellite.job = None if self.fault else 100 + self.asked.index(satellite)
        return satellite.job is not None or bool(satellite.fault)

    def cancel(self, jobs: Iterable[int]) -> None:
        self.cancelled += jobs


class Site:
    def __init__(self) -> None:
        self.now = 0.0
        self.base, self.slurm = BaseLauncher(), Slurm()
        self.orders = Orders(self.base, self.slurm, lambda: self.now)  # type: ignore[arg-type]


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_satellite_that_was_to_stay_and_is_lost_meanwhile_fails_the_order(site: Site) -> None:
    site.base.inside, site.base.present = {11: 1}, frozenset({0, 1})
    site.orders.take(an_order(keep=[11]))
    site.base.inside = {}
    site.orders.lost(11)
    assert (site.orders.state, site.orders.reason) == ("failed", "satellite 11 was lost")
    assert site.base.away == [100]
    site.base.at_door.add(100)
    site.orders.look()
    assert site.base.wanted == frozenset()


def test_a_satellite_that_was_to_stay_and_leaves_in_good_order_fails_the_order(site: Site) -> None:
    site.base.inside, site.base.present = {11: 1}, frozenset({0, 1})
    site.orders.take(an_order(keep=[11]))
    site.base.inside = {}  # nobody calls it lost: it was dismissed
    site.base.at_door.add(100)
    site.orders.look()
    assert (site.orders.state, site.orders.reason) == ("failed", "satellite 11 is gone")
    assert site.base.away == [100]
    assert site.base.wanted == frozenset()


def test_a_node_of_the_jobs_own_leaves_in_the_change_that_brings_a_satellite(site: Site) -> None:
    site.base.own_homes, site.base.present = {"n2": 1, "n3": 2}, frozenset({0, 1, 2})
    site.base.inside = {11: 3}
    site.orders.take(an_order(keep=[11], leave=["n2", "n4"], add=[]))
    assert site.base.wanted == {2, 3}
    assert site.orders.state == "working"
    site.base.change()
    site.orders.look()
    assert site.orders.state == "working"  # its processes have yet to end
    del site.base.own_homes["n2"]
    site.orders.look()
    assert site.orders.state == "done"


def test_an_order_whose_node_trains_on_has_failed(site: Site) -> None:
    site.base.own_homes, site.base.present = {"n2": 1}, frozenset({0, 1})
    site.orders.take(an_order(leave=["n2"], add=[]))
    site.base.settled = True
    site.orders.look()
    assert (site.orders.state, site.orders.reason) == (
        "failed",
        "the workers could not be brought together",
    )


TWO = [{"node": "n1", "gpus": 1}, {"node": "n2", "gpus": 3}]


def test_all_of_an_order_are_let_in_together_and_then_it_is_done(site: Site) -> None:
    site.orders.take(an_order(add=TWO))
    site.base.at_door.add(100)
    site.orders.look()
    assert site.base.inside == {}
    site.base.at_door.add(101)
    site.orders.look()
    assert site.base.wanted == {1, 2}
    assert site.orders.state == "working"
    site.base.change()
    site.orders.look()
    assert (site.orders.number, site.orders.state) == (700, "done")


def test_an_order_that_is_said_again_is_done_once(site: Site) -> None:
    for _ in range(3):
        site.orders.take(an_order())
    assert len(site.slurm.asked) == 1
    site.base.at_door.add(100)
    site.orders.look()
    site.base.change()
    site.orders.look()
    site.orders.take(an_order())
    assert len(site.slurm.asked) == 1
    assert site.orders.state == "done"


def test_those_that_are_not_kept_leave_in_the_change_that_takes_the_others_in(site: Site) -> None:
    site.base.inside, site.base.present = {11: 1, 12: 2}, frozenset({0, 1, 2})
    site.orders.take(an_order(keep=[12]))
    site.base.at_door.add(100)
    site.orders.look()
    assert site.base.wanted == {2, 3}


@pytest.mark.parametrize("how", ["late", "withdrawn", "refused by Slurm", "lost", "another"])
def test_an_order_that_fails_leaves_no_satellite_of_its_own(site: Site, how: str) -> None:
    if how == "refused by Slurm":
        site.slurm.fault = "sbatch: error: no"
    site.orders.take(an_order(add=TWO))
    site.base.at_door.add(101)
    match how:
        case "late":
            site.now = 61.0
            site.orders.look()
        case "withdrawn":
            site.orders.take(an_order(add=TWO, withdrawn=True))
        case "lost":
            site.base.at_door.discard(101)
            site.orders.lost(101)
        case "another":
            site.orders.take(an_order(701, add=[]))
            site.base.change()
            site.orders.look()
            assert (site.orders.number, site.orders.state) == (701, "done")
    if how != "another":
        assert site.orders.state == "failed"
        assert site.orders.reason
    assert site.base.inside == {}
    assert how == "refused by Slurm" or set(site.slurm.cancelled) == {100, 101}


def test_what_slurm_takes_after_the_order_has_failed_is_cancelled(site: Site) -> None:
    site.slurm.answers = False
    site.orders.take(an_order())
    site.orders.close()
    site.slurm.answers = True
    site.orders.look()
    assert site.slurm.cancelled == [100]


def test_a_change_that_could_not_be_made_is_a_failure(site: Site) -> None:
    site.orders.take(an_order())
    site.base.at_door.add(100)
    site.orders.look()
    site.orders.refused("the workers in slot 1/0 failed 3 times")
    assert site.orders.state == "failed"
    assert site.base.away == [100]


def test_only_satellites_of_the_order_under_way_are_expected(site: Site) -> None:
    assert not site.orders.wants("2.700", 2)
    site.orders.take(an_order())
    assert site.orders.wants("2.700", 2)
    assert not site.orders.wants("2.699", 2)
    assert not site.orders.wants("2.700", 3)


def test_an_order_that_keeps_what_is_gone_is_refused(site: Site) -> None:
    site.orders.take(an_order(keep=[11]))
    assert (site.orders.state, site.orders.reason) == ("failed", "satellite 11 is gone")
    assert site.slurm.asked == []


ENVIRON = {
    "PATH": "/bin",
    "VIRTUAL_ENV": "/home/a/env",
    "SLURM_JOB_ID": "12",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_MEM_PER_NODE": "4000",
    "ONES_SOCKET": "/run/x",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "RANK": "0",
}


def ours(folder: Path = Path("/live")) -> Ours:
    command = ("/bin/python", "-m", "x", "train me.py", "--name=a b")
    return Ours(job=12, restarts=2, gpus=2, command=command, log=folder / "satellite-%j.out")


def test_a_satellite_has_the_users_environment_and_nothing_of_this_jobs() -> None:
    assert clean(ENVIRON) == {name: ENVIRON[name] for name in ("PATH", "VIRTUAL_ENV", "SLURM_CONF")}


def test_a_satellite_asks_for_its_share_of_cpus_and_memory_on_the_named_node() -> None:
    words = options(ours(), ENVIRON, order=700, node="n2", gpus=3, gpu_type="v100")
    for word in (
        "--comment=ones-satellite:12.2.700",
        "--nodelist=n2",
        "--gres=gpu:v100:3",
        "--cpus-per-task=12",
        "--mem=6000M",
        "--account=vision",
        "--no-requeue",
    ):
        assert word in words
    assert not any(word.startswith("--elastic") for word in words)


def test_the_batch_script_quotes_the_users_words() -> None:
    text = script(ours(), 700)
    assert text.endswith("exec /bin/python -m x 'train me.py' '--name=a b'\n")
    assert "export ONES_TICKET=2.700\nexport ONES_LEADER_JOB=12\n" in text


def test_the_batch_script_has_the_very_bytes_of_the_users_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths need not be UTF-8."""
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/script\necho 77\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = os.fsdecode(b"--data=/caf\xe9")
    theirs = replace(ours(tmp_path), command=("/bin/python", path))
    satellite = Submitter(theirs, dict(os.environ)).ask(700, "n2", 3, "v100")
    assert satellite.process.wait(10) == 0
    assert b"--data=/caf\xe9" in (tmp_path / "script").read_bytes()


def test_an_order_that_cannot_be_put_into_words_for_slurm_fails_alone(site: Site) -> None:
    def fails(*_: object) -> Any:
        raise UnicodeEncodeError("ascii", "\xe9", 0, 1, "ordinal not in range(128)")

    site.slurm.ask = fails  # type: ignore[method-assign]
    site.orders.take(an_order())
    assert site.orders.state == "failed"
    assert "ordinal not in range(128)" in site.orders.reason


def test_without_scancel_the_job_goes_on(tmp_path: Path) -> None:
    Submitter(ours(tmp_path), {"PATH": str(tmp_path)}).cancel([77])


@pytest.mark.parametrize(("code", "said"), [(0, "77;cluster"), (1, "sbatch: error: no such node")])
def test_what_sbatch_says_is_the_satellites_job_or_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/script\necho '{said}'\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    submitted = Submitter(ours(tmp_path), dict(os.environ))
    satellite: Submitted = submitted.ask(700, "n2", 3, "v100")
    satellite.process.wait(10)
    assert Submitter.look(satellite)
    assert (satellite.job, satellite.fault) == ((77, "") if code == 0 else (None, said))
    assert (tmp_path / "script").read_text() == script(ours(tmp_path), 700)


class Agent(threading.Thread):
    """Stands for the node's agent: keeps what is said, and answers each line with the same."""

    def __init__(self, path: Path, answer: object) -> None:
        super().__init__(daemon=True)
        self.heard: list[dict[str, Any]] = []
        self._answer = json.dumps(answer).encode() + b"\n"
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(path))
        self._door.listen()

    def run(self) -> None:
        link, _ = self._door.accept()
        # Who ends with an answer unread resets the link.
        with link, link.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                self.heard.append(json.loads(line))
                with contextlib.suppress(OSError):
                    link.sendall(self._answer)


def test_the_launcher_says_how_it_goes_and_hears_the_order_in_the_answer(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock", {"ok": True, "order": SAID})
    agent.start()
    watched: list[tuple[socket.socket, Callable[[], None]]] = []
    taken: list[Order] = []
    line = AgentLine(
        str(tmp_path / "agent.sock"),
        job=12,
        restarts=2,
        watch=lambda link, call: watched.append((link, call)),
        forget=lambda link: None,
        take=taken.append,
    )
    line.say({"workers": 1})
    watched[0][1]()
    assert [order.number for order in taken] == [700]
    assert agent.heard == [{"op": "live", "job": 12, "restarts": 2, "workers": 1}]
    line.close({"able": False})


def test_without_an_agent_nothing_happens(tmp_path: Path) -> None:
    line = AgentLine(
        str(tmp_path / "none.sock"),
        job=12,
        restarts=2,
        watch=lambda link, call: None,
        forget=lambda link: None,
        take=lambda order: None,
    )
    line.say({"workers": 1})
    line.close({"able": False})


def test_an_order_to_a_job_that_has_not_begun_says_what_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(OrderFault, match=r"no .*join\.json; name the folder of a job"):
        order(tmp_path, {"op": "status"})
