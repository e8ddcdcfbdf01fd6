"""What several unit tests share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

if importlib.util.find_spec("hypothesis"):  # it is not in the image, where some of these run
    from hypothesis import HealthCheck, settings

    # How long an example takes is a matter of what else the machine does.
    settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")

EMULATION = Path(__file__).resolve().parents[1] / "emulation"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled stand-in for libnvidia-ml.so.1."""
    if not (shutil.which("cc") and shutil.which("make")):
        if os.environ.get("CI"):
            pytest.fail("CI must have a C compiler and make")
        pytest.skip("no C compiler or make; apt-get install build-essential")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        ["make", "-s", f"BUILD={folder}", f"{folder}/libnvidia-ml.so.1"],
        cwd=EMULATION,
        check=True,
        timeout=60,
    )
    return folder
