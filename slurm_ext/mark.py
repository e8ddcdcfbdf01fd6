"""The mark of a job that opted in, as job_submit.lua writes it into the job's admin_comment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ones.policies.sizes import Sizes
from ones.slurm_ext.counts import count_in
from ones.slurm_ext.errors import in_a_line
from ones.slurm_ext.snapshot import MARK

LONGEST = 1024
MOST_COUNT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`ONES1:sizes=2-16;request=4;held=1;tasks=4;nodes=1;mem=no;cpu=no;type=v100`, then a space and
    others'.

    Tasks, nodes and type are the job's own at submission: later its record shows what we gave it.
    """

    sizes: Sizes
    request: int  # GPUs in the job's own request
    held: bool  # held for onesd at submission
    tasks: int | None = None
    nodes: int | None = None
    gpu_type: str = ""  # of its GPUs, where the job names one
    memory: int | None = None  # MiB of each node, where it was asked for so
    left_out: frozenset[str] = frozenset()  # of memory and cpus, what its user said nothing of
    stage: int | None = None  # the job that stages data in for it

    @classmethod
    def parse(cls, admin_comment: str) -> Mark | None:
        """The mark, or None where there is none that can be read."""
        try:
            return cls.read(admin_comment)
        except ValueError:
            return None

    @classmethod
    def read(cls, admin_comment: str) -> Mark:
        """The mark. Raises ValueError with one line that says what is wrong with it."""
        return _read(admin_comment.split(" ", 1)[0])

    @classmethod
    def of(cls, text: str) -> Mark:
        """The same of the mark alone, read anew."""
        if not text.startswith(MARK):
            raise ValueError(f"its admin comment does not begin with {MARK}")
        if len(text) > LONGEST:
            raise ValueError(f"its mark is longer than {LONGEST} characters")
        values: dict[str, str] = {}
        for item in text.removeprefix(MARK).split(";"):
            key, equals, value = item.partition("=")
            if not equals or not key or key in values:
                raise ValueError(
                    f"its mark has '{in_a_line(item[:60])}' where one key=value belongs"
                )
            values[key] = value
        missing = [key for key in ("sizes", "request", "held") if key not in values]
        if missing:
            raise ValueError(f"its mark lacks {missing[0]}")
        if values["held"] not in ("0", "1"):
            raise ValueError(f"its mark says held={in_a_line(values['held'][:20])}, not 0 or 1")
        return cls(
            sizes=Sizes.parse(values["sizes"]),
            request=_count(values, "request", least=1) or 1,
            held=values["held"] == "1",
            tasks=_count(values, "tasks", least=0),
            nodes=_count(values, "nodes", least=1),
            gpu_type=values.get("type", ""),
            stage=_count(values, "stage", least=1),
            memory=None if values.get("mem") in (None, "no", "yes") else _memory(values),
            left_out=frozenset(
                name
                for name, key in (("memory", "mem"), ("cpus", "cpu"))
                if values.get(key) == "no"
            ),
        )


@lru_cache(maxsize=16384)
def _read(text: str) -> Mark:
    """Every job's mark is read several times a round, and never changes."""
    return Mark.of(text)


def _memory(values: dict[str, str]) -> int | None:
    return _count(values, "mem", least=0) or None  # 0 is all that the node has


def _count(values: dict[str, str], key: str, *, least: int) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    count = count_in(text)
    if count is None or not least <= count <= MOST_COUNT:
        raise ValueError(f"its mark says {key}={in_a_line(text[:20])}, not a count")
    return count
