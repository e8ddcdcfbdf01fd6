"""Policies by name, with their settings: `ones`, `srtf`, `ones:generations=0:exponent=0.5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf, isfinite
from typing import Any, Literal

from ones.policies.fifo import Fifo
from ones.policies.gavel.policies import POLICIES as GAVEL
from ones.policies.gavel.policies import GavelPolicy
from ones.policies.gavel.rounds_offer import about, needs, rounds_of
from ones.policies.gavel.rounds_settings import RoundSettings, mapping
from ones.policies.liquid import Liquid
from ones.policies.model import Policy, Seconds
from ones.policies.ones import Ones
from ones.policies.ones_settings import PUBLISHED, Settings
from ones.policies.optimus import Optimus
from ones.policies.pollux import Pollux
from ones.policies.sia import Sia
from ones.policies.srtf import Srtf
from ones.policies.tiresias import Tiresias

SHARE_LOAD = 0.75  # of the GPUs in use, from where Liquid shares them (Liquid §3.2)
Information = Literal["family", "own", "truth"]
_PREFIXES: Mapping[str, Information] = {"gavel": "family", "gavel-oracle": "truth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What holds here for every policy that knows of it; settings in a name come before it."""

    max_wait: Seconds | None = None
    gavel: RoundSettings = field(default_factory=RoundSettings)
    sharing: bool = False  # whether jobs may share GPUs


_Make = Callable[[Site, Mapping[str, str]], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A policy on offer."""

    make: _Make
    about: str  # what it optimises
    information: Information = "family"
    needs: str = ""  # what has to be set before it can be used


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


def _gavel(name: str, policy: GavelPolicy) -> _Make:
    def made(site: Site, given: Mapping[str, str]) -> Policy:
        wait = {} if site.max_wait is None else {"max_wait": site.max_wait}
        settings = replace(site.gavel, **{**wait, **_read(site.gavel, given)})
        return rounds_of(name, policy, settings, sharing=site.sharing)

    return made


_POLICIES: dict[str, Entry] = {
    "fifo": Entry(make=_plain(Fifo()), about="first come, first served, at the requested size"),
    "liquid": Entry(make=_liquid, about="jobs in order, where the network costs them least"),
    "ones": Entry(
        make=_ones("ones", Settings()), about="average completion time; sizes and batches"
    ),
    "ones-oracle": Entry(
        make=_ones("ones-oracle", Settings()),
        about="the same, knowing what is to come",
        information="truth",
    ),
    "ones-sc21": Entry(make=_ones("ones-sc21", PUBLISHED), about="ONES as published"),
    "optimus-oracle": Entry(
        make=_plain(Optimus()), about="time left, one GPU more at a time", information="truth"
    ),
    "pollux": Entry(make=_plain(Pollux()), about="fair goodput; sizes, batches", information="own"),
    "sia": Entry(make=_plain(Sia()), about="fair goodput on mixed GPU types", information="own"),
    "srtf": Entry(make=_plain(Srtf()), about="the shortest remaining time first"),
    "srtf-oracle": Entry(
        make=_plain(Srtf(name="srtf-oracle")),
        about="the same, knowing what is to come",
        information="truth",
    ),
    "tiresias": Entry(make=_plain(Tiresias()), about="the least service so far first"),
    **{
        name: Entry(
            make=_gavel(name, policy), about=about(policy), information=known, needs=needs(policy)
        )
        for prefix, known in _PREFIXES.items()
        for policy in GAVEL.values()
        for name in (f"{prefix}:{policy.name}",)
    },
}


def names() -> tuple[str, ...]:
    """The policies that need no settings."""
    return tuple(sorted(name for name, entry in _POLICIES.items() if not entry.needs))


def offered() -> Mapping[str, Entry]:
    """Every policy, by name."""
    return dict(sorted(_POLICIES.items()))


def choices() -> str:
    """The names in a few words."""
    plain = [name for name in names() if ":" not in name]
    return f"{', '.join(plain)}, gavel:NAME, gavel-oracle:NAME (onesctl policy list)"


def information(name: str) -> Information:
    """What a policy may know: its jobs' families, each job's own reports alone, or the truth.

    Raises ValueError that lists the known policies.
    """
    return _entry(name)[0].information


def make(name: str, *, max_wait: Seconds | None = None, site: Site | None = None) -> Policy:
    """The policy of that name; preemptive ones put first who waited longer than `max_wait`.

    None leaves that to the policy: those of others' papers know no such bound.

    Raises ValueError that names the fault and what is allowed.
    """
    entry, given = _entry(name)
    here = site or Site()
    try:
        return entry.make(here if max_wait is None else replace(here, max_wait=max_wait), given)
    except ValueError as fault:
        raise ValueError(f"policy '{name}': {fault}") from None


def settings_of(policy: Policy) -> Mapping[str, Any]:
    """A policy's settings as they hold, by name."""
    own = getattr(policy, "settings", policy)
    if not is_dataclass(own):
        return {}
    return {field.name: getattr(own, field.name) for field in fields(own) if field.name != "name"}


def _entry(name: str) -> tuple[Entry, Mapping[str, str]]:
    parts = name.split(":")
    plain = ":".join(part for part in parts if "=" not in part)
    given = dict(part.split("=", 1) for part in parts if "=" in part)
    if plain not in _POLICIES:
        raise ValueError(f"no policy '{name}'; choose one of: {choices()}")
    return _POLICIES[plain], given


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _read(defaults: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Settings as text, read as the type that each one's default has."""
    known = {
        field.name: getattr(defaults, field.name)
        for field in fields(defaults)
        if field.name != "name"
    }
    read: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise ValueError(f"it has no setting '{key}'; known: {allowed}")
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
            raise ValueError(f"its setting {key} is not {kind}: '{text}'") from None
    return read
