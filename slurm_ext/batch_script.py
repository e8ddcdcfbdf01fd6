"""What a batch script asks for: its #SBATCH lines, read as sbatch reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.tres import gpus_in
from ones.slurm_ext.usage import size_in

MOST_BYTES = 4 * 2**20  # Slurm's own limit of a batch script
_SHORT = {
    "J": "job-name",
    "G": "gpus",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "t": "time",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "x": "exclude",
    "w": "nodelist",
    "a": "array",
    "b": "begin",
    "d": "dependency",
    "H": "hold",
}
# One number, or several as in 2-8:2 or 1,4-8,16: the first of them and the last.
COUNT = re.compile(
    r"([0-9]{1,9})(?:[-,](?:[0-9]{1,9}(?::[0-9]{1,9})?[-,])*([0-9]{1,9}))?(?::[0-9]{1,9})?"
)
_OF_EACH_TASK = re.compile(r"(?:gres[/:])?(cpu|gpu)(?:[:=](.*))?")
_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,9})-(?P<a>[0-9]{1,9})(?::(?P<b>[0-9]{1,9})(?::(?P<c>[0-9]{1,9}))?)?"
    r"|(?P<x>[0-9]{1,9})(?::(?P<y>[0-9]{1,9})(?::(?P<z>[0-9]{1,9}))?)?)"
)


class ScriptError(OnesError):
    """A batch script that can't be understood: the text names file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a job asks for; None where it leaves that to Slurm. Memory in MiB, time in seconds."""

    name: str
    gpus: int | None = None  # of all nodes
    nodes: int | None = None
    cpus: float | None = None  # of each node
    memory: float | None = None  # of each node
    time_limit: float | None = None


def read_script(file: Path) -> Asked:
    """What a script asks for. Raises ScriptError."""
    return asked_by(file, options_in(file))


def options_in(file: Path) -> dict[str, tuple[str, int]]:
    """Name -> value and line. Raises ScriptError."""
    try:
        if not file.is_file():
            raise ScriptError(f"{file}: is no file; give a batch script or the number of a job")
        if file.stat().st_size > MOST_BYTES:
            raise ScriptError(f"{file}: is larger than {MOST_BYTES // 2**20} MiB: no batch script")
        text = file.read_bytes().decode(errors="replace")  # to sbatch it is bytes
    except OSError as fault:
        raise ScriptError(f"{file}: can't be read: {fault.strerror}") from None
    if not text.startswith("#!"):
        raise ScriptError(f"{file}:1: does not begin with #!: sbatch refuses it")
    options: dict[str, tuple[str, int]] = {}
    for line, word in _words(file, text):
        name, _, value = word.partition("=")
        options[name] = value, line
    return options


def _words(file: Path, text: str) -> Iterator[tuple[int, str]]:
    """The options up to the first command, each as name=value, with its line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if not line.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as fault:
            raise ScriptError(f"{file}:{number}: {str(fault).lower()}") from None
        for word in named(words):
            yield number, word


def named(words: Iterable[str]) -> Iterator[str]:
    """Options as words, each as name=value; --tres-per-task as the options that say the same."""
    for option in _joined(words):
        name, _, value = option.partition("=")
        if name != "tres-per-task":
            yield option
            continue
        for found in map(_OF_EACH_TASK.fullmatch, value.split(",")):
            if found is not None:
                yield f"{found[1]}s-per-task={found[2] or 1}"


def _joined(words: Iterable[str]) -> Iterator[str]:
    waiting = ""
    for word in words:
        if waiting and not word.startswith("-"):
            yield f"{waiting}={word}"
            waiting = ""
            continue
        if waiting:
            yield f"{waiting}="
        waiting = ""
        if word.startswith("--"):
            waiting = word[2:]
        elif word.startswith("-") and len(word) > 1:
            name = _SHORT.get(word[1], word[1])
            waiting = f"{name}={word[2:].removeprefix('=')}" if word[2:] else name
        if "=" in waiting:
            yield waiting
            waiting = ""
    if waiting:
        yield f"{waiting}="


def asked_by(file: Path, options: Mapping[str, tuple[str, int]]) -> Asked:
    """What these options ask for. Raises ScriptError."""

    def count(name: str) -> int | None:
        return count_of(file, options, name)

    def gpus(name: str) -> int | None:
        if name not in options:
            return None
        value, line = options[name]
        # --gpus takes [TYPE:]COUNT, --gres any resources of a node.
        found = gpus_in(value if name == "gres" else f"gpu:{value}")
        if not found and name != "gres":
            raise ScriptError(f"{_at(file, line)}: --{name}={value}: is no number of GPUs")
        return found or None

    def memory(name: str) -> float | None:
        if name not in options:
            return None
        value, line = options[name]
        mebibytes = float(value) if value.isdecimal() else size_in(value)
        if mebibytes is None:
            raise ScriptError(f"{_at(file, line)}: --{name}={value}: is no amount of memory")
        return mebibytes or None  # 0: all that the node has

    nodes, tasks = count("nodes"), count("ntasks")
    per_node = count("ntasks-per-node")
    tasks_there = per_node or -(-(tasks or 1) // (nodes or 1))
    gpus_there = gpus("gpus-per-node") or gpus("gres")
    total = gpus("gpus")
    if total is None and gpus_there is not None:
        total = gpus_there * (nodes or 1)
    if total is None and (each := gpus("gpus-per-task")) is not None:
        total = each * (tasks or tasks_there * (nodes or 1))
    on_node = None if total is None else total / (nodes or 1)
    cpus = _times(count("cpus-per-task"), tasks_there) or _times(count("cpus-per-gpu"), on_node)
    held = (
        memory("mem")
        or _times(memory("mem-per-gpu"), on_node)
        or _times(memory("mem-per-cpu"), cpus or float(tasks_there))
    )
    name = options.get("job-name", ("", 0))[0]
    return Asked(
        name=name or file.name,
        gpus=total,
        nodes=nodes,
        cpus=cpus,
        memory=held,
        time_limit=_time(file, options),
    )


def count_of(file: Path, options: Mapping[str, tuple[str, int]], name: str) -> int | None:
    """The largest number that an option allows."""
    if name not in options:
        return None
    value, line = options[name]
    match = COUNT.fullmatch(value)
    if match is None:
        raise ScriptError(f"{_at(file, line)}: --{name}={value}: is no number")
    return max(int(match[1]), int(match[2] or 0))


def _at(file: Path, line: int) -> str:
    """Where an option stands; line 0 is the command line."""
    return f"{file}:{line}" if line else "the command line"


def _times(each: float | None, many: float | None) -> float | None:
    return None if each is None or many is None else each * many


def _time(file: Path, options: Mapping[str, tuple[str, int]]) -> float | None:
    """Seconds in M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    if "time" not in options:
        return None
    value, line = options["time"]
    if value.lower() in ("infinite", "unlimited", "-1", "0"):
        return None
    match = _TIME.fullmatch(value)
    if match is None:
        raise ScriptError(f"{_at(file, line)}: --time={value}: is no time; such as 1-12:00:00")
    if match["days"] is not None:
        parts = [int(match[name] or 0) for name in ("days", "a", "b", "c")]
        return float(((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3])
    x, y, z = match["x"], match["y"], match["z"]
    if z is not None:
        return float((int(x) * 60 + int(y)) * 60 + int(z))
    return float(int(x) * 60 + int(y or 0))
