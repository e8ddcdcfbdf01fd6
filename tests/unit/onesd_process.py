"""onesd as a process of its own, on a cluster without nodes and jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import eventually

HERE = Path(__file__).parent


class Daemon:
    """onesd as a process, with programs that stand for Slurm's and can be made to hang."""

    def __init__(self, folder: Path, config: Path, *, most_descriptors: int = 512) -> None:
        self.folder = folder
        self.log = folder / "log"
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("squeue", "scontrol", "sacct", "sacctmgr", "scancel"):
            listed = {"scontrol": "nodes", "squeue": "jobs"}.get(name)
            says = f"echo '{{\"{listed}\": []}}'" if listed else ":"
            program = programs / name
            program.write_text(
                f"#!/bin/sh\necho {name} >> {folder}/calls\n"
                f"while [ -e {folder}/hangs.{name} ]; do sleep 0.2; done\n{says}\n"
            )
            program.chmod(0o755)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "run_onesd.py", str(most_descriptors), config],
                env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
                stderr=log,
            )

    def hang(self, *programs: str) -> None:
        for name in programs:
            (self.folder / f"hangs.{name}").touch()

    def calls(self, name: str) -> int:
        path = self.folder / "calls"
        return path.read_text().split().count(name) if path.exists() else 0

    def beat(self) -> int:
        path = self.folder / "heartbeat"
        return path.stat().st_mtime_ns if path.exists() else 0

    def rounds_and_beats(self) -> None:
        """Wait until both have gone on."""
        calls, beat = self.calls("squeue"), self.beat()
        eventually(lambda: self.calls("squeue") > calls + 2 and self.beat() > beat)
