"""What would become of a job if it were submitted here now, or becomes of one that waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ones.daemon.onesd.doors import views
from ones.daemon.onesd.doors.askers import Peer
from ones.daemon.onesd.doors.orders import only
from ones.daemon.onesd.doors.workers import Busy
from ones.daemon.onesd.forecast.model import Forecast, Length, Newcomer
from ones.daemon.onesd.forecast.present import Present
from ones.daemon.onesd.forecast.process import Asked, Unforeseen
from ones.daemon.onesd.service import Service
from ones.estimator.assess import family_of
from ones.slurm_ext.described import Described, NoSuchJob, described
from ones.slurm_ext.hostlists import fold

Ask = Callable[[Asked], tuple[Forecast, Length]]


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a job that waits here, or of one that `asks` describes."""

    job: Annotated[int, msgspec.Meta(ge=1, lt=10**9)] | None = None
    asks: Described | None = None
    length: Annotated[float, msgspec.Meta(gt=0, le=1e8)] | None = None
    """Seconds that it takes at the size that it asks for; left out: what is known here."""
    spread: Annotated[float, msgspec.Meta(ge=0, le=3)] | None = None
    """Standard deviation of its logarithm; the same."""


QUESTION = msgspec.json.Decoder(Question)


@dataclass(frozen=True, slots=True)
class _Job:
    """Who is asked about, with what the forecast begins with."""

    asks: Described
    asked: Asked | None
    why: str = ""  # why it can't run here at all; empty: it can


def where(service: Service, ask: Ask, peer: Peer, question: Question) -> views.Json:
    """The forecast by this onesd's own plan, or why there is none.

    Raises Busy, views.NotKnown or ValueError.
    """
    present = service.present
    if present is None:
        raise Busy("onesd has not finished a round yet; try again in a while")
    one = _of(service, present, peer, question)
    idle = service.steering.obstacle()
    if idle or one.asked is None:
        why = one.why or f"onesd moves no jobs there ({idle})"
        return _told(service, present, one.asks, Forecast(why=why), None)
    try:
        found, length = ask(one.asked)
    except Unforeseen as fault:
        raise Busy(str(fault)) from None
    return _told(service, present, one.asks, found, length)


def _of(service: Service, present: Present, peer: Peer, question: Question) -> _Job:
    problem = present.question
    if question.job is not None:
        known = views.visible(service, question.job, only(peer))
        waits = present.waiting(question.job)
        if waits is None:
            raise ValueError(f"job {question.job} does not wait: it is {known.state.lower()}")
        job, record = waits
        asks = described(record)
    elif question.asks is not None:
        asks = question.asks
        try:
            job, record = present.newcomer(asks, peer.name)
        except NoSuchJob as fault:
            return _Job(asks, None, str(fault))
        problem = present.with_caps(job, record)
    else:
        raise ValueError("name a job, or say what it asks for")
    if not job.startable or job.fixed or not job.shapes:
        return _Job(asks, None, job.fixed or job.limited or "it waits for something else than GPUs")
    try:
        experience = service.told_of(family_of(job.user, job.name))
    except TimeoutError:
        raise Busy("a round is under way; try again in a while") from None
    newcomer = Newcomer(job=job, length=question.length, spread=question.spread)
    return _Job(
        asks,
        Asked(
            question=problem,
            newcomer=newcomer,
            experience=experience,
            config=present.config,
            memory=present.memory,
            lately=present.lately,
            round=present.round,
        ),
    )


def _told(
    service: Service, present: Present, asks: Described, found: Forecast, length: Length | None
) -> views.Json:
    return views.aged(
        service,
        policy=present.config.policy,
        asks=msgspec.to_builtins(asks),
        length=None
        if length is None
        else {
            "seconds": length.seconds,
            "spread": length.spread,
            "told": length.told,
            "guessed": length.guessed,
        },
        start=found.start,
        end=found.end,
        ends=list(found.ends),
        gpus=found.gpus,
        nodes=fold(found.nodes),
        resizes=found.resizes,
        at_limit=found.at_limit,
        why=found.why,
    )
