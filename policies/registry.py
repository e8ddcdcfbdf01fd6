"""Policies by name, with their settings: `ones`, `srtf`, `ones:generations=0:exponent=0.5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf, isfinite
from typing import Any

from ones.policies.catalogue import GAVEL as GAVEL_PREFIXES
from ones.policies.catalogue import OFFERS, Information
from ones.policies.drl import Drl, DrlSettings
from ones.policies.drl_network import Network
from ones.policies.fifo import Fifo
from ones.policies.gavel.policies import POLICIES as GAVEL
from ones.policies.gavel.policies import GavelPolicy
from ones.policies.gavel.rounds_offer import rounds_of
from ones.policies.gavel.rounds_settings import RoundSettings, mapping
from ones.policies.liquid import Liquid
from ones.policies.model import Policy, Seconds
from ones.policies.ones import Ones
from ones.policies.ones_settings import Settings
from ones.policies.optimus import Optimus
from ones.policies.pollux import Pollux
from ones.policies.sc21 import Sc21
from ones.policies.shockwave import Shockwave
from ones.policies.sia import Sia
from ones.policies.slurm.policy import Slurm
from ones.policies.slurm.settings import SlurmSettings
from ones.policies.srtf import Srtf
from ones.policies.tiresias import Tiresias

SHARE_LOAD = 0.75  # of the GPUs in use, from where Liquid shares them (Liquid §3.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What holds here for every policy that knows of it; settings in a name come before it."""

    max_wait: Seconds | None = None
    gavel: RoundSettings = field(default_factory=RoundSettings)
    sharing: bool = False  # whether jobs may share GPUs
    slurm: SlurmSettings = field(default_factory=SlurmSettings)  # of policy `slurm`
    network: Network | None = None  # of policy `drl`; None: there is none


_Make = Callable[[Site, Mapping[str, str]], Policy]


def _plain(policy: Any) -> _Make:
    """A policy whose settings are its own fields."""

    def made(site: Site, given: Mapping[str, str]) -> Policy:
        changes = _read(policy, given)
        if site.max_wait is not None and "max_wait" in {field.name for field in fields(policy)}:
            changes = {"max_wait": site.max_wait, **changes}
        chosen: Policy = replace(policy, **changes)
        return chosen

    return made


def _liquid(site: Site, given: Mapping[str, str]) -> Policy:
    policy: Liquid = replace(Liquid(), **_read(Liquid(), given))
    if not site.sharing and policy.share_load != inf:
        raise ValueError("its setting share_load needs [sharing] allow = true")
    if site.sharing and "share_load" not in given:
        policy = replace(policy, share_load=SHARE_LOAD)
    return policy


def _ones(name: str, settings: Settings) -> _Make:
    def made(site: Site, given: Mapping[str, str]) -> Policy:
        wait = {} if site.max_wait is None else {"max_wait": site.max_wait}
        return Ones(replace(settings, **{**wait, **_read(settings, given)}), name)

    return made


def _slurm(site: Site, given: Mapping[str, str]) -> Policy:
    return Slurm(replace(site.slurm, **_read(site.slurm, given)))


def _drl(site: Site, given: Mapping[str, str]) -> Policy:
    if site.network is None:
        raise ValueError(
            "it has no network; train one with scripts/train-drl, and name its file"
            " with onesctl replay --network"
        )
    return Drl(network=site.network, settings=DrlSettings(**_read(DrlSettings(), given)))


def _gavel(name: str, policy: GavelPolicy) -> _Make:
    def made(site: Site, given: Mapping[str, str]) -> Policy:
        wait = {} if site.max_wait is None else {"max_wait": site.max_wait}
        settings = replace(site.gavel, **{**wait, **_read(site.gavel, given)})
        return rounds_of(name, policy, settings, sharing=site.sharing)

    return made


_POLICIES: dict[str, _Make] = {
    "drl": _drl,
    "fifo": _plain(Fifo()),
    "liquid": _liquid,
    "ones": _ones("ones", Settings()),
    "ones-oracle": _ones("ones-oracle", Settings()),
    "ones-sc21": _plain(Sc21()),
    "optimus-oracle": _plain(Optimus()),
    "pollux": _plain(Pollux()),
    "shockwave": _plain(Shockwave()),
    "sia": _plain(Sia()),
    "slurm": _slurm,
    "srtf": _plain(Srtf()),
    "srtf-oracle": _plain(Srtf(name="srtf-oracle")),
    "tiresias": _plain(Tiresias()),
    **{
        name: _gavel(name, policy)
        for prefix in GAVEL_PREFIXES
        for policy in GAVEL.values()
        for name in (f"{prefix}:{policy.name}",)
    },
}  # what each is for stands in the catalogue


def names() -> tuple[str, ...]:
    """The policies that need no settings."""
    return tuple(sorted(name for name in _POLICIES if not OFFERS[name].needs))


def choices() -> str:
    """The names in a few words."""
    plain = [name for name in names() if ":" not in name]
    return f"{', '.join(plain)}, gavel:NAME, gavel-oracle:NAME (onesctl policy list --all)"


def information(name: str) -> Information:
    """What a policy may know: its jobs' families, each job's own reports alone, or the truth.

    Raises ValueError that lists the known policies.
    """
    return OFFERS[_read_name(name)[0]].information


def is_peer(name: str) -> bool:
    """Whether it stands for another scheduler in replays. Raises ValueError as above."""
    return OFFERS[_read_name(name)[0]].peer


def resizes(name: str) -> bool:
    """Whether the policy gives jobs other sizes than they ask for. Raises ValueError as above."""
    return OFFERS[_read_name(name)[0]].resizes


def make(name: str, *, max_wait: Seconds | None = None, site: Site | None = None) -> Policy:
    """The policy of that name; preemptive ones put first who waited longer than `max_wait`.

    None leaves that to the policy: those of others' papers know no such bound.

    Raises ValueError that names the fault and what is allowed.
    """
    plain, given = _read_name(name)
    here = site or Site()
    try:
        return _POLICIES[plain](
            here if max_wait is None else replace(here, max_wait=max_wait), given
        )
    except ValueError as fault:
        raise ValueError(f"policy {name!r:.200}: {fault}") from None


def settings_of(policy: Policy) -> Mapping[str, Any]:
    """A policy's settings as they hold, by name, but for tables of a site's rules."""
    own = getattr(policy, "settings", policy)
    return _settings(own) if is_dataclass(own) else {}


def _read_name(name: str) -> tuple[str, Mapping[str, str]]:
    """The policy's own name, and the settings behind it."""
    parts = name.split(":")
    plain = ":".join(part for part in parts if "=" not in part)
    given: dict[str, str] = {}
    for part in parts:
        key, sign, text = part.partition("=")
        if key in given:
            raise ValueError(f"policy {name!r:.200}: its setting {key!r:.60} is there twice")
        if sign:
            given[key] = text
    if plain not in _POLICIES:
        head, _, last = plain.rpartition(":")
        if last and head in _POLICIES:
            raise ValueError(
                f"policy {name!r:.200}: its setting {last!r:.60} has no value; write"
                f" {last:.60}=VALUE"
            )
        raise ValueError(f"no policy {name!r:.200}; choose one of: {choices()}")
    return plain, given


def _settings(own: Any) -> dict[str, Any]:
    found = {field.name: getattr(own, field.name) for field in fields(own) if field.name != "name"}
    return {name: value for name, value in found.items() if not isinstance(value, tuple)}


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _read(defaults: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Settings as text, read as the type that each one's default has."""
    known = _settings(defaults)
    read: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise ValueError(f"it has no setting {key!r:.60}; known: {allowed}")
        before = known[key]
        kind = "a number"
        try:
            if isinstance(before, bool):
                kind = "true or false"
                read[key] = {"true": True, "false": False}[text.lower()]
            elif isinstance(before, int):
                read[key] = int(text)
            elif isinstance(before, str):
                read[key] = text
            elif isinstance(before, Mapping):
                kind = "NAME=NUMBER, or several joined by +"
                read[key] = mapping(text)
            else:
                read[key] = _number(text)
        except (KeyError, ValueError):
            raise ValueError(f"its setting {key} is not {kind}: {text!r:.60}") from None
    return read
