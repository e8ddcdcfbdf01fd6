"""What our programs load: an agent on a GPU node none of what only onesd needs to decide."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"numpy", "scipy", "highspy", "sqlite3", "prometheus_client", "aiohttp"}
DECIDES = ("ones.policies", "ones.estimator", "ones.daemon.replay", "ones.daemon.onesd")
SAYS = {"ones.policies", "ones.policies.catalogue", "ones.policies.words"}  # and no more
RUN = """
import importlib, json, sys
sys.argv = sys.argv[1:]
try:
    main = importlib.import_module(sys.argv[0]).main
    main(prog_name="onesctl") if "ctl" in sys.argv[0] else main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("command", "may"),
    [
        (("ones.daemon.agent.main", "--version"), {"prometheus_client", "aiohttp"}),
        (("ones.daemon.release", "--help"), {"sqlite3"}),
        *(
            (("ones.daemon.ctl.main", *line.split()), set())
            for line in (
                *("--version", "--help", "status --help", "jobs --help", "job --help"),
                *("explain --help", "plan --help", "nodes --help", "sharing --help"),
                *("estimate --help", "report needs --help", "pause --help", "resume --help"),
                *("policy list", "policy list --all", "policy show --help", "policy set --help"),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_program_loads_only_what_it_needs(command: tuple[str, ...], may: set[str]) -> None:
    loaded = loaded_by(command, {})
    assert command[0] in loaded
    assert HEAVY.intersection(loaded) <= may
    assert [name for name in loaded if name.startswith(DECIDES) and name not in SAYS] == []


@pytest.mark.parametrize(
    "line", ["onesctl ", "onesctl re", "onesctl jobs -o ", "onesctl job 1", "onesctl policy set o"]
)
def test_a_tab_press_loads_nothing_heavy(line: str) -> None:
    words = line.split(" ")
    tab = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "ONES_CONF": "/dev/null"}
    loaded = loaded_by(("ones.daemon.ctl.main",), {"_ONESCTL_COMPLETE": "bash_complete", **tab})
    assert HEAVY.intersection(loaded) == set()
    assert [name for name in loaded if name.startswith(DECIDES) and name not in SAYS] == []


def loaded_by(command: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, **environment},
    )
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_onesctl_has_the_commands_that_it_loads_late() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from ones.daemon.ctl.main import main; main()", "--help"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert {"policy", "replay", "solve", "jobs"} <= set(done.stdout.split())
