"""What scripts ask for, and what accounting says runs asked for and used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.slurm_ext.batch_script import Asked, ScriptError, read_script
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.usage import seconds_in, size_in, usage_of


def asked(folder: Path, *lines: str) -> Asked:
    file = folder / "train.sbatch"
    file.write_text("\n".join(["#!/bin/bash", *lines, "python train.py"]) + "\n")
    return read_script(file)


def test_options_are_read_in_every_form_that_sbatch_takes(tmp_path: Path) -> None:
    found = asked(
        tmp_path,
        "#SBATCH --job-name=bert --gpus-per-node=a100:4  # four of the large ones",
        "#SBATCH -N 2 -c8",
        "#SBATCH --ntasks-per-node 4 --mem=64G",
        "# a remark",
        "",
        "#SBATCH -t 1-12",
    )
    assert found == Asked(
        name="bert", gpus=8, nodes=2, cpus=32.0, memory=65536.0, time_limit=36 * 3600.0
    )


def test_a_job_without_a_name_has_that_of_its_script_and_commands_end_the_options(
    tmp_path: Path,
) -> None:
    found = asked(tmp_path, "#SBATCH --gpus=2", "date", "#SBATCH --gpus=8 --job-name=late")
    assert found == Asked(name="train.sbatch", gpus=2)


def test_a_script_need_be_no_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "train.sbatch"
    file.write_bytes("#!/bin/bash\n# Größe\n#SBATCH --gpus=4\n".encode("latin-1"))
    assert read_script(file).gpus == 4


@pytest.mark.parametrize("other", ["\f", "\v", "\x85", "\u2028"])
def test_lines_end_where_sbatch_ends_them(tmp_path: Path, other: str) -> None:
    assert asked(tmp_path, f"# before{other}after", "#SBATCH --gpus=4").gpus == 4


@pytest.mark.parametrize(
    ("nodes", "most"), [("1,4", 4), ("2-8:2", 8), ("1,2-4", 4), ("1,4-8:2,16", 16), ("3", 3)]
)
def test_of_several_numbers_of_nodes_the_largest_counts(
    tmp_path: Path, nodes: str, most: int
) -> None:
    assert asked(tmp_path, f"#SBATCH -N {nodes} --gpus-per-node=2").gpus == 2 * most


@pytest.mark.parametrize("tres", ["gres/gpu:1", "gres/gpu=1", "cpu:2,gres/gpu:a100:1", "gres/gpu"])
def test_gpus_of_each_task_may_be_asked_for_as_tres(tmp_path: Path, tres: str) -> None:
    found = asked(tmp_path, f"#SBATCH --tres-per-task={tres} -n 4")
    assert found.gpus == 4
    assert found.cpus == (8.0 if "cpu" in tres else None)


@pytest.mark.parametrize(
    ("options", "memory", "cpus"),
    [
        ("--gpus=4 --mem=1000", 1000.0, None),
        ("--gpus=4 --mem=0", None, None),
        ("--gpus=4 --mem-per-gpu=2G --cpus-per-gpu=3", 8192.0, 12.0),
        ("--gres=gpu:2,shm:1 --mem-per-cpu=512M --cpus-per-task=4", 2048.0, 4.0),
        ("--gpus-per-task=1 --ntasks=4 --cpus-per-task=2", None, 8.0),
    ],
)
def test_memory_and_cores_are_those_of_a_node(
    tmp_path: Path, options: str, memory: float | None, cpus: float | None
) -> None:
    found = asked(tmp_path, f"#SBATCH {options}")
    assert (found.memory, found.cpus) == (memory, cpus)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("30:15", 1815.0),
        ("2:30:15", 9015.0),
        ("1-2", 93600.0),
        ("1-2:30", 95400.0),
        ("UNLIMITED", None),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    assert asked(tmp_path, f"#SBATCH --time={text}").time_limit == seconds


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#SBATCH --job-name='open", ":2: no closing quotation"),
        ("#SBATCH --nodes=two", ":2: --nodes=two: is no number"),
        ("#SBATCH --gpus=", ":2: --gpus=: is no number of GPUs"),
        ("#SBATCH --mem=lots", ":2: --mem=lots: is no amount of memory"),
        ("#SBATCH --time=noon", ":2: --time=noon: is no time"),
    ],
)
def test_an_option_that_can_not_be_read_is_named_with_its_line(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(ScriptError, match=r"^[^\n]*$") as fault:
        asked(tmp_path, line)
    assert words in str(fault.value)
    assert "train.sbatch" in str(fault.value)


def test_what_is_no_script_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="is no file"):
        read_script(tmp_path)
    (tmp_path / "a").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(ScriptError, match="does not begin with #!"):
        read_script(tmp_path / "a")
    (tmp_path / "b").write_text("import torch\n")
    with pytest.raises(ScriptError, match="does not begin with #!"):
        read_script(tmp_path / "b")


LINES = """\
7|0|COMPLETED|1000|4600|3600|2||16|64G|08:00:00||120
7.batch|0|COMPLETED|1000|4600|3600|1|1|8||04:00:00|2048K|
7.0|0|COMPLETED|1010|4600|3590|2|4|16||04:00:00|3G|
8|0|REQUEUED|1000|1100|100|1||4|4000Mn|01:40||UNLIMITED
8|1|RUNNING|1200|Unknown|50|1||4|4000Mn|00:00||UNLIMITED
8.batch|1|RUNNING|1200|Unknown|50|1|1|4||00:00|9G|
9|0|OUT_OF_MEMORY|1000|1010|10|1||2|1Gc|00:05.500||10
"""


class Sacct:
    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, *_: str) -> str:
        return self.text


def test_the_used_memory_is_that_of_a_nodes_tasks_and_belongs_to_its_own_run() -> None:
    first, second, third = usage_of(Sacct(LINES), [7, 8, 9])
    assert (first.job, first.seconds, first.memory) == (7, 3600.0, 2 * 3072.0)
    assert (first.memory_asked, first.cpu_seconds, first.time_limit) == (32768.0, 28800.0, 7200.0)
    assert (second.ordinal, second.memory, second.memory_asked) == (0, None, 4000.0)
    assert second.time_limit is None
    assert (third.memory_asked, third.cpu_seconds) == (2048.0, 5.5)


def test_accounting_of_another_form_is_an_error() -> None:
    with pytest.raises(SlurmError, match="2 fields"):
        usage_of(Sacct("7|0\n"), [7])


def test_sizes_and_times_are_none_where_slurm_leaves_them_out() -> None:
    assert size_in("2.50G") == 2560.0
    assert size_in("") is None
    assert seconds_in("1-00:00:01") == 86401.0
    assert seconds_in("INVALID") is None
