"""Plays one scenario to its end: the real onesd, restarted at will, on the simulated Slurm."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ones.daemon import presence, release
from ones.daemon.config import Config, SlurmConfig
from ones.daemon.demo.trainings import Trainings
from ones.daemon.onesd.assembly import Onesd, assemble
from ones.daemon.onesd.doors import views
from ones.daemon.onesd.heartbeat import LIFETIME
from ones.daemon.onesd.outcome import Round
from ones.daemon.wire import Lease, NodeReport
from ones.slurm_ext.errors import SlurmError, Superseded
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.simulated.cluster import SimulatedCluster
from ones.slurm_ext.simulated.job import Job
from ones.slurm_ext.simulated.lifecycle import REQUEUED_HELD
from ones.slurm_ext.simulated.recovery import Saved
from ones.slurm_ext.simulated.settings import Account, NodeSpec, Qos, Settings, Site
from ones.slurm_ext.simulated.state import Deed, Happening
from ones.slurm_ext.simulated.world import World
from ones.slurm_ext.snapshot import MARK
from simulation.bugs import put_in
from simulation.faults import RATES, Chance, Door, FaultyStore, Killed
from simulation.invariants import ALWAYS, IN_THE_END
from simulation.office import Office
from simulation.pending import pending
from simulation.people import USERS, People, queue
from simulation.scenario import Scenario

ROUND = 15.0
MEDDLING = (
    *("slurmctld", "nodes", "agents", "clock", "people", "operators", "forget", "second"),
)  # faults that strike between rounds
REST = 4 * 3600.0  # without faults, after which everybody must have finished
OLDEST_STATE = 10.0  # seconds for which slurmctld may not have saved its state
OUT_OF_DATE = 60.0  # seconds for which a user may hold what onesd has just released, unseen
QUIET = 8  # rounds with nobody left to finish, after which nothing is awaited any more
TELLING = 60  # lines of a story that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An invariant that did not hold."""

    invariant: str
    what: str
    at: float
    rounds: int
    story: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a scenario."""

    scenario: Scenario
    rounds: int = 0
    seconds: float = 0.0  # of the virtual clock
    kills: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    broken: Broken | None = None


class _Broken(BaseException):
    """Passes through an onesd that was stopped, too."""


class Play:
    """One run of a scenario; the invariants look at it."""

    def __init__(self, scenario: Scenario, *, told: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.outcome = Outcome(scenario=scenario)
        self._told = told
        self._story: list[str] = []
        nodes = tuple(
            NodeSpec(name=f"n{number}", switches=(f"leaf{(number + 1) // 2}", "root"))
            for number in range(1, scenario.nodes + 1)
        )
        site = Site(nodes=nodes, users=dict.fromkeys(USERS, "vision"))
        settings = Settings(slurmd_timeout=60.0)
        self.world = World(site, settings, rng=scenario.rng("world"), listener=self._happened)
        self.new_deeds: list[Deed] = []
        self.new_starts: list[int] = []
        self.was_marked: set[int] = set()
        self.failed_starts: list[tuple[float, int]] = []
        self.unexpected = ""
        self.unseen: dict[int, float] = {}
        self.named: set[int] = set()
        self.views: list[dict[str, Any]] | None = None
        self.finished: list[int] = []  # elastic jobs that Slurm still knew near the end
        self._forgotten: set[int] = set()  # known to a lost database, and to onesd not again yet
        self._stopped = False  # whether an onesd is, in its work
        self.outage = 0.0  # seconds for which onesd could not work, lately
        self._began = self.world.now
        self._skew = 0.0
        self._chances = {
            fault: Chance(scenario.rng(fault), rate)
            for fault, rate in RATES.items()
            if fault in scenario.faults
        }
        self._store = self._new_store()
        self._cluster = self._new_cluster()
        self.office = Office(self._pass_time) if "standby" in scenario.faults else None
        self._config = Config(
            policy=scenario.policy,
            mode="act",
            round=ROUND,
            store=":memory:",
            seed=scenario.seed,
            # Comments are off unless a site wants them: some scenarios do.
            slurm=SlurmConfig(comment_every=60.0 if scenario.seed % 7 == 0 else None),
        )
        self.alive: Onesd | None = None
        self._working: Onesd | None = None
        self._second: tuple[Onesd, float] | None = None  # until when it is there
        self._beat: tuple[float, bool, bool] | None = None  # when, holds, acts
        self._saved: Saved | None = None  # what a slurmctld that was killed comes back to
        self._lapsed = -float("inf")  # when it last did
        self.world.new_jobs_are_held(self._holds)
        self.trainings = Trainings(
            self.world,
            scenario.rng("trainings"),
            hear=self._hear,
            lease=self.lease,
        )
        self._limits = scenario.rng("limits")
        self._memory = scenario.rng("limits on memory")
        self._reserving = scenario.rng("reservations")
        self.people = People(
            self.world, self.trainings, scenario.rng("people"), self._tell, self._doubtful
        )

    # What the world tells.

    def _happened(self, what: Happening, job: Job) -> None:
        if what == "started":
            self.new_starts.append(job.id)
        if job.admin_comment.startswith(MARK):
            self.was_marked.add(job.id)
        if what == "forgotten":
            self.was_marked.discard(job.id)
            self.trainings.of.pop(job.id, None)
        self.trainings.happened(what, job)

    def _tell(self, line: str) -> None:
        text = f"{self.world.now - self._began:8.1f}  {line}"
        self._story.append(text)
        if len(self._story) > 4 * TELLING:
            del self._story[: 2 * TELLING]
        if self._told is not None:
            self._told(text)

    def _struck(self, fault: str) -> None:
        self.outcome.faults[fault] = self.outcome.faults.get(fault, 0) + 1

    def _fault(self, fault: str, line: str) -> None:
        self._struck(fault)
        self._tell(line)

    # onesd, its database and its death.

    def _new_store(self, before: FaultyStore | None = None) -> FaultyStore:
        store = FaultyStore(":memory:", self._chances.get("database"), self._point)
        if before is not None:
            before.copy_to(store)
        return store

    def _clock(self) -> float:
        return self.world.now + self._skew

    def _new_cluster(self, fence: Callable[[], None] = lambda: None) -> SimulatedCluster:
        door = Door(self._chances, self._tell, self._struck, self._point, fence)
        return SimulatedCluster(self.world, door)

    def _point(self) -> None:
        if not hasattr(self, "_chances") or self.alive is None:
            return
        kill, standby = self._chances.get("kill"), self._chances.get("standby")
        at_work = self._working is self.alive  # not so one that wakes up
        if kill is not None and (at_work or self._working is None) and kill.strikes():
            raise Killed
        if standby is not None and at_work and not self._stopped and standby.strikes():
            self._stop_and_wake(standby.rng.randrange(1, 5))

    def _stop_and_wake(self, rounds: int) -> None:
        """SIGSTOP in the midst of its work: another one takes over, works, and it wakes up."""
        self._fault("standby", "onesd is stopped, and another one takes over")
        worker, self._stopped = self._working, True
        try:
            self._start()
            for _ in range(rounds):
                self._one_round(self.world.now + ROUND)
        finally:
            self._working, self._stopped = worker, False
        self._tell("the onesd that was stopped wakes up")

    def _start(self) -> None:
        term = None
        if self.office is not None:
            term = self.office.next()
            self._store = self._new_store(self._store)  # its own, which begins as a copy
            self._cluster = self._new_cluster(self.office.fence_of(term))
        try:
            self.alive = assemble(
                self._config, self._cluster, self._store, clock=self._clock, term=term
            )
        except sqlite3.OperationalError:
            self.alive = None

    def _holds(self) -> bool:
        if self._beat is None:
            return False
        at, holds, _ = self._beat
        return holds and self.world.now - at <= LIFETIME

    def _hear(self, report: NodeReport) -> None:
        for one in (self.alive, self._second[0] if self._second is not None else None):
            if one is not None:
                one.service.hear(report)

    def lease(self, job: int) -> Lease | None:
        return None if self.alive is None else self.alive.service.lease(job)

    @property
    def published(self) -> Round | None:
        """The last round of the onesd that is up."""
        return None if self.alive is None else self.alive.service.published

    def open_moves(self) -> list[MoveRecord | LiveMove]:
        """As the database has them."""
        return [] if self.alive is None else self.alive.service.open_moves()

    def _doubtful(self) -> set[int]:
        """The jobs that onesd is about to hold, or has sent a hold which nobody answered.

        And those that it released shortly before Slurm went back to what was before.
        """
        lately = self.world.now - self._lapsed < 2 * OUT_OF_DATE
        rows = self._store.rows(
            "SELECT job FROM moves WHERE open = 1"
            " UNION SELECT job FROM unanswered WHERE at > ?1 - 700"
            " UNION SELECT job FROM holds WHERE released > ?1 - ?2",
            self._clock(),
            10 * OUT_OF_DATE if lately else 0.0,
        )
        return {row["job"] for row in rows} | self._forgotten

    def _nobody_knows(self) -> None:
        """A database is lost: of a job requeued and held nobody can tell for whom any more.

        Nor of one that is held from now on, until onesd has seen that nobody held it before.
        """
        for job in self.world.state.alive():
            if not job.admin_comment.startswith(MARK):
                continue
            self._forgotten.add(job.id)
            submitted = job.reason == "JobHeldUser" and job.restarts == 0
            again = job.reason == "JobHeldAdmin" and job.restarts > 0
            if job.held and (submitted or again or job.reason == REQUEUED_HELD):
                self.people.ambiguous.add(job.id)

    def _attempt(self, what: str, work: Callable[[], None]) -> bool:
        """As onesd's loops do it: a failure is told, and ends nothing; a kill ends onesd."""
        worker = self._working = self.alive
        try:
            work()
            return True
        except Killed:
            if self.alive is worker:
                self.alive = None
            self.outcome.kills += 1
            self._fault("kill", f"onesd is killed in a {what}")
        except (SlurmError, Superseded, sqlite3.OperationalError) as fault:
            self._tell(f"{what}: {fault}")
        except Exception as fault:
            self.unexpected = f"{what}: {type(fault).__name__}: {fault}"
            logging.getLogger(__name__).debug("unexpected", exc_info=True)
        finally:
            self._working = None
        return False

    # The play.

    def run(self) -> Outcome:
        """To the end, or to the first invariant that does not hold."""
        with suppress(_Broken):
            self._play()
        self.outcome.seconds = self.world.now - self._began
        return self.outcome

    def _play(self) -> None:
        coming = queue(self.scenario)
        rng = self.scenario.rng("play")
        self._start()
        for number in range(self.scenario.rounds):
            self._meddle(rng)
            until = self._began + (number + 1) * ROUND
            while coming and self._began + coming[0][0] <= self.world.now:
                self._submit(*coming.pop(0)[1:])
            self._one_round(until)
        for each in coming:
            self._submit(*each[1:])
        self._rest()

    def _submit(self, request: Any, user: str, training: Callable[[int], Any]) -> None:
        if "reservations" in self.scenario.faults:
            request = self.people.into_a_reservation(request, user, self._reserving)
        try:
            number = self.world.by(user).submit(request)
        except SlurmError as fault:
            self._tell(f"{user}: sbatch: {fault}")
            return
        made = training(number)
        if made is not None:
            self.trainings.of[number] = made
            self.was_marked.add(number)
        kind = f"--elastic={request.elastic}" if request.elastic else "plain"
        self._tell(
            f"{user}: sbatch {kind} {request.wants.tres_per_job or request.wants.tres_per_node}:"
            f" job {number}"
        )

    def _one_round(self, until: float) -> None:
        """Agents report, a round, and the ticks until the next one."""
        self.trainings.report()
        self._step_of_onesd("round")
        self._round_of_the_second()
        self._beats()
        while self.world.now < until:
            self._pass_time(min(2.0, until - self.world.now))
            if self.alive is not None and self.open_moves():
                self._step_of_onesd("tick")
        self._releases()

    def _pass_time(self, seconds: float) -> None:
        self.world.step(seconds)
        self.trainings.signals()

    def _step_of_onesd(self, what: str) -> None:
        if self.alive is None:
            self.outage += ROUND if what == "round" else 0.0
            if what == "round":
                self._start()
            return
        begun = self.world.now
        rounds = self.alive.rounds
        done = self._attempt(what, rounds.round if what == "round" else rounds.tick)
        if what == "round":
            self.outcome.rounds += 1
            self.outage = 0.0 if done and self.world.now - begun < 5.0 else self.outage + ROUND
            if done:
                self._forgotten.clear()
        if self.alive is not None:
            self._take_note()
        self._look()

    def _round_of_the_second(self) -> None:
        """The other onesd works as well, until somebody sees that there are two."""
        if self._second is None or self.alive is None:
            return
        other, until = self._second
        for work in (other.rounds.round, other.rounds.tick):
            with suppress(SlurmError, sqlite3.OperationalError, Killed):
                work()
        self._look()
        if self.world.now > until:
            self._second = None

    def _take_note(self) -> None:
        self.views = None
        published = self.published
        if published is not None and published.number % 8 == 1:
            self._attempt("view", self._ask)

    def _ask(self) -> None:
        """What the doors tell of the last round."""
        assert self.alive is not None
        told = views.jobs(self.alive.service, None)["jobs"]
        words = " ".join(views.status(self.alive.service, None)["problems"])
        self.named = {job for job in self.world.state.jobs if f"job {job}" in words}
        self.views = told

    def _look(self) -> None:
        deeds = self.world.state.deeds
        self.new_deeds = list(deeds)
        deeds.clear()
        held = {number for number, job in self.world.state.jobs.items() if job.held}
        for invariant, holds in ALWAYS.items():
            if what := holds(self):
                self._breaks(invariant, what)
        self.new_starts, self.views = [], None
        self.people.ambiguous &= held

    def _breaks(self, invariant: str, what: str) -> None:
        self._tell(f"BROKEN: {invariant}: {what}")
        self.outcome.broken = Broken(
            invariant=invariant,
            what=what,
            at=self.world.now - self._began,
            rounds=self.outcome.rounds,
            story=tuple(self._story[-TELLING:]),
        )
        raise _Broken

    def _beats(self) -> None:
        if self.alive is not None and self.alive.service.healthy():
            steering = self.alive.service.steering
            self._beat = (self.world.now, steering.holds(), steering.acts())

    def _releases(self) -> None:
        """ones-release, which a timer runs every minute."""
        now = self.world.now
        beat = None
        if self._beat is not None:
            at, holds, acts = self._beat
            beat = presence.Heartbeat(at, float(LIFETIME), holds, acts)
        absent = presence.absence(beat, now)
        if absent is None or self.world.state.down:
            return
        database = self._store._db
        table = release.holds_in(database, self._clock())
        ones = self.world.by("ones")
        for record in self.world.snapshot().jobs.values():
            if record.state != "PENDING" or record.flags:
                continue
            job = pending(record)
            if release.why_release(job, table.of(job.id), moves_too=absent.moves_too):
                self._tell(f"ones-release releases {record.id}")
                try:
                    with suppress(SlurmError):  # at the size it has, where that is refused
                        ones.update(record.id, {**table.own(job), **release.terms(job)})
                    ones.update(record.id, release.terms(job))
                    ones.release(record.id)
                    release.write_release(database, job, self._clock())
                except SlurmError as fault:
                    self._tell(f"ones-release: {fault}")

    def _meddle(self, rng: Any) -> None:
        """What goes wrong apart from single calls."""
        faults, world = self.scenario.faults, self.world
        draws = {fault: rng.random() for fault in MEDDLING}
        which = rng.random()
        if "reports" in faults and self.trainings.muddled is None:
            self.trainings.muddled = self.scenario.rng("muddled")
        if "people" in faults and draws["people"] < 0.10 and self.people.act():
            self._struck("people")
        reserves = "reservations" in faults and self._reserving.random() < 0.04
        if reserves and self.people.reserve(self._reserving):
            self._struck("reservations")
        if "slurmctld" in faults:
            if world.state.down and draws["slurmctld"] < 0.4:
                self._slurmctld_is_back()
            elif not world.state.down and draws["slurmctld"] < 0.01:
                self._fault("slurmctld", "slurmctld is down")
                world.stop_slurmctld()
        if "backup" in faults and self._chances["backup"].strikes():
            wait = self._chances["backup"].rng.uniform(0.0, OLDEST_STATE)
            world.at(world.now + wait, partial(self._kill_slurmctld, world.save_state(), wait))
        if "nodes" in faults and draws["nodes"] < 0.03:
            self._nodes(which)
        if "agents" in faults and draws["agents"] < 0.03:
            node = f"n{1 + int(which * self.scenario.nodes)}"
            self.trainings.silent[node] = world.now + 120.0
            self._fault("agents", f"the agent of {node} is silent")
        if "clock" in faults and draws["clock"] < 0.006:
            self._skew = 0.0 if self._skew else (which - 0.5) * 2000.0
            self._fault("clock", f"onesd's clock is {self._skew:.0f} s off")
        if "forget" in faults and draws["forget"] < 0.004:
            self._fault("forget", "onesd ends, and its database is lost")
            self.alive, self._second, self._store = None, None, self._new_store()
            self._nobody_knows()
        if self.office is not None and self._chances["standby"].rng.random() < 0.01:
            self._hand_over()
        alone = self.office is None and self._second is None
        if "second" in faults and alone and draws["second"] < 0.006:
            self._fault("second", "a second onesd works on the same database: its lock was lost")
            other = assemble(self._config, SimulatedCluster(world), self._store, clock=self._clock)
            self._second = other, world.now + 300.0
        if "limits" in faults and self._limits.random() < 0.03:
            self._limit(self._limits)
        if "operators" in faults and draws["operators"] < 0.02 and self.alive is not None:
            self._attempt("operator", lambda: self._operator(which))

    def _kill_slurmctld(self, saved: Saved, age: float) -> None:
        """SIGKILL: whoever comes up knows what was saved so many seconds ago."""
        chance = self._chances["backup"]
        if self.world.state.down or not chance.rate:
            return
        self._fault("backup", f"slurmctld is killed; what it saved is {age:.1f} s old")
        self._saved = saved
        self.world.stop_slurmctld()
        self.world.at(self.world.now + chance.rng.uniform(2.0, 120.0), self._slurmctld_is_back)

    def _slurmctld_is_back(self) -> None:
        """It or its backup."""
        if not self.world.state.down:
            return
        saved, self._saved = self._saved, None
        self._tell("slurmctld is back" if saved is None else "its backup takes over")
        if saved is not None:
            self._lapsed = self.world.now
            of_people = {
                job.id for job in saved.jobs.values() if job.held_by in ("user", "administrator")
            }
            self.people.ambiguous |= of_people & self._doubtful()
        self.world.start_slurmctld(saved)

    def _hand_over(self) -> None:
        assert self.office is not None
        if self.alive is not None and self.alive.service.term is not None:
            self._fault("standby", "onesd hands over")
            self.alive.service.term.end()
            self._start()

    def _nodes(self, which: float) -> None:
        world = self.world
        names = list(world.state.nodes)
        name = names[int(which * len(names))]
        node = world.state.nodes[name]
        if not node.answers:
            self._tell(f"{name} is back")
            world.return_node(name)
            world.resume_node(name)
        elif node.record().states & {"DRAIN", "DOWN"}:
            self._tell(f"{name} is resumed")
            world.resume_node(name)
        elif int(which * 1000) % 2:
            self._fault("nodes", f"{name} fails")
            world.fail_node(name)
        else:
            self._fault("nodes", f"{name} is drained")
            world.drain(name)

    def _limit(self, rng: Any) -> None:
        """Limits come, go and change, also below what somebody holds."""
        few = (None, 1, 2, 3, 4, 6, 8)
        qos = Qos(
            gpus=rng.choice((None, None, 4, 8, 12)),
            gpus_per_user=rng.choice(few),
            gpus_per_job=rng.choice((None, None, 2, 4)),
            jobs_per_user=rng.choice((None, None, 1, 2, 3)),
            memory_per_user=self._memory.choice((None, None, None, 1000, 2000, 4000)),
        )
        account = Account(name="vision", gpus=rng.choice(few), jobs_per_user=rng.choice((None, 2)))
        self._fault("limits", f"root: sacctmgr modify {qos}, {account}")
        self.world.limit(qos, account)

    def _operator(self, which: float) -> None:
        assert self.alive is not None
        service = self.alive.service
        self._struck("operators")
        if which < 0.3:
            self._tell("root: onesctl pause")
            service.pause("root", "a test")
        elif which < 0.8:
            self._tell("root: onesctl resume")
            service.resume("root")
        else:
            name = ("fifo", "srtf", self.scenario.policy)[int(which * 1000) % 3]
            self._tell(f"root: onesctl policy set {name}")
            service.choose_policy("root", name)

    def _rest(self) -> None:
        """No more faults: everything must come to rest."""
        self._tell("no more faults")
        world = self.world
        for chance in self._chances.values():
            chance.rate = 0.0
        self.trainings.muddled, self._skew, self.trainings.silent = None, 0.0, {}
        self._second = None
        self._slurmctld_is_back()
        for name in list(world.state.reservations):
            world.free_reservation(name)
        for name, node in world.state.nodes.items():
            if not node.answers:
                world.return_node(name)
            if node.record().states & {"DRAIN", "DOWN", "NOT_RESPONDING"}:
                world.resume_node(name)
        for training in self.trainings.of.values():
            if training.answers < 0:
                training.answers = float("inf")
        self.world.limit(Qos(), Account(name="vision"))
        self.people.go_home()
        if self.alive is None:
            self._start()
        assert self.alive is not None
        self.alive.service.resume("root")
        self.finished = sorted(self.trainings.of)
        until = world.now + REST
        at_rest = 0  # rounds in a row; who was in doubt before the last fault is still seen to
        while world.now < until and at_rest < QUIET:
            self.people.go_home()
            self._one_round(world.now + ROUND)
            at_rest = 0 if self._unfinished() else at_rest + 1
        for invariant, holds in IN_THE_END.items():
            if what := holds(self):
                self._breaks(invariant, what)

    def _unfinished(self) -> bool:
        doubts = self.published.doubts if self.published is not None else {}
        return any(job.id not in doubts for job in self.world.state.alive())

    def book_error(self) -> str:
        """Where `onesctl job` and the accounting differ."""
        if self.alive is None or "forget" in self.scenario.faults:
            return ""  # what was lost with the database is lost
        service, cluster = self.alive.service, SimulatedCluster(self.world)
        for number in self.finished:
            service.refresh_runs([number])
            try:
                told = views.job(service, number, None, lambda _: 0.0)
            except views.NotKnown:
                continue
            satellites = [each["satellite"] for each in told["satellites"]]
            truth = sum(
                run.gpus * ((run.ended or self.world.now) - run.started)
                for run in cluster.runs([number, *satellites])
                if not run.before
            )
            if abs(told["gpu_seconds"] - truth) > 1.0 + 0.001 * truth:
                said = f"{told['gpu_seconds']:.0f} GPU seconds"
                return f"onesctl job says {said} of job {number}, the accounting {truth:.0f}"
        return ""


def play(
    scenario: Scenario, *, told: Callable[[str], None] | None = None, bug: str = ""
) -> Outcome:
    """The scenario, once; with a deliberate bug where one is named."""
    logging.disable(logging.CRITICAL)
    try:
        with put_in(bug) if bug else nullcontext():
            return Play(scenario, told=told).run()
    finally:
        logging.disable(logging.NOTSET)
