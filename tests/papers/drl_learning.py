"""How the network of policy `drl` learns from runs: by imitation, then by policy gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from drl_runs import Trip

from ones.policies.drl_network import Network
from ones.policies.model import Floats

PASSES, CLIP = 4, 0.2  # PPO's
IMITATIONS = 300  # passes over what a teacher chose


def advantages(trips: Sequence[Trip]) -> list[Floats]:
    """[C] of each run: by how much its jobs had less time to come than on average, at that time."""
    found = []
    for one in trips:
        usual = np.mean([np.interp(one.times, other.times, other.ahead) for other in trips], axis=0)
        found.append(usual - one.ahead)
    spread = float(np.std(np.concatenate(found))) or 1.0
    return [one / spread for one in found]


class Scorer(torch.nn.Module):
    """The same network, for gradients."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        as_parameter = lambda array: torch.nn.Parameter(torch.tensor(array, dtype=torch.float32))  # noqa: E731
        self.weights = torch.nn.ParameterList([as_parameter(one) for one in network.weights])
        self.biases = torch.nn.ParameterList([as_parameter(one) for one in network.biases])
        self.line = as_parameter(network.line)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = features
        for weights, biases in zip(self.weights[:-1], self.biases[:-1], strict=True):
            inner = torch.tanh(inner @ weights + biases)
        return (inner @ self.weights[-1] + self.biases[-1])[:, 0] + features @ self.line

    def network(self) -> Network:
        arrays = lambda many: tuple(one.detach().numpy().astype(np.float64) for one in many)  # noqa: E731
        return Network(arrays(self.weights), arrays(self.biases), arrays([self.line])[0])


def logarithms(scores: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R] the logarithm of each row's probability within its choice, and [R] whose row it is."""
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    largest = torch.full((len(counts),), -torch.inf).scatter_reduce(0, owner, scores, "amax")
    shifted = scores - largest[owner].detach()
    total = torch.zeros(len(counts)).scatter_add(0, owner, shifted.exp())
    return shifted - total.log()[owner], owner


@dataclass(frozen=True, slots=True)
class Batch:
    """The choices of several runs."""

    features: torch.Tensor  # [R, FEATURES]
    counts: torch.Tensor  # [C] rows of each
    taken: torch.Tensor  # [C] the row of what was chosen

    @classmethod
    def of(cls, trips: Sequence[Trip]) -> Batch:
        counts = torch.tensor(np.concatenate([one.counts for one in trips]), dtype=torch.int64)
        actions = torch.tensor(np.concatenate([one.actions for one in trips]), dtype=torch.int64)
        rows = torch.tensor(np.concatenate([one.features for one in trips]), dtype=torch.float32)
        return cls(rows, counts, torch.cumsum(counts, 0) - counts + actions)


def step(scorer: Scorer, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
    optimizer.step()


def imitate(scorer: Scorer, optimizer: torch.optim.Optimizer, trips: Sequence[Trip]) -> float:
    """Passes over what a teacher chose; how probable that has become, in the geometric mean."""
    batch = Batch.of(trips)
    loss = torch.zeros(())
    for _ in range(IMITATIONS):
        loss = -logarithms(scorer(batch.features), batch.counts)[0][batch.taken].mean()
        step(scorer, optimizer, loss)
    return float((-loss).exp().detach())


def learn(
    scorer: Scorer, optimizer: torch.optim.Optimizer, trips: Sequence[Trip], entropy: float
) -> float:
    """PPO's passes over the choices of these runs; the mean entropy of a choice."""
    batch = Batch.of(trips)
    gained = torch.tensor(np.concatenate(advantages(trips)), dtype=torch.float32)
    with torch.no_grad():
        before = logarithms(scorer(batch.features), batch.counts)[0][batch.taken]
    spread = 0.0
    for _ in range(PASSES):
        every, owner = logarithms(scorer(batch.features), batch.counts)
        ratio = (every[batch.taken] - before).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        mixed = torch.zeros(len(batch.counts)).scatter_add(0, owner, -every * every.exp()).mean()
        spread = float(mixed.detach())
        gain = torch.minimum(ratio * gained, clipped * gained).mean()
        step(scorer, optimizer, -gain - entropy * mixed)
    return spread
