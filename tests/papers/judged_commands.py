"""How the tests of the commands that judge an estimator ask them, and what all say of bad files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Command = Callable[[Sequence[str]], int]


def said(
    command: Command, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    code = command([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def assert_refused(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    *,
    good: str,
    bad: str,
    words: str,
) -> None:
    """A bad training file gets one line that names it and says these words."""
    (folder / "good.csv").write_text(good)
    (folder / "bad.csv").write_text(bad)
    code, out, err = said(command, capsys, folder / "bad.csv", folder / "good.csv")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert str(folder / "bad.csv") in err
    assert words in err
