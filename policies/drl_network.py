"""The network of policy `drl`: one score for each action that could be taken next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ones.policies.model import Floats

FEATURES = (
    "stop",  # 1: nothing more is changed this round; all that tells of a job is then 0
    "more",  # 1: a step up, 0: a step down
    "starts",  # 1: from nothing
    "stops",  # 1: to nothing
    "returns",  # 1: to where the job runs now, so that it needs no restart
    "leaves",  # 1: away from where it runs now
    "left",  # ln(1 + seconds to its end after the action, or on its least size) / 10
    "gain",  # ln of how many times sooner it would end; of a start 1, of an end -1
    "saved",  # ln(1 + seconds saved by a GPU) / 10; negative: lost
    "held",  # GPUs it has, as a share of the cluster's
    "step",  # GPUs that the action takes, as a share of the cluster's
    "fair",  # GPUs it has after it, in equal shares of the cluster, 4 at most; / 4
    "waited",  # ln(1 + seconds without GPUs) / 10
    "rank",  # share of the jobs that have less to do
    "restart",  # seconds of a restart as a share of what is left, 1 at most
    "free",  # share of the cluster's GPUs
    "waiting",  # share of the jobs that have none
    "active",  # ln(1 + jobs) / 5
)
MOST_HIDDEN, MOST_LAYERS = 1024, 4


@dataclass(frozen=True)
class Network:
    """Layers with tanh between them, and a straight line past them all from features to score."""

    weights: tuple[Floats, ...]  # [inputs, outputs] each; the last has one output
    biases: tuple[Floats, ...]  # [outputs] each
    line: Floats  # [FEATURES]

    def scores(self, features: Floats) -> Floats:
        """[A] from [A, FEATURES]: logarithms of what the actions' probabilities are in proportion
        to."""
        inner = features
        for weights, biases in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inner = np.tanh(inner @ weights + biases)
        out = inner @ self.weights[-1] + self.biases[-1]
        return np.asarray(out[:, 0] + features @ self.line, dtype=np.float64)

    @classmethod
    def read(cls, content: object) -> Network:
        """From what JSON gives of `content`. Raises ValueError that names what is wrong in it."""
        if not isinstance(content, Mapping) or content.get("features") != list(FEATURES):
            raise ValueError(
                "it is no network of this version of policy drl; train one with scripts/train-drl"
            )
        layers = content.get("layers")
        if not isinstance(layers, list) or not 1 <= len(layers) <= MOST_LAYERS:
            raise ValueError(f"layers: 1 to {MOST_LAYERS} are expected")
        weights, biases, inputs = [], [], len(FEATURES)
        for number, layer in enumerate(layers, 1):
            here = f"layer {number}"
            rows = layer.get("weights") if isinstance(layer, Mapping) else None
            fault = ValueError(f"{here}: weights for {inputs} inputs are expected")
            if not isinstance(rows, list) or len(rows) != inputs:
                raise fault
            if not isinstance(rows[0], list) or not rows[0]:
                raise fault
            outputs = 1 if number == len(layers) else min(len(rows[0]), MOST_HIDDEN)
            biases.append(_numbers(layer.get("biases"), (outputs,), f"{here}: biases"))
            weights.append(_numbers(rows, (inputs, outputs), f"{here}: weights"))
            inputs = outputs
        line = _numbers(content.get("line"), (len(FEATURES),), "line")
        return cls(tuple(weights), tuple(biases), line)

    def written(self) -> dict[str, object]:
        """As `read` takes it, fit for JSON."""
        return {
            "features": list(FEATURES),
            "layers": [
                {"weights": weights.tolist(), "biases": biases.tolist()}
                for weights, biases in zip(self.weights, self.biases, strict=True)
            ],
            "line": self.line.tolist(),
        }


def untrained(hidden: Sequence[int], rng: np.random.Generator) -> Network:
    """Before training it stops at once in most rounds, and is loath to restart a job: with neither
    a round would be a walk at random over all sizes, of which there is little to learn."""
    sizes = [len(FEATURES), *hidden, 1]
    weights = tuple(
        rng.normal(0.0, 1.0 / np.sqrt(ins), (ins, outs)) for ins, outs in pairwise(sizes)
    )
    line = np.zeros(len(FEATURES))
    line[FEATURES.index("stop")] = 2.0
    line[FEATURES.index("starts")] = 2.0
    line[FEATURES.index("leaves")] = -2.0
    return Network(
        weights=(*weights[:-1], 0.1 * weights[-1]),
        biases=tuple(np.zeros(outs) for outs in sizes[1:]),
        line=line,
    )


def _numbers(listed: object, shape: tuple[int, ...], where: str) -> Floats:
    try:
        found = np.array(listed, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # the last: of a number of 400 digits
        found = np.empty(0)
    if found.shape != shape or not np.isfinite(found).all():
        sides = " x ".join(map(str, shape))
        raise ValueError(f"{where}: {sides} finite numbers are expected")
    return found
