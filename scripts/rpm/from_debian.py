"""Writes the lists of files and the scriptlets of the rpm from what debian/ says of each package.

usage: scripts/rpm/from_debian.py ROOT MODULES    in the source tree, when all stands in ROOT

What lies in ROOT and in no package's list ends the build, in rpmbuild's own words.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from pathlib import Path

# In the order in which they take their files: the controller has the modules that are left.
PACKAGES = ("ones-runtime", "ones-common", "ones-agent", "slurm-spank-ones", "ones-controller")
DEBIAN, BUILD = Path("debian"), Path("scripts/rpm/build")
DEBIANS_MODULES = "usr/lib/python3*/dist-packages"
RESTARTED = {
    "ones-controller": "onesd.service ones-release.timer",
    "ones-agent": "ones-agent.service",  # not the mount: jobs report there
}


class Tree:
    """What stands in the root, and which of it some package has already."""

    def __init__(self, root: Path, modules: str) -> None:
        self.root, self.modules = root, modules.lstrip("/")
        self.taken: set[str] = set()

    def install(self, package: str) -> list[str]:
        """The lines of debian/PACKAGE.install, as a list of files."""
        found = []
        for line in self.lines(package, "install"):
            pattern, _, folder = line.partition(" ")
            if folder:  # a folder of the source tree, and where it goes
                to = self.root / folder / Path(pattern).name
                shutil.copytree(pattern, to, dirs_exist_ok=True)
                pattern = str(to.relative_to(self.root))
            pattern = pattern.replace(DEBIANS_MODULES, self.modules)
            pattern = pattern.replace("usr/lib/*/slurm-wlm", "usr/lib*/slurm")
            pattern = pattern.replace("zsh/vendor-completions", "zsh/site-functions")
            matches = sorted(self.root.glob(pattern))
            if not matches:
                sys.exit(f"debian/{package}.install: nothing is {pattern}")
            for path in matches:
                found += self.of(path)
        return found

    def of(self, path: Path) -> list[str]:
        """A file, or all in a folder; a module with what it is compiled to."""
        inside = sorted(each for each in path.rglob("*") if not each.is_dir())
        found = inside if path.is_dir() else [path, *self.compiled(path)]
        new = [f"/{each.relative_to(self.root)}" for each in found]
        new = [each for each in new if each not in self.taken]
        self.taken.update(new)
        return new

    @staticmethod
    def compiled(path: Path) -> list[Path]:
        if path.suffix != ".py":
            return []
        return sorted((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))

    def pages(self, package: str) -> list[str]:
        """The manual pages, compressed as rpm would."""
        found = []
        for pattern in self.lines(package, "manpages"):
            for page in sorted(Path().glob(pattern)):
                to = self.root / "usr/share/man" / f"man{page.suffix[1:]}" / f"{page.name}.gz"
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
                found += self.of(to)
        return [f"%doc {page}" for page in found]

    def documents(self, package: str) -> list[str]:
        """Where the Debian package has them, as the comments of our files name them."""
        found = []
        for line in self.lines(package, "docs"):
            to = self.root / "usr/share/doc" / package / Path(line).name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(line, to)
            found += self.of(to)
        return [f"%doc {document}" for document in found]

    def copied(self, package: str, kind: str) -> list[str]:
        """debian/PACKAGE.sysusers and .tmpfiles."""
        source = DEBIAN / f"{package}.{kind}"
        if not source.exists():
            return []
        to = self.root / "usr/lib" / f"{kind}.d" / f"{package}.conf"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        return self.of(to)

    @staticmethod
    def lines(package: str, kind: str) -> list[str]:
        path = DEBIAN / f"{package}.{kind}"
        return path.read_text().split("\n")[:-1] if path.exists() else []


def files(tree: Tree, package: str) -> str:
    found = [
        *tree.install(package),
        *tree.pages(package),
        *tree.documents(package),
        *tree.copied(package, "sysusers"),
        *tree.copied(package, "tmpfiles"),
    ]
    lines = [f"%config(noreplace) {one}" if one.startswith("/etc/") else one for one in found]
    # Folders that are ours alone go with the last package that has something in them.
    ours = re.compile(r"(%\w+(?:\(\w+\))? )?(.*/ones(?:_slurm(?:_runtime)?-[^/]*)?(?=/).*)/[^/]*")
    folders: set[str] = set()
    for line in lines:
        if match := ours.fullmatch(line):
            for parent in (Path(match[2]), *Path(match[2]).parents):
                if re.search(r"/ones(_slurm(_runtime)?-[^/]*)?(/|$)", str(parent)):
                    folders.add(f"%dir {parent}")
    return "\n".join([*sorted(folders), *lines, ""])


def scriptlets(package: str) -> dict[str, str]:
    """rpm says how many of the package will be left, where Debian says what is done."""
    found = {}
    before = DEBIAN / f"{package}.prerm"
    if before.exists():
        text = before.read_text().replace("#!/bin/sh\n", "").replace("#DEBHELPER#\n", "")
        text = text.replace("deb-systemd-invoke stop", "systemctl disable --now")
        found["preun"] = f'[ "$1" != 0 ] || set -- remove\n{text.strip()}\n'
    if package in RESTARTED:
        reload = "[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n"
        tmpfiles = f"systemd-tmpfiles --create {package}.conf > /dev/null 2>&1 || :\n"
        found["post"] = reload + tmpfiles
        found["postun"] = (
            f'{reload}if [ "$1" -ge 1 ] && [ -d /run/systemd/system ]; then\n'
            f"    systemctl try-restart {RESTARTED[package]} || :\nfi\n"
        )
    return found


def main() -> None:
    tree = Tree(Path(sys.argv[1]), sys.argv[2])
    BUILD.mkdir(exist_ok=True)
    for package in PACKAGES:
        (BUILD / f"{package}.files").write_text(files(tree, package))
        for when, text in scriptlets(package).items():
            (BUILD / f"{package}.{when}").write_text(text)


if __name__ == "__main__":
    main()
