"""What our programs load as they start: memory and modules, of this tree and of another commit.

usage: scripts/benchmark-startup --memory [--at COMMIT]

Each is loaded in a process of its own from the files of the tree, up to the point where it reads
its arguments. Memory is the most that the process had resident, `python -c pass` included.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ones-agent", "onesd", "onesctl", "ones-release", "ones-run")
LIBRARY = "the library in a job"
LOAD = """
import importlib, json, resource, sys
importlib.import_module(sys.argv[1])
names = set(sys.modules)
print(json.dumps({
    "ours": sum(name.startswith("ones.") for name in names),
    "all": len(names),
    "heavy": sorted(names & {"aiohttp", "numpy", "scipy", "torch"}),
    "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark-startup --memory", description=__doc__)
    parser.add_argument("--at", metavar="COMMIT", help="before; this tree is after")
    at = parser.parse_args(arguments).at
    print("| program | tree | MiB | modules of ours | modules in all | of these |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT}
        if at is not None:
            before = Path(folder) / "before"
            before.mkdir()
            archive = subprocess.run(
                ["git", "archive", at], cwd=ROOT, capture_output=True, check=True
            )
            subprocess.run(["tar", "x"], cwd=before, input=archive.stdout, check=True)
            trees = {at: before, **trees}
        for program in (*PROGRAMS, LIBRARY):
            for name, tree in trees.items():
                said = loaded(program, tree, Path(folder) / name)
                cells = (f"{said['mib']:.0f}", said["ours"], said["all"], ", ".join(said["heavy"]))
                print(f"| {program} | {name} | {' | '.join(map(str, cells))} |", flush=True)
    return 0


def loaded(program: str, tree: Path, path: Path) -> dict[str, object]:
    """What LOAD says of a program's own module in that tree."""
    path.mkdir(exist_ok=True)
    if not (path / "ones").exists():
        (path / "ones").symlink_to(tree)
    setup = configparser.ConfigParser()
    setup.read(tree / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    entries = dict(line.split(" = ") for line in lines if line)
    module = "ones.slurm_ext.runtime" if program == LIBRARY else entries[program].split(":")[0]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, module],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
