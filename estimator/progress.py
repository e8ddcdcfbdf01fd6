"""How far a job is: rho ~ Beta(alpha, beta) (ONES §4.1), and what is still to go.

A declared length is believed; else the family's finished jobs tell it; else a job is taken to be
half way through. The paper's regression on loss and accuracy belongs here as one more source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ones.policies.model import JobId

RECENT = 20  # finished jobs of a family that count


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A job's last word on its progress; None where it does not say."""

    job: JobId
    samples: float = 0.0
    total_samples: float | None = None
    epoch_samples: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job of the family that ran to its end, and the samples it took."""

    family: str
    total_samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Expected length with the Beta parameters of the progress made; samples throughout."""

    processed: float
    total: float
    alpha: float
    beta: float
    epochs: float
    guessed: bool = False  # the length is neither declared nor its family's

    @property
    def remaining(self) -> float:
        """Never quite nothing: a job that is still there has something left to do."""
        return max(self.total - self.processed, 1e-3 * self.total)


def predict(progress: Progress | None, finished: Sequence[float]) -> Prediction | None:
    """What is to be expected of a job, or None where nothing tells its length.

    `finished` holds the total samples of the family's finished jobs, oldest first. The strength of
    the Beta, its alpha + beta, says how many epochs' worth of evidence there is: the paper's one
    per epoch where there is nothing but the epochs done, more where the length is known.
    """
    done = progress.samples if progress else 0.0
    epoch = progress.epoch_samples if progress else None
    epochs = done / epoch if epoch else 0.0
    declared = progress.total_samples if progress else None
    if declared:
        total, strength = max(declared, done), 200.0
    elif finished:
        recent = [length for length in finished[-RECENT:] if length > 0]
        total, strength = max(median(recent or [1.0]), 1.1 * done), 10.0 + 2.0 * len(recent)
    elif done > 0:
        total, strength = 2.0 * done, 2.0 + epochs
    else:
        return None
    share = done / total
    return Prediction(
        processed=done,
        total=total,
        alpha=1.0 + strength * share,
        beta=1.0 + strength * (1.0 - share),
        epochs=epochs,
        guessed=not declared and not finished,
    )
