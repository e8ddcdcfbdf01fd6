"""scripts/fuzz: hostile input for each parser and each door, and a table of what it found."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz import native
from fuzz.registry import TARGETS
from fuzz.running import Result, run

INPUTS = 1_000_000
SAVED = Path("build/fuzz")


@click.command()
@click.argument("names", nargs=-1, metavar="[PARSER ...]")
@click.option("--minutes", default=30.0, help="Of the whole run.", show_default=True)
@click.option("--inputs", default=INPUTS, help="Of each, at most.", show_default=True)
@click.option("--seed", default=1, help="Of the random numbers.", show_default=True)
@click.option("--chance", is_flag=True, help="Without coverage, though Atheris is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list, an object for each.")
@click.option("--list", "only_names", is_flag=True, help="Say what there is, and feed nothing.")
def main(names: tuple[str, ...], *, chance: bool, as_json: bool, **bounds: Any) -> None:
    """Feed hostile input to PARSER, or to all parsers and doors, and say what it found.

    An input finds something where it raises what the parser does not declare, takes longer or more
    memory than it may, or is answered at too great a length. The exit status is 1 where one did,
    and the smallest one found lies in build/fuzz.
    """
    every = {**TARGETS, **native.HARNESSES}
    minutes, inputs, seed = (bounds[name] for name in ("minutes", "inputs", "seed"))
    if bounds["only_names"]:
        click.echo("\n".join(every))
        return
    if strange := [name for name in names if name not in every]:
        raise click.UsageError(f"there is no {strange[0]}; there are {', '.join(every)}")
    chosen = list(names or every)
    guided = not chance and importlib.util.find_spec("atheris") is not None
    until = time.monotonic() + 60 * minutes
    results: list[Result] = []
    if not as_json:
        click.echo(_line("parser", "by", "inputs", "inputs/s", "found something"))
    for at, name in enumerate(chosen):
        seconds = max(1.0, (until - time.monotonic()) / (len(chosen) - at))
        if name in TARGETS:
            result = run(TARGETS[name], guided=guided, seed=seed, inputs=inputs, seconds=seconds)
        else:
            result = native.run(native.HARNESSES[name], seed=seed, inputs=inputs, seconds=seconds)
        results.append(result)
        if not as_json:
            _tell(result)
    if as_json:
        click.echo(json.dumps([_as_json(result) for result in results], indent=1))
    sys.exit(1 if any(result.found or result.fault for result in results) else 0)


def _line(*cells: str) -> str:
    first, second, *numbers = cells
    return f"{first:<22}{second:<10}" + "".join(f"{cell:>17}" for cell in numbers)


def _tell(result: Result) -> None:
    counts = f"{result.inputs:,}", f"{result.pace:,.0f}", f"{result.bad:,}"
    click.echo(_line(result.target, result.engine, *counts))
    if result.fault:
        click.echo(f"    not fed: {result.fault}")
    for found in result.found:
        click.echo(f"    {found.kind}: {found.words[:200]}\n    {_saved(result, found.data)}")


def _saved(result: Result, data: bytes) -> Path:
    file = SAVED / f"{result.target}-{hashlib.sha256(data).hexdigest()[:12]}"
    SAVED.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "parser": result.target,
        "by": result.engine,
        "inputs": result.inputs,
        "inputs_per_second": round(result.pace, 1),
        "found_something": result.bad,
        "fault": result.fault,
        "found": [
            {"kind": one.kind, "words": one.words, "file": str(_saved(result, one.data))}
            for one in result.found
        ],
    }


if __name__ == "__main__":
    main(prog_name="scripts/fuzz")
