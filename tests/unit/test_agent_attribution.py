"""Which job a process belongs to, in every form of evidence that Slurm leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ones.daemon.agent.attribution import (
    Owner,
    Process,
    Processes,
    job_of_cgroup,
    job_of_environ,
    job_of_title,
    parse_stat,
    parse_uids,
)

V2 = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"


@pytest.mark.parametrize(
    "text",
    [
        V2,
        "0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_special\n",
        "0::/system.slice/slurmstepd.scope/job_12/step_extern/slurm\n",
        "0::/system.slice/slurmstepd.scope/job_12\n",
        "0::/system.slice/n1_slurmstepd.scope/job_12/step_0/user/task_0\n",
        "0::/system.slice/gpu-a.site_slurmstepd.scope/job_12/step_0/user/task_0\n",
        "0::/../../system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n",
        "0::/kubepods/pod1/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n",
        "9:memory:/slurm/uid_1000/job_12/step_0/task_0\n",
        "9:cpuset:/slurm_n1/uid_1000/job_12/step_batch\n",
        "9:devices:/user.slice\n8:freezer:/slurm/uid_1000/job_12/step_0\n0::/\n",
        "1:name=systemd:/system.slice/slurmd.service\n4:memory:/slurm/uid_0/job_12/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/slurmstepd.scope/job_99\n",
    ],
)
def test_every_form_of_a_cgroup_tells_its_job(text: str) -> None:
    assert job_of_cgroup(text) == 12


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/system.slice/slurmd.service\n",
        "0::/system.slice/slurmstepd.scope/system\n",
        "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n",
        "0::/system.slice/slurmstepd.scope/job_012x/step_0\n",
        "0::/system.slice/slurmstepd.scope/job_0/step_0\n",
        "0::/system.slice/notslurmstepd.scope.d/job_12\n",
        "0::/system.slice/job_12/step_0\n",
        "4:memory:/slurm/uid_x/job_12\n",
        "4:memory:/slurm/job_12\n",
        "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_12/step_0\n",
        "0::/user@1000.service/system.slice/slurmstepd.scope/job_12/step_0\n",
        "4:memory:/user.slice/slurm/uid_1000/job_12\n",
    ],
)
def test_a_cgroup_that_is_no_job_or_that_a_user_could_make_proves_nothing(text: str) -> None:
    assert job_of_cgroup(text) is None


@pytest.mark.parametrize("step", ["0", "batch", "extern", "interactive", "4294967293", "0+1"])
def test_the_title_of_a_slurmstepd_tells_its_job(step: str) -> None:
    assert job_of_title(f"slurmstepd: [12.{step}]") == 12


@pytest.mark.parametrize(
    "title",
    [
        "",
        "slurmstepd: [12]",
        "slurmstepd: [12.]",
        "slurmstepd: [.0]",
        "slurmstepd: [12.0] x",
        "x slurmstepd: [12.0]",
        "slurmstepd infinity",
        "slurmstepd: [-1.0]",
        "slurmstepd: [00012.0]",
        "slurmstepd: [99999999999.0]",
    ],
)
def test_another_title_tells_none(title: str) -> None:
    assert job_of_title(title) is None


def test_an_environment_claims_a_job() -> None:
    assert job_of_environ(b"A=1\0SLURM_JOB_ID=12\0B=2\0") == 12
    assert job_of_environ(b"SLURM_JOB_ID=12") == 12
    assert job_of_environ(b"XSLURM_JOB_ID=12\0") is None
    assert job_of_environ(b"SLURM_JOB_ID=1x\0") is None
    assert job_of_environ(b"\xff\xfe\0=") is None


def test_a_name_with_parentheses_does_not_shift_the_fields_of_stat() -> None:
    fields = " ".join(str(number) for number in range(5, 50))
    stat = parse_stat(f"7 (a) R 1 (b) S 3 {fields}\n")
    assert stat is not None
    assert (stat.state, stat.parent, stat.born) == ("S", 3, 22)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    job_of_cgroup(text)
    job_of_title(text)
    job_of_environ(text.encode())
    parse_stat(text)


class Proc:
    """A /proc of our own making."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        *,
        parent: int = 1,
        born: int = 100,
        state: str = "S",
        cgroup: str = "0::/\n",
        title: str = "python",
        environ: str = "",
        uids: tuple[int, int, int] = (1000, 1000, 1000),
        exe: str = "/usr/bin/python3",
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (x) {state} {parent} " + "0 " * 17 + f"{born} 0\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_bytes(title.encode() + b"\0")
        (folder / "environ").write_bytes(environ.encode())
        real, effective, saved = uids
        (folder / "status").write_text(f"Name:\tx\nUid:\t{real}\t{effective}\t{saved}\t0\n")
        (folder / "exe").symlink_to(exe)

    def add_stepd(self, pid: int, title: str = "slurmstepd: [12.batch]", **more: object) -> None:
        self.add(pid, title=title, **{"uids": (0, 0, 0), "exe": "/usr/sbin/slurmstepd-wlm", **more})


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_cgroup_is_the_first_evidence(proc: Proc) -> None:
    proc.add_stepd(10, "slurmstepd: [13.0]")
    proc.add(11, parent=10, cgroup=V2, environ="SLURM_JOB_ID=14\0")
    assert Processes(proc.root).owner(11) == Owner(12, "cgroup")


def test_an_ancestor_that_is_roots_slurmstepd_is_the_second(proc: Proc) -> None:
    proc.add_stepd(10)
    proc.add(11, parent=10)
    proc.add(12, parent=11)
    processes = Processes(proc.root)
    assert processes.owner(12) == Owner(12, "slurmstepd")
    assert processes.owner(10) == Owner(12, "slurmstepd")


def test_a_sluid_cgroup_falls_back_to_the_title(proc: Proc) -> None:
    proc.add_stepd(10)
    sluid = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n"
    proc.add(11, parent=10, cgroup=sluid)
    assert Processes(proc.root).owner(11) == Owner(12, "slurmstepd")


def test_who_shares_a_sluid_cgroup_with_a_slurmstepd_is_of_its_job(proc: Proc) -> None:
    scope = "0::/system.slice/slurmstepd.scope"
    proc.add_stepd(10, cgroup=f"{scope}/s5K1KKYAYG5D00/step_0/slurm\n")
    # Its own parent is gone.
    proc.add(11, parent=1, cgroup=f"{scope}/s5K1KKYAYG5D00/step_0/user/task_0\n")
    proc.add(12, parent=1, cgroup=f"{scope}/s5K1KKYAYG5D01/step_0/user/task_0\n")
    proc.add(13, parent=1, cgroup="0::/user.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0\n")
    processes = Processes(proc.root)
    assert processes.owner(11) == Owner(12, "cgroup")
    assert processes.owner(12) is None
    assert processes.owner(13) is None


def test_a_slurmstepd_that_lends_its_effective_id_to_the_user_is_still_one(proc: Proc) -> None:
    proc.add_stepd(10, uids=(0, 1000, 0))
    proc.add(11, parent=10)
    assert Processes(proc.root).owner(11) == Owner(12, "slurmstepd")


@pytest.mark.parametrize(
    "forged",
    [
        {"uids": (1000, 1000, 1000)},
        {"uids": (1000, 0, 0), "exe": "/usr/bin/sudo"},
        {"uids": (1000, 0, 0)},
        {"uids": (0, 0, 0), "exe": "/usr/bin/sudo"},
    ],
)
def test_a_user_who_titles_his_own_process_slurmstepd_proves_nothing(
    proc: Proc, forged: dict[str, object]
) -> None:
    proc.add_stepd(10, **forged)
    proc.add(11, parent=10)
    assert Processes(proc.root).owner(11) is None


def test_the_environment_counts_for_the_owner_of_the_jobs_folder_only(proc: Proc) -> None:
    proc.add(11, environ="SLURM_JOB_ID=12\0")
    assert Processes(proc.root, {12: 1000}.get).owner(11) == Owner(12, "environ")
    assert Processes(proc.root, {12: 1001}.get).owner(11) is None
    assert Processes(proc.root).owner(11) is None


def test_a_process_that_is_gone_belongs_to_nobody(proc: Proc) -> None:
    assert Processes(proc.root).owner(99) is None


def test_a_circle_of_parents_ends(proc: Proc) -> None:
    proc.add(11, parent=12)
    proc.add(12, parent=11)
    assert Processes(proc.root).owner(11) is None


def test_a_process_id_used_again_is_another_process(proc: Proc) -> None:
    proc.add(11, born=7)
    proc.add(12, state="Z")
    processes = Processes(proc.root)
    assert processes.alive(Process(11, 7))
    assert not processes.alive(Process(11, 6))
    assert processes.process(12) is None


def test_all_slurmstepds_are_found_by_job(proc: Proc) -> None:
    proc.add_stepd(10, born=1)
    proc.add_stepd(11, "slurmstepd: [12.0]", born=2)
    proc.add_stepd(12, "slurmstepd: [13.extern]", born=3)
    proc.add_stepd(13, "slurmstepd: [14.0]", uids=(1000, 1000, 1000))
    proc.add(14)
    (proc.root / "self").mkdir()
    assert Processes(proc.root).stepds() == {
        12: {Process(10, 1), Process(11, 2)},
        13: {Process(12, 3)},
    }


def test_the_real_proc_can_be_read() -> None:
    processes = Processes()
    own = processes.process(os.getpid())
    assert own is not None
    assert processes.alive(own)
    assert processes.uid(os.getpid()) == os.geteuid()
    assert parse_uids(Path("/proc/self/status").read_text()) is not None
