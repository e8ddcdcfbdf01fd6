"""How much memory a worker can still have, where a job's limit is not its own cgroup's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
CPU = SimpleNamespace(type="cpu")
MIB = 1 << 20


class Cgroups:
    """A job's cgroups, as Slurm makes them, of which this process is in the last."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from ones.slurm_ext.runtime.live import memory

        self._root = root / "cgroup"
        own = root / "own"
        own.write_text("0::/system.slice/job_7/step_0/user/task_0\n")
        monkeypatch.setattr(memory, "OWN_CGROUP", own)
        monkeypatch.setattr(memory, "CGROUP", self._root)
        monkeypatch.setattr(memory, "MEMINFO", root / "none")

    def say(self, name: str, *, most: int | None, current: int, files: int = 0) -> None:
        folder = self._root / "system.slice" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text("max" if most is None else str(most * MIB))
        (folder / "memory.current").write_text(str(current * MIB))
        stat = (
            f"anon 5\ninactive_file {files * MIB // 2}\nactive_file {files * MIB // 2}\nshmem 7\n"
        )
        (folder / "memory.stat").write_text(stat)


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroups:
    return Cgroups(tmp_path, monkeypatch)


def test_the_limit_that_leaves_least_counts_wherever_it_is(cgroups: Cgroups) -> None:
    from ones.slurm_ext.runtime.live.memory import available

    cgroups.say("job_7", most=1024, current=900)
    cgroups.say("job_7/step_0", most=2048, current=900)
    cgroups.say("job_7/step_0/user/task_0", most=None, current=300)
    assert available(CPU) == 124 * MIB


def test_what_files_take_is_given_back_where_it_is_wanted(cgroups: Cgroups) -> None:
    from ones.slurm_ext.runtime.live.memory import available

    cgroups.say("job_7", most=1024, current=1000, files=600)
    assert available(CPU) == 624 * MIB


def test_without_any_limit_nobody_says(cgroups: Cgroups) -> None:
    from ones.slurm_ext.runtime.live.memory import available

    cgroups.say("job_7/step_0/user/task_0", most=None, current=300)
    assert available(CPU) is None
