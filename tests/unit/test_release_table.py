"""The table of what the contract and cluster tests said on each release of Slurm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/lib/release_table.py"
CASE = '<testcase classname="test_onesd" name="test_one[a]">'


def table(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def report(folder: Path, name: str, *cases: str) -> None:
    body = "".join(f"{CASE}{case}</testcase>" for case in cases)
    (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")


def test_each_release_has_a_row_and_what_did_not_pass_its_reason(tmp_path: Path) -> None:
    report(tmp_path, "24.11.5-trixie-munge", "", "")
    missing = '<skipped message="no pyslurm"/>'
    report(tmp_path, "26.05.5-forky-slurm", "", missing, missing, '<failure message="a&#10;b"/>')
    status, printed = table(tmp_path)
    assert status == 1
    assert printed.splitlines()[2:] == [
        "| 24.11.5 | trixie | auth/munge | 2 | 0 | 0 |",
        "| 26.05.5 | forky | auth/slurm | 1 | 1 | 2 |",
        "",
        "26.05.5, auth/slurm: 2 skipped: no pyslurm",
        "",
        "26.05.5, auth/slurm: 1 failed: test_onesd.test_one[a]: a",
    ]


def test_all_that_pass_end_well(tmp_path: Path) -> None:
    report(tmp_path, "24.11.5-trixie-munge", "")
    assert table(tmp_path)[0] == 0


def test_no_reports_are_told(tmp_path: Path) -> None:
    status, printed = table(tmp_path)
    assert status == 1
    assert "scripts/test-releases makes them" in printed
