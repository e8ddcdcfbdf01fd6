"""Policies by name, with their settings: `ones`, `srtf`, `ones:generations=0:exponent=0.5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Literal

from ones.policies.fifo import Fifo
from ones.policies.model import Policy, Seconds
from ones.policies.ones import Ones
from ones.policies.ones_settings import PUBLISHED, Settings
from ones.policies.optimus import Optimus
from ones.policies.pollux import Pollux
from ones.policies.sia import Sia
from ones.policies.srtf import Srtf
from ones.policies.tiresias import Tiresias

Information = Literal["family", "own", "truth"]
_Make = Callable[[Seconds | None, Mapping[str, str]], Policy]


@dataclass(frozen=True, slots=True)
class _Entry:
    make: _Make
    information: Information = "family"


def _plain(policy: Any) -> _Make:
    """A policy whose settings are its own fields."""

    def made(max_wait: Seconds | None, given: Mapping[str, str]) -> Policy:
        changes = _read(policy, given)
        if max_wait is not None and "max_wait" in {field.name for field in fields(policy)}:
            changes = {"max_wait": max_wait, **changes}
        chosen: Policy = replace(policy, **changes)
        return chosen

    return made


def _ones(name: str, settings: Settings) -> _Make:
    def made(max_wait: Seconds | None, given: Mapping[str, str]) -> Policy:
        changes = {**({} if max_wait is None else {"max_wait": max_wait}), **_read(settings, given)}
        return Ones(replace(settings, **changes), name)

    return made


_POLICIES: dict[str, _Entry] = {
    "fifo": _Entry(_plain(Fifo())),
    "ones": _Entry(_ones("ones", Settings())),
    "ones-oracle": _Entry(_ones("ones-oracle", Settings()), "truth"),
    "ones-sc21": _Entry(_ones("ones-sc21", PUBLISHED)),
    "optimus-oracle": _Entry(_plain(Optimus()), "truth"),
    "pollux": _Entry(_plain(Pollux()), "own"),
    "sia": _Entry(_plain(Sia()), "own"),
    "srtf": _Entry(_plain(Srtf())),
    "srtf-oracle": _Entry(_plain(Srtf(name="srtf-oracle")), "truth"),
    "tiresias": _Entry(_plain(Tiresias())),
}


def names() -> tuple[str, ...]:
    return tuple(sorted(_POLICIES))


def information(name: str) -> Information:
    """What a policy may know: its jobs' families, each job's own reports alone, or the truth.

    Raises ValueError that lists the known policies.
    """
    return _entry(name)[0].information


def make(name: str, *, max_wait: Seconds | None = None) -> Policy:
    """The policy of that name; preemptive ones put first who waited longer than `max_wait`.

    None leaves that to the policy: those of others' papers know no such bound.

    Raises ValueError that names the fault and what is allowed.
    """
    entry, given = _entry(name)
    try:
        return entry.make(max_wait, given)
    except ValueError as fault:
        raise ValueError(f"policy '{name}': {fault}") from None


def _entry(name: str) -> tuple[_Entry, Mapping[str, str]]:
    parts = name.split(":")
    plain = ":".join(part for part in parts if "=" not in part)
    given = dict(part.split("=", 1) for part in parts if "=" in part)
    if plain not in _POLICIES:
        raise ValueError(f"no policy '{name}'; choose one of: {', '.join(names())}")
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
        try:
            if isinstance(before, bool):
                read[key] = {"true": True, "false": False}[text.lower()]
            elif isinstance(before, int):
                read[key] = int(text)
            elif isinstance(before, str):
                read[key] = text
            else:
                read[key] = _number(text)
        except (KeyError, ValueError):
            kind = "true or false" if isinstance(before, bool) else "a number"
            raise ValueError(f"its setting {key} is not {kind}: '{text}'") from None
    return read
