"""Output looks like Slurm's."""

from __future__ import annotations

import click
import pytest

from ones.daemon.ctl.table import table
from ones.daemon.times import duration


def test_durations_are_written_as_slurm_writes_them() -> None:
    assert duration(59.6) == "00:01:00"
    assert duration(90061) == "1-01:01:01"
    assert duration(None) == "-"


def test_columns_line_up_and_lines_have_no_trailing_blanks() -> None:
    text = table([{"a": 1, "b": None}, {"a": 100, "b": "x"}], {"a": "JOBID", "b": "NAME"})
    assert text == "JOBID  NAME\n1      -\n100    x"


def test_control_characters_of_a_hostile_name_are_not_printed() -> None:
    assert table([{"a": "x\x1b[2J\ny"}], {"a": "A"}, header=False) == "x?[2J?y"


def test_an_unknown_field_is_named_with_the_known_ones() -> None:
    with pytest.raises(click.UsageError, match="no field 'c'; fields are a,b"):
        table([], {"a": "A", "b": "B"}, fields="a,c")
