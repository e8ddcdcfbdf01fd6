"""What the Ansible role does to a site's slurm.conf and job_submit.lua, by Ansible itself.

scripts/test-install plays all of it on hosts without ONES; here only files are changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "slurm_ext/lua/job_submit.lua"
EVENTS = [f"{name}Slurmctld=/usr/libexec/ones/ones-event" for name in ("Prolog", "Epilog")]
OURS = ["JobSubmitPlugins=lua", *EVENTS]
THEIRS = "-- the site's own: refuses jobs without an account\n"

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")  # of the extra `test`

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may write Slurm's files")


@dataclass(frozen=True, slots=True)
class Case:
    """A site before the play: the lines of its slurm.conf, and its job_submit.lua if any."""

    lines: tuple[str, ...] = ()
    lua: str = ""
    refused: str = ""  # for this; empty: the role is to go on


CASES = {
    "ours_otherwise_written": Case(
        lines=("jobsubmitplugins = lua", f"{EVENTS[0].upper()[:15]} = {EVENTS[0][16:]} # ONES")
    ),
    "ours_of_before": Case(lines=tuple(OURS), lua=LUA.read_text().replace("return", "return ", 1)),
    "commented": Case(lines=("# JobSubmitPlugins=throttle", "#PrologSlurmctld = /site/prolog")),
    "own_lua": Case(lines=("JobSubmitPlugins=lua",), lua=THEIRS, refused="job_submit.lua is"),
    "lua_and_another": Case(lines=("JobSubmitPlugins = lua,throttle",), refused="lua,throttle"),
    "own_prolog": Case(lines=("\tprologslurmctld = /site/prolog",), refused="/site/prolog"),
    "two_on_a_line": Case(lines=(f"{OURS[0]} EpilogSlurmctld=/site/e",), refused="/site/e"),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where each case's folder of Slurm is after one play on all, and what Ansible printed."""
    root = tmp_path_factory.mktemp("sites")
    hosts = ["[ones_controller]"]
    for name, case in CASES.items():
        folder = root / name
        folder.mkdir()
        (folder / "slurm.conf").write_text("\n".join(["ClusterName=site", *case.lines, ""]))
        if case.lua:
            (folder / "job_submit.lua").write_text(case.lua)
        hosts.append(f"{name} ones_slurm_folder={folder}")
    local = ("ansible_connection=local", f"ansible_python_interpreter={sys.executable}")
    (root / "hosts").write_text("\n".join([*hosts, "[all:vars]", *local, ""]))
    task = {"ansible.builtin.include_role": {"name": "ones", "tasks_from": "slurm"}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [task]}
    (root / "site.yml").write_text(json.dumps([play]))
    (root / "scontrol").write_text("#!/bin/sh\n")
    (root / "scontrol").chmod(0o755)
    done = subprocess.run(
        [
            *(PLAYBOOK, "--inventory", root / "hosts", "--forks", "1"),
            *("--extra-vars", f"ones_job_submit={LUA}", root / "site.yml"),
        ],
        env=os.environ
        | {
            "ANSIBLE_ROLES_PATH": str(ROOT / "scripts/ansible/roles"),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{root}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return root, done.stdout + done.stderr


def said_of(name: str, printed: str) -> str:
    """What Ansible printed when it gave that host up; empty where it did not."""
    _, _, text = printed.partition(f"fatal: [{name}]: FAILED! => ")
    return str(json.JSONDecoder().raw_decode(text)[0]["msg"]) if text else ""


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.refused])
def test_slurm_conf_has_our_lines_once_and_as_we_write_them(
    played: tuple[Path, str], name: str
) -> None:
    root, printed = played
    assert said_of(name, printed) == ""
    kept = [line for line in CASES[name].lines if line.startswith("#")]
    lines = (root / name / "slurm.conf").read_text().splitlines()
    assert lines == ["ClusterName=site", *kept, *OURS]
    assert (root / name / "job_submit.lua").read_text() == LUA.read_text()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused])
def test_what_is_the_sites_own_is_named_and_left_alone(played: tuple[Path, str], name: str) -> None:
    root, printed = played
    case = CASES[name]
    assert case.refused in said_of(name, printed)
    assert "ones_slurm_conf to false" in said_of(name, printed)
    text = (root / name / "slurm.conf").read_text()
    assert text.splitlines() == ["ClusterName=site", *case.lines]
    left = {path.name: path.read_text() for path in (root / name).iterdir()} | {"slurm.conf": ""}
    assert left == {"slurm.conf": ""} | ({"job_submit.lua": case.lua} if case.lua else {})


def test_the_file_of_before_is_kept(played: tuple[Path, str]) -> None:
    root, _ = played
    [kept] = (root / "ours_of_before").glob("job_submit.lua.*")
    assert kept.read_text() == CASES["ours_of_before"].lua


def test_packages_that_are_not_there_are_named_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "ones-common_0.1.0+deb13_all.deb").touch()
    task = {"ansible.builtin.include_role": {"name": "ones", "tasks_from": "packages"}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [task]}
    (tmp_path / "site.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [
            *(PLAYBOOK, "--inventory", "site,", "--connection", "local"),
            *("--extra-vars", f"ones_packages={tmp_path} ones_debian=13", tmp_path / "site.yml"),
        ],
        env=os.environ
        | {"ANSIBLE_ROLES_PATH": str(ROOT / "scripts/ansible/roles"), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = said_of("site", done.stdout + done.stderr)
    assert f"{tmp_path} has no ones-runtime, slurm-spank-ones for this Debian" in said
