"""onesd: the controller daemon. This file only puts the parts together and keeps the time."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from ones.daemon.config import Config, ConfigError
from ones.daemon.journal import setup_logging
from ones.daemon.onesd import heartbeat
from ones.daemon.onesd.assembly import assemble
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.events import Events, unsettled
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.page.server import Page
from ones.daemon.onesd.service import Service
from ones.daemon.onesd.standing_by import candidate_of, open_store, stand_by, terms_of
from ones.daemon.onesd.terms import LOOKS, Term, Terms, TermsError
from ones.daemon.pace import doubled
from ones.daemon.site import load_site
from ones.daemon.systemd import notify
from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import OnesError, SlurmError, Superseded
from ones.slurm_ext.slurm import Slurm

log = logging.getLogger(__name__)
MOST_BACKOFF = 60.0
TURN = 0.0005  # seconds after which a thread makes way for another one that waits for Python
"""By default it is ten times that, and a tick's thread waits for so long after each statement of
SQL and each answer of Slurm while thousands of agents keep the doors busy, and each answer at a
door several times while a round computes."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Instead of /etc/ones/ones.toml.")
@click.option(
    "--check-config", is_flag=True, help="Say whether the configuration is good, and end."
)
@click.option("--mode", type=click.Choice(["observe", "act"]), help="Instead of the file's mode.")
@click.option("--policy", help="Instead of the file's policy.")
@click.version_option(package_name="ones-slurm")
def main(config: Path | None, check_config: bool, mode: str | None, policy: str | None) -> None:
    """The controller daemon of ONES for Slurm."""
    overrides = {key: value for key, value in (("mode", mode), ("policy", policy)) if value}
    try:
        loaded = load_site(config, overrides)
        if check_config:
            click.echo("the configuration is good")
            return
        setup_logging()
        sys.setswitchinterval(TURN)
        with _only_one(loaded):
            asyncio.run(_run(loaded))
    except ConfigError as fault:
        click.echo(f"onesd: error: {fault}", err=True)
        sys.exit(2)
    except OnesError as fault:
        click.echo(f"onesd: error: {fault}", err=True)
        sys.exit(1)


class _only_one:  # noqa: N801
    """Two daemons on one database would fight over the same jobs: the second one ends at once.

    This is of one host. Where several have an onesd, terms say which of them acts.
    """

    def __init__(self, config: Config) -> None:
        path = config.socket if config.standby.controllers else config.store
        self._path = Path(path).with_suffix(".lock")

    def __enter__(self) -> None:
        try:
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OnesError(f"another onesd holds {self._path}; stop it first") from None
        except OSError as fault:
            raise OnesError(
                f"{self._path}: {fault.strerror}; the folder must exist and belong to this user"
            ) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()


async def _run(config: Config) -> None:
    """Act until told to stop; where there are other onesd, in our own terms only."""
    stop = asyncio.Event()

    def told() -> None:
        notify("STOPPING=1")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
    if not config.standby.controllers:
        if (folder := terms_of(config).folder).exists():
            raise OnesError(
                f"{folder}: other hosts have an onesd on this database; name them as [standby]"
                " controllers, or stop them and remove the folder"
            )
        await _act(config, Store(config.store), stop)
        log.info("onesd is down; what it held is released by ones-release unless it comes back")
        return
    terms, yielded = terms_of(config), 0
    while not stop.is_set():
        term = await stand_by(config, candidate_of(config, terms, yielded=yielded), stop)
        if term is not None:
            await _hold(config, terms, term, stop)
            yielded = term.number
    log.info("onesd is down")


async def _hold(config: Config, terms: Terms, term: Term, stop: asyncio.Event) -> None:
    """Act for as long as the term is ours; then it is ended, so that others need not wait."""
    over, every = asyncio.Event(), config.standby.takeover / LOOKS
    beats = asyncio.create_task(
        _forever("term", term.beat, lambda: every, over, most_backoff=every)
    )
    stops = asyncio.create_task(_pass_on(stop, over))
    try:
        store = await asyncio.to_thread(open_store, config, terms, term)
        await _act(config, store, over, term)
    finally:
        over.set()
        await asyncio.gather(beats, stops)  # no sign of life comes after the end
        await asyncio.to_thread(term.end)
    log.info("term %d is over", term.number)


async def _pass_on(stop: asyncio.Event, over: asyncio.Event) -> None:
    """What ends the process ends the term; but not the other way round."""
    ends = [asyncio.create_task(event.wait()) for event in (stop, over)]
    _, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    over.set()


async def _act(config: Config, store: Store, stop: asyncio.Event, term: Term | None = None) -> None:
    """Rounds, moves and doors until told to stop, or until the term is another one's."""
    commands = Commands(
        timeout=config.slurm.timeout,
        writes_per_second=config.slurm.writes_per_second,
        fence=term.check if term is not None else lambda: None,
    )
    cluster = Slurm(commands, choose_reader(config.slurm.reader, commands))
    metrics = Metrics(controllers=len(config.controllers))
    loop, step = asyncio.get_running_loop(), asyncio.Event()
    events = Events(config.events, metrics, welcome=lambda: not onesd.service.policy.takes_turns)

    def soon(happened: Callable[[], None]) -> Callable[[], None]:
        """The same from any thread."""
        return lambda: _ignore(loop.call_soon_threadsafe(happened))

    onesd = assemble(
        config,
        cluster,
        store,
        clock=time.time,
        metrics=metrics,
        news=soon(step.set),
        ended=soon(lambda: events.happened("agent")),
        term=term,
        yields=soon(stop.set),
    )
    rounds, service = onesd.rounds, onesd.service

    rounded = asyncio.Event()

    def one_round() -> None:
        try:
            rounds.round()
        finally:
            page.changed()
            loop.call_soon_threadsafe(rounded.set)
        if unsettled(rounds.published.snapshot):
            loop.call_soon_threadsafe(events.happened, "completing")

    def one_tick() -> None:
        if rounds.tick():
            loop.call_soon_threadsafe(events.happened, "moves")

    api = Api(service)
    page = Page(api, service)
    runner = await api.serve()
    await page.open()
    await events.open()
    log.info(
        "onesd is up: mode %s, policy %s, Slurm read by %s",
        config.mode,
        service.config.policy,
        cluster.name,
    )
    loops = [
        asyncio.create_task(
            _forever(
                "round", one_round, lambda: config.round, stop, events.wake, settle=events.pause
            )
        ),
        asyncio.create_task(_forever("moves", one_tick, rounds.tick_interval, stop, step)),
        asyncio.create_task(_beat(service, stop, rounded)),
    ]
    notify("READY=1")
    await stop.wait()
    # A step of a move that is under way is finished: both threads end with their present call.
    await asyncio.gather(*loops)
    events.close()
    await page.close()
    await runner.cleanup()
    store.close()


def _ignore(_: object) -> None:
    """For a callback that is to return nothing."""


async def _forever(
    name: str,
    work: Callable[[], None],
    interval: Callable[[], float],
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
    *,
    settle: Callable[[float], float] = lambda _took: 0.0,
    most_backoff: float = MOST_BACKOFF,
) -> None:
    """Do the work again and again; a failure is told, and backed off from, but ends nothing.

    That another onesd has taken over ends it.

    `wake` ends a pause early, though not after a failure; the work then comes `settle` seconds
    later, given how long it last took.
    """
    failures = 0
    while not stop.is_set():
        if wake is not None:
            wake.clear()  # the work now sees what it was set for; later events wake again
        begun = time.monotonic()
        try:
            await asyncio.to_thread(work)
            failures = 0
        except SlurmError as fault:
            failures += 1
            log.warning("%s: %s; nothing more is changed until Slurm answers", name, fault)
        except Superseded as fault:
            log.warning("%s: %s; this one waits again", name, fault)
            stop.set()
        except TermsError as fault:
            failures += 1
            log.error("%s: %s; nothing is changed meanwhile", name, fault)
        except Exception:  # the outermost loop: a bug must not end the daemon
            failures += 1
            log.exception("%s failed", name)
        took = time.monotonic() - begun
        pause = max(0.0, interval() - took)
        if failures:
            pause = min(most_backoff, max(pause, doubled(1.0, failures, most=most_backoff)))
        until = time.monotonic() + pause
        await _sleep(pause, stop, None if failures else wake)
        await _sleep(max(0.0, min(settle(took), until - time.monotonic())), stop, None)


async def _sleep(seconds: float, stop: asyncio.Event, wake: asyncio.Event | None) -> None:
    waits: list[Awaitable[bool]] = [asyncio.ensure_future(stop.wait())]
    if wake is not None:
        waits.append(asyncio.ensure_future(wake.wait()))
    _, pending = await asyncio.wait(
        [asyncio.ensure_future(each) for each in waits],
        timeout=seconds,
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in pending:
        task.cancel()


async def _beat(service: Service, stop: asyncio.Event, rounded: asyncio.Event) -> None:
    """Beat while rounds succeed: when they stop succeeding, Slurm must not hold jobs for us.

    And after each round: once onesctl tells of the first, jobs that are submitted are held.
    """
    path = Path(service.config.heartbeat)

    def beat() -> None:
        try:
            _beat_once(service, path)
        except OSError as fault:
            log.error("heartbeat %s: %s; new jobs pass as plain jobs", path, fault.strerror)

    every = heartbeat.BEAT
    await _forever("heartbeat", beat, lambda: every, stop, rounded, most_backoff=every)


def _beat_once(service: Service, path: Path) -> None:
    if service.healthy():
        service.still_ours()
        standby = service.config.standby
        heartbeat.write(
            path,
            now=service.clock(),
            hold=service.steering.holds(),
            acts=service.steering.acts(),
            snapshot=service.published.snapshot,
            takeover=standby.takeover if standby.controllers else 0.0,
        )
        notify("WATCHDOG=1")
