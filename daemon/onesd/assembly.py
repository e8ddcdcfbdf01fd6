"""Puts the parts of onesd together: the daemon, tests and simulations get the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ones.daemon.config import Config
from ones.daemon.onesd.books.books import Books
from ones.daemon.onesd.books.store import Store
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.moves.under_way import MovesUnderWay
from ones.daemon.onesd.observing import Observer
from ones.daemon.onesd.policy_in_force import PolicyInForce
from ones.daemon.onesd.round import Rounds
from ones.daemon.onesd.service import Service
from ones.daemon.onesd.steering import Steering
from ones.daemon.onesd.terms import Term
from ones.slurm_ext.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Onesd:
    """The daemon without its process: no loop, no socket, no thread."""

    rounds: Rounds
    service: Service
    moves: MovesUnderWay


def assemble(
    config: Config,
    cluster: Cluster,
    store: Store,
    *,
    clock: Callable[[], float],
    metrics: Metrics | None = None,
    news: Callable[[], None] = lambda: None,
    ended: Callable[[], None] = lambda: None,
    term: Term | None = None,
    yields: Callable[[], None] = lambda: None,
) -> Onesd:
    """One onesd on one database. `news`: a tick should come soon; `ended`: a round should.

    `term`: where there are others, that in which it acts; `yields` gives it up, for one of them.

    Chance is drawn from the configuration's seed and the number of the round. Raises ValueError
    where the configuration's policy can't be used.
    """
    metrics = metrics or Metrics(controllers=len(config.controllers))
    if term is not None:
        metrics.roles.acts(term=term.number)
    metrics.watch_database(store.size)
    books = Books.open(config, store, cluster, metrics)
    policy = PolicyInForce(config, store)
    steering = Steering(config, store)
    moves = MovesUnderWay(config, cluster, books, metrics, clock=clock)
    every = config.slurm.limits_every
    observer = Observer(cluster, books, moves, clock=clock, limits_every=every)
    rounds = Rounds(
        observer=observer,
        books=books,
        moves=moves,
        policy=policy,
        steering=steering,
        metrics=metrics,
        clock=clock,
        rng=lambda number: np.random.default_rng([config.seed, number]),
        begun=news,
    )
    service = Service(
        cluster=cluster,
        books=books,
        moves=moves,
        observer=observer,
        rounds=rounds,
        policy=policy,
        steering=steering,
        metrics=metrics,
        clock=clock,
        news=news,
        ended=ended,
        term=term,
        yields=yields,
    )
    return Onesd(rounds=rounds, service=service, moves=moves)
