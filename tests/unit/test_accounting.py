from __future__ import annotations

import pytest

from ones.slurm_ext.accounting import Held, Run, runs_of
from ones.slurm_ext.errors import SlurmError

TYPED = "billing=4,cpu=4,gres/gpu:v100=4,gres/gpu=4,mem=2000M,node=1"
LINES = f"""\
12|1|1200|1300|REQUEUED|{TYPED}|n[1-2]
12|0|1000|1100|REQUEUED|{TYPED}|n1
12|2|1400|Unknown|RUNNING|cpu=2,gres/gpu=2,node=1|n3
13|0|None|1384|CANCELLED by 0||None assigned
14|0|Unknown|Unknown|PENDING||None assigned
9|0|900|950|CANCELLED by 2001|cpu=1,gres/gpu:k80=2,node=1|n4
"""


class Sacct:
    """Commands that print the same accounting whatever is asked."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, list[tuple[str, ...]]()

    def run(self, *command: str) -> str:
        self.asked.append(command)
        return self.text


def test_each_start_of_a_job_is_a_run_in_order() -> None:
    runs = runs_of(Sacct(LINES), [12, 13, 14, 9])
    assert [(run.job, run.ordinal, run.gpus, run.ended) for run in runs] == [
        (9, 0, 2, 950.0),
        (12, 0, 4, 1100.0),
        (12, 1, 4, 1300.0),
        (12, 2, 2, None),
    ]
    assert runs[0].state == "CANCELLED"
    assert runs[2] == Run(
        job=12, ordinal=1, started=1200, ended=1300, state="REQUEUED", nodes="n[1-2]", gpus=4
    )


RESIZED = f"""\
12|0|1000|1100|RESIZING|{TYPED}|n[1-3]
12|0|1000|1300|COMPLETED|cpu=2,gres/gpu=2,node=1|n1
12|0|1000|1200|RESIZING|cpu=3,gres/gpu=3,node=2|n[1-2]
"""


def test_a_run_that_got_smaller_is_one_run_that_held_more_before() -> None:
    (run,) = runs_of(Sacct(RESIZED), [12])
    assert (run.started, run.ended, run.nodes, run.gpus) == (1000, 1300, "n1", 2)
    assert run.before == (
        Held(until=1100, nodes="n[1-3]", gpus=4),
        Held(until=1200, nodes="n[1-2]", gpus=3),
    )


def test_many_jobs_are_asked_for_in_few_calls() -> None:
    sacct = Sacct("")
    assert runs_of(sacct, range(1, 12001)) == []
    assert len(sacct.asked) == 3
    assert runs_of(sacct, []) == []
    assert len(sacct.asked) == 3


def test_a_line_that_is_none_of_ours_is_an_error() -> None:
    with pytest.raises(SlurmError, match="3 fields"):
        runs_of(Sacct("a|b|c\n"), [1])
