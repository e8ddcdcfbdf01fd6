"""Policies by name, with their settings: `ones`, `srtf`, `ones:generations=0:exponent=0.5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ones.policies.fifo import Fifo
from ones.policies.model import MAX_WAIT, Policy, Seconds
from ones.policies.ones import Ones
from ones.policies.ones_settings import PUBLISHED, Settings
from ones.policies.srtf import Srtf

Information = Literal["family", "own", "truth"]


@dataclass(frozen=True, slots=True)
class _Entry:
    make: Callable[[Seconds, Mapping[str, str]], Policy]
    information: Information = "family"


def _plain(make: Callable[[Seconds], Policy]) -> Callable[[Seconds, Mapping[str, str]], Policy]:
    """A policy without settings."""

    def made(max_wait: Seconds, given: Mapping[str, str]) -> Policy:
        if given:
            raise ValueError(f"it has no setting '{next(iter(given))}'")
        return make(max_wait)

    return made


def _ones(name: str, defaults: Settings) -> Callable[[Seconds, Mapping[str, str]], Policy]:
    def made(max_wait: Seconds, given: Mapping[str, str]) -> Policy:
        chosen = {"max_wait": max_wait, **settings_of(defaults, given)}
        merged = {field.name: getattr(defaults, field.name) for field in fields(defaults)}
        return Ones(Settings(**{**merged, **chosen}), name=name)

    return made


_POLICIES: dict[str, _Entry] = {
    "fifo": _Entry(_plain(lambda _: Fifo())),
    "ones": _Entry(_ones("ones", Settings())),
    "ones-oracle": _Entry(_ones("ones-oracle", Settings()), "truth"),
    "ones-sc21": _Entry(_ones("ones-sc21", PUBLISHED)),
    "srtf": _Entry(_plain(Srtf)),
    "srtf-oracle": _Entry(_plain(lambda max_wait: Srtf(max_wait, "srtf-oracle")), "truth"),
}


def names() -> tuple[str, ...]:
    return tuple(sorted(_POLICIES))


def information(name: str) -> Information:
    """What a policy may know: its jobs' families, each job's own reports alone, or the truth."""
    return _entry(name)[0].information


def make(name: str, *, max_wait: Seconds = MAX_WAIT) -> Policy:
    """The policy of that name; preemptive ones put first who waited longer than `max_wait`.

    Raises ValueError that names the fault and what is allowed.
    """
    entry, given = _entry(name)
    try:
        return entry.make(max_wait, given)
    except (TypeError, ValueError) as fault:
        raise ValueError(f"policy '{name}': {fault}") from None


def _entry(name: str) -> tuple[_Entry, Mapping[str, str]]:
    parts = name.split(":")
    plain = [part for part in parts if "=" not in part]
    given = dict(part.split("=", 1) for part in parts if "=" in part)
    entry = _POLICIES.get(":".join(plain))
    if entry is None:
        raise ValueError(f"no policy '{name}'; choose one of: {', '.join(names())}")
    return entry, given


def settings_of(defaults: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Settings as text, read as the type that each one's default has.

    Raises ValueError that names the setting, and what is allowed.
    """
    known = {field.name: getattr(defaults, field.name) for field in fields(defaults)}
    read: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            raise ValueError(f"it has no setting '{key}'; known: {', '.join(sorted(known))}")
        before = known[key]
        try:
            if isinstance(before, bool):
                read[key] = {"true": True, "false": False}[text.lower()]
            elif isinstance(before, int):
                read[key] = int(text)
            elif isinstance(before, str):
                read[key] = text
            else:
                read[key] = float(text)
        except (KeyError, ValueError):
            kind = "true or false" if isinstance(before, bool) else "a number"
            raise ValueError(f"its setting {key} is not {kind}: '{text}'") from None
    return read
