"""The configuration of all our programs: /etc/ones/ones.toml and its drop-ins, strictly checked.

It says what is written there, and imports nothing of what that comes to in onesd: see site.py.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ones.daemon.credentials import AuthType
from ones.daemon.wire import CheckpointSignal
from ones.slurm_ext.errors import OnesError

DEFAULT_PATH = Path("/etc/ones/ones.toml")
LONGEST_SOCKET = 107  # bytes of its path, in Linux
LONGEST_LINE = 4096  # characters: what tomllib takes for a key of many parts grows as their square

STAGE_FOLDER = "/var/spool/ones-stage"  # as in slurm_ext/spank/stage_in.c

_CLUSTER = re.compile(r"[A-Za-z0-9_.-]{1,40}", re.ASCII)
_HOST = re.compile(r"[^\s/]+")  # no URL, above all
_PAGE_URL = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)

# Units are part of the types; what a key means stands behind or below it. Both are read by
# scripts/reference, which writes docs/reference/configuration.md.
Period = Annotated[float, msgspec.Meta(gt=0, le=86400, extra={"unit": "s"})]
Seconds = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "s"})]


class ConfigError(OnesError):
    """The configuration can't be used; the text names file, key and what is allowed."""


class SlurmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Slurm is read."""

    reader: Literal["auto", "pyslurm", "commands"] = "auto"  # auto: PySlurm where it fits Slurm
    timeout: Period = 20.0  # that one call of Slurm may take
    limits_every: Period = 60.0  # from one reading of the site's limits to the next
    comment_every: Annotated[float, msgspec.Meta(ge=60, le=86400, extra={"unit": "s"})] | None = (
        None
    )
    """Between two of our comments on one elastic job, for squeue -o %k; left out: none."""
    writes_per_second: Annotated[float, msgspec.Meta(gt=0, le=1000, extra={"unit": "1/s"})] = 10.0
    """Most calls that change something in Slurm."""


class EventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What wakes a round before its time."""

    wake: bool = True  # rounds come early for events
    socket: str = "/run/ones/events.sock"  # of the hooks; as in slurm_ext/hooks/ones_event.c
    debounce: Annotated[float, msgspec.Meta(ge=0, le=3600, extra={"unit": "s"})] = 1.0
    """From an event to the round for it: others that come meanwhile are served with it."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ones-agent does on a GPU node."""

    interval: Period = 10.0  # from one sample and report to the next
    socket: str = "/run/ones/agent.sock"  # at which jobs report
    jobs_dir: str = "/run/ones/jobs"  # a folder for each job, for scripts without our library
    metrics: str = "127.0.0.1:9460"  # HOST:PORT for Prometheus


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where onesd listens on TCP, and to whom."""

    address: str = "0.0.0.0"  # of this host; the port is that of `controller`
    allow: tuple[str, ...] = ()  # networks that may connect; none named: any
    metrics: str = ""  # HOST:PORT for Prometheus alone; empty: beside the rest


class PageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page for browsers: where onesd serves it, and how long somebody stays signed in."""

    address: str = "127.0.0.1:7668"  # HOST:PORT to listen on; empty: no page
    url: str = ""  # under which browsers reach it, such as https://ones.example.org; empty: ADDRESS
    certificate: str = ""  # PEM file for TLS, without which only loopback may be listened on ...
    key: str = ""  # ... and that of its private key; empty: it is in the same file
    link: Period = 120.0  # seconds for which a link of `onesctl web` can be used
    session: Period = 43200.0  # for which its user then stays signed in


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guard allows, whatever the policy; the names are Slurm's where Slurm has them."""

    grace_time: Seconds = 60.0  # that a run lasts at least before its job may be moved
    exempt_time: Seconds = 120.0  # a job this near its time limit is left to end
    max_resizes_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 12  # of one job, and preemptions
    live_grace_time: Seconds = 15.0  # between two resizes of a job that needs no restart for them
    max_live_resizes_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 60  # of one such job
    min_gain: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """A resize must gain this many times its cost, cost included."""
    max_wait: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "s"})] = 86400.0
    """Who has waited longer is started first, and never preempted again."""
    renew_runs: bool = True
    """Whether a job that has had fewer GPUs than it asked for is restarted before its time limit
    ends it. A second on half of them then counts half."""
    max_slowdown: Annotated[float, msgspec.Meta(ge=1)] | None = None
    """No elastic job takes more than so many times as long as its rigid run; left out: some may."""


class EstimatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is assumed where nothing was measured yet."""

    restart_seconds: Period = 30.0  # that a restart costs a job
    live_seconds: Period = 5.0  # that a resize without a restart costs it
    job_seconds: Period = 600.0  # an unknown job's length at its requested size
    goodput: bool = False
    """Plan by efficient samples where jobs report their gradient noise. Off, because a script that
    ends after so many epochs ends sooner with a larger batch, however inefficient."""


class GavelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Gavel's policies know of this site."""

    entities: Literal["account", "none"] = "account"  # who shares the cluster
    weights: dict[str, float] = {}  # of accounts; 1 where not named
    prices: dict[str, float] = {}  # by GPU type, of a GPU and hour, in any currency


class SharingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether jobs may share GPUs, which, and when they are separated."""

    allow: bool = False  # jobs may share GPUs
    between: Literal["any", "account", "user"] = "any"  # whose jobs may meet on a GPU
    most_busy: Annotated[float, msgspec.Meta(gt=0, le=2)] = 1.0  # of a GPU's time, both added up
    spare_memory: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1  # share of the card, left free
    least_speed: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.6  # of each, to its speed alone
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """A pair of which one is slower than so many times what was expected is separated ..."""
    reports: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5  # ... over so many reports of each
    rest_after_fault: Period = 86400.0  # for which a GPU is not shared


class NeedsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with estimates of what jobs need; below this quality they are advice only."""

    fill: bool = False  # ask for memory and CPUs where the user of an elastic job said nothing
    lower_memory: bool = False  # ask for less memory than he said, where less is enough
    least_runs: Annotated[int, msgspec.Meta(ge=1)] = 3  # that an estimate is made of
    worst_error: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.3  # as a share, of an estimate


class StagingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that are brought to a job's nodes before it starts."""

    folder: str = STAGE_FOLDER  # on each node's own disk; plugstack.conf's stage_folder
    lead: Period = 1800.0  # staging begins this long before GPUs are predicted to be free
    patience: Period = 600.0  # that staging may take before the job starts without
    hold: Period = 300.0  # that the job waits for just the nodes with its data
    most_gib: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "GiB"})] = 100.0
    """Of one job's data, on each node."""
    keep_free: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1  # share of the disk, left free
    most_rate: Annotated[float, msgspec.Meta(ge=0, extra={"unit": "MB/s"})] = 0.0
    """That one copy reads; 0: any."""


class OrderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who goes first. A higher tier of Slurm's does so in any case."""

    strictness: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Within a tier: 0 leaves the order to the policy, 1 is Slurm's priority."""


class MoveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each step of a move may take."""

    checkpoint_timeout: Period = 300.0  # from the question to the confirmed checkpoint
    requeue_timeout: Period = 120.0  # until Slurm has the job back in its queue
    start_timeout: Period = 60.0  # until the released job runs
    live_timeout: Period = 120.0  # until an order to a live job is carried out


class StandbyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """More than one host with an onesd, of which one acts and the others wait to take over."""

    controllers: tuple[str, ...] = ()
    """HOST:PORT of the other ones, which agents and users try after `controller`; none: one onesd.
    Each needs `store` and `heartbeat` in one folder that they all see, with a folder `terms`."""
    takeover: Annotated[float, msgspec.Meta(ge=2, le=600, extra={"unit": "s"})] = 15.0
    """Without a sign of life of the one that acts, after which another takes over."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site's ONES."""

    controller: str = "localhost:7667"  # HOST:PORT at which agents and users reach onesd
    policy: str = "ones"  # with its settings, such as ones:generations=0
    mode: Literal["observe", "act"] = "observe"  # observe: decided and written down, never done
    admission: Literal["hold", "slurm"] = "hold"  # who starts elastic jobs: onesd, or Slurm itself
    round: Period = 15.0  # from the beginning of one round to that of the next
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # of all that is drawn
    store: str = "/var/lib/ones/ones.sqlite"  # the database
    socket: str = "/run/ones/onesd.sock"  # at which onesctl asks onesd on its host
    heartbeat: str = "/run/ones/heartbeat"  # by which job_submit.lua knows that onesd is there
    checkpoint_signal: CheckpointSignal = "USR1"  # asks a job for a checkpoint
    auth_type: AuthType = "auth/munge"  # what Slurm proves users by, as slurm.conf's AuthType
    agent_user: str = "root"  # whose credentials agents report with, besides our own
    controller_user: str = "ones"  # whose credentials onesd signs orders with
    keep_days: Annotated[float, msgspec.Meta(gt=0, extra={"unit": "days"})] = 90.0
    """For which what has ended is remembered."""
    keep_mib: Annotated[float, msgspec.Meta(gt=0, le=1e9, extra={"unit": "MiB"})] = 4096.0
    """Of the database; where there is more, what ended longest ago is forgotten before its time."""
    clusters: dict[str, str] = {}
    """The clusters among which `onesctl where` chooses, this one included, by the names that
    `sbatch -M` takes; each with HOST:PORT of its onesd, or of all of them, between commas."""
    slurm: SlurmConfig = SlurmConfig()
    daemon: DaemonConfig = DaemonConfig()
    standby: StandbyConfig = StandbyConfig()
    page: PageConfig = PageConfig()
    agent: AgentConfig = AgentConfig()
    events: EventsConfig = EventsConfig()
    guard: GuardConfig = GuardConfig()
    moves: MoveConfig = MoveConfig()
    order: OrderConfig = OrderConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    gavel: GavelConfig = GavelConfig()
    needs: NeedsConfig = NeedsConfig()
    staging: StagingConfig = StagingConfig()
    sharing: SharingConfig = SharingConfig()

    @property
    def controller_address(self) -> tuple[str, int]:
        host, _, port = self.controller.rpartition(":")
        return host, int(port)

    @property
    def controllers(self) -> tuple[str, ...]:
        """HOST:PORT of all onesd, in the order in which they are tried."""
        return (self.controller, *self.standby.controllers)

    @property
    def cluster(self) -> str:
        """The name of this cluster among `clusters`; empty where none is named."""
        return next((n for n, at in self.clusters.items() if self.controller in at.split(",")), "")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and the file that each of its top-level keys came from."""

    config: Config
    path: Path
    owner: Mapping[str, Path]

    def file_of(self, key: str) -> Path:
        return self.owner.get(key, self.path)


def load_config(path: Path | None = None) -> Config:
    """What onesctl and the agent go by: as `read_config`, with no look at the policy."""
    return read_config(path).config


def read_config(path: Path | None = None, overrides: Mapping[str, str] | None = None) -> Loaded:
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
    loaded = Loaded(config, path, owner)
    _check(loaded)
    return loaded


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > LONGEST_LINE:
                raise ConfigError(
                    f"{file}: line {number} is longer than {LONGEST_LINE} characters; split it"
                )
        return tomllib.loads(text)
    except OSError as fault:
        raise ConfigError(
            f"{file}: {fault.strerror}; write it, or name another with --config or ONES_CONF"
        ) from None
    except ValueError as fault:  # no UTF-8, no TOML, or a number of too many digits
        raise ConfigError(f"{file}: not TOML: {fault}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not TOML: it is nested too deeply") from None


def _explain(fault: str, owner: Mapping[str, Path], path: Path) -> str:
    """msgspec's sentence, behind the file that the faulty key came from."""
    _, _, where = fault.partition("`$.")
    keys = where.rstrip("`").split(".") if where else []
    key = keys[0] if keys else ""
    if not key and "`" in fault:
        key = fault.split("`")[1]
    return f"{owner.get(key, path)}: {fault.replace('$.', '')}{_allowed(fault, keys)}"


def _allowed(fault: str, keys: list[str]) -> str:
    """The keys of the table, or the values of the key, to which these keys lead."""
    kind: Any = Config
    for key in keys:
        if not hasattr(kind, "__struct_fields__"):  # below a table with names of the site's own
            return ""
        kind = {field.name: field.type for field in msgspec.structs.fields(kind)}.get(key)
    if "unknown field" in fault and hasattr(kind, "__struct_fields__"):
        return f"; known keys: {', '.join(sorted(kind.__struct_fields__))}"
    if "Invalid enum value" in fault:
        return f"; allowed: {', '.join(map(str, get_args(kind)))}"
    return ""


def _check(loaded: Loaded) -> None:
    config = loaded.config
    for table, values in (("weights", config.gavel.weights), ("prices", config.gavel.prices)):
        for key, value in values.items():
            if not (isfinite(value) and value > 0):
                raise ConfigError(
                    f"{loaded.file_of('gavel')}: gavel.{table}.{key}: {value:g} is not above 0"
                )
    _check_paths(loaded)
    if not _is_address(config.controller):
        raise ConfigError(
            f"{loaded.file_of('controller')}: controller: '{config.controller}' is not HOST:PORT,"
            " such as ctl:7667"
        )
    _check_clusters(config, loaded.file_of("clusters"))
    _check_standby(config, loaded.file_of("standby"))
    _check_doors(config.daemon, loaded.file_of("daemon"))
    _check_page(config.page, loaded.file_of("page"))


def _check_paths(loaded: Loaded) -> None:
    config = loaded.config
    sockets = {
        "socket": config.socket,
        "events.socket": config.events.socket,
        "agent.socket": config.agent.socket,
    }
    others = {
        "store": config.store,
        "heartbeat": config.heartbeat,
        "agent.jobs_dir": config.agent.jobs_dir,
    }
    for key, path in (sockets | others).items():
        file = loaded.file_of(key.partition(".")[0])
        if not path or "\0" in path:
            raise ConfigError(f"{file}: {key}: {path!r} is no path")
        if key in sockets and (length := len(os.fsencode(path))) > LONGEST_SOCKET:
            raise ConfigError(
                f"{file}: {key}: its path has {length} bytes, and a socket's has"
                f" {LONGEST_SOCKET} at most"
            )


def _check_clusters(config: Config, file: Path) -> None:
    for name, addresses in config.clusters.items():
        if not _CLUSTER.fullmatch(name):
            raise ConfigError(
                f"{file}: clusters: {name[:80]!r} is no name of a cluster, such as sbatch -M takes"
            )
        for address in addresses.split(","):
            if not _is_address(address):
                raise ConfigError(
                    f"{file}: clusters.{name}: '{address}' is not HOST:PORT, such as ctl:7667"
                )
    if config.clusters and not config.cluster:
        raise ConfigError(
            f"{file}: clusters: none of them has the address of `controller`, {config.controller};"
            " name this cluster, too"
        )


def _check_standby(config: Config, file: Path) -> None:
    others = config.standby.controllers
    port = config.controller_address[1]
    for other in others:
        if not _is_address(other) or int(other.rpartition(":")[2]) != port:
            raise ConfigError(
                f"{file}: standby.controllers: '{other}' is not HOST:{port}; every onesd listens on"
                " the port of `controller`"
            )
    if twice := {each for each in others if config.controllers.count(each) > 1}:
        raise ConfigError(
            f"{file}: standby.controllers: {min(twice)} is named twice; name the hosts beside"
            " `controller`, each once"
        )
    if others and Path(config.store).parent != Path(config.heartbeat).parent:
        raise ConfigError(
            f"{file}: standby.controllers: `heartbeat` ({config.heartbeat}) must be in the folder"
            f" of `store` ({Path(config.store).parent}), which all their hosts see"
        )


def _check_doors(doors: DaemonConfig, file: Path) -> None:
    try:
        ipaddress.ip_address(doors.address)
    except ValueError:
        raise ConfigError(
            f"{file}: daemon.address: '{doors.address}' is no address of a host, such as 10.1.0.1"
        ) from None
    for text in doors.allow:
        try:
            ipaddress.ip_network(text)
        except ValueError as fault:
            raise ConfigError(
                f"{file}: daemon.allow: {fault}; a network is written as 10.1.0.0/16"
            ) from None
    if doors.metrics and not _is_address(doors.metrics):
        raise ConfigError(
            f"{file}: daemon.metrics: '{doors.metrics}' is not HOST:PORT, such as 127.0.0.1:9461"
        )


def _check_page(page: PageConfig, file: Path) -> None:
    if page.address and not _is_address(page.address):
        raise ConfigError(
            f"{file}: page.address: '{page.address}' is not HOST:PORT, such as 127.0.0.1:7668"
        )
    host = page.address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host or "127.0.0.1")
    except ValueError:
        raise ConfigError(
            f"{file}: page.address: '{host}' is no address of a host, such as 127.0.0.1"
        ) from None
    if not found.is_loopback and not page.certificate:
        raise ConfigError(
            f"{file}: page.address: {host} is reached over the network, where sessions could be"
            " read along; set page.certificate, or listen on 127.0.0.1 behind a proxy with TLS"
        )
    if found.is_unspecified and not page.url:
        raise ConfigError(
            f"{file}: page.url: with page.address '{page.address}' it must say how browsers reach"
            " the page, such as https://ones.example.org:7668"
        )
    if page.key and not page.certificate:
        raise ConfigError(f"{file}: page.key: it needs page.certificate beside it")
    if page.url and not _PAGE_URL.fullmatch(page.url):
        raise ConfigError(
            f"{file}: page.url: '{page.url}' is not https://HOST or https://HOST:PORT, without a"
            " path behind it"
        )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and 0 < int(port[:6]) < 65536
    return is_port and _HOST.fullmatch(host) is not None
