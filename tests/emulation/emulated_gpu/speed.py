"""How fast an emulated GPU trains: the truth that onesd has to learn from reports.

The form is that of Pollux (OSDI'21, §3.2), in seconds; n is the number of GPUs:

    t_grad = slowness x (passes x fixed + per_sample x local batch)
    t_sync = 0                                    on one GPU
             node + node_more x (n - 2)           within a node
             switch + switch_more x (n - 2)       over nodes of one leaf switch
             far x the line above                 over leaf switches
    t_step = (t_grad^overlap + t_sync^overlap)^(1/overlap)

The slowest member's GPU sets `slowness`; the network is the same for all types. The numbers are of
no real device. They are such that the real gradients of a small model, computed by 16 processes on
two cores, fit into a step, and that sizes, batches, types and placement matter as they do on real
clusters: README.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SLOWNESS: Mapping[str, float] = {  # of a gradient, against a V100
    "k80": 4.0,
    "t4": 2.5,
    "p100": 1.7,
    "v100": 1.0,
    "a100": 0.5,
    "h100": 0.3,
}
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of model on V100s; seconds and bytes."""

    fixed: float  # of one forward and backward pass, whatever its batch
    per_sample: float
    node: float
    node_more: float
    switch: float
    switch_more: float
    far: float
    overlap: float
    memory: int  # weights, gradients, optimizer's state, and the framework's own
    memory_per_sample: int


PROFILES: Mapping[str, Profile] = {
    # such as a small image network
    "small": Profile(
        fixed=0.045,
        per_sample=0.0018,
        node=0.055,
        node_more=0.005,
        switch=0.09,
        switch_more=0.006,
        far=1.8,
        overlap=1.6,
        memory=1536 * MIB,
        memory_per_sample=24 * MIB,
    ),
    # such as ResNet-50
    "medium": Profile(
        fixed=0.06,
        per_sample=0.003,
        node=0.07,
        node_more=0.007,
        switch=0.15,
        switch_more=0.01,
        far=1.8,
        overlap=1.6,
        memory=2560 * MIB,
        memory_per_sample=80 * MIB,
    ),
    # such as BERT: much to send for what there is to compute
    "large": Profile(
        fixed=0.08,
        per_sample=0.006,
        node=0.12,
        node_more=0.015,
        switch=0.3,
        switch_more=0.025,
        far=2.2,
        overlap=1.6,
        memory=5120 * MIB,
        memory_per_sample=150 * MIB,
    ),
}
MEDIUM_FROM, LARGE_FROM = 5_000_000, 60_000_000  # parameters


@dataclass(frozen=True, slots=True)
class Group:
    """The GPUs that train one model together."""

    gpu_type: str  # of the slowest member; an unknown type is as fast as a V100
    gpus: int = 1
    nodes: int = 1
    switches: int = 1  # leaf switches above these nodes


def profile_of(name: str | None, parameters: int) -> Profile:
    """The profile of this name, else the one that a model of so many parameters has."""
    if name is not None and name in PROFILES:
        return PROFILES[name]
    if parameters < MEDIUM_FROM:
        return PROFILES["small"]
    return PROFILES["medium" if parameters < LARGE_FROM else "large"]


def slowness(gpu_type: str) -> float:
    return SLOWNESS.get(gpu_type, 1.0)


def gradient_seconds(profile: Profile, gpu_type: str, samples: float, passes: int = 1) -> float:
    """Time that one GPU takes for its samples of a step, in so many passes."""
    return slowness(gpu_type) * (passes * profile.fixed + profile.per_sample * samples)


def sync_seconds(profile: Profile, group: Group) -> float:
    """Time of one all-reduce of the gradients."""
    if group.gpus <= 1:
        return 0.0
    if group.nodes <= 1:
        return profile.node + profile.node_more * (group.gpus - 2)
    near = profile.switch + profile.switch_more * (group.gpus - 2)
    return near * profile.far if group.switches > 1 else near


def step_seconds(profile: Profile, group: Group, samples: float, passes: int = 1) -> float:
    """Time of one optimizer step with so many samples on each GPU."""
    gradient = gradient_seconds(profile, group.gpu_type, samples, passes)
    sync = sync_seconds(profile, group)
    return float((gradient**profile.overlap + sync**profile.overlap) ** (1 / profile.overlap))
