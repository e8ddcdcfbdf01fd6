"""`onesctl where`: in which of several clusters a job would end first, by each one's own plan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from ones.daemon.config import Config
from ones.daemon.ctl.client import NotAllowed, Refused, Unreachable, Way, ask, ask_at
from ones.daemon.ctl.completing import job_numbers
from ones.daemon.ctl.listing import Listing, listing, print_json
from ones.daemon.ctl.table import Column, Columns, cell
from ones.daemon.times import duration, moment
from ones.slurm_ext.elastic_script import read_elastic
from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.usage import seconds_in

PATH = "/v1/where"
PATIENCE = 60.0  # seconds for a forecast
ALIKE = 60.0  # seconds, or ...
ALIKE_SHARE = 0.02  # ... as a share of the earlier end: two ends within it are taken for one
HERE = "this cluster"  # where none has a name

COLUMNS: Columns = {
    "cluster": Column("CLUSTER", 40),
    "start": Column("START", show=moment),
    "end": Column("END", show=moment),
    "takes": Column("TAKES", show=duration),
    "gpus": "GPUS",
    "nodes": Column("NODELIST", 40, usual=False),
    "resizes": Column("RESIZES", usual=False),
    "policy": Column("POLICY", 24, usual=False),
    "note": "NOTE",
}


class NowhereError(OnesError):
    """The job can run in none of the clusters."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a cluster's onesd foresees of the job."""

    cluster: str
    here: bool
    answer: Mapping[str, Any]

    @property
    def end(self) -> float | None:
        """Seconds from now; None: it can't be foreseen, or can't run there."""
        end: float | None = self.answer["end"]
        return end

    def before(self, other: Told) -> tuple[int, int]:
        """In how many of the draws that both made it ends first here, and how many these are."""
        pairs = [
            (mine, its)
            for mine, its in zip(self.answer["ends"], other.answer["ends"], strict=False)
            if mine is not None and its is not None
        ]
        return sum(mine < its for mine, its in pairs), len(pairs)


def ranked(told: Sequence[Told]) -> list[Told]:
    """The cluster in which it ends first comes first; of those alike the one that was asked in."""
    ends = [one.end for one in told if one.end is not None]
    first = min(ends, default=0.0)
    alike = first + max(ALIKE, ALIKE_SHARE * first)

    def order(one: Told) -> tuple[bool, bool, float]:
        end = one.end
        return end is None, not (one.here and end is not None and end <= alike), end or 0.0

    return sorted(told, key=order)


def one_length(told: Sequence[Told]) -> Told | None:
    """Whose word on the job's length counts for those that only guess; None: nobody else's."""
    known = [one for one in told if one.answer["length"] is not None]
    if len(known) < 2 or not any(one.answer["length"]["guessed"] for one in known):
        return None
    return min(known, key=lambda one: (one.answer["length"]["guessed"], not one.here))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-M", "--clusters", "names", metavar="NAME[,...]", help="Only these; else all that are named."
)
@click.option(
    "--length", metavar="TIME", help="How long it takes at the size that it asks for, if you know."
)
@listing(COLUMNS)
@click.argument("what", metavar="SCRIPT|JOB", shell_complete=job_numbers)
@click.argument("options", metavar="[SBATCH OPTION]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def where(
    way: Way,
    what: str,
    options: tuple[str, ...],
    *,
    names: str | None,
    length: str | None,
    listing: Listing,
    as_json: bool,
) -> None:
    """In which cluster an elastic job would end first, were it submitted now.

    Each cluster's onesd is asked for a forecast by its own plan. The job is a batch script, with
    what sbatch would be told beside it, or one that waits here. Nothing is submitted: the first
    line is the command that would do it.
    """
    asker = _Asker(way, way.settings(), _chosen(way.settings(), names))
    question: dict[str, Any] = {"length": _seconds(length)}
    job = int(what) if what.isdecimal() and not Path(what).exists() else None
    if job is not None and options:
        raise click.UsageError("options belong to a script; a job has its own already")
    if job is None:
        question["asks"] = msgspec.to_builtins(read_elastic(Path(what), options))
    told = ranked(asker.foreseen(question, job))
    best = told[0]
    if best.end is None:
        raise NowhereError(
            "the job can run in none of them: "
            + "; ".join(f"{one.cluster}: {one.answer['why']}" for one in told)
        )
    command = _command(best, what, options, job)
    rows = [_row(one, best, time.time()) for one in told]
    if as_json:
        left = [{"cluster": name, "why": why} for name, why in sorted(asker.left_out.items())]
        print_json(
            {
                "meta": best.answer["meta"],
                "command": command,
                "clusters": [{**row, **_shown(one)} for row, one in zip(rows, told, strict=True)],
                "left_out": left,
            }
        )
        return
    click.echo(command)
    listing.show(rows)


def _chosen(config: Config, names: str | None) -> dict[str, str]:
    """Clusters by name, with where their onesd are."""
    if names is None:
        return dict(config.clusters) or {HERE: config.controller}
    chosen = {}
    for name in names.split(","):
        if name not in config.clusters:
            known = ", ".join(config.clusters) or "none"
            raise click.BadParameter(
                f"'{name[:40]}' is not among the configuration's [clusters]: {known}"
            )
        chosen[name] = config.clusters[name]
    return chosen


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = seconds_in(text)
    if not found or found <= 0:
        raise click.BadParameter(f"--length '{text[:40]}' is no time; such as 1-12:00:00 or 90:00")
    return found


class _Asker:
    """Asks the clusters, all at once; who does not answer is left out and named."""

    def __init__(self, way: Way, config: Config, clusters: Mapping[str, str]) -> None:
        self.left_out: dict[str, str] = {}
        self._way = way
        self._config = config
        self._clusters = clusters
        self._own = config.cluster or HERE

    def foreseen(self, question: Mapping[str, Any], job: int | None) -> list[Told]:
        """What they foresee. Raises Unreachable where none answers."""
        told = []
        others = list(self._clusters)
        if job is not None:
            # The job is here, and only here is known what it asks for.
            mine = self._one(self._own, {**question, "job": job})
            question = {**question, "asks": mine.answer["asks"]}
            told = [mine] if self._own in others else []
            others = [name for name in others if name != self._own]
        told += self._all(dict.fromkeys(others, question))
        if not told:
            raise Unreachable("; ".join(f"{n}: {why}" for n, why in self.left_out.items()))
        best = one_length(told) if question["length"] is None else None
        if best is not None:
            # Two clusters must not be compared by two guesses at one job's length.
            of = best.answer["length"]
            alike = {**question, "length": of["seconds"], "spread": of["spread"]}
            again = {
                one.cluster: alike
                for one in told
                if one is not best and one.answer["length"] and one.answer["length"]["guessed"]
            }
            if self._own in again and job is not None:
                again[self._own] = {**alike, "asks": None, "job": job}
            anew = {one.cluster: one for one in self._all(again)}
            told = [anew.get(one.cluster, one) for one in told]
        return told

    def _all(self, questions: Mapping[str, Mapping[str, Any]]) -> list[Told]:
        if not questions:
            return []
        with ThreadPoolExecutor(len(questions)) as askers:
            found = list(askers.map(lambda one: self._heard(*one), questions.items()))
        for name, answer in zip(questions, found, strict=True):
            if isinstance(answer, OnesError):
                self.left_out[name] = str(answer)
                click.echo(
                    f"onesctl: note: {cell(name)} is left out: {cell(str(answer))}", err=True
                )
        return [one for one in found if isinstance(one, Told)]

    def _heard(self, name: str, question: Mapping[str, Any]) -> Told | OnesError:
        try:
            return self._one(name, question)
        except (Unreachable, Refused, NotAllowed) as fault:
            return fault

    def _one(self, name: str, question: Mapping[str, Any]) -> Told:
        here = name == self._own
        if here:
            answer = ask(self._way, "POST", PATH, question, timeout=PATIENCE)
        else:
            addresses = self._clusters[name]
            answer = ask_at(self._config, addresses, "POST", PATH, question, timeout=PATIENCE)
        return Told(name, here, answer)


def _command(best: Told, what: str, options: Sequence[str], job: int | None) -> str:
    """What to type."""
    cluster = [] if best.cluster == HERE else ["-M", best.cluster]
    if job is None:
        return shlex.join(["sbatch", *cluster, *options, what])
    if best.here:
        return f"# job {job} would end first where it waits"
    return f"# job {job} would end first on {best.cluster}: cancel it, and sbatch -M {best.cluster}"


def _row(one: Told, best: Told, now: float) -> dict[str, Any]:
    answer = one.answer
    start, end = answer["start"], answer["end"]
    return {
        "cluster": one.cluster,
        "start": None if start is None else now + start,
        "end": None if end is None else now + end,
        "takes": end,
        "gpus": answer["gpus"] or None,
        "nodes": answer["nodes"],
        "resizes": answer["resizes"],
        "policy": answer["policy"],
        "note": _note(one, best),
    }


def _note(one: Told, best: Told) -> str:
    answer, said = one.answer, []
    if answer["why"]:
        return str(answer["why"])
    if answer["at_limit"]:
        said.append("its time limit ends it")
    if one is best and answer["length"]["guessed"]:
        said.append("its length is a guess; --length says it")
    if one is not best and one.end is not None:
        sooner, of = one.before(best)
        if sooner:
            said.append(f"the difference is less than is known: sooner in {sooner} of {of} draws")
    return "; ".join(said)


def _shown(one: Told) -> dict[str, Any]:
    kept = ("ends", "length", "at_limit", "why")
    return {"here": one.here, **{name: one.answer[name] for name in kept}}
