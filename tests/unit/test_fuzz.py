"""Each parser and each door takes hostile input for a moment; scripts/fuzz does so for hours."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz import native
from fuzz.found import FOUND
from fuzz.mutating import Mutator
from fuzz.registry import TARGETS
from fuzz.shrinking import shrunk
from fuzz.target import Broken, Target, try_on, watching, weight

INPUTS = 100  # of each target
PATIENCE = 20  # times the CPU time that an input may take: only what hangs is found here
RUN = ("c-reply", "c-stage-in")  # of the C; the others are looked at by the compiler alone


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with watching():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_finds_nothing(name: str) -> None:
    # A loaded machine, and what a first input imports, count for nothing here.
    target = replace(TARGETS[name], seconds=PATIENCE * TARGETS[name].seconds)
    mutator = Mutator(target.seeds, target.words, largest=target.largest)
    rng = random.Random(1)
    inputs = [*target.seeds, *FOUND.get(name, ()), *(mutator.fresh(rng) for _ in range(INPUTS))]
    with target.open():
        found = {data[:2000]: finding for data in inputs if (finding := try_on(target, data))}
    assert found == {}


@pytest.mark.parametrize("name", native.HARNESSES)
def test_the_c_of_the_plugin_and_the_hook_stands_hostile_input(name: str, tmp_path: Path) -> None:
    harness = native.HARNESSES[name]
    if shutil.which("clang") is None or name not in RUN:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler; apt-get install build-essential")
        command = ["cc", *native.INCLUDES, "-fsyntax-only", "-Wall", "-Werror"]
        subprocess.run([*command, native.source_of(harness)], check=True, timeout=60)
        return
    result = native.run(harness, seed=1, inputs=300, seconds=20)
    assert (result.fault, result.found) == ("", [])
    assert result.inputs >= 300


def test_what_was_found_is_of_targets_that_there_are() -> None:
    assert set(FOUND) <= set(TARGETS)


def _fed(data: bytes) -> object:
    match data[:1]:
        case b"c":
            raise KeyError(data)
        case b"d":
            raise ValueError("bad input")
        case b"l":
            raise ValueError("two\nlines")
        case b"b":
            raise Broken("wrong")
        case b"h":
            while True:
                pass
        case b"w":
            return ["x"] * 1000
    return None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"c", "crash: KeyError in test_fuzz.py:_fed"),
        (b"d", None),
        (b"l", "fault: lines"),
        (b"b", "broken: wrong"),
        (b"h", "hang"),
        (b"w", "answer"),
        (b"", None),
    ],
)
def test_what_must_not_be_is_found(data: bytes, kind: str | None) -> None:
    soon = 0.05 if kind == "hang" else 10.0
    target = Target(
        name="x", feed=_fed, seeds=(b"x",), faults=(ValueError,), seconds=soon, most=1000
    )
    found = try_on(target, data)
    assert (None if found is None else found.kind) == kind


def test_the_same_seed_makes_the_same_inputs() -> None:
    mutator = Mutator([b'{"a": [1, 2]}', b"x=1"], [b"y"], largest=1000)
    one, two = ([mutator.fresh(rng) for _ in range(200)] for rng in map(random.Random, (5, 5)))
    assert one == two
    assert len(set(one)) > 150
    assert max(map(len, one)) <= 1000


def test_an_input_is_cut_to_what_finds_the_same() -> None:
    assert shrunk(b"aaaa(bbb)cc(dddd", lambda data: data.count(b"(") >= 2) == b"(("


def test_an_answer_is_weighed_no_further_than_needed() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert weight(endless, 1000) > 1000
    assert weight({"a": "x" * 50}, 1000) > 50
