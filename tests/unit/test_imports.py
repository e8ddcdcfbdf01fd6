"""Every room imports only what its row says, nothing goes round, and the pure rooms stay pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Room: its modules with all below them (the longest name wins); the rooms that it may import.
# A room may import only rooms that stand above it here, so the table is read from top to bottom:
# first what a cluster, a job and a plan are, then what jobs load, then the daemons.
ROOMS = {
    "policies": ("policies", ""),
    "estimator": ("estimator", "policies"),
    # Slurm: its records, commands and the moves made of them.
    "errors": ("slurm_ext.errors", ""),
    "records": ("slurm_ext.snapshot slurm_ext.holding", ""),
    "slurm": ("slurm_ext", "policies errors records"),
    "simulated": ("slurm_ext.simulated", "policies errors records slurm"),
    # What runs inside jobs, without numpy, Slurm or anything of the daemons.
    "job": (
        "slurm_ext.runtime.job slurm_ext.runtime.checkpoint slurm_ext.runtime.environment"
        " slurm_ext.runtime.framework slurm_ext.runtime.gradients slurm_ext.runtime.learning_rate"
        " slurm_ext.runtime.meter slurm_ext.runtime.reporting slurm_ext.runtime.resized"
        " slurm_ext.runtime.sampling slurm_ext.runtime.saving slurm_ext.runtime.scalars"
        " slurm_ext.runtime.sharded_checkpoint"
        " slurm_ext.runtime.sharded_state slurm_ext.runtime.sharding"
        " slurm_ext.runtime.signals slurm_ext.runtime.torch_framework"
        " slurm_ext.runtime.torch_gradients slurm_ext.runtime.version",
        "errors",
    ),
    "live": ("slurm_ext.runtime.live", "errors job"),
    "scripts": ("slurm_ext.runtime", "errors job live"),
    # The daemons' common ground.
    "release": ("daemon.release daemon.presence", "errors records"),
    "wire": (
        "daemon.wire daemon.credentials daemon.munge daemon.sack daemon.signatures daemon.journal"
        " daemon.systemd daemon.pace daemon.descriptors"
        " daemon.strangers",
        "errors",
    ),
    "times": ("daemon.times", "policies"),
    "web": ("daemon.web", ""),
    "config": ("daemon.config", "errors wire"),
    "agent": ("daemon.agent", "errors wire config"),
    "site": ("daemon.site", "policies estimator slurm config"),  # what that comes to in onesd
    # onesd, from the ground up: ground <- books <- moves <- observing <- round <- service <- doors.
    "deciding": ("daemon.onesd.deciding daemon.onesd.forecast", "policies estimator"),
    "foreseeing": (
        "daemon.onesd.forecast.process daemon.onesd.forecast.present",
        "policies estimator errors records slurm config site deciding",
    ),
    "outcome": ("daemon.onesd.outcome daemon.onesd.metrics", "policies records"),
    "audit": ("daemon.onesd.audit", "wire"),
    "process": ("daemon.onesd.events daemon.onesd.heartbeat", "records config outcome"),
    "store": ("daemon.onesd.books.store", "errors"),
    "terms": ("daemon.onesd.terms", "errors"),
    "steering": (
        "daemon.onesd.steering daemon.onesd.policy_in_force",
        "policies config site store",
    ),
    "books": (
        "daemon.onesd.books",
        "policies estimator errors records slurm wire config site deciding outcome audit store",
    ),
    "moves": (
        "daemon.onesd.moves",
        "policies estimator errors records slurm wire config site outcome audit books",
    ),
    "observing": (
        "daemon.onesd.observing daemon.onesd.completing daemon.onesd.missing daemon.onesd.limits",
        "policies errors records slurm outcome books moves",
    ),
    "round": (
        "daemon.onesd.round daemon.onesd.collecting",
        "policies estimator errors records slurm wire site deciding foreseeing outcome steering"
        " books moves observing",
    ),
    "service": (
        "daemon.onesd.service daemon.onesd.operators daemon.onesd.refresh",
        "estimator errors records slurm wire config foreseeing outcome terms steering books moves"
        " observing round",
    ),
    "assembly": (
        "daemon.onesd.assembly",
        "slurm config outcome store terms steering books moves observing round service",
    ),
    "doors": (
        "daemon.onesd.doors",
        "policies estimator errors records slurm wire times config deciding foreseeing outcome"
        " audit terms books service",
    ),
    "standby": (
        "daemon.onesd.standing_by",
        "errors wire config store terms doors",
    ),
    "page": (
        "daemon.onesd.page",
        "policies errors records slurm wire web config outcome books service doors",
    ),
    "onesd": (
        "daemon.onesd.main",
        "errors slurm wire config site outcome process store terms service assembly doors page"
        " standby",
    ),
    "demo": (
        "daemon.demo",
        "errors slurm records simulated wire config store assembly doors page",
    ),
    # Commands.
    "replay": ("daemon.replay", "policies estimator errors slurm wire times web deciding"),
    "onesctl": (
        "daemon.ctl",
        "policies estimator errors slurm wire times config replay doors demo",
    ),
}
USES = {room: set(uses.split()) for room, (_, uses) in ROOMS.items()}
ROOM_OF = {name: room for room, (names, _) in ROOMS.items() for name in names.split()}

PURE = ("policies", "estimator", "deciding")
IMPURE = {
    *("asyncio", "ctypes", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys"),
    *("tempfile", "threading", "time", "urllib", "uuid", "aiohttp", "click", "ClusterShell"),
    *("msgspec", "prometheus_client", "pynvml", "pyslurm", "torch"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for top in ("policies", "estimator", "slurm_ext", "daemon")
    for path in sorted((ROOT / top).rglob("*.py"))
}


def room_of(module: str) -> str | None:
    parts = module.split(".")
    starts = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ROOM_OF[start] for start in starts if start in ROOM_OF), None)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported, also inside functions, with relative imports refused."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> Iterator[str]:
    """The modules of ours that a module imports."""
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("ones."):
            module = name.removeprefix("ones.")
            yield module if module in MODULES else module.rpartition(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_row_says(room: str) -> None:
    inside = [module for module in MODULES if room_of(module) == room]
    assert inside, "no module is in this room: strike its row"
    for module in inside:
        for other in ours(MODULES[module]):
            used = room_of(other)
            assert used == room or used in USES[room], f"{module} ({room}) imports {other} ({used})"


def test_every_module_has_a_room() -> None:
    homeless = [name for name, path in MODULES.items() if room_of(name) is None]
    assert [name for name in homeless if list(ours(MODULES[name]))] == []
    packages = {name for name in homeless if MODULES[name].name == "__init__.py"}
    assert set(homeless) == packages, "give it a room in the table above"


def test_rooms_use_only_rooms_above_them() -> None:
    seen: set[str] = set()
    for room, uses in USES.items():
        assert uses <= seen, f"{room} uses {sorted(uses - seen)}, not above it"
        seen.add(room)


def test_no_imports_go_round() -> None:
    """Type-checking imports count too."""
    graph = {module: set(ours(path)) - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_reach_for_no_clock_file_socket_or_chance(room: str) -> None:
    for module in [module for module in MODULES if room_of(module) == room]:
        tree = ast.parse(MODULES[module].read_text())
        for name in imports(tree):
            assert name.split(".")[0] not in IMPURE, f"{module} imports {name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in IMPURE_CALLS, f"{module}:{node.lineno} {node.func.id}()"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "np.random",
                "numpy.random",
            ):
                assert node.attr == "Generator", f"{module}:{node.lineno} draws from np.random"
