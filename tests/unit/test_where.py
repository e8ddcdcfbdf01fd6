"""What would become of a job in each of several clusters, and who is asked that."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sealing
from click.testing import CliRunner, Result
from simulated_onesd import AtWork

from ones.daemon.config import ConfigError, load_config
from ones.daemon.ctl.main import main
from ones.daemon.ctl.where import Told, one_length, ranked
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.askers import Peer
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.doors.where import QUESTION, Question, where
from ones.daemon.onesd.doors.workers import Busy
from ones.daemon.onesd.forecast.model import Forecast, Lately, Length
from ones.daemon.onesd.forecast.process import Asked, Forecaster, Unforeseen, foresee
from ones.slurm_ext.batch_script import ScriptError
from ones.slurm_ext.described import Described, described
from ones.slurm_ext.elastic_script import read_elastic

ALICE = Peer(uid=65534, name="alice", admin=False)
FOUR = Described(sizes="1-8", name="train", gpus="4")
SPEED = {"batch": 64, "step_seconds": 0.5}  # 128 samples a second, at any size
HOUR = 128 * 3600


def at_work(**config: Any) -> AtWork:
    work = AtWork(**({"policy": "fifo", "events": {"wake": False}} | config))
    work.config = msgspec.convert(msgspec.to_builtins(work.config), type(work.config))
    work.again = True
    work.reborn()
    return work


def busy(hours: float, **config: Any) -> AtWork:
    """All 16 GPUs are held by a job that says it has so many hours to go."""
    work = at_work(**config)
    job = work.submit(16, elastic="16", user="bob")
    work.said_by[job] = {**SPEED, "samples": 64, "gpus": 16, "total_samples": int(hours * HOUR)}
    work.live(120, until=lambda: work.world.runs(job))
    work.live(60)
    return work


def empty() -> AtWork:
    work = at_work()
    work.live(20)
    return work


def told(work: AtWork, question: Question, peer: Peer = ALICE) -> dict[str, Any]:
    return where(work.onesd.service, foresee, peer, question)


def test_where_there_is_room_a_job_starts_at_once() -> None:
    found = told(empty(), Question(asks=FOUR))
    assert found["start"] == 0.0
    assert found["gpus"] == 4
    # Nothing is known of it: it takes what the configuration assumes, and its start.
    assert found["length"]["guessed"]
    assert 600.0 <= found["end"] <= 700.0


def test_where_all_is_taken_it_starts_when_that_comes_free() -> None:
    found = told(busy(1.0), Question(asks=FOUR))
    assert 0.8 * 3600 < found["start"] < 1.1 * 3600
    assert found["end"] > found["start"] + 300


def test_what_is_foretold_is_what_comes() -> None:
    work = busy(0.5)
    found = told(work, Question(asks=FOUR))
    began, job = work.world.now, work.submit(4)
    work.live(1750)
    work.world.finish(1)
    work.live(600, until=lambda: work.world.runs(job))
    assert work.world.job(job).started - began == pytest.approx(found["start"], abs=180)


def test_a_length_that_is_asked_with_counts_for_the_forecast() -> None:
    found = told(empty(), Question(asks=FOUR, length=7200.0, spread=0.1))
    assert found["length"]["seconds"] == 7200.0
    assert 7200.0 <= found["end"] <= 7300.0
    assert found["at_limit"] is False


def test_a_job_is_foreseen_to_grow_once_it_has_shown_its_speed() -> None:
    work = at_work(policy="ones")
    work.live(20)
    found = told(work, Question(asks=msgspec.structs.replace(FOUR, sizes="1-16", gpus="2")))
    assert found["resizes"] > 0
    assert found["end"] < 400  # of the 600 s that it is taken to need on two


def ends(asked: Asked) -> float:
    """When the job is foreseen to end, however long the forecast takes."""
    end = foresee(asked, lambda: 0.0)[0].end
    assert end is not None
    return end


def test_others_are_foreseen_to_come_as_they_have_come_lately() -> None:
    work = at_work(policy="srtf")
    work.says = {**SPEED, "total_samples": 128 * 100}
    work.live(20)
    for _ in range(12):
        job = work.submit(16, elastic="16", user="bob")
        work.live(90)
        work.world.finish(job)
        work.live(30)
    asked = asked_by(work, msgspec.structs.replace(FOUR, sizes="4"))
    asked = replace(asked, newcomer=replace(asked.newcomer, length=3600.0))
    assert len(asked.lately.came) == 12
    alone = replace(asked, lately=Lately(asked.lately.since))
    assert ends(asked) > 1.5 * ends(alone)


def test_a_time_limit_ends_it_in_the_forecast_too() -> None:
    asks = msgspec.structs.replace(FOUR, time_limit=1800.0)
    found = told(empty(), Question(asks=asks, length=7200.0))
    assert found["at_limit"] is True
    assert found["end"] == pytest.approx(1800.0, abs=60)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpus": "64", "sizes": "64"}, "none of its sizes"),
        ({"gpus": "a100:4"}, "no GPU node is in its partition, of its type"),
        ({"partition": "nowhere"}, "no GPU node is in its partition"),
        ({"gpus": ""}, "it asks for no GPUs"),
        ({"sizes": "1-2"}, "which is not one of these sizes"),
        ({"sizes": "4-1"}, "runs backwards"),
        ({"gpus": "", "gres": "gpu:v100:2,gpu:a100:2"}, "two types of GPU"),
        ({"excluded": "n[1-"}, "hostlist"),
        ({"features": "[a*2&b*3]"}, "constraint"),
    ],
)
def test_a_job_that_can_not_run_there_is_told_why(changes: dict[str, Any], why: str) -> None:
    found = told(empty(), Question(asks=msgspec.structs.replace(FOUR, **changes)))
    assert found["end"] is None
    assert why in found["why"]


def test_an_onesd_that_only_observes_foresees_nothing() -> None:
    work = at_work(mode="observe")
    work.live(20)
    assert "observe mode" in told(work, Question(asks=FOUR))["why"]


def test_before_its_first_round_onesd_asks_for_patience() -> None:
    with pytest.raises(Busy, match="not finished a round"):
        told(at_work(), Question(asks=FOUR))


def test_of_a_waiting_job_it_is_told_what_it_asks_for() -> None:
    work = busy(1.0)
    job = work.submit(4)
    work.live(20)
    found = told(work, Question(job=job))
    assert found["asks"]["sizes"] == "1-8"
    assert found["asks"]["gpus"] == "4"
    assert found["start"] > 1800
    assert described(work.cluster.snapshot().jobs[job]).sizes == "1-8"


def test_only_ones_own_waiting_jobs_are_told_of() -> None:
    work = busy(1.0)
    job = work.submit(4, user="carol")
    work.live(20)
    with pytest.raises(views.NotKnown):
        told(work, Question(job=job))
    assert told(work, Question(job=job), Peer(uid=0, name="root", admin=True))["end"]
    with pytest.raises(ValueError, match="does not wait"):
        told(work, Question(job=1), Peer(uid=0, name="root", admin=True))


def test_a_forecast_changes_nothing_of_what_the_rounds_know() -> None:
    work, other = busy(1.0), busy(1.0)
    for _ in range(3):
        told(work, Question(asks=FOUR))
    for each in (work, other):
        each.submit(4)
        each.live(60)
    mine, its = (one.onesd.service.published for one in (work, other))
    assert mine.decisions == its.decisions
    assert mine.jobs == its.jobs


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"job": 0}',
        b'{"job": 1e400}',
        b'{"asks": {"gpus": 4}}',
        b'{"asks": {"unknown": ""}}',
        b'{"asks": {"nodes": 1e9}}',
        b'{"length": -1}',
        b'{"length": NaN}',
        b'{"asks": {"name": "' + b"x" * 2000 + b'"}}',
    ],
)
def test_questions_that_make_no_sense_are_refused_at_the_door(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        QUESTION.decode(body)


def asked_by(work: AtWork, asks: Described = FOUR) -> Asked:
    """What the door hands to the process."""
    found: list[Asked] = []

    def kept(asked: Asked) -> tuple[Forecast, Length]:
        found.append(asked)
        return foresee(asked)

    where(work.onesd.service, kept, ALICE, Question(asks=asks))
    return found[0]


def test_the_process_foresees_the_same_and_is_started_again_when_it_has_ended() -> None:
    asked, forecaster = asked_by(busy(1.0)), Forecaster(patience=60.0)
    try:
        here, _ = foresee(asked)
        there, _ = forecaster.ask(asked)
        assert (there.start, there.end) == (here.start, here.end)
        assert forecaster._process is not None
        forecaster._process.kill()
        assert forecaster.ask(asked)[0].end == here.end
    finally:
        forecaster.close()
    with pytest.raises(Unforeseen):
        forecaster.ask(asked)


def test_a_forecast_that_takes_too_long_is_given_up() -> None:
    forecaster = Forecaster(patience=0.01)
    try:
        with pytest.raises(Unforeseen, match="try again"):
            forecaster.ask(asked_by(empty()))
        assert forecaster._process is None
    finally:
        forecaster.close()


def answer(
    end: float | None, *, guessed: bool = False, ends: tuple[float, ...] = ()
) -> dict[str, Any]:
    length = {"seconds": 600.0, "spread": 0.3, "told": "", "guessed": guessed}
    return {"end": end, "ends": list(ends), "length": length, "why": ""}


def test_the_earliest_end_comes_first_and_of_ends_alike_the_own_cluster() -> None:
    near, far = Told("a", False, answer(1000.0)), Told("b", True, answer(1030.0))
    assert [one.cluster for one in ranked([near, far])] == ["b", "a"]
    later = Told("b", True, answer(1500.0))
    never = Told("c", False, answer(None))
    assert [one.cluster for one in ranked([never, later, near])] == ["a", "b", "c"]


def test_how_often_another_cluster_is_sooner_is_counted_by_draws() -> None:
    one, other = (
        Told("a", True, answer(5, ends=(5, 6, 7))),
        Told("b", False, answer(6, ends=(6, 5))),
    )
    assert one.before(other) == (1, 2)
    assert other.before(one) == (1, 2)


def test_a_guess_at_a_length_gives_way_to_who_knows_it() -> None:
    knows, guesses = Told("a", False, answer(5.0)), Told("b", True, answer(5.0, guessed=True))
    assert one_length([guesses, knows]) is knows
    assert one_length([guesses, Told("c", False, answer(5.0, guessed=True))]) is guesses
    assert one_length([knows, Told("c", True, answer(5.0))]) is None


def script(folder: Path, *lines: str) -> Path:
    file = folder / "train.sh"
    file.write_text("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "true", ""]))
    return file


def test_options_of_the_command_line_go_over_those_of_the_script(tmp_path: Path) -> None:
    file = script(tmp_path, "--elastic=1-8 --gpus=4 -p long", "--time=1:00:00 -N 1-2")
    found = read_elastic(file, ["-p", "short", "--gpus=v100:2", "-C", "fast", "-q", "high"])
    assert found == Described(
        sizes="1-8",
        name="train.sh",
        partition="short",
        qos="high",
        features="fast",
        gpus="v100:2",
        nodes=1,
        most_nodes=2,
        time_limit=3600.0,
    )


def test_sizes_and_gpus_are_read_in_the_other_forms_of_sbatch_too(tmp_path: Path) -> None:
    file = script(tmp_path, "--elastic=1-8 -N 1,4", "--tres-per-task=gres/gpu:a100:1 --ntasks=4")
    found = read_elastic(file)
    assert (found.nodes, found.most_nodes) == (1, 4)
    assert (found.gpus_per_task, found.tasks) == ("a100:1", 4)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gpus=4", "no --elastic"),
        ("--elastic --gpus=4 --array=1-9", "--array"),
        ("--elastic --gpus=4 -w n1", "--nodelist"),
        ("--elastic --gpus=4 --begin=tomorrow", "--begin"),
        ("--elastic --gpus=4 --ntasks=many", "is no number"),
        ("--elastic --gpus=4 --ntasks=999999999", "tasks"),
    ],
)
def test_scripts_of_which_nothing_can_be_foreseen(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        read_elastic(script(tmp_path, line))


def a_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(work: AtWork) -> Iterator[None]:
    """The doors of this onesd, in a thread."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        runner = await Api(work.onesd.service).serve()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration that names three clusters: here, where all is taken; one that is empty; and
    one that does not answer."""
    sealing.stand_in(monkeypatch)
    ports = {name: a_port() for name in ("alpha", "beta", "gone")}
    doors = {
        name: {
            "controller": f"127.0.0.1:{port}",
            "daemon": {"address": "127.0.0.1"},
            "socket": str(tmp_path / f"{name}.sock"),
            "agent_user": "root",
        }
        for name, port in ports.items()
    }
    here = busy(2.0, **doors["alpha"])
    waits = here.submit(4)
    here.live(20)
    assert waits == 2
    there = at_work(**doors["beta"])
    there.live(20)
    named = "".join(f'{name} = "127.0.0.1:{port}"\n' for name, port in ports.items())
    path = tmp_path / "ones.toml"
    path.write_text(
        f'controller = "127.0.0.1:{ports["alpha"]}"\nsocket = "{tmp_path}/alpha.sock"\n'
        f"[clusters]\n{named}"
    )
    with ExitStack() as open_:
        open_.enter_context(served(here))
        open_.enter_context(served(there))
        yield path


def onesctl(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(config), "where", *words])


def test_onesctl_names_the_cluster_and_the_command(clusters: Path, tmp_path: Path) -> None:
    file = script(tmp_path, "--elastic=1-8 --gpus=4")
    done = onesctl(clusters, str(file), "--time=60", "--comment=two words")
    lines = done.stdout.splitlines()
    assert lines[0] == f"sbatch -M beta --time=60 '--comment=two words' {file}"
    assert [line.split()[0] for line in lines[1:]] == ["CLUSTER", "beta", "alpha"]
    assert "gone is left out: onesd does not answer" in done.stderr
    assert done.exit_code == 0


def test_onesctl_tells_of_a_job_that_waits_here(clusters: Path) -> None:
    done = onesctl(clusters, "--json", "2")
    found = json.loads(done.stdout)
    assert found["command"].startswith("# job 2 would end first on beta")
    assert [one["cluster"] for one in found["clusters"]] == ["beta", "alpha"]
    assert [one["cluster"] for one in found["left_out"]] == ["gone"]
    only = onesctl(clusters, "-M", "alpha", "2")
    assert only.stdout.splitlines()[0] == "# job 2 would end first where it waits"


def test_a_job_that_runs_nowhere_is_one_line_and_an_exit_code(
    clusters: Path, tmp_path: Path
) -> None:
    file = script(tmp_path, "--elastic=64 --gpus=64")
    done = onesctl(clusters, "-M", "alpha,beta", str(file))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "can run in none of them: alpha: none of its sizes" in done.stderr
    assert onesctl(clusters, "-M", "gone", str(file)).exit_code == 3
    assert onesctl(clusters, "-M", "delta", str(file)).exit_code == 2


@pytest.mark.parametrize(
    ("clusters_", "words"),
    [
        ('alpha = "ctl"', "is not HOST:PORT"),
        ('"a b" = "ctl:7667"', "is no name of a cluster"),
        ('beta = "ctl2:7667"', "none of them has the address of `controller`"),
    ],
)
def test_clusters_of_a_configuration_are_checked(
    tmp_path: Path, clusters_: str, words: str
) -> None:
    path = tmp_path / "ones.toml"
    path.write_text(f'controller = "ctl:7667"\n[clusters]\n{clusters_}\n')
    with pytest.raises(ConfigError, match=words):
        load_config(path)
