"""scripts/release: what it signs, and how it looks over what it has made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))

from released import PACKAGES, faults  # noqa: E402

VERSION = "1.0.0rc1"


def add_up(folder: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Whole, but for what is in its packages."""
    programs = (("ones_slurm", "onesd"), ("ones_slurm_runtime", "ones-run"))
    for name, program in programs:
        with zipfile.ZipFile(tmp_path / f"{name}-{VERSION}-py3-none-any.whl", "w") as wheel:
            words = f"[console_scripts]\n{program} = ones:main\n"
            wheel.writestr(f"{name}.dist-info/entry_points.txt", words)
    for package in PACKAGES:
        kind = "amd64" if package in ("ones-controller", "slurm-spank-ones") else "all"
        for number in (13, 14):
            (tmp_path / f"{package}_1.0.0~rc1+deb{number}_{kind}.deb").touch()
        machine = "x86_64" if kind == "amd64" else "noarch"
        (tmp_path / f"{package}-1.0.0~rc1-1.{machine}.rpm").touch()
    for number in (13, 14):
        (tmp_path / f"ones-slurm_1.0.0~rc1+deb{number}.dsc").touch()
    (tmp_path / "ones-slurm-1.0.0~rc1-1.src.rpm").touch()
    bill = {
        "bomFormat": "CycloneDX",
        "components": [
            {"name": "ones-slurm", "version": VERSION},
            {"name": "numpy", "version": "2.0"},
        ],
    }
    (tmp_path / f"ones-slurm-{VERSION}.cdx.json").write_text(json.dumps(bill))
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "tag-text").write_text(f"ONES for Slurm {VERSION}\n\n### Added\n- All.\n")
    add_up(tmp_path)
    return tmp_path


def test_a_whole_release_has_no_fault(release: Path) -> None:
    assert list(faults(release, VERSION)) == []


@pytest.mark.parametrize(
    ("gone", "fault"),
    [
        (f"ones_slurm_runtime-{VERSION}-py3-none-any.whl", "0 files, not 1"),
        ("ones-agent_1.0.0~rc1+deb14_all.deb", "ones-agent_1.0.0~rc1+deb14_*.deb: 0 files"),
        ("slurm-spank-ones-1.0.0~rc1-1.x86_64.rpm", "slurm-spank-ones-1.0.0~rc1-*"),
        ("tag-text", "SHA256SUMS: there is no tag-text"),
    ],
)
def test_what_is_missing_is_named(release: Path, gone: str, fault: str) -> None:
    (release / gone).unlink()
    assert any(fault in line for line in faults(release, VERSION))


def test_a_file_that_is_not_the_one_that_was_summed_up_is_named(release: Path) -> None:
    (release / "requirements.txt").write_text("numpy\n")
    (release / "left-over").touch()
    assert list(faults(release, VERSION)) == [
        "SHA256SUMS: left-over is left out",
        "SHA256SUMS: requirements.txt is another",
    ]


def test_a_bill_of_another_version_is_named(release: Path) -> None:
    path = release / f"ones-slurm-{VERSION}.cdx.json"
    path.write_text(path.read_text().replace(VERSION, "0.9.0"))
    add_up(release)
    assert list(faults(release, VERSION)) == [f"{path.name}: it has no ones-slurm {VERSION}"]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not here")
def test_sums_are_signed_by_the_key_that_git_signs_with(tmp_path: Path) -> None:
    key, sums = tmp_path / "key", tmp_path / "SHA256SUMS"
    sums.write_text("something\n")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    settings = {"GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
    words = ["bash", "-c", '. "$0/scripts/lib/sign.sh"; sign "$1"', str(ROOT), str(sums)]

    def sign() -> None:
        environment = os.environ | settings | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(words, env=environment, cwd=tmp_path, check=True)

    sign()
    assert not sums.with_name("SHA256SUMS.sig").exists(), "signed without a key"
    (tmp_path / "gitconfig").write_text(f'[user]\n\tsigningkey = "{key}"\n[gpg]\n\tformat = ssh\n')
    sign()
    allowed = tmp_path / "allowed"
    allowed.write_text(f"us {(tmp_path / 'key.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "us", "-n", "file", "-s"]
    with sums.open() as signed:
        subprocess.run([*verify, f"{sums}.sig"], stdin=signed, check=True)
