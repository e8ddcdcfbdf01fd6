"""How well needs are estimated: trained on one file of measured runs, tried on another.

usage: scripts/evaluate-estimator TRAIN.csv TEST.csv [--json] [--gpu-memory MIB]
                                  [--regressor NAME ...]
       scripts/evaluate-estimator --cross DATA.csv [--draws N] [--seed S] [--json] ...

Both files have a line for each run of a model alone on a GPU, with the columns

    model, batchsize (per GPU), gpu_util (%), gmem (MiB), and where known
    dataset, amp (mixed precision: 0 or 1), optimizer, gpu_type, parameters, layers, gpus, nodes

Other columns are not looked at. Of TEST, gpu_util and gmem are only compared with. For each model
of TEST and each regressor it prints

    seen         how the model stood in TRAIN: same (it ran so), other batch (it ran, at other batch
                 sizes), partly (not in this precision, or on this data), never
    memory       median relative error of gmem
    utilisation  median relative error of gpu_util
    under        share of the runs that needed more memory than was suggested: the estimate and its
                 head-room, which is told by runs of TRAIN that were left out of the fit in turn
    reserved     mean of suggested / needed - 1, so that head-room can be judged
    promised     mean share of such runs of which it is said that the suggestion is enough

The regressor `chosen` is what onesd does: the structural regression where the model has run; of
a model never seen the guess that foretold left-out families of TRAIN best, and a bound told by
them. The others are there to compare with: `structural` is the middle of what the known models
would need, and they suggest the whole card for a model never seen. No more than the card's memory
(--gpu-memory) is ever suggested; `unbounded` says what share of the runs of models never seen the
quantile alone would have been too little for.

--cross takes one file, leaves each family out in turn, all families of each dataset, then each
batch size of each family and all runs of each batch size, and prints one line for each regressor
and way. With --draws N it also leaves out N times a third of the families, drawn by --seed S
(default: 0).

--json prints {"schema": 1, "train": FILE, "test": FILE, "rows": [...], "all": [...]}: rows has an
object for each model and regressor, all one for each regressor over all of TEST, with model null.
Their fields: model, regressor, seen, runs, memory_error, utilization_error, memory_under,
memory_reserved, memory_promised, unbounded_under (null where the model was seen). With --cross rows
is empty, and the objects of all also have `way`. Shares are from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.tables import Row, rows
from ones.estimator.needs.estimate import SHARE, Needs
from ones.estimator.needs.features import LARGEST, SMALLEST, Precision, Resource, Run, Traits
from ones.estimator.needs.forest import ForestMissing, forest
from ones.estimator.needs.headroom import Footing, head_room, standing
from ones.estimator.needs.means import family_mean, mean
from ones.estimator.needs.structural import Fit, structural

CARD = 24576.0  # MiB of the GPUs on which Lucid's table was measured
COLUMNS = ("model", "batchsize", "gpu_util", "gmem")
OPTIONAL = ("parameters", "layers", "gpus", "nodes")
SEEN = {
    Footing.SAME: "same",
    Footing.OTHER_BATCH: "other batch",
    Footing.PARTLY: "partly",
    Footing.UNSEEN: "never",
}
CHOSEN = "chosen"
OTHERS: dict[str, Callable[[Resource], Fit]] = {
    "structural": structural,
    "forest": lambda _: forest,
    "family mean": lambda _: family_mean,
    "mean": lambda _: mean,
}
REGRESSORS = (CHOSEN, *OTHERS)


@dataclass(frozen=True, slots=True)
class Measured:
    """A line of a file: a run, its memory in MiB, its utilisation from 0 to 1."""

    traits: Traits
    memory: float
    utilization: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What a regressor foretold of a run of TEST, and what came."""

    measured: Measured
    seen: str
    memory: float
    utilization: float
    suggested: float
    unbounded: float  # the quantile alone, also of a model never seen
    promised: float  # share of such runs that get along with what is suggested


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A line of the report."""

    model: str | None
    regressor: str
    seen: str
    runs: int
    memory_error: float
    utilization_error: float
    memory_under: float
    memory_reserved: float
    memory_promised: float
    unbounded_under: float | None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/evaluate-estimator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("files", nargs="+", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cross", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--draws", type=int, default=0, metavar="N", help="thirds of the families; default: 0"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--json", action="store_true", dest="as_json", help=argparse.SUPPRESS)
    parser.add_argument(
        "--gpu-memory", type=float, default=CARD, metavar="MIB", help=f"default: {CARD:.0f}"
    )
    parser.add_argument(
        "--regressor", action="append", choices=list(REGRESSORS), help="default: all of them"
    )
    chosen = parser.parse_args(arguments)
    if len(chosen.files) != (1 if chosen.cross else 2):
        parser.error("give TRAIN.csv and TEST.csv, or --cross and one file")
    if chosen.draws < 0 or chosen.seed < 0 or (chosen.draws and not chosen.cross):
        parser.error("--draws and --seed are 0 or more, and --draws goes with --cross")
    if not chosen.gpu_memory > 0:
        parser.error(f"--gpu-memory {chosen.gpu_memory:g} is not above 0")
    names = chosen.regressor or list(REGRESSORS)
    try:
        if chosen.cross:
            draws = np.random.default_rng(chosen.seed).integers(2**31, size=chosen.draws)
            answer = crossed(chosen.files, names, chosen.gpu_memory, draws=draws.tolist())
        else:
            answer = evaluated(chosen.files, names, chosen.gpu_memory)
    except (TraceError, ForestMissing) as fault:
        hint = (
            "; or leave it out: --regressor structural" if isinstance(fault, ForestMissing) else ""
        )
        print(f"scripts/evaluate-estimator: error: {fault}{hint}", file=sys.stderr)
        return 1
    if chosen.as_json:
        print(json.dumps(answer, indent=2))
    else:
        show([*answer["rows"], *answer["all"]])
    return 0


def evaluated(files: Sequence[Path], names: Sequence[str], card: float) -> dict[str, object]:
    """Train on the first file, try on the second."""
    known, unknown = read(files[0], least=2), read(files[1], least=1)
    rows_of, over_all = [], []
    for name in names:
        tried = foretold(known, unknown, name, card)
        for model in sorted({one.measured.traits.family for one in tried}):
            own = [one for one in tried if one.measured.traits.family == model]
            rows_of.append(figures(own, model=model, regressor=name))
        over_all.append(figures(tried, model=None, regressor=name))
    rows_of.sort(key=lambda one: one.model or "")
    return {
        "schema": 1,
        "train": str(files[0]),
        "test": str(files[1]),
        "rows": [asdict(one) for one in rows_of],
        "all": [asdict(one) for one in over_all],
    }


def crossed(
    files: Sequence[Path], names: Sequence[str], card: float, *, draws: Sequence[int] = ()
) -> dict[str, object]:
    """Leave parts of one file out in turn."""
    known = read(files[0], least=2)
    ways: dict[str, Callable[[Traits], object]] = {
        "a family": lambda one: one.family,
        "the families of a dataset": lambda one: one.dataset,
        "a batch size of a family": lambda one: (one.family, one.batch_per_gpu),
        "a batch size": lambda one: one.batch_per_gpu,
    }
    parts = {way: parted(known, group) for way, group in ways.items()}
    if draws:
        parts["a third of the families"] = [a_third(known, seed) for seed in draws]
    over_all = []
    for way, left_out in parts.items():
        for name in names:
            tried: list[Tried] = []
            for part in left_out:
                gone = set(map(id, part))
                rest = [one for one in known if id(one) not in gone]
                if len(rest) > 1:
                    tried += foretold(rest, part, name, card)
            if not tried:
                raise TraceError(files[0], f"leaving {way} out leaves nothing to train on")
            over_all.append({"way": way, **asdict(figures(tried, model=None, regressor=name))})
    return {"schema": 1, "train": str(files[0]), "test": None, "rows": [], "all": over_all}


def parted(
    known: Sequence[Measured], group: Callable[[Traits], object]
) -> Sequence[Sequence[Measured]]:
    """The runs of each group."""
    found: dict[object, list[Measured]] = {}
    for one in known:
        found.setdefault(group(one.traits), []).append(one)
    return list(found.values())


def a_third(known: Sequence[Measured], seed: int) -> Sequence[Measured]:
    """The runs of a third of the families, as drawn."""
    families = list(dict.fromkeys(one.traits.family for one in known))
    drawn = np.random.default_rng(seed).permutation(len(families))[: max(1, len(families) // 3)]
    chosen = {families[index] for index in drawn}
    return [one for one in known if one.traits.family in chosen]


def read(file: Path, *, least: int) -> list[Measured]:
    """The runs of a file. Raises TraceError."""
    found, last = [], 1
    for row in rows(file, COLUMNS):
        found.append(_measured(row))
        last = row.line
    if len(found) < least:
        raise TraceError(file, f"has {len(found)} runs, and at least {least} are needed", line=last)
    return found


def _measured(row: Row) -> Measured:
    told = {name: row.number(name) if row.has(name) else None for name in OPTIONAL}
    for name, value in (*told.items(), ("batchsize", row.number("batchsize"))):
        if value is not None and not SMALLEST <= value <= LARGEST:
            raise row.fault(name, f"'{value:g}' is not from {SMALLEST:g} to {LARGEST:g}")
    mixed = row.count("amp", most=1) if row.has("amp") else None
    halves = {None: None, 0: Precision.FULL, 1: Precision.HALF}
    words = {
        name: row.text(name) if row.has(name) else None
        for name in ("dataset", "optimizer", "gpu_type")
    }
    traits = Traits(
        family=row.text("model"),
        batch_per_gpu=row.number("batchsize"),
        precision=halves[mixed],
        **words,
        **told,
    )
    memory = row.number("gmem", most=LARGEST)
    if memory <= 0:
        raise row.fault("gmem", f"'{memory:g}' is not above 0")
    return Measured(traits, memory, row.number("gpu_util", least=0, most=100) / 100)


def foretold(
    known: Sequence[Measured], unknown: Sequence[Measured], regressor: str, card: float
) -> list[Tried]:
    """What is foretold of the unknown runs from the known ones."""
    if regressor == CHOSEN:
        return by_onesd(known, unknown, card)
    return by_a_fit(known, unknown, OTHERS[regressor], card)


def by_onesd(known: Sequence[Measured], unknown: Sequence[Measured], card: float) -> list[Tried]:
    """As `onesctl estimate` would say it."""
    needs, found = Needs(), []
    for one in known:
        used = {Resource.GPU_MEMORY: one.memory, Resource.GPU_UTILIZATION: one.utilization}
        needs.learn(Run(traits=one.traits, used=used))
    for one in unknown:
        told, free = needs.estimate(one.traits, card=card), needs.estimate(one.traits)
        memory = told[Resource.GPU_MEMORY]
        found.append(
            Tried(
                measured=one,
                seen=SEEN[memory.footing],
                memory=memory.expected,
                utilization=told[Resource.GPU_UTILIZATION].expected,
                suggested=memory.reserve,
                unbounded=min(free[Resource.GPU_MEMORY].reserve, card),
                promised=memory.share,
            )
        )
    return found


def by_a_fit(
    known: Sequence[Measured],
    unknown: Sequence[Measured],
    regression: Callable[[Resource], Fit],
    card: float,
) -> list[Tried]:
    """By one regression, with the head-room that runs left out of it tell."""
    memories = [(one.traits, one.memory) for one in known]
    fit, share = regression(Resource.GPU_MEMORY), SHARE[Resource.GPU_MEMORY]
    memory, room = fit(memories), head_room(fit, memories, tuple(Footing))
    busy = regression(Resource.GPU_UTILIZATION)([(one.traits, one.utilization) for one in known])
    found = []
    for one in unknown:
        footing, away = standing(one.traits, memories)
        never = footing is Footing.UNSEEN
        expected = memory(one.traits)
        unbounded = min(expected * room[footing].factor(share, away), card)
        found.append(
            Tried(
                measured=one,
                seen=SEEN[footing],
                memory=expected,
                utilization=busy(one.traits),
                suggested=card if never else unbounded,
                unbounded=unbounded,
                promised=1.0 if never else share,
            )
        )
    return found


def figures(tried: Sequence[Tried], *, model: str | None, regressor: str) -> Figures:
    never = [one for one in tried if one.seen == SEEN[Footing.UNSEEN]]
    return Figures(
        model=model,
        regressor=regressor,
        seen=", ".join(seen for seen in SEEN.values() if seen in {one.seen for one in tried}),
        runs=len(tried),
        memory_error=median(abs(one.memory / one.measured.memory - 1) for one in tried),
        utilization_error=median(
            abs(one.utilization - one.measured.utilization) / max(one.measured.utilization, 0.01)
            for one in tried
        ),
        memory_under=fmean(one.measured.memory > one.suggested for one in tried),
        memory_reserved=fmean(one.suggested / one.measured.memory - 1 for one in tried),
        memory_promised=fmean(one.promised for one in tried),
        unbounded_under=fmean(one.measured.memory > one.unbounded for one in never)
        if never
        else None,
    )


def show(listed: Sequence[dict[str, object]]) -> None:
    """The report as a table."""
    crossed_ways = any("way" in one for one in listed)
    first = "left out" if crossed_ways else "model"
    print(
        f"| {first} | runs | seen | regressor | memory | utilisation | under | reserved"
        " | promised | unbounded |"
        "\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for one in listed:
        name = one["way"] if crossed_ways else (one["model"] or "**all**")
        errors = ("memory_error", "utilization_error", "memory_under", "memory_reserved")
        cells = [_percent(one[field]) for field in (*errors, "memory_promised", "unbounded_under")]
        print(
            f"| {name} | {one['runs']} | {one['seen']} | {one['regressor']} | {' | '.join(cells)} |"
        )


def _percent(share: object) -> str:
    return f"{share:.1%}" if isinstance(share, float) else "–"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
