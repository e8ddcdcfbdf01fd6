"""The rooms import one way only, and the pure ones reach for nothing outside themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "policies": set(),
    "estimator": {"policies"},
    "slurm_ext": {"policies"},
    "daemon": {"slurm_ext", "estimator", "policies"},
}
PURE = ("policies", "estimator")
IMPURE = {
    *("asyncio", "ctypes", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys"),
    *("tempfile", "threading", "time", "urllib", "uuid", "aiohttp", "click", "ClusterShell"),
    *("msgspec", "prometheus_client", "pynvml", "pyslurm", "torch"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, also inside functions, with relative imports refused."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            if node.module == "ones":
                yield from (f"ones.{alias.name}" for alias in node.names)


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_one_way_only(room: str) -> None:
    for path in modules(room):
        for name in imports(ast.parse(path.read_text())):
            parts = name.split(".")
            if parts[0] == "ones" and len(parts) > 1 and parts[1] != room:
                assert parts[1] in MAY_IMPORT[room], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_reach_for_no_clock_file_socket_or_chance(room: str) -> None:
    for path in modules(room):
        tree = ast.parse(path.read_text())
        where = path.relative_to(ROOT)
        for name in imports(tree):
            assert name.split(".")[0] not in IMPURE, f"{where} imports {name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in IMPURE_CALLS, f"{where}:{node.lineno} {node.func.id}()"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "np.random",
                "numpy.random",
            ):
                assert node.attr == "Generator", f"{where}:{node.lineno} draws from np.random"


def test_every_room_is_really_looked_at() -> None:
    assert all(modules(room) for room in MAY_IMPORT)
