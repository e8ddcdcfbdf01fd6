"""How well the speeds of two jobs on one GPU are foretold: learnt from one file, tried on another.

usage: scripts/evaluate-interference TRAIN.csv TEST.csv [--single SINGLE.csv] [--share S] [--json]
       scripts/evaluate-interference --cross DATA.csv [--single SINGLE.csv] [--share S] [--json]

TRAIN and TEST have a line for each pair that shared a GPU, with the columns

    model1, batchsize1, speed1, model2, batchsize2, speed2 (1 is the speed alone), and where known
    dataset1, amp1 (mixed precision: 0 or 1), dataset2, amp2
    gpu_util, gmem_util (% of time in which the shared GPU, and its memory, were busy)

SINGLE says what jobs do alone: model, batchsize, gpu_util, gmem_util, and dataset and amp where the
pairs have them. Without --single it is the file single_data.csv beside TRAIN, if there is one
(--single none: not even that). A job that is not in it is taken to load the GPU as the pairs of
TRAIN with it tell. Of TEST only models, datasets, batch sizes and precisions are looked at before
its speeds are compared with.

It prints for each way of foretelling the mean absolute error of the relative speeds, and precision
and recall of the words "both keep at least 80 % of their speed" (--share), when that is likelier
than not and when it is nearly sure (90 %); then the error for each model.

    process     ones.estimator.interference: what onesd uses
    nearest     mean of the five pairs whose loads are nearest
    linear      ridge regression on both loads and their products
    contention  1 / (1 + s * (busy of both - c)+ + d * (memory busy of both - m)+), fitted
    mean        the mean of all speeds of TRAIN

--cross takes one file and leaves out a fifth of the pairs in turn, then all pairs of each model.

--json prints {"schema": 1, "train": FILE, "test": FILE, "single": FILE or null, "share": S,
"pairs": N, "ways": [...], "models": [...]}. Each of ways has way, left_out (null but for --cross),
mae, precision, recall, sure_precision, sure_recall (null where nothing was said or is so); each of
models has left_out, model, pairs, mae and mean_mae (that of the mean).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.tables import Row, rows
from ones.estimator.interference import FASTEST, Alone, Interference, Loads, Measured
from ones.policies.model import Floats

PAIR_COLUMNS = ("model1", "batchsize1", "speed1", "model2", "batchsize2", "speed2")
SINGLE_COLUMNS = ("model", "batchsize", "gpu_util", "gmem_util")
FOLDS = 5
SURE = 0.9
NEAREST = 5
RIDGE = 0.1
Job = tuple[str, float, bool]


@dataclass(frozen=True, slots=True, eq=False)
class Foretold:
    """Relative speeds [N, 2] of N pairs, and how likely both keep their share."""

    speeds: Floats
    chance: Floats


Way = Callable[[Sequence[Measured], Sequence[Measured], float], Foretold]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A line of the report."""

    way: str
    left_out: str | None
    mae: float
    precision: float | None
    recall: float | None
    sure_precision: float | None
    sure_recall: float | None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/evaluate-interference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("files", nargs="+", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cross", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--single", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.8, help="default: 0.8")
    parser.add_argument("--json", action="store_true", dest="as_json", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if len(chosen.files) != (1 if chosen.cross else 2):
        parser.error("give TRAIN.csv and TEST.csv, or --cross and one file")
    if not 0 < chosen.share < 1:
        parser.error(f"--share {chosen.share:g} is not between 0 and 1")
    try:
        answer = report(chosen.files, single_beside(chosen.files[0], chosen.single), chosen.share)
    except TraceError as fault:
        print(f"scripts/evaluate-interference: error: {fault}", file=sys.stderr)
        return 1
    if chosen.as_json:
        print(json.dumps(answer, indent=2))
    else:
        show(answer)
    return 0


def single_beside(train: Path, chosen: Path | None) -> Path | None:
    if chosen is not None:
        return None if str(chosen) == "none" else chosen
    beside = train.parent / "single_data.csv"
    return beside if beside.exists() else None


def report(files: Sequence[Path], single: Path | None, share: float) -> dict[str, Any]:
    """Learn from the first file and try on the second; of one file, leave parts out in turn."""
    alone = {} if single is None else read_single(single)
    known = read(files[0], alone, least=2)
    lines: list[Figures] = []
    models: list[dict[str, Any]] = []
    if len(files) == 2:
        pairs = read(files[1], alone, least=1)
        parts = {None: [(known, pairs)]}
    else:
        parts = crossed(files[0], known)
    for left_out, splits in parts.items():
        unknown = [pair for _, part in splits for pair in part]
        found = {
            way: _joined([foretell(rest, part, share) for rest, part in splits])
            for way, foretell in WAYS.items()
        }
        real = np.array([pair.speeds for pair in unknown])
        lines += [figures(way, left_out, one, real, share) for way, one in found.items()]
        models += by_model(left_out, unknown, real, found)
    return {
        "schema": 1,
        "train": str(files[0]),
        "test": str(files[1]) if len(files) == 2 else None,
        "single": None if single is None else str(single),
        "share": share,
        "pairs": len(unknown),
        "ways": [asdict(line) for line in lines],
        "models": models,
    }


Split = tuple[list[Measured], list[Measured]]


def crossed(file: Path, known: list[Measured]) -> dict[str | None, list[Split]]:
    fold = np.random.default_rng(0).permutation(len(known)) % FOLDS
    of_pairs = [
        (
            [pair for pair, at in zip(known, fold, strict=True) if at != number],
            [pair for pair, at in zip(known, fold, strict=True) if at == number],
        )
        for number in range(min(FOLDS, len(known)))
    ]
    of_models = []
    for model in sorted({job.model for pair in known for job in (pair.first, pair.second)}):
        there = [model in (pair.first.model, pair.second.model) for pair in known]
        rest = [pair for pair, is_there in zip(known, there, strict=True) if not is_there]
        part = [pair for pair, is_there in zip(known, there, strict=True) if is_there]
        if rest:
            of_models.append((rest, part))
    if not of_models:
        raise TraceError(file, "leaving a model out leaves nothing to learn from")
    return {"pairs": of_pairs, "a model": of_models}


def read_single(file: Path) -> dict[Job, tuple[float, float]]:
    """What jobs do alone. Raises TraceError."""
    found = {}
    for row in rows(file, SINGLE_COLUMNS):
        loads = tuple(row.number(name, least=0, most=100) / 100 for name in SINGLE_COLUMNS[2:])
        found[_job(row, "")] = (loads[0], loads[1])
    return found


def read(file: Path, alone: dict[Job, tuple[float, float]], *, least: int) -> list[Measured]:
    """The pairs of a file. Raises TraceError."""
    found, last = [], 1
    for row in rows(file, PAIR_COLUMNS):
        last = row.line
        jobs = []
        for side in ("1", "2"):
            job = _job(row, side)
            busy, memory_busy = alone.get(job, (None, None))
            jobs.append(
                Alone(model=job[0], batch=job[1], half=job[2], busy=busy, memory_busy=memory_busy)
            )
        together = [
            row.number(name, least=0, most=100) / 100 if row.has(name) else None
            for name in ("gpu_util", "gmem_util")
        ]
        pair = Measured(
            first=jobs[0],
            second=jobs[1],
            speeds=(
                row.number("speed1", least=0, most=FASTEST),
                row.number("speed2", least=0, most=FASTEST),
            ),
            busy=together[0],
            memory_busy=together[1],
        )
        found.append(pair)
    if len(found) < least:
        raise TraceError(
            file, f"has {len(found)} pairs, and at least {least} are needed", line=last
        )
    return found


def _job(row: Row, side: str) -> Job:
    batch = row.number(f"batchsize{side}")
    if batch <= 0:
        raise row.fault(f"batchsize{side}", f"'{batch:g}' is not above 0")
    name = row.text(f"model{side}")
    if row.has(f"dataset{side}"):
        name += f" on {row.text(f'dataset{side}')}"
    half = bool(row.count(f"amp{side}", most=1)) if row.has(f"amp{side}") else False
    return name, batch, half


def process(known: Sequence[Measured], unknown: Sequence[Measured], share: float) -> Foretold:
    found = Interference(known).predict([(pair.first, pair.second) for pair in unknown])
    return Foretold(
        np.array([one.speeds for one in found]), np.array([one.chance(share) for one in found])
    )


def mean(known: Sequence[Measured], unknown: Sequence[Measured], share: float) -> Foretold:
    everywhere = float(np.mean([pair.speeds for pair in known]))
    return _without_error(np.full((len(unknown), 2), everywhere), share)


def nearest(known: Sequence[Measured], unknown: Sequence[Measured], share: float) -> Foretold:
    loads = Loads(known)
    rows_known, rows_asked = _loads(loads, known), _loads(loads, unknown)
    real = _flat(known)
    speeds = []
    for row in rows_asked:
        apart = np.linalg.norm(rows_known - row, axis=1)
        near = np.argsort(apart)[:NEAREST]
        speeds.append(np.average(real[near], weights=1.0 / (apart[near] + 1e-3)))
    return _without_error(np.reshape(speeds, (-1, 2)), share)


def linear(known: Sequence[Measured], unknown: Sequence[Measured], share: float) -> Foretold:
    loads = Loads(known)

    def features(pairs: Sequence[Measured]) -> Floats:
        own, other = np.split(_loads(loads, pairs), 2, axis=1)
        products = (own[:, :, None] * other[:, None, :]).reshape(len(own), -1)
        return np.hstack([np.ones((len(own), 1)), own, other, products])

    matrix, real = features(known), _flat(known)
    middle = real.mean()
    square = matrix.T @ matrix + RIDGE * np.eye(matrix.shape[1])
    found = np.linalg.solve(square, matrix.T @ (real - middle))
    return _without_error((middle + features(unknown) @ found).reshape(-1, 2), share)


def contention(known: Sequence[Measured], unknown: Sequence[Measured], share: float) -> Foretold:
    loads = Loads(known)

    def speeds(rows_of: Floats, terms: Floats) -> Floats:
        busy = np.maximum(rows_of[:, 0] + rows_of[:, 2] - terms[1], 0.0)
        memory = np.maximum(rows_of[:, 1] + rows_of[:, 3] - terms[3], 0.0)
        return np.asarray(1.0 / (1.0 + terms[0] * busy + terms[2] * memory))

    rows_known, real = _loads(loads, known), _flat(known)
    start = np.array([0.3, 1.0, 0.2, 0.8])
    found = least_squares(
        lambda terms: speeds(rows_known, terms) - real, start, bounds=(0.0, [10.0, 2.0, 10.0, 2.0])
    )
    return _without_error(speeds(_loads(loads, unknown), found.x).reshape(-1, 2), share)


WAYS: dict[str, Way] = {
    "process": process,
    "nearest": nearest,
    "linear": linear,
    "contention": contention,
    "mean": mean,
}


def _loads(loads: Loads, pairs: Sequence[Measured]) -> Floats:
    """[2N, 4] own and other load of each job of each pair."""
    sides = [(pair.first, pair.second) for pair in pairs]
    return np.array(
        [[*loads.of(own), *loads.of(other)] for pair in sides for own, other in (pair, pair[::-1])]
    )


def _flat(pairs: Sequence[Measured]) -> Floats:
    return np.array([pair.speeds for pair in pairs]).ravel()


def _without_error(speeds: Floats, share: float) -> Foretold:
    """Of a way that knows no error: what it says is sure."""
    return Foretold(speeds, (speeds.min(axis=1) >= share).astype(np.float64))


def _joined(parts: Sequence[Foretold]) -> Foretold:
    return Foretold(
        np.concatenate([part.speeds for part in parts]),
        np.concatenate([part.chance for part in parts]),
    )


def figures(way: str, left_out: str | None, told: Foretold, real: Floats, share: float) -> Figures:
    keep = real.min(axis=1) >= share
    likely, sure = (_precision_recall(told.chance >= least, keep) for least in (0.5, SURE))
    return Figures(
        way=way,
        left_out=left_out,
        mae=float(np.mean(np.abs(told.speeds - real))),
        precision=likely[0],
        recall=likely[1],
        sure_precision=sure[0],
        sure_recall=sure[1],
    )


def _precision_recall(
    said: np.ndarray[Any, Any], so: np.ndarray[Any, Any]
) -> tuple[float | None, float | None]:
    both = int(np.sum(said & so))
    return (
        both / int(np.sum(said)) if np.any(said) else None,
        both / int(np.sum(so)) if np.any(so) else None,
    )


def by_model(
    left_out: str | None,
    unknown: Sequence[Measured],
    real: Floats,
    found: dict[str, Foretold],
) -> list[dict[str, Any]]:
    """The error of each model's own speed."""
    names = np.array([[pair.first.model, pair.second.model] for pair in unknown])
    listed = []
    for model in sorted(set(names.ravel())):
        own = names == model
        listed.append(
            {
                "left_out": left_out,
                "model": str(model),
                "pairs": int(np.sum(own.any(axis=1))),
                "mae": float(np.mean(np.abs(found["process"].speeds - real)[own])),
                "mean_mae": float(np.mean(np.abs(found["mean"].speeds - real)[own])),
            }
        )
    return listed


def show(answer: dict[str, Any]) -> None:
    """The report as tables."""
    for left_out in dict.fromkeys(line["left_out"] for line in answer["ways"]):
        if left_out is not None:
            print(f"\n### Left out: {left_out}\n")
        print(
            "| way | mean absolute error | precision | recall | precision, sure | recall, sure |"
            "\n|---|---|---|---|---|---|"
        )
        for line in answer["ways"]:
            if line["left_out"] == left_out:
                shares = ("precision", "recall", "sure_precision", "sure_recall")
                cells = " | ".join(_percent(line[name]) for name in shares)
                print(f"| {line['way']} | {line['mae']:.4f} | {cells} |")
        print("\n| model | pairs | process | mean |\n|---|---|---|---|")
        for line in answer["models"]:
            if line["left_out"] == left_out:
                errors = f"{line['mae']:.4f} | {line['mean_mae']:.4f}"
                print(f"| {line['model']} | {line['pairs']} | {errors} |")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
