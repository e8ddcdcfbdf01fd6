from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ones.slurm_ext.commands import Commands
from ones.slurm_ext.errors import SlurmError, SlurmUnreachable, Superseded

SHELL = ("sh", "-c")


def test_what_a_program_prints_comes_back_and_is_counted() -> None:
    commands = Commands()
    assert commands.run("echo", "n[1-2]") == "n[1-2]\n"
    assert (commands.calls, commands.errors) == (1, 0)
    assert commands.seconds > 0


def test_programs_speak_c_and_seconds_whatever_the_site_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    shown = Commands().run(*SHELL, 'echo "$LC_ALL $SLURM_TIME_FORMAT ${SQUEUE_FORMAT-unset}"')
    assert shown == "C %s unset\n"


def test_a_refusal_is_one_line_with_the_command() -> None:
    commands = Commands()
    with pytest.raises(SlurmError) as caught:
        commands.run(*SHELL, "echo Invalid job id; echo specified >&2; exit 1")
    assert str(caught.value).endswith("exit 1: specified")
    assert not isinstance(caught.value, SlurmUnreachable)
    assert commands.errors == 1


def test_a_refusal_that_the_status_hides_is_told_by_its_words() -> None:
    script = "echo scancel: error: Kill job error on job id 7: Access/permission denied >&2"
    assert Commands().write(*SHELL, script) == ""
    with pytest.raises(SlurmError, match="job id 7: Access/permission denied"):
        Commands().write(*SHELL, script, refusal="Kill job error")
    harmless = "echo done; echo scancel: error: If munged is up, restart it >&2"
    assert Commands().write(*SHELL, harmless, refusal="Kill job error") == "done\n"


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "Unexpected message received for job 546",
        "scancel: error: slurm_kill_jobs: Unable to signal jobs: Operation not permitted",
    ],
)
def test_a_controller_that_is_away_is_told_from_a_refusal(words: str) -> None:
    with pytest.raises(SlurmUnreachable, match="scontrol ping"):
        Commands().run(*SHELL, f"echo '{words}' >&2; exit 1")


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(SlurmUnreachable, match=r"no answer in 0\.1 s"):
        Commands(timeout=0.1).run("sleep", "5")


def test_nothing_is_changed_once_another_onesd_has_taken_over(tmp_path: Path) -> None:
    over: list[bool] = []
    asked: list[float] = []

    def fence() -> None:
        asked.append(waited[-1] if waited else 0.0)
        if over:
            raise Superseded("another onesd has taken over")

    waited: list[float] = []
    commands = Commands(writes_per_second=1.0, clock=lambda: 0.0, sleep=waited.append, fence=fence)
    commands.write("touch", str(tmp_path / "first"))
    commands.write("touch", str(tmp_path / "second"))
    assert asked == [0.0, 1.0]  # behind the wait, in which the term may end
    over.append(True)
    with pytest.raises(Superseded):
        commands.write("touch", str(tmp_path / "third"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
    assert commands.run("echo", "may be read") == "may be read\n"


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(SlurmError, match=r"squeue-of-another-world.*PATH"):
        Commands().run("squeue-of-another-world")


def test_bytes_that_are_no_text_do_not_stop_us() -> None:
    script = "import sys; sys.stdout.buffer.write(b'a\\xffb')"
    assert Commands().run(sys.executable, "-c", script) == "a\ufffdb"


def test_writes_are_bounded_and_reads_are_not() -> None:
    slept: list[float] = []
    commands = Commands(writes_per_second=2, clock=lambda: 100.0, sleep=slept.append)
    for _ in range(4):
        commands.write("true")
    for _ in range(4):
        commands.run("true")
    assert slept == [0.5, 1.0]
