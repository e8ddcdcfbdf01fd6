"""The configuration of all our programs: /etc/ones/ones.toml and its drop-ins, strictly checked."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ones.estimator.assess import Knowledge, Priors
from ones.estimator.needs.estimate import Quality
from ones.estimator.pairing import Rules
from ones.policies.gavel.rounds_settings import RoundSettings
from ones.policies.guard import Limits
from ones.policies.model import MAX_WAIT, Policy
from ones.policies.registry import Site, information, make
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.live_moves import LiveLimits
from ones.slurm_ext.moves import MoveLimits

DEFAULT_PATH = Path("/etc/ones/ones.toml")

STAGE_FOLDER = "/var/spool/ones-stage"  # as in slurm_ext/spank/stage_in.c

Period = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class ConfigError(OnesError):
    """The configuration can't be used; the text names file, key and what is allowed."""


class SlurmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Slurm is read."""

    reader: Literal["auto", "pyslurm", "commands"] = "auto"
    timeout: Period = 20.0
    writes_per_second: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 10.0


class EventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What wakes a round before its time."""

    wake: bool = True
    socket: str = "/run/ones/events.sock"  # as in slurm_ext/hooks/ones_event.c
    debounce: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 1.0
    """Seconds from an event to the round for it: others that come meanwhile are served with it."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ones-agent does on a GPU node."""

    interval: Period = 10.0
    socket: str = "/run/ones/agent.sock"
    jobs_dir: str = "/run/ones/jobs"
    metrics: str = "127.0.0.1:9460"


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guard allows, whatever the policy; the names are Slurm's where Slurm has them."""

    grace_time: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    exempt_time: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    max_resizes_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 12
    live_grace_time: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    max_live_resizes_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 60
    min_gain: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    max_wait: Annotated[float, msgspec.Meta(gt=0)] = MAX_WAIT

    def limits(self) -> Limits:
        return Limits(
            grace=self.grace_time,
            exempt=self.exempt_time,
            max_resizes_per_hour=self.max_resizes_per_hour,
            live_grace=self.live_grace_time,
            max_live_resizes_per_hour=self.max_live_resizes_per_hour,
            min_gain=self.min_gain,
            max_wait=self.max_wait,
        )


class EstimatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is assumed where nothing was measured yet."""

    restart_seconds: Period = 30.0
    live_seconds: Period = 5.0
    job_seconds: Period = 600.0
    goodput: bool = False
    """Plan by efficient samples where jobs report their gradient noise. Off, because a script that
    ends after so many epochs ends sooner with a larger batch, however inefficient."""

    def knowledge(self) -> Knowledge:
        return Knowledge(noise=self.goodput)

    def priors(self) -> Priors:
        return Priors(
            restart_seconds=self.restart_seconds,
            live_seconds=self.live_seconds,
            job_seconds=self.job_seconds,
        )


class GavelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Gavel's policies know of this site."""

    entities: Literal["account", "none"] = "account"  # who shares the cluster
    weights: dict[str, float] = {}  # of accounts; 1 where not named
    prices: dict[str, float] = {}  # of a GPU and hour, by GPU type

    def settings(self) -> RoundSettings:
        return RoundSettings(entities=self.entities, weights=self.weights, prices=self.prices)


class SharingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether jobs may share GPUs, which, and when they are parted."""

    allow: bool = False
    between: Literal["any", "account", "user"] = "any"  # whose jobs may meet on a GPU
    most_busy: Annotated[float, msgspec.Meta(gt=0, le=2)] = 1.0  # of its time, both added up
    spare_memory: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1  # of the card, left free
    least_speed: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.6  # of each, to that alone
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """A pair of which one is slower than so many times what was expected is parted ..."""
    reports: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5  # ... over so many reports of each
    rest_after_fault: Period = 86400.0  # for which a GPU is not shared

    def rules(self) -> Rules:
        return Rules(
            most_busy=self.most_busy,
            spare_memory=self.spare_memory,
            least_speed=self.least_speed,
            between=self.between,
        )


class NeedsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with estimates of what jobs need; below this quality they are advice only."""

    fill: bool = False  # ask for memory and CPUs where the user of an elastic job said nothing
    lower_memory: bool = False  # ask for less memory than he said, where less is enough
    least_runs: Annotated[int, msgspec.Meta(ge=1)] = 3
    worst_error: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.3

    def quality(self) -> Quality:
        return Quality(least_runs=self.least_runs, worst_error=self.worst_error)


class StagingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that are brought to a job's nodes before it starts."""

    folder: str = STAGE_FOLDER  # on each node's own disk; plugstack.conf's stage_folder
    lead: Period = 1800.0  # begin when GPUs are foretold to be free in so many seconds
    patience: Period = 600.0  # that staging may take before the job starts without
    hold: Period = 300.0  # that the job waits for just the nodes with its data
    most_gib: Annotated[float, msgspec.Meta(gt=0)] = 100.0  # of one job, on each node
    keep_free: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1  # of the disk, that stays free
    most_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # MB/s that one copy reads; 0: any


class MoveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each step of a move may take, in seconds."""

    checkpoint_timeout: Period = 300.0
    requeue_timeout: Period = 120.0
    start_timeout: Period = 60.0
    live_timeout: Period = 120.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site's ONES."""

    controller: str = "localhost:7667"
    policy: str = "ones"
    mode: Literal["observe", "act"] = "observe"
    admission: Literal["hold", "slurm"] = "hold"
    round: Period = 15.0
    seed: int = 0
    store: str = "/var/lib/ones/ones.sqlite"
    socket: str = "/run/ones/onesd.sock"
    heartbeat: str = "/run/ones/heartbeat"
    checkpoint_signal: Literal["USR1", "USR2", "HUP", "CONT"] = "USR1"
    agent_user: str = "root"  # whose munge credentials agents report with, besides our own
    controller_user: str = "ones"  # whose munge credentials onesd signs orders with
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 90.0
    slurm: SlurmConfig = SlurmConfig()
    agent: AgentConfig = AgentConfig()
    events: EventsConfig = EventsConfig()
    guard: GuardConfig = GuardConfig()
    moves: MoveConfig = MoveConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    gavel: GavelConfig = GavelConfig()
    needs: NeedsConfig = NeedsConfig()
    staging: StagingConfig = StagingConfig()
    sharing: SharingConfig = SharingConfig()

    def make_policy(self) -> Policy:
        """The policy as it is to be here. Raises ValueError that names the fault."""
        if information(self.policy) == "truth":
            raise ValueError(f"'{self.policy}' knows what only a simulation can tell")
        site = Site(gavel=self.gavel.settings(), sharing=self.sharing.allow)
        return make(self.policy, max_wait=self.guard.max_wait, site=site)

    def with_policy(self, name: str) -> Config:
        """The same site with another policy. Raises ValueError where that can't be used here."""
        changed = msgspec.structs.replace(self, policy=name)
        changed.make_policy()
        return changed

    def move_limits(self) -> MoveLimits:
        return MoveLimits(
            checkpoint_timeout=self.moves.checkpoint_timeout,
            requeue_timeout=self.moves.requeue_timeout,
            start_timeout=self.moves.start_timeout,
            checkpoint_signal=self.checkpoint_signal,
        )

    def live_limits(self) -> LiveLimits:
        return LiveLimits(
            room=self.moves.start_timeout,
            order=self.moves.live_timeout,
            answer=self.moves.live_timeout / 2,
        )

    @property
    def controller_address(self) -> tuple[str, int]:
        host, _, port = self.controller.rpartition(":")
        return host, int(port)


def load_config(path: Path | None = None, overrides: Mapping[str, str] | None = None) -> Config:
    """Read PATH, else $ONES_CONF, else /etc/ones/ones.toml, then PATH's ones.d/*.toml over it.

    `overrides` are top-level keys given on a command line.

    Raises ConfigError with one line that names the file and the key.
    """
    path = path or Path(os.environ.get("ONES_CONF") or DEFAULT_PATH)
    merged: dict[str, Any] = {}
    owner: dict[str, Path] = {}
    for file in [path, *sorted((path.parent / "ones.d").glob("*.toml"))]:
        for key, value in _read(file).items():
            before = merged.get(key)
            both = isinstance(before, dict) and isinstance(value, dict)
            merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
            owner[key] = file
    for key, text in (overrides or {}).items():
        merged[key], owner[key] = text, Path(f"--{key}")
    try:
        config = msgspec.convert(merged, Config)
    except msgspec.ValidationError as fault:
        raise ConfigError(_explain(str(fault), owner, path)) from None
    _check(config, owner, path)
    return config


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as fault:
        raise ConfigError(
            f"{file}: {fault.strerror}; write it, or name another with --config or ONES_CONF"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{file}: not TOML: {fault}") from None


def _explain(fault: str, owner: Mapping[str, Path], path: Path) -> str:
    """msgspec's sentence, behind the file that the faulty key came from."""
    _, _, where = fault.partition("`$.")
    key = where.rstrip("`").split(".")[0]
    if not key and "`" in fault:
        key = fault.split("`")[1]
    allowed = ", ".join(sorted(Config.__struct_fields__))
    hint = f"; known keys: {allowed}" if "unknown field" in fault and "$." not in fault else ""
    return f"{owner.get(key, path)}: {fault.replace('$.', '')}{hint}"


def _check(config: Config, owner: Mapping[str, Path], path: Path) -> None:
    for table, values in (("weights", config.gavel.weights), ("prices", config.gavel.prices)):
        for key, value in values.items():
            if not (isfinite(value) and value > 0):
                raise ConfigError(
                    f"{owner.get('gavel', path)}: gavel.{table}.{key}: {value:g} is not above 0"
                )
    try:
        config.make_policy()
    except ValueError as fault:
        raise ConfigError(f"{owner.get('policy', path)}: policy: {fault}") from None
    host, _, port = config.controller.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{owner.get('controller', path)}: controller: '{config.controller}' is not HOST:PORT,"
            " such as ctl:7667"
        )
