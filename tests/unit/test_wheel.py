"""The built wheel holds everything that the tree holds, under the names it is imported by."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("policies", "estimator", "slurm_ext", "daemon")
FOR_CHECKS = {"daemon/web/tsconfig.json", "daemon/web/types.d.ts"}  # of the sources alone


def test_every_tracked_file_of_the_rooms_is_in_the_wheel(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    assert tracked, "the tree is no git checkout"
    source = tmp_path / "source"
    for name in (*tracked, "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():  # built from a copy, so that no build folder is left behind
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    done = subprocess.run([*build, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    missing = {name for name in tracked if (ROOT / name).exists() and f"ones/{name}" not in inside}
    assert missing == FOR_CHECKS
