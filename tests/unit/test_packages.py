"""What debian/ says of the packages, without building them: scripts/test-install does that."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ones.daemon.config import Config

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "debian"
ROOMS = ("policies", "estimator", "slurm_ext", "daemon")
# The controller has all modules that these have not; it and the agent build on them.
PARTS = ("ones-runtime", "ones-common", "ones-agent")
BUILDS_ON = {"ones-runtime": (), "ones-common": ("ones-runtime",)}
# Third parties' modules, by the package of Debian that has them.
MODULES = {
    "ClusterShell": "python3-clustershell",
    "aiohttp": "python3-aiohttp",
    "click": "python3-click",
    "msgspec": "python3-msgspec",
    "numpy": "python3-numpy",
    "prometheus_client": "python3-prometheus-client",
    "pynvml": "python3-pynvml",
    "scipy": "python3-scipy",
    "wcwidth": "python3-wcwidth",
}
# A job's own business, or looked for and done without.
JOBS_OWN = {"lightning", "numpy", "pytorch_lightning", "torch", "transformers"}
DONE_WITHOUT = {"pyslurm", "sklearn", "torch"}


def modules() -> dict[str, Path]:
    """Dotted name -> file, of all that setup.cfg installs."""
    found = {"ones": ROOT / "__init__.py"}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if "pyslurm_build" not in path.parts:
                name = ".".join(("ones", *path.relative_to(ROOT).with_suffix("").parts))
                found[name.removesuffix(".__init__")] = path
    return found


def owners() -> dict[str, str]:
    """Module -> the package that has it, by debian/*.install."""
    lines = {
        one: [
            line.removeprefix("usr/lib/python3*/dist-packages/ones/")
            for line in (DEBIAN / f"{one}.install").read_text().split("\n")
            if line.startswith("usr/lib/python3*/dist-packages/ones/")
        ]
        for one in PARTS
    }
    found = {}
    for name, path in modules().items():
        file = str(path.relative_to(ROOT))
        has = [
            one
            for one, patterns in lines.items()
            if any(fnmatch.fnmatch(file, p) or file.startswith(f"{p}/") for p in patterns)
        ]
        assert len(has) <= 1, f"{file} is in {has}"
        found[name] = has[0] if has else "ones-controller"
    return found


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def paragraphs() -> dict[str, str]:
    """Binary package -> its dependencies in debian/control."""
    found = {}
    for text in (DEBIAN / "control").read_text().split("\n\n")[1:]:
        name = re.match(r"Package: (\S+)", text)
        depends = re.search(r"^Depends:(.*(?:\n .*)*)", text, re.MULTILINE)
        assert name and depends, text
        found[name[1]] = depends[1]
    return found


def test_no_package_imports_what_it_does_not_depend_on() -> None:
    all_modules, owner, depends = modules(), owners(), paragraphs()
    for name, path in all_modules.items():
        package = owner[name]
        ours = {package, *BUILDS_ON.get(package, ("ones-common", "ones-runtime"))}
        for wanted in imports(path):
            if wanted in all_modules:
                assert owner[wanted] in ours, f"{name} ({package}) imports {wanted}"
            elif (top := wanted.split(".")[0]) not in {*sys.stdlib_module_names, "ones"}:
                if top in DONE_WITHOUT or (package == "ones-runtime" and top in JOBS_OWN):
                    continue
                assert MODULES[top] in depends[package], f"{name} ({package}) imports {top}"


def asked_by_setup() -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["options"]["install_requires"].split()


def test_every_requirement_of_setup_cfg_is_some_packages_dependency() -> None:
    asked = {"nvidia-ml-py": "pynvml"}
    for line in asked_by_setup():
        match = re.fullmatch(r"([A-Za-z-]+)>=([0-9.]+)", line)
        assert match
        name = f"python3-{asked.get(match[1], match[1]).lower()}"
        at_least = re.compile(rf"{name} \(>= (1:)?{re.escape(match[2])}\)")
        assert any(at_least.search(depends) for depends in paragraphs().values()), line


def pinned(path: Path) -> dict[str, str]:
    """Name -> oldest release, of a file that pins each package by the hashes of its files."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", path.read_text()):
        if entry.startswith("#"):
            continue
        match = re.match(r"([a-z0-9-]+)==([0-9.]+) ", entry)
        assert match and "--hash=sha256:" in entry, entry
        found.setdefault(match[1], match[2])
    return found


def asked_by_release() -> list[str]:
    lines = (ROOT / "scripts/lib/release-tools.in").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        (asked_by_setup(), "requirements.txt"),
        (asked_by_release(), "scripts/lib/release-tools.txt"),
    ],
)
def test_what_is_asked_for_is_pinned_by_hash(asked: list[str], file: str) -> None:
    pins = pinned(ROOT / file)
    for line in asked:
        match = re.match(r"([A-Za-z-]+)>=([0-9.]+)", line)
        assert match, line
        pin = pins.get(match[1].lower())
        assert pin is not None, f"{file} lacks {match[1]}; run scripts/pin"
        has, least = ([int(part) for part in text.split(".")] for text in (pin, match[2]))
        assert has >= least, f"{file}: {match[1]} {pin}; run scripts/pin"


def test_every_program_unit_and_file_beside_the_modules_is_in_a_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"].strip().split("\n")
    installed = "\n".join(path.read_text() for path in DEBIAN.glob("*.install")).split("\n")
    for script in scripts:
        assert f"usr/bin/{script.split()[0]}" in installed
    for unit in (ROOT / "daemon/units").iterdir():
        assert f"usr/lib/systemd/system/{unit.name}" in installed
    assert "usr/libexec/ones/ones-event" in installed
    assert "usr/share/ones/job_submit.lua" in installed
    assert "usr/lib/*/slurm-wlm/spank_ones.so" in installed


def test_what_the_packages_install_is_in_the_tree() -> None:
    for path in DEBIAN.glob("*.docs"):
        for line in path.read_text().split():
            assert (ROOT / line).exists(), f"{path.name}: {line}"
    for part in PARTS:
        for line in (DEBIAN / f"{part}.install").read_text().split():
            inside = line.removeprefix("usr/lib/python3*/dist-packages/ones/")
            if inside != line:
                assert list(ROOT.glob(inside)), f"{part}: {line}"


def test_the_packaged_configuration_observes_and_is_valid() -> None:
    text = (DEBIAN / "ones.toml").read_text()
    config = msgspec.convert(tomllib.loads(text), Config)
    assert config == Config()
    assert config.mode == "observe"
    for line in re.findall(r"^#(\w+ = .*)", text, re.MULTILINE):
        msgspec.convert(tomllib.loads(line), Config)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    units = []
    for unit in (ROOT / "daemon/units").iterdir():
        # Programs that are here: whether ours are installed is not asked.
        text = re.sub(r"/opt/ones/bin/[\w-]+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text.replace("User=ones", "User=root"))
        units.append(str(tmp_path / unit.name))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr


def test_debian_orders_a_release_behind_its_candidates() -> None:
    said = subprocess.run(
        ["bash", "-c", ". scripts/lib/version.sh; debian_version 1.0.0rc1; debian_version 1.0.0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert said == ["1.0.0~rc1", "1.0.0"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("package", "--version", "one"), "'one' is not a version"),
        (("package", "--version"), "--version needs a value"),
        (("package", "--on", "potato"), "no packages are built for 'potato'"),
        (("package", "--as", "tar"), "'tar' is neither deb, rpm nor image"),
        (("package", "--of", "nowhere"), "there is no commit 'nowhere'"),
        (("test-install", "--on", "trixie,potato"), "there is no 'potato'"),
        (("release", "--publish"), "usage: scripts/release"),
    ],
)
def test_bad_words_get_a_line_and_no_work(words: tuple[str, ...], fault: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / words[0], *words[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert fault in done.stderr


def test_the_lists_of_the_rpms_are_written_where_the_spec_reads_them() -> None:
    spec = (ROOT / "scripts/rpm/ones-slurm.spec").read_text()
    written = re.search(
        r'BUILD = .*Path\("(.+)"\)', (ROOT / "scripts/rpm/from_debian.py").read_text()
    )
    assert written is not None
    read = {Path(name).parent for name in re.findall(r"^%\w+ -n \S+ -f (\S+)", spec, re.MULTILINE)}
    assert read == {Path(written[1])}
    assert (ROOT / written[1]).parent.is_dir(), "only its last folder is made"


def test_the_rpms_need_what_the_debian_packages_need() -> None:
    """Each by the names of its own world; what each has is read from debian/ when it is built."""
    spec = (ROOT / "scripts" / "rpm" / "ones-slurm.spec").read_text()
    parts = re.split(r"^%(?:package|description) -n ", spec, flags=re.MULTILINE)
    asked = {part.split("\n")[0]: part for part in parts[1:] if "\nSummary: " in part}
    debian = paragraphs()
    assert asked.keys() == debian.keys()
    other = {"pynvml": "nvidia-ml-py"}
    for package, depends in debian.items():
        wanted = re.findall(r"python3-([a-z-]+) \(>= (?:1:)?([0-9.]+)\)", depends)
        found = re.findall(r"Requires: python3dist\(([a-z-]+)\) >= ([0-9.]+)", asked[package])
        assert {(other.get(name, name), least) for name, least in wanted} == set(found), package
