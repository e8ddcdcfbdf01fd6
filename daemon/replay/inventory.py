"""Descriptions of clusters: TOML, CSV, and the node lists that Alibaba published.

[[nodes]]                           name,gpus,type,switches
names = "gpu[01-16]"                "gpu[01-16]",4,v100,leaf1;root
gpus = 4
type = "v100"
switches = ["leaf1", "root"]

[prices]                            optional, of a GPU and hour, and in TOML only
v100 = 2.48
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ones.daemon.replay.faults import TraceError, quoted
from ones.daemon.replay.tables import rows, text_of
from ones.daemon.replay.workload import Workload
from ones.policies.model import Node
from ones.slurm_ext.hostlists import expand

MOST_NODES = 65536
MOST_GPUS = 256  # of a node
MOST_PRICE = 1e12  # of a GPU and hour
ANY_TYPE = "gpu"  # of a cluster of which nothing is said
HOMOGENEOUS = ("aws", "v100")  # of Sia's and Gavel's clusters of one type
FIELDS = ("name", "gpus", "type", "switches")
ALIBABA = (("sn", "gpu", "model"), ("node_name", "gpu_capacity_num", "gpu_model"))


def uniform(nodes: int, gpus_per_node: int, gpu_type: str = ANY_TYPE) -> tuple[Node, ...]:
    """So many equal nodes without switches."""
    digits = len(str(nodes - 1))
    return tuple(
        Node(name=f"n{number:0{digits}d}", gpu_type=gpu_type, gpus=gpus_per_node)
        for number in range(nodes)
    )


def common_type(workload: Workload) -> str | None:
    """A GPU type on which every job of the trace can run; None where none is known."""
    asked = {kind for job in workload.jobs for kind in job.gpu_types or ()}
    for kind in (ANY_TYPE, *HOMOGENEOUS, *sorted(asked)):
        if all(
            job.application.runs_on(kind) and (job.gpu_types is None or kind in job.gpu_types)
            for job in workload.jobs
        ):
            return kind
    return None


def read(path: Path, text: str | None = None) -> tuple[Node, ...]:
    """The GPU nodes of a description, by name. Raises TraceError."""
    found = every(path, text_of(path) if text is None else text)
    nodes = tuple(found[name] for name in sorted(found) if found[name].gpus)
    if not nodes:
        raise TraceError(path, "has no nodes with GPUs")
    return nodes


def every(path: Path, text: str) -> dict[str, Node]:
    """The nodes by name, those without GPUs included. Raises TraceError."""
    found: dict[str, Node] = {}
    for node in _from_toml(path, text) if is_toml(path, text) else _from_table(path, text):
        if node.name in found:
            raise TraceError(path, f"node {quoted(node.name)} is there twice")
        found[node.name] = node
        if len(found) > MOST_NODES:
            raise TraceError(path, f"has more than {MOST_NODES} nodes")
    return found


def prices(path: Path, text: str | None = None) -> dict[str, float]:
    """What a GPU and hour of each type costs, where the description says. Raises TraceError."""
    text = text_of(path) if text is None else text
    if not is_toml(path, text):
        return {}
    found = toml_in(path, text).get("prices", {})
    if not isinstance(found, dict):
        raise TraceError(path, "is no table of types", column="prices")
    for kind, price in found.items():
        if not _is_price(price):
            raise TraceError(
                path,
                f"{quoted(kind)} has no price from 0 to {MOST_PRICE:g}: {price!r:.60}",
                column="prices",
            )
    return {kind: float(price) for kind, price in found.items()}


def is_toml(path: Path, text: str) -> bool:
    return path.suffix == ".toml" or text.lstrip().startswith("[")


def toml_in(path: Path, text: str) -> dict[str, Any]:
    """What stands in the TOML. Raises TraceError."""
    try:
        return tomllib.loads(text)
    except ValueError as fault:  # a number of too many digits is one, too
        raise TraceError(path, f"is not TOML: {fault}") from None
    except RecursionError:
        raise TraceError(path, "is not TOML: it is nested too deeply") from None


def _from_table(path: Path, text: str) -> Iterator[Node]:
    heading = {name.strip().strip('"') for name in text.split("\n", 1)[0].split(",")}
    for name, gpus, kind in ALIBABA:
        if {name, gpus, kind} <= heading:
            for row in rows(path, (name, gpus, kind), text=text):
                yield Node(
                    name=row.text(name),
                    gpu_type=row.text(kind),
                    gpus=row.count(gpus, most=MOST_GPUS),
                )
            return
    for row in rows(path, FIELDS[:3], text=text):
        switches = tuple(filter(None, row.cells.get("switches", "").strip().split(";")))
        try:
            names = expand(row.text("name"))
        except ValueError as fault:
            raise row.fault("name", str(fault)) from None
        for one in names:
            yield Node(
                name=one,
                gpu_type=row.text("type"),
                gpus=row.count("gpus", most=MOST_GPUS),
                switches=switches,
            )


def _from_toml(path: Path, text: str) -> Iterator[Node]:
    groups = toml_in(path, text).get("nodes")
    if not isinstance(groups, list) or not groups:
        raise TraceError(path, "has no [[nodes]]")
    for number, group in enumerate(groups, start=1):
        where = f"nodes {number}"
        if not isinstance(group, dict):
            raise TraceError(path, f"{where} is no table", column="nodes")
        for key in group:
            if key not in ("names", "gpus", "type", "switches"):
                raise TraceError(
                    path, f"{where}: there are names, gpus, type and switches", column=key
                )
        names, switches = group.get("names"), group.get("switches", [])
        gpus, kind = group.get("gpus"), group.get("type", ANY_TYPE)
        if not isinstance(names, str) or not names:
            raise TraceError(path, f"{where}: is no hostlist such as 'gpu[01-16]'", column="names")
        if not _is_count(gpus):
            raise TraceError(path, f"{where}: is no number from 0 to {MOST_GPUS}", column="gpus")
        if not isinstance(kind, str) or not kind:
            raise TraceError(path, f"{where}: is no name", column="type")
        if not _are_names(switches):
            raise TraceError(path, f"{where}: is no list of names, leaf first", column="switches")
        try:
            every: Sequence[str] = expand(names)
        except ValueError as fault:
            raise TraceError(path, f"{where}: {fault}", column="names") from None
        for name in every:
            yield Node(name=name, gpu_type=kind, gpus=gpus, switches=tuple(switches))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_GPUS


def _is_price(value: Any) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= MOST_PRICE


def _are_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)
