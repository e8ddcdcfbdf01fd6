"""Every published oracle case of Gavel's policies, judged from outside and to the last digits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.daemon.ctl.solve import answer

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
JUDGE = SHARED / "tools" / "judge_gavel.py"
CASES = sorted((SHARED / "data" / "gavel" / "oracle").glob("*.json"))

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not CASES, reason="the oracle cases are not beside the checkout"),
]


@pytest.mark.skipif(not JUDGE.exists(), reason="the judge is not beside the checkout")
def test_the_judge_finds_every_case_exact(tmp_path: Path) -> None:
    """As the judge calls it: a program `onesctl` that is told to `solve`."""
    program = tmp_path / "onesctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "from ones.daemon.ctl.solve import solve\n"
        "solve(sys.argv[2:])\n"
    )
    program.chmod(0o755)
    judged = subprocess.run(
        [sys.executable, JUDGE, tmp_path, *CASES],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert f"{len(CASES)} of {len(CASES)}" in judged.stdout


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_objective_and_levels_are_exact(file: Path, tmp_path: Path) -> None:
    case: dict[str, Any] = json.loads(file.read_text())
    reference = case.pop("reference")
    inputs = tmp_path / file.name
    inputs.write_text(json.dumps(case))
    solved = answer(inputs)
    assert solved["violation"] < 1e-6
    if "normalized_throughput_exact" in reference:
        levels = [solved["levels"][str(job["id"])] for job in case["jobs"]]
        assert levels == pytest.approx(reference["normalized_throughput_exact"], rel=1e-6)
    elif case["policy"] == "isolated":
        for mine, theirs in zip(solved["allocation"], reference["allocation_gavel"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)
    else:
        assert solved["objective"] == pytest.approx(reference["objective_exact"], rel=1e-6)
