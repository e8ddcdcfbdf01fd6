"""The doors of onesd before people who mean it ill, and beside a Slurm that hangs."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import cast

import aiohttp
import msgspec
import pytest
import sealing
from fake_slurm import a_record
from onesd_process import Daemon
from patience import eventually
from prometheus_server import free_port
from standing_onesd import NoCluster, served_onesd

from ones.daemon import descriptors, munge
from ones.daemon.agent.push import Onesd
from ones.daemon.config import ConfigError, load_config
from ones.daemon.credentials import Credential
from ones.daemon.onesd.assembly import Onesd as Served
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors import askers, connections, workers
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.page import server
from ones.daemon.signatures import statement
from ones.daemon.wire import (
    AGENT_PURPOSE,
    CREDENTIAL,
    CTL_PURPOSE,
    HEARD_PURPOSE,
    LEASE_PURPOSE,
    NodeReport,
    Received,
    Report,
    answer_to,
)
from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.snapshot import Snapshot

NOBODY = 65534
JOB = {
    "job": 7,
    "name": "x",
    "user": "nobody",
    "account": "a",
    "sizes": "1-4",
    "requested": 1,
    "submitted": 1.0,
    "state": "PENDING",
    "family": "f",
}


class Visitor:
    """Somebody who reaches onesd's port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get(CREDENTIAL, "")
        finally:
            connection.close()

    def ask_as(
        self, uid: int, method: str, path: str, body: bytes = b""
    ) -> tuple[int, dict[str, object]]:
        credential = sealing.sign_as(uid, CTL_PURPOSE, f"{method} {path}", body)
        headers = {"Authorization": f"Munge {credential}"}
        status, text, _ = self.ask(method, path, headers, body)
        return status, json.loads(text)

    def announce(self, path: str, headers: dict[str, str], length: int) -> int:
        """The status of the answer to a body that never comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest("POST", path)
            for name, value in (headers | {"Content-Length": str(length)}).items():
                connection.putheader(name, value)
            connection.endheaders()
            return connection.getresponse().status
        finally:
            connection.close()

    def report(self, node: str = "n1") -> tuple[int, bytes, str, str]:
        body = msgspec.json.encode(NodeReport(node=node, taken=1.0, interval=1.0, version="0"))
        credential = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, node, body)
        headers = {"Authorization": f"Munge {credential}", "Ones-Node": node}
        return (*self.ask("POST", "/v1/agent", headers, body), credential)

    def unfinished(self) -> socket.socket:
        """A request that is never finished."""
        begun = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        begun.sendall(b"GET /v1/status HTTP/1.1\r\nHost: ctl\r\n")
        return begun


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ones.toml"
    path.write_text(
        f'controller = "localhost:{free_port()}"\nsocket = "{tmp_path}/onesd.sock"\n'
        f'store = "{tmp_path}/ones.sqlite"\nheartbeat = "{tmp_path}/heartbeat"\n'
        'policy = "fifo"\nround = 0.2\n[slurm]\nreader = "commands"\ntimeout = 600\n'
        f'[events]\nsocket = "{tmp_path}/events.sock"\n'
        f'[page]\naddress = "127.0.0.1:{free_port()}"\n'
    )
    return path


@pytest.fixture
def visitor(config: Path) -> Visitor:
    return Visitor(load_config(config).controller_address[1])


@pytest.fixture
def onesd(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Its doors, in this process."""
    sealing.stand_in(monkeypatch)
    with served_onesd(config) as controller:
        yield controller


@pytest.fixture
def daemon(tmp_path: Path, config: Path) -> Iterator[Daemon]:
    store = Store(str(tmp_path / "ones.sqlite"))
    store.put("jobs", [JOB])
    store.close()
    one = Daemon(tmp_path, config, most_descriptors=512)
    try:
        eventually(lambda: one.calls("squeue") > 2 and one.beat())
        yield one
    finally:
        for path in tmp_path.glob("hangs.*"):
            path.unlink()
        one.process.kill()
        one.process.wait(20)


def test_unfinished_requests_stop_neither_rounds_nor_heartbeat_nor_agents(
    daemon: Daemon, visitor: Visitor
) -> None:
    with ExitStack() as held:
        for _ in range(700):
            held.enter_context(visitor.unfinished())
        daemon.rounds_and_beats()
        status, answer, credential, ours = visitor.report()
        assert status == 200
        assert sealing.decode(credential).payload == statement(
            HEARD_PURPOSE, "n1", answer_to(ours, answer)
        )
        assert visitor.ask_as(NOBODY, "GET", "/v1/status")[0] == 200
    assert "Too many open files" not in daemon.log.read_text()
    assert daemon.log.read_text().count("too many connections") == 1


def test_the_page_follows_rounds_beside_unfinished_requests_to_it(
    daemon: Daemon, visitor: Visitor, config: Path
) -> None:
    page = Visitor(int(load_config(config).page.address.rpartition(":")[2]))
    secret = "s" * 43
    body = json.dumps({"digest": hashlib.sha256(secret.encode()).hexdigest()}).encode()
    status, offered = visitor.ask_as(NOBODY, "POST", "/v1/page", body)
    assert (status, offered["url"]) == (200, f"http://127.0.0.1:{page.port}")
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(page.unfinished())
        daemon.rounds_and_beats()
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
        origin = {"Origin": f"http://127.0.0.1:{page.port}"}
        connection.request("POST", "/sign-in", json.dumps({"secret": secret}), origin)
        answer = connection.getresponse()
        cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        proved = {"Cookie": cookie, "Ones-Proof": json.loads(answer.read())["proof"]}
        connection.request("GET", "/data/changes", headers=proved)
        changes = connection.getresponse()
        assert b'"user":"nobody","operator":false' in changes.readline()
        assert page.ask("GET", "/data/state", proved)[0] == 200
        heard = [changes.readline() for _ in range(6)]
        assert any(line.startswith(b'data: {"from":') for line in heard)
        connection.close()


def test_every_view_answers_while_slurm_hangs_and_says_how_old_it_is(
    daemon: Daemon, visitor: Visitor
) -> None:
    daemon.hang("squeue", "sacct", "sacctmgr")
    eventually(lambda: "no round for" in str(visitor.ask_as(0, "GET", "/v1/status")[1]["problems"]))
    for path in ("jobs", "jobs/7", "explain/7", "nodes", "plan", "sharing", "status", "policy"):
        status, answer = visitor.ask_as(NOBODY, "GET", f"/v1/{path}")
        assert status == 200
        note = str(answer["meta"])
        assert ("as it was" in note) == (path not in ("status", "policy"))
        assert ("Slurm's accounting does not answer" in note) == (path == "jobs/7")


def test_users_who_ask_much_of_a_slurm_that_hangs_stop_no_round(
    daemon: Daemon, visitor: Visitor
) -> None:
    rounds_own = daemon.calls("sacct")
    daemon.hang("sacct", "sacctmgr")
    asking = [
        threading.Thread(target=visitor.ask_as, args=(NOBODY + number, "GET", "/v1/jobs/7"))
        for number in range(40)
    ]
    for one in asking:
        one.start()
    daemon.rounds_and_beats()
    for one in asking:
        one.join(60)
    assert not any(one.is_alive() for one in asking)
    assert (daemon.calls("sacct") - rounds_own, daemon.calls("sacctmgr")) == (1, 1)


def test_who_may_not_report_is_refused_before_his_body(onesd: Served, visitor: Visitor) -> None:
    megabytes = 15 * 2**20
    assert visitor.announce("/v1/agent", {"Ones-Node": "n1"}, megabytes) == 401
    other = sealing.sign_as(NOBODY, AGENT_PURPOSE, "n1", b"x")
    asking = {"Ones-Node": "n1", "Authorization": f"Munge {other}"}
    assert visitor.announce("/v1/agent", asking, megabytes) == 403
    elsewhere = sealing.sign_as(os.geteuid(), LEASE_PURPOSE, "n1", b"x")
    asking["Authorization"] = f"Munge {elsewhere}"
    assert visitor.announce("/v1/agent", asking, megabytes) == 401


def test_a_body_beyond_its_routes_bound_is_refused_before_it_comes(
    onesd: Served, visitor: Visitor
) -> None:
    ours = sealing.sign_as(0, CTL_PURPOSE, "POST /v1/pause", b"x")
    assert visitor.announce("/v1/pause", {"Authorization": f"Munge {ours}"}, 2**20) == 413


def test_a_body_of_untold_length_that_comes_at_once_has_the_same_bound(
    onesd: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.daemon.onesd.doors.http.MOST_REPORT", 50)
    body = b"x" * 100
    ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", body)
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as agent:
        agent.sendall(
            b"POST /v1/agent HTTP/1.1\r\nHost: ctl\r\nOnes-Node: n1\r\n"
            b"Transfer-Encoding: chunked\r\nAuthorization: Munge %b\r\n\r\n"
            b"%x\r\n%b\r\n0\r\n\r\n" % (ours.encode(), len(body), body)
        )
        assert agent.recv(12) == b"HTTP/1.1 413"


def test_all_bodies_together_have_a_bound(
    config: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.daemon.onesd.doors.http.MOST_BODIES", 2**20)
    sealing.stand_in(monkeypatch)
    ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", b"x")
    asking = {"Ones-Node": "n1", "Authorization": f"Munge {ours}"}
    with served_onesd(config), ExitStack() as stalled:
        one = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=60)
        stalled.callback(one.close)
        one.putrequest("POST", "/v1/agent")
        for name, value in (asking | {"Content-Length": str(2**20 - 1)}).items():
            one.putheader(name, value)
        one.endheaders()
        one.send(b"{")
        eventually(lambda: visitor.announce("/v1/agent", asking, 1000) == 503)


def test_a_body_that_does_not_come_is_not_waited_for(
    onesd: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "BODY_PATIENCE", 0.1)
    ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", b"x")
    asking = {"Ones-Node": "n1", "Authorization": f"Munge {ours}"}
    assert visitor.announce("/v1/agent", asking, 1000) == 408


def test_a_body_that_does_not_come_keeps_onesd_from_no_end(
    config: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing.stand_in(monkeypatch)
    monkeypatch.setattr(workers, "BODY_PATIENCE", 600.0)
    with ExitStack() as stays:
        with served_onesd(config):
            silent = socket.create_connection(("127.0.0.1", visitor.port), timeout=60)
            stays.enter_context(silent)
            ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", b"x")
            silent.sendall(
                b"POST /v1/agent HTTP/1.1\r\nHost: ctl\r\nOnes-Node: n1\r\nExpect: 100-continue\r\n"
                b"Content-Length: 1000\r\nAuthorization: Munge %b\r\n\r\n" % ours.encode()
            )
            assert silent.recv(12) == b"HTTP/1.1 100"  # it waits for the body
        assert _closed(silent)


@pytest.mark.parametrize("path", ["/v1/pause", "/v1/policy", "/v1/estimate"])
@pytest.mark.parametrize("body", [b"[" * 60000, b'{"reason":' * 5000, b'"\\ud800"', b"\xff"])
def test_a_body_that_makes_no_sense_is_a_bad_request(
    onesd: Served, visitor: Visitor, path: str, body: bytes
) -> None:
    assert visitor.ask_as(0, "POST", path, body)[0] == 400


def test_a_report_that_makes_no_sense_is_a_bad_request(onesd: Served, visitor: Visitor) -> None:
    for body in (b"[" * 100_000, b'{"gpus":' + b"[" * 100_000, b'{"x":' * 100_000):
        ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", body)
        asking = {"Ones-Node": "n1", "Authorization": f"Munge {ours}"}
        assert visitor.ask("POST", "/v1/agent", asking, body)[0] == 400


def test_an_agent_reports_for_the_node_only_that_it_has_signed_for(
    onesd: Served, visitor: Visitor
) -> None:
    body = msgspec.json.encode(NodeReport(node="n2", taken=1.0, interval=1.0, version="0"))
    ours = sealing.sign_as(os.geteuid(), AGENT_PURPOSE, "n1", body)
    asking = {"Ones-Node": "n1", "Authorization": f"Munge {ours}"}
    assert visitor.ask("POST", "/v1/agent", asking, body)[0] == 400
    assert onesd.service.books.heard.nodes() == {}


def test_that_there_is_no_lease_is_signed_too(onesd: Served, visitor: Visitor) -> None:
    ours = sealing.sign_as(os.geteuid(), LEASE_PURPOSE, "n1", b"7")
    asking = {"Ones-Node": "n1", "Authorization": f"Munge {ours}"}
    status, answer, credential = visitor.ask("GET", "/v1/lease/7", asking)
    assert status == 404
    expected = statement(HEARD_PURPOSE, "n1", answer_to(ours, answer))
    assert sealing.decode(credential).payload == expected


def test_the_agent_and_onesd_take_each_others_word(onesd: Served, visitor: Visitor) -> None:
    onesd.service.books.store.put("jobs", [JOB])
    onesd.service.books.store.put("leases", [{"job": 7, "sizes": "1-4", "gpus": 2, "batch": 64}])
    told = Received(at=1.0, evidence="cgroup", message=Report(job=7, tunes=True))
    report = NodeReport(node="n1", taken=1.0, interval=1.0, version="0", received=(told,))

    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            agent = Onesd(session, [f"127.0.0.1:{visitor.port}"], "n1")
            (lease,) = (await agent.send(report)).leases
            assert (lease.job, lease.gpus, lease.batch) == (7, 2, 64)
            assert await agent.lease(7) == lease
            assert await agent.lease(8) is None

    asyncio.run(work())
    assert list(onesd.service.books.heard.nodes()) == ["n1"]


def test_who_says_nothing_is_let_go(
    onesd: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_WORD", 0.1)
    with visitor.unfinished() as silent:
        assert _closed(silent)


def test_a_kept_connection_is_let_go_in_its_time(
    onesd: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEPT", 0.1)
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as kept:
        kept.sendall(b"GET /metrics HTTP/1.1\r\nHost: ctl\r\n\r\nGET /metr")
        assert kept.recv(15) == b"HTTP/1.1 200 OK"
        assert _closed(kept)


def _closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_one_user_may_ask_so_much_a_second_and_root_any_time(
    onesd: Served, visitor: Visitor
) -> None:
    asked = [visitor.ask_as(NOBODY, "GET", "/v1/policy")[0] for _ in range(60)]
    assert set(asked) == {200, 429}
    assert asked.count(200) >= askers.BURST
    assert {visitor.ask_as(0, "GET", "/v1/policy")[0] for _ in range(60)} == {200}


def test_a_munge_that_hangs_holds_up_no_local_question(
    onesd: Served, config: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def hangs(credential: str, *, socket: str | None = None) -> Credential:
        goes_on.wait(60)
        return sealing.decode(credential)

    monkeypatch.setattr(munge, "decode", hangs)
    far = threading.Thread(target=visitor.ask_as, args=(NOBODY, "GET", "/v1/policy"))
    far.start()
    try:
        with socket.socket(socket.AF_UNIX) as near:
            near.connect(load_config(config).socket)
            near.sendall(b"GET /v1/policy HTTP/1.1\r\nHost: ctl\r\n\r\n")
            assert near.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        goes_on.set()
        far.join(60)


def test_refusals_and_orders_are_in_the_audit_log(
    onesd: Served, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    visitor.ask("GET", "/v1/status", {})
    visitor.ask_as(NOBODY, "POST", "/v1/pause", b'{"reason": "mischief"}')
    visitor.ask_as(0, "POST", "/v1/pause", b'{"reason": "new \\"disks\\"\\nevent=x"}')
    visitor.ask_as(0, "POST", "/v1/resume")
    visitor.ask_as(0, "POST", "/v1/policy", b'{"policy": "srtf"}')
    lines = [record.message for record in caplog.records if record.name == "ones.audit"]
    assert lines == [
        'audit event=refused uid=- from=127.0.0.1 what="GET /v1/status"'
        ' why="no munge credential in the request (auth_type)"',
        'audit event=refused uid=65534 from=127.0.0.1 what="POST /v1/pause"'
        ' why="nobody is not an operator of this cluster; ask one (Slurm AdminLevel)"',
        r'audit event=pause uid=0 from=127.0.0.1 user=root reason="new \"disks\"\nevent=x"',
        "audit event=resume uid=0 from=127.0.0.1 user=root",
        "audit event=policy uid=0 from=127.0.0.1 user=root policy=srtf",
    ]


def test_a_flood_of_refusals_fills_no_disk(
    onesd: Served, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        visitor.ask("GET", "/v1/status", {})
    lines = [record.message for record in caplog.records if record.name == "ones.audit"]
    assert 10 <= len(lines) < 50


def test_an_agent_that_names_no_node_is_refused(onesd: Served, visitor: Visitor) -> None:
    credential = sealing.sign_as(os.geteuid(), LEASE_PURPOSE, "", b"7")
    status, text, _ = visitor.ask("GET", "/v1/lease/7", {"Authorization": f"Munge {credential}"})
    assert (status, b"Ones-Node" in text) == (401, True)


def test_what_is_no_request_fills_no_disk(
    onesd: Served, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", visitor.port), timeout=60) as link:
            link.sendall(b"GET /v1/status HTTP/0\r\n\r\n")
            link.shutdown(socket.SHUT_WR)
            link.recv(65536)
    assert visitor.report()[0] == 200
    assert [record.exc_info for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) < 10


def test_metrics_may_have_an_address_of_their_own(
    config: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing.stand_in(monkeypatch)
    port = free_port()
    config.write_text(config.read_text() + f'[daemon]\nmetrics = "127.0.0.1:{port}"\n')
    with served_onesd(config):
        assert visitor.ask("GET", "/metrics", {})[0] == 404
        status, text, _ = Visitor(port).ask("GET", "/metrics", {})
        assert (status, b"ones_build_info" in text) == (200, True)
        assert Visitor(port).ask("GET", "/v1/status", {})[0] == 404


def test_onesd_listens_where_it_is_told(
    config: Path, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing.stand_in(monkeypatch)
    config.write_text(config.read_text() + '[daemon]\naddress = "127.0.0.2"\n')
    with served_onesd(config):
        with pytest.raises(ConnectionRefusedError):
            visitor.report()
        socket.create_connection(("127.0.0.2", visitor.port), timeout=60).close()


class AnAgents:
    """The other end of a connection from this address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_extra_info(self, name: str) -> object:
        return (self._address, 40_000) if name == "peername" else None

    def abort(self) -> None:
        raise AssertionError(f"{self._address} is let go")


def test_ten_thousand_agents_keep_their_connections() -> None:
    async def come() -> int:
        found = connections.Connections(connections.MOST)
        for number in range(10_000):
            agents = connections.Connection(asyncio.Protocol(), found)
            agents.connection_made(cast(asyncio.Transport, AnAgents(f"10.1.{number}.1")))
        return len(found)

    assert asyncio.run(come()) == 10_000
    beside = server.MOST_CONNECTIONS + descriptors.RESERVED
    assert connections.MOST + beside <= descriptors.WANTED


def test_only_networks_that_are_allowed_may_connect() -> None:
    allowed = load_networks("10.1.0.0/16")
    some = connections.Connections(10, allowed=allowed)
    assert some._is_allowed("10.1.2.3")
    assert some._is_allowed("127.0.0.1")
    assert some._is_allowed("::ffff:10.1.2.3")
    assert not some._is_allowed("10.2.0.1")
    assert not some._is_allowed("fd00::1")


def load_networks(*texts: str) -> list[connections.Network]:
    return [ip_network(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("address = 'ctl'", "daemon.address: 'ctl' is no address"),
        ("allow = ['10.1.0.1/16']", "daemon.allow: .*10.1.0.0/16"),
        ("metrics = '9461'", "daemon.metrics: '9461' is not HOST:PORT"),
    ],
)
def test_faults_in_the_doors_configuration_are_named(config: Path, text: str, named: str) -> None:
    config.write_text(config.read_text() + f"[daemon]\n{text}\n")
    with pytest.raises(ConfigError, match=named):
        load_config(config)


def test_agents_of_a_user_whom_the_host_does_not_know_are_a_fault_of_the_configuration(
    config: Path,
) -> None:
    config.write_text('agent_user = "slurmagent"\n' + config.read_text())
    loaded = load_config(config)
    store = Store(loaded.store)
    onesd = assemble(loaded, cast(Cluster, NoCluster()), store, clock=lambda: 1000.0)
    with pytest.raises(ConfigError, match=r"^agent_user: this host knows no user 'slurmagent'"):
        Api(onesd.service)
    store.close()


def test_users_see_no_others_jobs_in_the_status(onesd: Served, visitor: Visitor) -> None:
    jobs = {7: a_record(7, user="nobody"), 8: a_record(8, user="alice")}
    seen = Snapshot(taken=1.0, jobs=jobs, nodes={}, switches={})
    onesd.rounds.published = replace(
        onesd.rounds.published, snapshot=seen, ignored={7: "asks oddly", 8: "alice's secret"}
    )
    _, answer = visitor.ask_as(NOBODY, "GET", "/v1/status")
    assert "job 7: asks oddly" in str(answer["problems"])
    assert "secret" not in str(answer)
    assert "secret" in str(visitor.ask_as(0, "GET", "/v1/status")[1])
