"""What a training environment gets of ones-slurm-runtime: `import ones`, two commands, no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What is loaded of ours, and whether all the rest is Python's own.
LOADED = """
ours = sorted(name for name in sys.modules if name.split(".")[0] == "ones")
known = {"ones", "__main__", *sys.stdlib_module_names}
foreign = {name.split(".")[0] for name in sys.modules} - known
print(len(ours), sorted(foreign))
"""
TRAINING = """
job = ones.init()
assert (job.rank, job.world_size, job.resumed) == (0, 1, False)
job.close()
import ones.slurm_ext.runtime.launcher, ones.slurm_ext.runtime.live.entrance
"""


def python(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run in an environment that has Python's own modules and those below `folder`."""
    begin = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", begin + program, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy: building leaves things behind."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in ("slurm_ext", "scripts/runtime"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("__init__.py", "setup.cfg"):
        shutil.copy(ROOT / name, tree)
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder)]
    subprocess.run([*command, str(tree / "scripts" / "runtime")], check=True, timeout=300)
    return next(folder.glob("ones_slurm_runtime-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the wheel's contents and nothing beside."""
    folder = tmp_path_factory.mktemp("environment")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_the_runtime_whole_and_asks_for_numpy_alone(environment: Path) -> None:
    metadata = next(environment.glob("*.dist-info"))
    asked = [
        line for line in (metadata / "METADATA").read_text().splitlines() if "Requires-Dist" in line
    ]
    assert [line.split(":")[1].strip().startswith("numpy>=") for line in asked] == [True]
    has = {str(path.relative_to(environment / "ones")) for path in environment.glob("ones/**/*.py")}
    runtime = {str(path.relative_to(ROOT)) for path in ROOT.glob("slurm_ext/runtime/**/*.py")}
    assert has == {*runtime, "__init__.py", "slurm_ext/__init__.py", "slurm_ext/errors.py"}


def test_importing_ones_loads_nothing_else_of_ours(environment: Path) -> None:
    done = python(environment, f"import ones\n{LOADED}")
    assert done.stdout == "1 []\n", done.stderr


def test_a_job_begins_without_anything_that_is_not_pythons_own(environment: Path) -> None:
    done = python(environment, f"import ones\n{TRAINING}{LOADED}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" []\n")


def test_public_names_are_those_that_are_listed(environment: Path) -> None:
    program = (
        "import ones\n"
        "framework = {'LightningCallback', 'TransformersCallback'}\n"
        "print([getattr(ones, each).__name__ for each in ones.__all__ if each not in framework])\n"
        "assert set(ones.__all__) <= set(dir(ones))\n"
        "ones.nothing_of_ours"
    )
    done = python(environment, program)
    assert done.stdout == "['Job', 'OnesError', 'Rule', 'init']\n"
    assert "module 'ones' has no attribute 'nothing_of_ours'" in done.stderr


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("ones-run", "ones.slurm_ext.runtime.launcher"),
        ("ones-order", "ones.slurm_ext.runtime.live.orders"),
    ],
)
def test_the_commands_help_and_tell_their_version(
    environment: Path, command: str, module: str
) -> None:
    points = next(environment.glob("*.dist-info")) / "entry_points.txt"
    assert f"{command} = {module}:main" in points.read_text()
    run = f"sys.argv[0] = {command!r}; from {module} import main; main()"
    assert python(environment, run, "--version").stdout == f"{command}, version 0.1.0\n"
    assert python(environment, run, "--help").stdout.startswith(f"usage: {command} ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resize", "nowhere"], "the following arguments are required: --workers"),
        (["status", "nowhere"], "error: there is no nowhere/join.json; name the folder"),
        (["enlarge", "nowhere"], "invalid choice: 'enlarge'"),
    ],
)
def test_an_order_that_cannot_be_given_is_refused_in_a_line(
    environment: Path, words: list[str], said: str
) -> None:
    run = "sys.argv[0] = 'ones-order'; from ones.slurm_ext.runtime.live.orders import main; main()"
    done = python(environment, run, *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
