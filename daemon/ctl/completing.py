"""What the Tab key offers: jobs, users and so on as onesd knows them, fields, policies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from ones.daemon.ctl.client import Way, ask
from ones.daemon.ctl.table import Columns
from ones.slurm_ext.errors import OnesError

PATIENCE = 1.0  # seconds for an answer of onesd
_PLAIN = re.compile(r"[\w.@+-]{1,64}", re.ASCII)  # what a shell takes as it stands
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def job_numbers(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """The jobs that onesd lists, each with its name; of several only the last one."""
    return _after_comma(begun, [(str(job["job"]), job["name"]) for job in _jobs(context)])


def values_of(field: str) -> Complete:
    """What the listed jobs have in this field."""

    def complete(
        context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem[str]]:
        found = sorted({str(job.get(field) or "") for job in _jobs(context)})
        return _after_comma(begun, [(value, "") for value in found])

    return complete


def fields_of(columns: Columns) -> Complete:
    """The fields of a listing."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem[str]]:
        return _after_comma(begun, [(name, "") for name in columns])

    return complete


def sorting_by(columns: Columns) -> Complete:
    """The same, each with the sign that is already there."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, begun: str
    ) -> list[CompletionItem[str]]:
        sign = "-" if begun.rpartition(",")[2].startswith("-") else ""
        return _after_comma(begun, [(f"{sign}{name}", "") for name in columns])

    return complete


def policies(
    _context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem[str]]:
    """Those that onesd can decide by."""
    from ones.policies.catalogue import OFFERS  # noqa: PLC0415 - of this one command

    return [
        CompletionItem(name, help=offer.about)
        for name, offer in OFFERS.items()
        if offer.information != "truth" and name.startswith(begun)
    ]


def _jobs(context: click.Context) -> list[dict[str, Any]]:
    given = context.find_root().params
    config, socket = given.get("config"), given.get("socket")
    way = Way(Path(config) if config else None, Path(socket) if socket else None)
    try:
        answer = ask(way, "GET", "/v1/jobs", timeout=PATIENCE)
    except OnesError:
        return []
    jobs: list[dict[str, Any]] = answer["jobs"]
    return jobs


def _after_comma(begun: str, found: Iterable[tuple[str, str]]) -> list[CompletionItem[str]]:
    before, comma, last = begun.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{value}", help=_harmless(told) or None)
        for value, told in found
        if value.startswith(last) and _PLAIN.fullmatch(value)
    ]


def _harmless(told: str) -> str:
    """Names are their users' own, and shells read what they show."""
    return "".join(char if _PLAIN.fullmatch(char) else "?" for char in told[:40])


_JOINED = (":", "=")


class _Bash(BashComplete):
    """Bash takes the colons in policies' names, and the sign behind an option, for words' ends."""

    def get_completion_args(self) -> tuple[list[str], str]:
        count = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for word in split_arg_string(os.environ["COMP_WORDS"])[1 : count + 1]:
            if words and (word in _JOINED or words[-1].endswith(_JOINED)):
                words[-1] += word
            else:
                words.append(word)
        # The word that is begun is not there as long as it is empty.
        whole = len(split_arg_string(os.environ["COMP_WORDS"])) > count
        return (words[:-1], words[-1]) if whole and words else (words, "")

    def format_completion(self, item: CompletionItem[Any]) -> str:
        _, begun = self.get_completion_args()
        before = begun.rpartition(":")[0]
        value = str(item.value)
        if before and value.startswith(f"{before}:"):
            value = value[len(before) + 1 :]
        return f"{item.type},{value}"


add_completion_class(_Bash, "bash")
