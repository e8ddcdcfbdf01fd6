from __future__ import annotations

import logging

import pytest

from ones.slurm_ext import pyslurm_reader
from ones.slurm_ext.choose import choose_reader
from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import OnesError


@pytest.fixture
def no_pyslurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyslurm_reader, "available", lambda timeout: "is not installed")


def test_auto_takes_pyslurm_where_it_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pyslurm_reader, "available", lambda timeout: None)
    with caplog.at_level(logging.INFO):
        assert choose_reader("auto", Commands()).name == "pyslurm"
    assert "read by pyslurm" in caplog.text


@pytest.mark.usefixtures("no_pyslurm")
def test_auto_falls_back_to_the_commands_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert choose_reader("auto", Commands()).name == "commands"
    assert "no pyslurm (is not installed)" in caplog.text


@pytest.mark.usefixtures("no_pyslurm")
def test_a_reader_that_is_named_is_not_replaced_by_another() -> None:
    with pytest.raises(OnesError, match=r'slurm\.reader = "pyslurm": is not installed; use "auto"'):
        choose_reader("pyslurm", Commands())


@pytest.mark.usefixtures("no_pyslurm")
def test_commands_are_taken_without_looking_for_pyslurm() -> None:
    assert choose_reader("commands", Commands()).name == "commands"
