"""`--elastic` on a real Slurm: the plugin, job_submit.lua and ones-release together."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ones.policies.sizes import Sizes

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster

HEARTBEAT = "/run/ones/heartbeat"
FAKE_AGENT = Path(__file__).with_name("fake_agent.py")


class Users:
    """What alice does on the cluster, and what can be seen of her jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run("ctl", line, user="alice", check=False)

    def submit(self, options: str, script: str = "true") -> int:
        done = self.cluster.run(
            "ctl",
            f"sbatch --parsable --output=%j.out {options}",
            user="alice",
            stdin=f"#!/bin/bash\n{script}\n",
        )
        return int(done.stdout)

    def field(self, job: int, name: str) -> str:
        shown = self.cluster.run("ctl", ["scontrol", "show", "job", str(job)]).stdout
        found = re.search(rf"\b{name}=(.*?)(?= \w+(?:/\w+)?=|\s*$)", shown, re.MULTILINE)
        return found[1].strip() if found else ""

    def mark(self, job: int) -> str:
        """The admin comment without the tasks and nodes at submission."""
        return re.sub(r";tasks=\d+;nodes=\d+;mem=\w+;cpu=\w+", "", self.field(job, "AdminComment"))

    def output(self, job: int, *, within: float = 90) -> str:
        """What the job printed, once it has ended well."""
        self.cluster.eventually(
            lambda: (
                self.field(job, "JobState")
                not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
            ),
            within=within,
            what=f"job {job} has ended",
        )
        printed = self.cluster.run("ctl", ["cat", f"/home/alice/{job}.out"]).stdout
        assert self.field(job, "JobState") == "COMPLETED", printed
        return printed


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Users]:
    if cluster.run("ctl", "pgrep -f bin/onesd", check=False).returncode == 0:
        pytest.skip("onesd runs on this cluster and would write the heartbeat itself")
    cluster.run("ctl", f"rm -f {HEARTBEAT}")
    yield Users(cluster)
    cluster.run("ctl", f"rm -f {HEARTBEAT}; scancel --user=alice --quiet")


@pytest.fixture
def beat(cluster: Cluster, alice: Users) -> Callable[..., None]:
    def write(*, age: int = 0, hold: str = "yes") -> None:
        text = (
            f"ones-heartbeat 1\ntime {time.time() - age:.0f}\nlifetime 30\nhold {hold}\n"
            "partition gpu 16 k80=8,v100=8\n"
        )
        cluster.run("ctl", f"cat > {HEARTBEAT}.new; mv {HEARTBEAT}.new {HEARTBEAT}", stdin=text)

    return write


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_the_option_is_in_the_help(alice: Users, command: str) -> None:
    shown = alice.type(f"{command} --help").stdout
    assert "--elastic=[SIZES]" in shown
    assert "2-16, 4-16:4 or 1,2,4,8" in shown


@pytest.mark.parametrize(
    ("option", "sizes"),
    [
        ("--elastic", "1-4"),
        ("--elastic=4", "4"),
        ("--elastic=2-16", "2-16"),
        ("--elastic=4-16:4", "4-16:4"),
        ("--elastic=1,2,4,8", "1,2,4,8"),
        ("--elastic=1,2-4,8", "1,2,3,4,8"),
    ],
)
def test_every_form_of_sizes_is_accepted(alice: Users, option: str, sizes: str) -> None:
    job = alice.submit(f"--hold --gpus=4 {option}")
    expected = sizes if len(sizes) <= len(option) - len("--elastic=") else option[10:] or sizes
    assert alice.mark(job) == f"ONES1:sizes={expected};request=4;held=0"
    assert alice.field(job, "Requeue") == "1"


def test_a_line_of_the_script_does_as_well(alice: Users) -> None:
    job = alice.submit("--hold", "#SBATCH --gres=gpu:2\n#SBATCH --nodes=2\n#SBATCH --elastic=2-8:2")
    assert alice.mark(job) == "ONES1:sizes=2-8:2;request=4;held=0"


@pytest.mark.parametrize(
    "text",
    ["8-2", "0-4", "4-0", "x", "2-", "2-4:", "2-4:0", "1,,2", "70000", "", "1234567890", "1" * 257],
)
def test_bad_sizes_are_refused_with_the_words_of_the_grammar(alice: Users, text: str) -> None:
    with pytest.raises(ValueError) as fault:
        Sizes.parse(text)
    refused = alice.type(f"sbatch --gpus=4 --elastic={text} --wrap true")
    assert refused.returncode == 255
    assert refused.stderr.splitlines()[0] == f"sbatch: error: --elastic: {fault.value}"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sbatch --elastic=2-4 --wrap true", "asks for no GPUs.*e.g. --gpus=4"),
        ("sbatch --elastic=1-17 --gpus=4 --wrap true", "partition gpu has 16; use --elastic=1-16"),
        (
            "sbatch --elastic=2-16:2 --gpus=v100:4 --wrap true",
            "gpu has 8 of type v100; use --elastic=2-8:2",
        ),
        ("sbatch --elastic=2-4 --gpus=6 --wrap true", "asks for 6 GPUs.*--elastic=2-6"),
        ("sbatch --elastic=2,4 -N1-3 --gres=gpu:2 --wrap true", "--nodes is a range"),
        ("sbatch --elastic --gpus=2 : --gpus=2 --wrap true", "heterogeneous"),
        ("sbatch --elastic --gpus=2 --no-requeue --wrap true", "--no-requeue"),
        ("sbatch --elastic --gpus=2 --nodelist=n1 --wrap true", "--nodelist=n1"),
        ("sbatch --elastic --gpus=v100:1,k80:1 --wrap true", "two types of GPU"),
        (
            "sbatch --elastic --sockets-per-node=2 --gpus-per-socket=1 --wrap true",
            "use --gpus-per-node",
        ),
        ("srun --elastic=2-4 --gpus=2 true", "use sbatch --elastic"),
        ("salloc --elastic=2-4 --gpus=2 true", "use sbatch --elastic"),
    ],
)
def test_what_cannot_be_elastic_is_refused_with_a_way_out(
    alice: Users, beat: Callable[..., None], command: str, words: str
) -> None:
    beat()
    refused = alice.type(command)
    assert refused.returncode == 1
    assert re.search(words, refused.stderr.splitlines()[0])
    assert alice.type("squeue --noheader --me").stdout == ""


def test_a_plain_job_passes_untouched_beside_a_living_onesd(
    alice: Users, beat: Callable[..., None]
) -> None:
    beat()
    job = alice.submit("--gpus=2 --no-requeue", "env")
    assert "ELASTIC" not in alice.output(job)
    assert alice.mark(job) == ""
    assert alice.field(job, "Requeue") == "0"


def test_an_elastic_job_is_held_while_onesd_lives_and_its_user_cannot_change_the_mark(
    cluster: Cluster, alice: Users, beat: Callable[..., None]
) -> None:
    beat()
    job = alice.submit("--gpus=2 --elastic=1-4")
    mark = "ONES1:sizes=1-4;request=2;held=1"
    assert alice.field(job, "Reason") == "JobHeldUser"
    assert alice.mark(job) == mark

    refused = alice.type(f"scontrol update JobId={job} AdminComment=ONES1:sizes=1-99")
    assert "Access/permission denied" in refused.stderr
    assert alice.mark(job) == mark

    cluster.run("ctl", ["scontrol", "update", f"JobId={job}", "AdminComment=look at this"])
    assert alice.mark(job) == f"{mark} look at this"
    cluster.run("ctl", ["scontrol", "update", f"JobId={job}", "AdminComment="])
    assert alice.mark(job) == ""


def test_a_job_that_waits_for_another_starts_by_itself_while_onesd_lives(
    alice: Users, beat: Callable[..., None]
) -> None:
    beat()
    first = alice.submit("--gpus=1")
    job = alice.submit(f"--gpus=2 --elastic --dependency=afterok:{first}")
    assert alice.mark(job) == "ONES1:sizes=1-2;request=2;held=0"
    alice.output(job)


@pytest.mark.parametrize("heartbeat", [{"age": 60}, {"hold": "no"}], ids=["stale", "no hold"])
def test_an_elastic_job_runs_as_a_plain_one_without_onesd(
    alice: Users, beat: Callable[..., None], heartbeat: dict[str, int | str]
) -> None:
    beat(**heartbeat)
    job = alice.submit("--gpus=2 --elastic=1-4", "echo $SLURM_ELASTIC")
    assert alice.output(job) == "1-4\n"
    assert alice.mark(job).endswith("held=0")


def test_the_timer_releases_what_a_dead_onesd_held_and_nothing_else(
    alice: Users, beat: Callable[..., None]
) -> None:
    beat()
    job = alice.submit("--gpus=2 --elastic=1-4")
    users_own = alice.submit("--hold --gpus=2 --elastic=1-4")
    assert alice.field(job, "JobState") == "PENDING"
    beat(age=60)
    alice.output(job)
    assert alice.field(users_own, "Reason") == "JobHeldUser"


def test_the_timer_releases_a_requeued_job_from_a_pin_to_a_lost_node(
    cluster: Cluster, alice: Users
) -> None:
    job = alice.submit(
        "--gpus=v100:2 --elastic", 'test "$SLURM_RESTART_COUNT" = 1 || sleep 60; hostname'
    )
    cluster.eventually(
        lambda: alice.field(job, "JobState") == "RUNNING", within=45, what=f"job {job} runs"
    )
    cluster.run("ctl", "scontrol update NodeName=n1 State=DRAIN Reason=test")
    try:
        # As onesd leaves it when it dies between holding and releasing.
        cluster.run(
            "ctl",
            f"scontrol requeuehold incomplete {job}; scontrol hold {job} &&"
            f" scontrol update JobId={job} ReqNodeList=n1",
        )
        assert alice.output(job) == "n2\n"
    finally:
        cluster.run("ctl", "scontrol update NodeName=n1 State=RESUME")


def test_steps_work_within_an_elastic_job_and_its_jobs_are_not_elastic(alice: Users) -> None:
    job = alice.submit(
        "--gpus=2 -n2 --elastic",
        'srun -n2 sh -c "echo step $SLURM_ELASTIC"\n'
        "srun -n1 --elastic=2 true && echo accepted\n"
        "sbatch --wait --quiet --output=inner.out --wrap 'env; echo inner'\n"
        "grep -E 'ELASTIC|ONES_(SIZES|GPUS)|inner' inner.out",
    )
    assert alice.output(job) == "step 1-2\nstep 1-2\naccepted\ninner\n"


@pytest.mark.parametrize("missing", ["plugin", "configuration"])
def test_a_node_without_the_plugin_runs_elastic_jobs(
    cluster: Cluster, alice: Users, missing: str
) -> None:
    path = "/etc/slurm/plugstack.conf"
    if missing == "plugin":
        path = cluster.run("n3", "find /usr/lib -name spank_ones.so").stdout.strip()
    cluster.run("n3", f"mv {path} {path}.away")
    try:
        job = alice.submit("--gpus=2 --exclude=n1,n2,n4 --elastic", "srun echo $SLURM_ELASTIC")
        # Without the plugin that its plugstack.conf names, srun says so, and goes on.
        assert alice.output(job).splitlines()[-1] == "1-2"
    finally:
        cluster.run("n3", f"mv {path}.away {path}")


class FakeAgent:
    """An agent on n1 that answers every question alike and writes the questions down."""

    socket = "/run/ones/fake.sock"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def start(self, mode: str) -> None:
        self.cluster.run("n1", "cat > /tmp/fake_agent.py", stdin=FAKE_AGENT.read_text())
        self.cluster.run(
            "n1",
            f"rm -f {self.socket} /tmp/questions /tmp/endings;"
            f" setsid /opt/ones/bin/python /tmp/fake_agent.py {self.socket} {mode}"
            " > /dev/null 2>&1 & echo $! > /tmp/fake_agent.pid;"
            f" until test -S {self.socket}; do sleep 0.05; done",
        )

    def stop(self) -> None:
        self.cluster.run("n1", "kill $(cat /tmp/fake_agent.pid)", check=False)

    @property
    def endings(self) -> list[str]:
        return self.cluster.run("n1", "cat /tmp/endings", check=False).stdout.splitlines()

    @property
    def questions(self) -> list[str]:
        return self.cluster.run("n1", "cat /tmp/questions", check=False).stdout.splitlines()


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[FakeAgent]:
    conf = "/etc/slurm/plugstack.conf"
    cluster.run("n1", f"cp {conf} {conf}.away")
    cluster.run("n1", f"echo 'optional spank_ones.so socket={FakeAgent.socket}' > {conf}")
    fake = FakeAgent(cluster)
    yield fake
    fake.stop()
    cluster.run("n1", f"mv {conf}.away {conf}")


ON_N1 = "--gpus=2 --exclude=n2,n3,n4"
SHOW = "env | grep -E '^(ONES_|EVIL|LD_PRELOAD)' | grep -v SUPERVISE | sort"


def test_the_agents_variables_reach_script_and_steps_and_no_others_do(
    alice: Users, agent: FakeAgent
) -> None:
    agent.start("answer")
    job = alice.submit(f"{ON_N1} --elastic=2-16", f"{SHOW}\necho step\nsrun bash -c {SHOW!r}")
    given = "ONES_GPUS=4\nONES_SIZES=2-16\n"
    assert alice.output(job) == f"{given}step\n{given}"
    assert agent.questions == [f"env {job} 2001"] * 2


def test_a_plain_job_asks_the_agent_nothing(alice: Users, agent: FakeAgent) -> None:
    agent.start("answer")
    assert alice.output(alice.submit(ON_N1, f"{SHOW}; srun true; echo end")) == "end\n"
    assert agent.questions == []


@pytest.mark.parametrize("mode", ["hang", "drip", "flood", "drop"])
def test_an_agent_that_misbehaves_is_hung_up_on_and_sets_no_variables(
    alice: Users, agent: FakeAgent, mode: str
) -> None:
    agent.start(mode)
    job = alice.submit(f"{ON_N1} --elastic", f"echo began; {SHOW}")
    assert alice.output(job) == "began\n"
    assert agent.questions == [f"env {job} 2001"]
    # Otherwise the agent would have gone on for a minute: a second or two are Slurm's own.
    ending = "agent" if mode == "drop" else "plugin"
    alice.cluster.eventually(
        lambda: agent.endings == [ending], within=30, what=f"the {ending} ended the answer"
    )
