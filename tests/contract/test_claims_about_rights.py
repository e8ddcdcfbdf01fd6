"""The tables of docs/security.md of which rights Slurm asks for, held against a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_jobs import Slurm, slurm_with_a_heartbeat
from slurm_rights import Rights, levels, markdown, private_data

__all__ = ["slurm_with_a_heartbeat"]  # the fixture `slurm`
pytestmark = pytest.mark.cluster
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def somebody_of_each_level(slurm: Slurm) -> Iterator[None]:
    with levels(slurm):
        yield


@pytest.fixture
def rights(slurm: Slurm, somebody_of_each_level: None) -> Iterator[Rights]:
    slurm.clean()
    yield Rights(slurm)
    slurm.clean()


def is_on_the_page(rows: list[list[str]], first: str) -> None:
    """So that a change of Slurm's is seen, and the page made anew by what this prints."""
    wanted = "\n".join(markdown(rows, first))
    assert wanted in PAGE.read_text(), f"docs/security.md lacks\n{wanted}"


def test_who_may_write_what(rights: Rights) -> None:
    is_on_the_page(rights.table(rights.writes() | rights.beyond()), "call")


def test_everybody_may_read_what_is_not_private(rights: Rights) -> None:
    for question, *answers in rights.table(rights.reads()):
        assert set(answers) == {"yes"}, question


def test_who_may_read_what_where_slurm_keeps_it_private(rights: Rights) -> None:
    questions = rights.reads()
    with private_data(rights.slurm):
        is_on_the_page(rights.table(questions), "question, with `PrivateData`")
