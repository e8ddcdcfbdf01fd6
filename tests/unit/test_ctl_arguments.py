"""What onesctl takes for a job's number."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from ones.daemon.ctl.main import main


@pytest.mark.parametrize("command", ["job", "explain"])
@pytest.mark.parametrize(
    "word", ["12_3", "10_0005", "12+1", "12.0", "+12", " 12", "\u0661\u0662", "0", "x"]
)
def test_only_a_plain_number_is_a_job(command: str, word: str) -> None:
    """Python would read `12_3` as 123, which is somebody else's job."""
    done = CliRunner().invoke(main, [command, "--", word])
    assert done.exit_code == 2
    assert done.output.splitlines()[-1].startswith("Error: ")
    assert f"'{word}' is not the number of a job" in done.output


def test_onesctl_starts_with_the_click_of_debian() -> None:
    """Debian 13 has 8.1, of which no class takes a parameter in brackets."""
    as_of_old = "import click; click.ParamType = type('ParamType', (), {})"
    ours = "from ones.daemon.ctl.main import main"
    done = subprocess.run([sys.executable, "-c", f"{as_of_old}; {ours}"], check=False)
    assert done.returncode == 0
