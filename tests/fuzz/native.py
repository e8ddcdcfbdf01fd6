"""The C of the SPANK plugin and the hook, under libFuzzer with ASan and UBSan."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz.running import Found, Result

HERE = Path(__file__).resolve().parent / "c"
ROOT = Path(__file__).resolve().parents[2]
INCLUDES = tuple(f"-I{folder}" for folder in (HERE, ROOT / "slurm_ext/spank"))
FLAGS = (
    *("-g", "-O1", "-std=gnu11", "-fno-omit-frame-pointer"),
    *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
    *INCLUDES,
)
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """One file in c/, which includes the source whose functions it calls."""

    name: str
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # further sources of the plugin, which need what it includes
    largest: int = 4096


HARNESSES = {
    one.name: one
    for one in (
        Harness(
            name="c-sizes",
            beside=("stage_in.c",),
            seeds=(b"4", b"2-16", b"4-16:4", b"1,2,4,8", b"1-65536"),
            words=("1-65536", ":2", ",", "-"),
            largest=600,
        ),
        Harness(
            name="c-reply",
            beside=("stage_in.c",),
            seeds=(b"ONES_SIZES=1-4\nONES_GPUS=4\n", b"PATH=/x\nONES_=1\nONES_a=\x01\n"),
            words=("ONES_", "=", "\\x0a", "\\x00"),
            largest=9000,
        ),
        Harness(
            name="c-stage-in",
            seeds=(b"/tmp/data:name", b"/etc/passwd", b"/tmp:..", b":", b"\n7\x1e/tmp/7/data"),
            words=("/tmp", ":", "..", "\\x1e"),
            largest=9000,
        ),
        Harness(
            name="c-fault",
            seeds=(b"no room on the disk\n", b"\x01\x02", b"x" * 300),
            largest=600,
        ),
        Harness(
            name="c-hook",
            seeds=(b"epilog_slurmctld\x1e7\x1e/tmp/s", b"\x1e\x1e"),
            words=("\\x1e", "epilog_slurmctld"),
            largest=600,
        ),
    )
}


def run(harness: Harness, *, seed: int, inputs: int, seconds: float) -> Result:
    """Build it and feed it; what it found ends it, so it has found one thing at most."""
    result = Result(harness.name, "coverage")
    if shutil.which("clang") is None:
        result.fault = "clang is missing; install clang and libclang-rt-dev"
        return result
    with tempfile.TemporaryDirectory(prefix="ones-fuzz-") as folder:
        place = Path(folder)
        program, fault = build(harness, place)
        if program is None:
            result.fault = fault
            return result
        corpus = place / "corpus"
        corpus.mkdir()
        for at, data in enumerate(harness.seeds):
            (corpus / f"{at}").write_bytes(data)
        words = place / "words"
        words.write_text("".join(f'"{word}"\n' for word in ("=", *harness.words)))
        command = [
            *(str(program), f"-runs={inputs}", f"-max_total_time={max(1, int(seconds))}"),
            *(f"-seed={seed % 2**31 or 1}", f"-max_len={harness.largest}", "-timeout=5"),
            *("-print_final_stats=1", "-rss_limit_mb=1024", "-detect_leaks=1"),
            *(f"-dict={words}", f"-artifact_prefix={place}/found-", str(corpus)),
        ]
        begun = time.monotonic()
        done = subprocess.run(command, cwd=place, capture_output=True, check=False)
        result.seconds = time.monotonic() - begun
        said = done.stderr.decode(errors="replace")
        if (runs := _RUNS.search(said)) is not None:
            result.inputs = int(runs[1])
        for file in sorted(place.glob("found-*")):
            words_of = next((line for line in said.splitlines() if "ERROR" in line), "")
            words_of = words_of or next((line for line in said.splitlines() if "error" in line), "")
            kind = file.name.removeprefix("found-").split("-")[0]
            result.found.append(Found(kind, words_of[:300], file.read_bytes()))
            result.bad += 1
        if done.returncode and not result.found:
            result.fault = (said.strip().splitlines() or ["it failed"])[-1][:300]
    return result


def source_of(harness: Harness) -> Path:
    """The file with the function that libFuzzer calls."""
    return HERE / f"{harness.name.removeprefix('c-').replace('-', '_')}.c"


def build(harness: Harness, place: Path) -> tuple[Path | None, str]:
    """The program, or why there is none."""
    program = place / "program"
    others = [str(ROOT / "slurm_ext/spank" / other) for other in harness.beside]
    command = ["clang", *FLAGS, "-o", str(program), str(source_of(harness)), *others]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, next(
            (line for line in done.stderr.splitlines() if "error" in line), "clang failed"
        )
    return program, ""
