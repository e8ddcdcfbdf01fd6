"""Which of several onesd acts: terms in a shared folder, of which one alone is in force."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ones.daemon.onesd.terms import KEPT, Candidate, Record, Term, Terms, TermsError, Watch
from ones.slurm_ext.errors import Superseded

TAKEOVER = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terms(tmp_path: Path) -> Terms:
    folder = tmp_path / "terms"
    folder.mkdir()
    return Terms(folder)


def record(host: str = "ctl1") -> Record:
    return Record(host=host, address=f"{host}:7667", store="ones.1.sqlite")


def a_candidate(terms: Terms, clock: Clock, host: str = "ctl2", yielded: int = 0) -> Candidate:
    return Candidate(terms, lambda _: record(host), takeover=TAKEOVER, clock=clock, yielded=yielded)


def claimed(terms: Terms, after: int = 0, host: str = "ctl1") -> Term:
    term = terms.claim(after, lambda _: record(host))
    assert term is not None
    return term


def looks(candidate: Candidate, clock: Clock, seconds: float) -> Term | None:
    """Look every two seconds, for so long or until there is a term."""
    until = clock.now + seconds
    while (term := candidate.look()) is None and clock.now < until:
        clock.now += 2.0
    return term


def test_of_many_who_claim_a_term_at_once_one_has_it(terms: Terms) -> None:
    start = threading.Barrier(8)

    def claim(host: int) -> Term | None:
        start.wait()
        return terms.claim(0, lambda _: record(f"ctl{host}"))

    with ThreadPoolExecutor(8) as hosts:
        made = list(hosts.map(claim, range(8)))
    assert sum(term is not None for term in made) == 1


def test_a_claimed_term_ends_all_earlier_ones(terms: Terms) -> None:
    first = claimed(terms)
    second = claimed(terms, 1, "ctl2")
    # The third one's holder is stopped between making its file and ending those before it.
    third = claimed(terms, 2, "ctl3")
    fourth = claimed(terms, 3)
    for over in (first, second, third):
        with pytest.raises(Superseded, match=r"another onesd has taken over: term \d follows ours"):
            over.check()
        with pytest.raises(Superseded):
            over.beat()
    fourth.check()


def test_a_claim_that_was_stopped_halfway_is_over_with_the_next_one(
    terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claimed(terms)
    with monkeypatch.context() as stopped:
        stopped.setattr(Terms, "_take", lambda *_, **__: None)
        half = claimed(terms, 1, "ctl2")
    first.check()  # nothing of the second has been done yet
    third = claimed(terms, 2, "ctl3")
    for over in (first, half):
        with pytest.raises(Superseded):
            over.check()
    third.check()


def test_a_number_of_long_ago_is_not_given_again(terms: Terms) -> None:
    for after in range(KEPT + 5):
        last = claimed(terms, after)
    assert len(terms.numbers()) <= KEPT + 1
    assert terms.claim(2, lambda _: record("ctl2")) is None
    last.check()


def test_what_a_killed_one_left_half_written_goes_with_the_next_term(terms: Terms) -> None:
    claimed(terms)
    (terms.folder / f".0000000001.{'0' * 32}").touch()
    (terms.folder / ".nfs0000000100000001").touch()  # a file system's own
    claimed(terms, 1)
    hidden = [path.name for path in terms.folder.glob(".*")]
    assert hidden == [".nfs0000000100000001"]


def test_a_link_whose_answer_was_lost_counts(terms: Terms, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # raises FileExistsError, as the repeated question over NFS does

    monkeypatch.setattr(os, "link", twice)
    claimed(terms).check()


def test_nobody_takes_over_from_one_that_gives_signs_of_life(terms: Terms) -> None:
    clock = Clock()
    active, candidate = claimed(terms), a_candidate(terms, clock)
    for _ in range(100):
        assert candidate.look() is None
        clock.now += 2.0
        active.beat()
    active.check()


def test_silence_is_ended_within_the_time_of_a_takeover(terms: Terms) -> None:
    clock = Clock()
    active, candidate = claimed(terms), a_candidate(terms, clock)
    active.beat()
    began = clock.now
    term = looks(candidate, clock, 100.0)
    assert term is not None
    assert term.number == 2
    assert TAKEOVER <= clock.now - began <= TAKEOVER + 2.0
    with pytest.raises(Superseded):
        active.check()


def test_one_that_was_stopped_itself_looks_anew_before_it_takes_over(terms: Terms) -> None:
    clock = Clock()
    active, candidate = claimed(terms), a_candidate(terms, clock)
    active.beat()
    assert looks(candidate, clock, 4.0) is None
    clock.now += 3600.0
    assert candidate.look() is None
    active.beat()
    assert looks(candidate, clock, 6.0) is None
    active.check()


def test_a_term_that_was_given_up_is_followed_at_once_but_not_by_its_holder(terms: Terms) -> None:
    clock = Clock()
    active = claimed(terms)
    active.end()
    himself = a_candidate(terms, clock, "ctl1", yielded=1)
    assert himself.look() is None
    other = a_candidate(terms, clock).look()
    assert other is not None
    assert other.number == 2
    other.end()
    assert himself.look() is not None


def test_one_that_gave_up_comes_back_where_nobody_else_does(terms: Terms) -> None:
    clock = Clock()
    claimed(terms).end()
    himself = a_candidate(terms, clock, "ctl1", yielded=1)
    began = clock.now
    assert looks(himself, clock, 100.0) is not None
    assert clock.now - began == TAKEOVER


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    terms = Terms(tmp_path / "terms")
    with pytest.raises(TermsError, match=r"terms: No such file or directory; make it once, on a"):
        a_candidate(terms, Clock()).look()
    with pytest.raises(TermsError):
        terms.claim(0, lambda _: record())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_record_is_named(terms: Terms) -> None:
    (terms.folder / "0000000001").write_text("{")
    with pytest.raises(TermsError, match=r"0000000001: no record of a term; stop all onesd"):
        terms.latest()


def test_where_the_folder_can_not_be_read_nothing_may_be_done(terms: Terms) -> None:
    term = claimed(terms)
    path = terms.folder / "0000000001"
    path.rename(terms.folder / "aside")
    path.mkdir()
    with pytest.raises(TermsError):
        term.check()


def test_looks_apart_count_as_none() -> None:
    watch = Watch(TAKEOVER)
    assert not watch.silent((1, 0), 100.0)
    assert not watch.silent((1, 0), 104.0)
    assert not watch.silent((1, 0), 109.5)
    assert not watch.silent((1, 0), 114.0)
    assert not watch.silent((1, 0), 118.0)
    assert watch.silent((1, 0), 119.5)
