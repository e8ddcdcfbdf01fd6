"""released.py FOLDER VERSION: whether all of a release is there, and is what it says it is.

Prints one line for each fault, and ends with 1 where there is one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

PACKAGES = ("ones-agent", "ones-common", "ones-controller", "ones-runtime", "slurm-spank-ones")
DEBIANS = (13, 14)
WHEELS = {
    "ones_slurm-{}-py3-none-any.whl": "onesd",
    "ones_slurm_runtime-{}-py3-none-any.whl": "ones-run",
}  # with a program that each brings


def wanted(version: str) -> list[str]:
    """Patterns of the files that a release consists of; exactly one file is to fit each."""
    theirs = re.sub(r"(a|b|rc)(\d+)$", r"~\1\2", version)  # as Debian and rpm write it
    debs = [f"{package}_{theirs}+deb{n}_*.deb" for n in DEBIANS for package in PACKAGES]
    sources = [f"ones-slurm_{theirs}+deb{n}.dsc" for n in DEBIANS]
    rpms = [f"{package}-{theirs}-*.*[!c].rpm" for package in PACKAGES]
    rpms.append(f"ones-slurm-{theirs}-*.src.rpm")
    beside = [f"ones-slurm-{version}.cdx.json", "requirements.txt", "tag-text", "SHA256SUMS"]
    return [*(name.format(version) for name in WHEELS), *debs, *sources, *rpms, *beside]


def faults(folder: Path, version: str) -> Iterator[str]:
    """What is missing or wrong in the release, in lines for people."""
    names = sorted(path.name for path in folder.iterdir())
    for pattern in wanted(version):
        found = [name for name in names if fnmatch(name, pattern)]
        if len(found) != 1:
            yield f"{pattern}: {len(found)} files, not 1"
    yield from _wheels(folder, version)
    yield from _bill(folder / f"ones-slurm-{version}.cdx.json", version)
    yield from _sums(folder, names)
    text = folder / "tag-text"
    if text.exists() and not text.read_text().startswith(f"ONES for Slurm {version}\n\n"):
        yield f"tag-text: it does not begin with ONES for Slurm {version}"


def _wheels(folder: Path, version: str) -> Iterator[str]:
    for form, program in WHEELS.items():
        wheel = folder / form.format(version)
        if not wheel.exists():
            continue
        with zipfile.ZipFile(wheel) as packed:
            scripts = [name for name in packed.namelist() if name.endswith("entry_points.txt")]
            said = "".join(packed.read(name).decode() for name in scripts)
        if not re.search(rf"^{program} ?=", said, re.MULTILINE):
            yield f"{wheel.name}: it brings no {program}"


def _bill(path: Path, version: str) -> Iterator[str]:
    if not path.exists():
        return
    bill = json.loads(path.read_text())
    parts = {part["name"]: part.get("version") for part in bill.get("components", ())}
    if bill.get("bomFormat") != "CycloneDX":
        yield f"{path.name}: not in the form of CycloneDX"
    elif parts.get("ones-slurm") != version:
        yield f"{path.name}: it has no ones-slurm {version}"
    elif len(parts) < 2:
        yield f"{path.name}: it has nothing that ones-slurm needs"


def _sums(folder: Path, names: list[str]) -> Iterator[str]:
    path = folder / "SHA256SUMS"
    if not path.exists():
        return
    sums = {line[66:]: line[:64] for line in path.read_text().splitlines()}
    for name in names:
        if name.startswith("SHA256SUMS"):
            continue  # itself, and its signature
        if name not in sums:
            yield f"SHA256SUMS: {name} is left out"
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != sums[name]:
            yield f"SHA256SUMS: {name} is another"
    yield from (f"SHA256SUMS: there is no {name}" for name in sums.keys() - set(names))


def main(folder: str, version: str) -> int:
    found = list(faults(Path(folder), version))
    for fault in found:
        print(f"released.py: error: {fault}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
