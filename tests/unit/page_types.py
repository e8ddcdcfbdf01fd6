"""Data held against the types that the page's modules are checked by (daemon/web/types.d.ts)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TYPES = Path(__file__).parents[2] / "daemon" / "web" / "types.d.ts"


def mismatches(folder: Path, *told: tuple[str, object]) -> str:
    """What TypeScript's compiler says of values and the types that they should have; '': nothing.

    A field that a type doesn't know is a mismatch, too. Skipped where there is no compiler.
    """
    if shutil.which("tsc") is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have tsc")
        pytest.skip("no tsc; apt-get install node-typescript")
    lines = [f"const told{at}: {kind} = {json.dumps(it)};" for at, (kind, it) in enumerate(told)]
    source = folder / "told.ts"
    source.write_text("\n".join(lines))
    strict = ["--noEmit", "--strict", "--target", "es2022", "--typeRoots", folder]
    done = subprocess.run(
        ["tsc", *strict, TYPES, source],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
