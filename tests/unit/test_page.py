"""The page's door, request by request: who is let in, and what is sent to whom."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from page_types import mismatches
from patience import eventually

from ones.daemon.config import ConfigError, PageConfig, load_config
from ones.daemon.ctl.main import main
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.sessions import MOST_LINKS, MOST_SESSIONS, Sessions, digest
from ones.daemon.onesd.outcome import NOTHING as NO_JOBS
from ones.daemon.onesd.outcome import Round
from ones.daemon.onesd.page import broadcast, server
from ones.daemon.onesd.page.history import MOST as MOST_POINTS
from ones.daemon.onesd.page.history import History
from ones.daemon.onesd.page.parts import NOTHING, Part, change
from ones.daemon.onesd.page.rendering import Outline, Picture, Rendering, _Reasons
from ones.daemon.web.readable import all_readable, readable
from ones.slurm_ext.snapshot import Snapshot

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

from large_round import large_round
from served_page import OTHER, USER, ServedPage
from sharing_jobs import a_page_where_gpus_are_shared, share_gpus

STATIC = Path(__file__).parents[2] / "daemon" / "web" / "static"


class Client:
    """Somebody who speaks HTTP to the page, as a browser does unless he says otherwise."""

    def __init__(self, page: ServedPage) -> None:
        self.page = page
        self.cookie, self.proof = "", ""

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.page.port, timeout=60)
        own = {
            "Origin": self.page.url,
            "Content-Type": "application/json",
            "Cookie": self.cookie,
            "Ones-Proof": self.proof,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {k: v for k, v in own.items() if v})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def sign_in(self, uid: int | None = None, *, link: str = "") -> Client:
        secret = (link or self.page.link(uid)).partition("#sign-in=")[2]
        status, text, headers = self.ask("POST", "/sign-in", {"secret": secret})
        assert status == 200, text
        self.cookie = str(headers["Set-Cookie"]).partition(";")[0]
        self.proof = json.loads(text)["proof"]
        return self

    def state(self) -> dict[str, dict[str, dict[str, object]]]:
        status, text, _ = self.ask("GET", "/data/state")
        assert status == 200, text
        return json.loads(gzip.decompress(text))  # type: ignore[no-any-return]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ServedPage]:
    with ServedPage(tmp_path, policy="fifo") as served:
        yield served


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with a_page_where_gpus_are_shared(tmp_path_factory.mktemp("shared")) as served:
        share_gpus(served)
        yield served


@pytest.fixture
def client(page: ServedPage) -> Client:
    return Client(page)


def test_every_answer_tells_the_browser_to_be_strict(client: Client) -> None:
    for path in ("/", "/static/main.js", "/data/state", "/nowhere", "/static/nothing.js"):
        _, _, headers = client.ask("GET", path)
        policy = str(headers["Content-Security-Policy"])
        assert policy.startswith("default-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Server"] == "onesd"
    assert client.ask("GET", "/data/state")[2]["Cache-Control"] == "no-store"


def test_the_files_hold_no_script_or_style_beside_their_own_and_reach_nowhere() -> None:
    for path in STATIC.iterdir():
        text = path.read_text()
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text
        assert "style=" not in text
        hosts = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in hosts
        assert "https://" not in hosts
    assert "<script>" not in (STATIC / "index.html").read_text()


def test_the_scripts_are_well_formed() -> None:
    if shutil.which("node") is None:
        pytest.skip("no node; the browser tests run the same scripts")
    for path in STATIC.glob("*.js"):
        done = subprocess.run(
            ["node", "--input-type=module", "--check"],
            input=path.read_bytes(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e%2fserver.py", "/static//etc/passwd", "/server.py"],
)
def test_nothing_but_the_page_s_files_is_served(client: Client, path: str) -> None:
    assert client.ask("GET", path)[0] in (403, 404)


def test_a_file_that_the_browser_has_is_not_sent_again(client: Client) -> None:
    _, _, headers = client.ask("GET", "/static/style.css")
    assert client.ask("GET", "/static/style.css", If_None_Match=str(headers["ETag"]))[0] == 304


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_host_s_name_is_refused(client: Client, host: str) -> None:
    client.sign_in()
    connection = http.client.HTTPConnection("127.0.0.1", client.page.port, timeout=60)
    connection.putrequest("GET", "/data/state", skip_host=True)
    for name, value in {"Host": host, "Cookie": client.cookie, "Ones-Proof": client.proof}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)


def test_behind_ssh_the_port_may_be_another_one(client: Client) -> None:
    assert client.ask("GET", "/", Host="localhost:9999")[0] == 200


@pytest.mark.parametrize("missing", ["cookie", "proof"])
def test_a_session_needs_both_of_its_secrets(client: Client, missing: str) -> None:
    client.sign_in()
    assert client.ask("GET", "/data/state")[0] == 200
    setattr(client, missing, "")
    assert client.ask("GET", "/data/state")[0] == 401
    assert client.ask("GET", "/data/changes")[0] == 401
    assert client.ask("GET", "/data/job/1")[0] == 401
    assert client.ask("GET", "/data/sharing")[0] == 401
    assert client.ask("POST", "/do/pause", {})[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_another_site_can_give_no_order(client: Client, headers: dict[str, str]) -> None:
    client.sign_in()
    assert client.ask("POST", "/do/pause", {"reason": "x"}, **headers)[0] == 403
    assert client.page.work.onesd.service.paused is None
    assert client.ask("POST", "/do/pause", {"reason": "x"})[0] == 200
    assert client.page.work.onesd.service.paused is not None


def test_orders_are_no_questions(client: Client) -> None:
    client.sign_in()
    assert client.ask("GET", "/do/pause")[0] == 405
    assert client.ask("PUT", "/data/state")[0] == 405
    assert client.ask("GET", "/v1/status")[0] == 404


@pytest.mark.parametrize(
    "body", [b"", b"[", b"{}", b'{"secret": 7}', b"[" * 3000, b'{"secret": "' + b"x" * 5000 + b'"}']
)
def test_a_sign_in_that_makes_no_sense_gets_one_line(page: ServedPage, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("POST", "/sign-in", body, {"Origin": page.url})
    answer = connection.getresponse()
    assert 400 <= answer.status < 500
    assert "\n" not in json.loads(answer.read())["error"]


def test_an_operator_and_a_user_are_told_as_on_the_socket(page: ServedPage) -> None:
    page.work.submit(4, "nobody", name="mine")
    page.work.submit(4, "daemon", name="theirs")
    page.live(30)
    all_, own = Client(page).sign_in().state(), Client(page).sign_in(USER).state()
    told = CliRunner().invoke(main, ["--socket", str(page.socket), "jobs", "--json"])
    rows = {str(row["job"]): row for row in json.loads(told.stdout)["jobs"]}
    assert all_["own"]["tables"]["jobs"]["put"].keys() == rows.keys()  # type: ignore[index]
    names = [row["name"] for row in own["own"]["tables"]["jobs"]["put"].values()]  # type: ignore[index]
    assert names == ["mine"]
    assert "theirs" not in json.dumps(own)
    nodes = [state["common"]["tables"]["nodes"] for state in (all_, own)]  # type: ignore[index]
    assert nodes[0] == nodes[1]


def test_what_is_told_has_the_types_that_the_modules_are_checked_by(
    page: ServedPage, tmp_path: Path
) -> None:
    operator, user = Client(page).sign_in(), Client(page).sign_in(USER)
    page.work.says |= {"loss": 0.5, "samples": 100}
    for name in ("nobody", "nobody", "daemon", "alice", "alice"):
        page.work.submit(4, name)

    def told_anew(*clients: Client) -> list[dict[str, dict[str, dict[str, object]]]]:
        page.live(15)
        eventually(lambda: page.page._broadcast._picture is None)  # that of the round before
        return [client.state() for client in clients]

    states = told_anew(operator)
    page.live(45)
    page.work.world.drain("n3", "a fan is broken")
    page.work.preempt(1)
    page.live(60)
    assert operator.ask("POST", "/do/pause", {"reason": "a test"})[0] == 200
    states += told_anew(operator, user)
    assert states[0]["own"]["tables"]["plan"]["put"]  # type: ignore[index]
    lives = [json.loads(operator.ask("GET", f"/data/job/{job}")[1]) for job in range(1, 6)]
    told = [("Page.State", state) for state in states] + [("Page.Life", life) for life in lives]
    assert mismatches(tmp_path, *told) == ""


def test_so_has_what_is_told_of_shared_gpus(shared: ServedPage, tmp_path: Path) -> None:
    clients = [Client(shared).sign_in(), Client(shared).sign_in(USER)]
    pairs = [json.loads(client.ask("GET", "/data/sharing")[1]) for client in clients]
    assert all(told["pairs"] for told in pairs)
    assert mismatches(tmp_path, *(("Page.Sharing", told) for told in pairs)) == ""


def test_a_user_is_not_told_with_whose_jobs_his_share_a_gpu(shared: ServedPage) -> None:
    operator, user = Client(shared).sign_in(), Client(shared).sign_in(USER)
    states = [json.dumps(client.state()) for client in (operator, user)]
    listed = views.jobs(shared.work.onesd.service, None)["jobs"]
    own = {str(row["job"]) for row in listed if row["user"] == "nobody"}
    told = [user.ask("GET", f"/data/job/{job}")[1].decode() for job in sorted(own)]
    sharing = re.compile(r"(?:GPU of|GPU with|from) job (\d+)")
    assert {*sharing.findall(states[0])} - own
    assert "with another user's job" in states[1]
    assert "another user's job" in "".join(told)
    assert {*sharing.findall("".join([states[1], *told]))} <= own


def test_a_job_that_can_t_be_shown_keeps_no_other_from_being_shown(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound, theirs = (page.work.submit(4, user) for user in ("nobody", "nobody", "daemon"))
    page.work.live(30)
    drawn = Rendering._job

    def job(rendering: Rendering, last: Round, row: dict[str, object], *more: object) -> object:
        if row["job"] == broken:
            raise KeyError("x")
        return drawn(rendering, last, row, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Rendering, "_job", job)
    rendering = Rendering(page.work.onesd.service)
    for _ in range(2):
        picture = rendering.picture(rendering.outline())
    his, hers = (rendering.for_viewer(picture, whose) for whose in ("nobody", "daemon"))
    assert [*his.tables["jobs"]] == [str(sound)]
    assert f"job {broken} is not shown: KeyError('x')" in his.values["problems"]
    assert [*hers.tables["jobs"]] == [str(theirs)]
    assert hers.values["problems"] == []
    assert [one.message for one in caplog.records].count(
        f"job {broken} can't be shown on the page"
    ) == 1


def test_open_pages_and_new_ones_are_told_that_rounds_have_stopped(tmp_path: Path) -> None:
    with ServedPage(tmp_path, policy="fifo", round=1.0) as page:
        page.live(16)  # the last round has just been
        client = Client(page).sign_in()
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as listening:
            listening.sendall(
                f"GET /data/changes HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n"
                f"Cookie: {client.cookie}\r\nOnes-Proof: {client.proof}\r\n\r\n".encode()
            )
            heard = b""
            while b"hello" not in heard:
                heard += listening.recv(65536)
            # As pages do: what is told from here on leads on from this state.
            assert client.state()["own"]["values"]["problems"] == []
            page.work.offset += 3600.0  # and no round ends
            while b"no round for 01:00:0" not in heard:
                heard += listening.recv(65536)
        assert "no round for" in str(client.state()["own"]["values"]["problems"])


def test_the_charts_go_on_to_the_last_round_however_long_onesd_has_run() -> None:
    history = History()
    last = Round(number=1, at=0.0, seconds=1.0, outcome="", snapshot=NO_JOBS)
    for number in range(5 * MOST_POINTS + 1):
        history.take(replace(last, at=15.0 * number))
        assert [*history.chart()][-1] == str(15 * number)
    assert len(history.chart()) <= MOST_POINTS + 1


def test_a_start_is_told_to_the_minute_that_its_words_name() -> None:
    reasons = _Reasons()
    key = reasons.key("needs 4 GPUs", 119.0)
    assert reasons.rows[key]["at"] == 60


def test_of_a_job_with_very_many_moves_the_latest_are_shown(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = page.work.running()
    store = page.work.store
    (first,) = store.rows("SELECT * FROM moves WHERE job = ?", job)
    row = dict(first)
    del row["id"]
    record = json.loads(row["record"])
    more = [row | {"record": json.dumps(record | {"reason": f"number {at}"})} for at in range(9)]
    store.put("moves", more)
    monkeypatch.setattr(server, "MOST", 5)
    life = json.loads(Client(page).sign_in().ask("GET", f"/data/job/{job}")[1])
    assert [move["reason"] for move in life["moves"]] == [f"number {at}" for at in range(4, 9)]
    assert "of its moves the last 5 are shown" in life["meta"]["note"]


def test_what_thousands_wait_for_is_told_once_and_a_user_hears_of_his_own_alone(
    page: ServedPage,
) -> None:
    rounds, rendering = page.work.onesd.rounds, Rendering(page.work.onesd.service)
    told = []
    for number in (1, 2):
        moved = large_round(1, at=20_000.0 + 900 * number, nodes=16, jobs=400)
        rounds.published = replace(moved, number=number)
        told.append(rendering.for_viewer(rendering.picture(rendering.outline()), None))
    jobs, reasons = (told[1].tables[name] for name in ("jobs", "reasons"))
    waiting = [row for row in jobs.values() if not row["gpus"]]
    assert len(waiting) > 300
    assert len(reasons) < 20
    assert sum("needs" in reasons[row["reason"]]["why"] for row in waiting) > 250
    # A quarter of an hour later they wait for the same, until other times.
    changed = change(*told)["tables"]
    assert "jobs" not in changed
    assert changed["reasons"]["put"]
    assert not changed["reasons"]["gone"]
    own = rendering.for_viewer(rendering.picture(rendering.outline()), "user001").tables
    assert own["reasons"].keys() == {row["reason"] for row in own["jobs"].values()}
    assert len(own["reasons"]) < len(reasons)


def test_another_s_job_is_as_one_that_is_not_there(page: ServedPage) -> None:
    job = page.work.submit(4, "daemon", name="theirs")
    page.live(30)
    stranger, owner = Client(page).sign_in(USER), Client(page).sign_in(OTHER)
    seen = [stranger.ask("GET", f"/data/job/{number}") for number in (job, job + 1)]
    assert [status for status, _, _ in seen] == [404, 404]
    assert seen[0][1].replace(str(job).encode(), b"N") == seen[1][1].replace(
        str(job + 1).encode(), b"N"
    )
    assert owner.ask("GET", f"/data/job/{job}")[0] == 200


def test_a_user_asks_only_so_often(page: ServedPage) -> None:
    page.live(15)
    client = Client(page).sign_in(USER)
    assert 429 in {client.ask("GET", "/data/job/1")[0] for _ in range(60)}


def test_onesctl_web_goes_by_digests_alone(page: ServedPage) -> None:
    done = CliRunner().invoke(main, ["--socket", str(page.socket), "web", "--json"])
    link = json.loads(done.stdout)["link"]
    assert link.startswith(f"{page.url}/#sign-in=")
    kept = [repr(vars(page.api.sessions)), repr(vars(page.page))]
    assert link.partition("=")[2] not in "".join(kept)


def test_without_a_page_onesctl_web_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with ServedPage(tmp_path, policy="fifo", port=taken.getsockname()[1]) as page:
            page.live(15)  # onesd goes on
            done = CliRunner().invoke(main, ["--socket", str(page.socket), "web"])
    assert done.exit_code == 1
    assert "the page is not served: can't listen on port" in done.output


class _Rendered:
    """Counts what is rendered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pictures, self.parts = 0, list[str | None]()
        picture, part = Rendering.picture, Rendering.for_viewer

        def counted(rendering: Rendering, outline: Outline) -> Picture:
            self.pictures += 1
            return picture(rendering, outline)

        def viewed(rendering: Rendering, drawn: Picture, only: str | None) -> Part:
            self.parts.append(only)
            return part(rendering, drawn, only)

        monkeypatch.setattr(Rendering, "picture", counted)
        monkeypatch.setattr(Rendering, "for_viewer", viewed)


async def _open_pages(page: ServedPage, clients: list[Client]) -> None:
    """So many streams that all hear of three rounds, and one that is never read."""
    timeout = aiohttp.ClientTimeout(total=240)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def listen(client: Client, rounds: int) -> int:
            headers = {"Cookie": client.cookie, "Ones-Proof": client.proof}
            async with session.get(f"{page.url}/data/changes", headers=headers) as answer:
                heard = 0
                async for line in answer.content:
                    heard += line.startswith(b'data: {"from"')
                    if heard == rounds:
                        return heard
            return heard

        readers = page.page._broadcast._readers
        listening = list[asyncio.Task[int]]()
        for number, client in enumerate(clients, start=1):
            listening.append(asyncio.create_task(listen(client, 6)))  # two messages a round
            if number % 4 == 0 or number == len(clients):  # a user asks four things at once
                while len(readers) < number:
                    assert not any(task.done() for task in listening)
                    await asyncio.sleep(0.01)
        for client in {id(one): one for one in clients}.values():
            await asyncio.to_thread(client.state)
        for _ in range(3):
            serial = page.page._broadcast._serial
            await asyncio.to_thread(page.live, 15)
            while page.page._broadcast._serial < serial + 2:
                await asyncio.sleep(0.05)
        assert await asyncio.gather(*listening) == [6] * len(clients)


def test_five_hundred_pages_cost_one_rendering_a_round_and_kind_of_viewer(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "MOST_OF_ONE_USER", 500)
    page.work.submit(4, "nobody")
    page.live(15)
    rendered = _Rendered(monkeypatch)
    operator, user = Client(page).sign_in(), Client(page).sign_in(USER)
    asyncio.run(_open_pages(page, [operator] * 480 + [user] * 20))
    assert rendered.pictures <= 5  # one for the first state, one for each round
    assert sorted(map(str, rendered.parts)) == sorted(map(str, [None, "nobody"] * 4))


def test_a_page_that_does_not_read_is_cut_off_and_the_others_go_on(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.work.submit(4, "nobody")
    page.live(15)
    client = Client(page).sign_in()
    with socket.create_connection(("127.0.0.1", page.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.sendall(
            f"GET /data/changes HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nCookie: {client.cookie}"
            f"\r\nOnes-Proof: {client.proof}\r\n\r\n".encode()
        )
        eventually(lambda: page.page._broadcast._readers)
        client.state()
        monkeypatch.setattr(
            "ones.daemon.onesd.page.broadcast.change",
            lambda *_: {"tables": {}, "values": {"padding": "x" * 2**20}},
        )

        def gone() -> bool:
            page.page.changed()
            return not page.page._broadcast._readers

        eventually(gone)
    assert client.ask("GET", "/data/state")[0] == 200


def test_one_user_opens_only_so_many_pages(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "MOST_OF_ONE_USER", 2)
    page.live(15)
    client, open_ = Client(page).sign_in(), list[socket.socket]()
    for _ in range(2):
        one = socket.create_connection(("127.0.0.1", page.port))
        one.sendall(
            f"GET /data/changes HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nCookie: {client.cookie}"
            f"\r\nOnes-Proof: {client.proof}\r\n\r\n".encode()
        )
        open_.append(one)
    eventually(lambda: len(page.page._broadcast._readers) == 2)
    status, text, _ = client.ask("GET", "/data/changes")
    assert status == 503
    assert b"too many pages" in text
    for one in open_:
        one.close()


def test_an_operator_who_comes_while_others_are_looked_up_stays(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may steer is asked anew in each round, and takes a while."""
    page.live(15)
    listening = page.page._broadcast

    def steers(uid: int) -> bool:
        async def come() -> None:
            listening.enter(uid + 1, None, lambda: None)

        asyncio.run_coroutine_threadsafe(come(), page._loop).result(60)
        return True

    monkeypatch.setattr(listening, "_steers", steers)

    async def broadcast_once() -> set[int]:
        listening.enter(1000, None, lambda: None)
        await listening._broadcast()
        return {reader.uid for reader in listening._readers}

    told = asyncio.run_coroutine_threadsafe(broadcast_once(), page._loop).result(60)
    assert told >= {1000, 1001}


def test_a_round_is_rendered_before_whoever_asked_for_a_link_comes(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.live(15)
    rendered = _Rendered(monkeypatch)
    link = page.link()
    eventually(lambda: rendered.pictures == 1)
    client = Client(page).sign_in(link=link)
    assert client.state()
    assert rendered.pictures == 1
    page.live(15)
    eventually(lambda: page.page._broadcast._picture is None)  # nobody looks, or is about to
    assert client.state()
    assert rendered.pictures == 2


def test_a_link_draws_no_round_that_others_look_at_already(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.live(15)
    assert Client(page).sign_in().state()
    broadcast = page.page._broadcast
    eventually(lambda: not broadcast._news.is_set() and not broadcast._one.locked())
    rendered = _Rendered(monkeypatch)
    for _ in range(3):
        assert Client(page).sign_in(link=page.link()).state()
    assert rendered.pictures == 0


def test_links_and_sessions_end_by_themselves_and_are_bounded() -> None:
    now = [0.0]
    sessions = Sessions(link=10.0, session=100.0, clock=lambda: now[0])
    sessions.offer(7, digest("late").hex())
    now[0] = 10.0
    assert sessions.begin("late") is None
    sessions.offer(7, digest("good").hex())
    assert sessions.awaited
    opened = sessions.begin("good")
    assert opened is not None
    assert not sessions.awaited
    assert sessions.begin("good") is None
    assert sessions.whose(opened.cookie, opened.proof) == 7
    assert sessions.whose(opened.cookie, opened.cookie) is None
    now[0] = 110.0
    assert sessions.whose(opened.cookie, opened.proof) is None
    for number in range(MOST_LINKS + 1):
        sessions.offer(7, digest(str(number)).hex())
    assert sessions.begin("0") is None
    assert sessions.begin("1") is not None
    first = None
    for number in range(MOST_SESSIONS + 1):
        sessions.offer(8, digest(f"s{number}").hex())
        first = first or sessions.begin(f"s{number}")
        sessions.begin(f"s{number}")
    assert first is not None
    assert sessions.whose(first.cookie, first.proof) is None


@pytest.mark.parametrize("wrong", ["", "x", "00", "g" * 64, "A" * 64])
def test_a_digest_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        Sessions(link=1.0, session=1.0).offer(7, wrong)


def test_what_has_changed_leads_from_one_state_to_the_next() -> None:
    before = Part({"jobs": {"1": {"gpus": 1}, "2": {"gpus": 2}}}, {"a": 1, "b": 2})
    after = Part({"jobs": {"2": {"gpus": 4}, "3": {"gpus": 1}}}, {"a": 1, "b": 3})
    assert change(before, after) == {
        "tables": {"jobs": {"put": {"2": {"gpus": 4}, "3": {"gpus": 1}}, "gone": ["1"]}},
        "values": {"b": 3},
    }
    assert change(after, after) == {"tables": {}, "values": {}}
    assert change(NOTHING, before)["tables"]["jobs"]["gone"] == []


def test_no_text_that_was_shown_is_kept() -> None:
    """Rounds say something else each time: for how long, by how much, of which job."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            readable(f"job {number} would end 00:12:33 sooner")
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()


def test_foreign_text_is_cut_and_what_is_hidden_in_it_is_shown() -> None:
    assert readable("a\u202eb\x00\u200b") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+200B⟩"
    assert readable("تدريب 模型 😀") == "تدريب 模型 😀"
    assert len(readable("x" * 10_000)) == 400
    assert all_readable({"a\x07": ["\x1b", 7, None, ("\u2066",)]}) == {
        "a⟨U+0007⟩": ["⟨U+001B⟩", 7, None, ["⟨U+2066⟩"]]
    }


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('address = "10.1.0.1:7668"', "page.address: 10.1.0.1 is reached over the network"),
        ('address = "0.0.0.0:7668"\ncertificate = "c.pem"', "page.url: with page.address"),
        ('address = "7668"', "page.address: '7668' is not HOST:PORT"),
        ('address = "onesd.example:7668"', "is no address of a host"),
        ('key = "k.pem"', "page.key: it needs page.certificate"),
        ('url = "https://a/b"', "page.url: 'https://a/b' is not https://HOST"),
        ('url = "javascript:alert(1)"', "is not https://HOST"),
        ("session = 0", "page.session"),
        ("links = 1", "page"),
    ],
)
def test_a_configuration_that_can_t_be_used_is_told_in_one_line(
    tmp_path: Path, written: str, said: str
) -> None:
    path = tmp_path / "ones.toml"
    path.write_text(f"[page]\n{written}\n")
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_beyond_loopback_it_is_served_with_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    both = tmp_path / "both.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", both, "-out", tmp_path / "c.pem"]
    subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
    both.write_text(both.read_text() + (tmp_path / "c.pem").read_text())
    with ServedPage(tmp_path, policy="fifo", page={"certificate": str(both)}) as page:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
        connection = http.client.HTTPSConnection("localhost", page.port, context=trusting)
        origin = {"Origin": f"https://localhost:{page.port}"}
        secret = page.link().partition("#sign-in=")[2]
        connection.request("POST", "/sign-in", json.dumps({"secret": secret}), origin)
        answer = connection.getresponse()
        assert answer.status == 200
        cookie = str(answer.headers["Set-Cookie"])
        assert cookie.startswith("__Host-ones-")
        assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"))
        assert page.api.page_url.startswith("https://")


def test_a_certificate_that_can_t_be_read_leaves_onesd_without_a_page(tmp_path: Path) -> None:
    with ServedPage(tmp_path, policy="fifo", page={"certificate": "/nowhere.pem"}) as page:
        assert page.api.page_url == ""
        assert "page.certificate: /nowhere.pem" in page.api.no_page


def test_the_defaults_stay_on_this_host() -> None:
    assert PageConfig().address.startswith("127.0.0.1:")


def test_a_round_that_ends_while_another_is_drawn_changes_nothing_of_it(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = page.work.submit(4, "nobody")
    page.live(30)
    rounds, jobs = page.work.onesd.rounds, views.jobs

    def meanwhile(*asked: object) -> object:
        rounds.published = replace(
            rounds.published,
            number=99,
            jobs=(),
            snapshot=Snapshot(taken=0.0, jobs={}, nodes={}, switches={}),
        )
        return jobs(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(views, "jobs", meanwhile)
    # By itself: the page would draw once more, rightly with what has ended meanwhile.
    rendering = Rendering(page.work.onesd.service)
    picture = rendering.picture(rendering.outline())
    assert rounds.published.number == 99
    assert str(job) in rendering.for_viewer(picture, None).tables["jobs"]
    assert picture.outline.common.values["cluster"]["round"]["number"] != 99
