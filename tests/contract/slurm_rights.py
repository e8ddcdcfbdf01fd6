"""Which of Slurm's rights each call of onesd and ones-release needs, found by making it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from slurm_jobs import Slurm

from ones.slurm_ext.actions import FIRST

ACCOUNT, OTHER_ACCOUNT = "vision", "language"  # jobs here are alice's, in the first one
LATER = "--begin=now+3600"
PRIVATE = "jobs,nodes,partitions,reservations,usage,users,accounts"


@dataclass(frozen=True, slots=True)
class Level:
    """Somebody whom Slurm allows so much."""

    user: str
    shown: str
    admin: str = "None"
    coordinates: str = ""


LEVELS = (
    Level("r-none", "no level"),
    Level("r-other", "coordinator of another account", coordinates=OTHER_ACCOUNT),
    Level("r-coord", "coordinator of the job's", coordinates=ACCOUNT),
    Level("r-oper", "Operator", admin="Operator"),
    Level("r-admin", "Administrator", admin="Admin"),
)


@contextmanager
def levels(slurm: Slurm) -> Iterator[None]:
    """One user of each level, for a while."""
    for number, level in enumerate(LEVELS, 2100):
        slurm.root("useradd", f"--uid={number}", "--no-create-home", level.user)
        _manage(slurm, "add", "user", level.user, "account=root", f"adminlevel={level.admin}")
        if level.coordinates:
            accounts, names = f"accounts={level.coordinates}", f"names={level.user}"
            _manage(slurm, "add", "coordinator", accounts, names)
    slurm.eventually(lambda: _known(slurm), within=30, what="slurmctld knows the levels")
    try:
        yield
    finally:
        for level in LEVELS:
            _manage(slurm, "delete", "user", level.user)
            slurm.root("userdel", level.user)


def _manage(slurm: Slurm, *words: str) -> None:
    slurm.root("sacctmgr", "--immediate", "--quiet", *words)


def _known(slurm: Slurm) -> bool:
    """Whether slurmctld has heard of them from slurmdbd."""
    shown = slurm.root("scontrol", "show", "assoc_mgr", "flags=users")
    return all(f"UserName={level.user}(" in shown for level in LEVELS)


@contextmanager
def private_data(slurm: Slurm) -> Iterator[None]:
    """Slurm tells users of their own only, for a while."""
    for file in ("slurm.conf", "slurmdbd.conf"):
        slurm.root("cp", "--preserve", f"/etc/slurm/{file}", f"/etc/slurm/{file}.open")
    slurm.root("sh", "-c", f"echo PrivateData={PRIVATE} >> /etc/slurm/slurm.conf")
    of_database = "jobs,usage,users,accounts,reservations"
    slurm.root("sh", "-c", f"echo PrivateData={of_database} >> /etc/slurm/slurmdbd.conf")
    _reread(slurm)
    try:
        yield
    finally:
        for file in ("slurm.conf", "slurmdbd.conf"):
            slurm.root("mv", f"/etc/slurm/{file}.open", f"/etc/slurm/{file}")
        _reread(slurm)


def _reread(slurm: Slurm) -> None:
    slurm.cluster.reconfigure()
    slurm.root("pkill", "-HUP", "-x", "slurmdbd")
    answers = lambda: not slurm.by("root", "sacctmgr", "show", "cluster")  # noqa: E731
    slurm.eventually(answers, within=60, what="slurmdbd again")


@dataclass
class Rights:
    """Makes calls as this or that user, each on a job of its own, and looks what came of them."""

    slurm: Slurm
    jobs: list[int] = field(default_factory=list)  # of the call that is being made

    def table(self, calls: dict[str, Callable[[str], bool]]) -> list[list[str]]:
        """Each call, and who may make it."""
        return [[name, *map(self._tried(call), LEVELS)] for name, call in calls.items()]

    def _tried(self, call: Callable[[str], bool]) -> Callable[[Level], str]:
        def outcome(level: Level) -> str:
            may = call(level.user)
            if self.jobs:
                self.slurm.root("scancel", "--quiet", *map(str, self.jobs))
                self.jobs.clear()
            return "yes" if may else "no"

        return outcome

    def says(self, user: str, *command: str) -> str | None:
        """What a command prints for a user; None where it fails."""
        words = ["runuser", "-u", user, "--", *command]
        done = self.slurm.cluster.run("ctl", words, check=False)
        return done.stdout if done.returncode == 0 else None

    def does(self, user: str, *command: str) -> bool:
        return self.says(user, *command) is not None

    def submitted(self, *options: str) -> int:
        self.jobs.append(self.slurm.submit(*options))
        return self.jobs[-1]

    def running(self, *options: str) -> int:
        number = self.submitted(*options)
        self.slurm.wait(number, "RUNNING")
        return number

    def held(self) -> int:
        number = self.submitted("--gpus=2", LATER)
        self.slurm.root("scontrol", "hold", str(number))
        return number

    def hold(self, user: str) -> bool:
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scontrol", "hold", str(number))
        return self.slurm.facts(number).held

    def lock(self, user: str) -> bool:
        """Held as administrators hold: not so that the owner could release it again."""
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scontrol", "hold", str(number))
        self.does("alice", "scontrol", "release", str(number))
        return self.slurm.facts(number).held

    def release(self, user: str, number: int) -> bool:
        self.does(user, "scontrol", "release", str(number))
        return not self.slurm.facts(number).held

    def release_submitted(self, user: str) -> bool:
        """Held as job_submit.lua holds."""
        return self.release(user, self.submitted("--gpus=1", "--hold"))

    def release_requeued(self, user: str) -> bool:
        number = self.running("--gpus=1")
        self.slurm.root("scontrol", "requeuehold", "incomplete", str(number))
        self.slurm.wait(number, "PENDING")
        return self.release(user, number)

    def release_locked(self, user: str) -> bool:
        """Held by the very user, whoever that is."""
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scontrol", "hold", str(number))
        return self.slurm.facts(number).held and self.release(user, number)

    def release_others(self, user: str) -> bool:
        return self.release(user, self.held())

    def reshape(self, user: str) -> bool:
        number = self.held()
        fields = ("NumNodes=2-2", "NumTasks=2", "NumCPUs=2", "MinCPUsNode=1", "StartTime=now")
        gpus = ("TresPerNode=gres/gpu:2", "TresPerJob=gres/gpu:4", "ReqNodeList=n[1-2]")
        self.does(user, "scontrol", "update", f"JobId={number}", *fields, *gpus)
        return self.slurm.facts(number).required == "n[1-2]"

    def fill(self, user: str) -> bool:
        number = self.held()
        fields = ("CpusPerTask=3", "NumCPUs=3", "MinMemoryNode=700")
        self.does(user, "scontrol", "update", f"JobId={number}", *fields)
        return self.slurm.job(number)["memory_per_node"]["number"] == 700

    def go_first(self, user: str) -> bool:
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scontrol", "update", f"JobId={number}", f"Priority={FIRST}")
        return bool(self.slurm.job(number)["priority"]["number"] == FIRST)

    def comment(self, user: str) -> bool:
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scontrol", "update", f"JobId={number}", "Comment=ONES: half")
        return self.slurm.facts(number).comment == "ONES: half"

    def requeue_hold(self, user: str) -> bool:
        number = self.running("--gpus=1")
        if not self.does(user, "scontrol", "requeuehold", "incomplete", str(number)):
            return False
        self.slurm.wait(number, "PENDING")
        return self.slurm.facts(number).held

    def give_back(self, user: str) -> bool:
        number = self.running("--nodes=2", "--gpus-per-node=1", "--no-kill")
        first = self.slurm.job(number)["batch_host"]
        self.does(user, "scontrol", "update", f"JobId={number}", f"NodeList={first}")
        return bool(self.slurm.facts(number).nodes == first)

    def signal(self, user: str) -> bool:
        number = self.running("--gpus=1")
        return not self.slurm.signal(user, number)

    def cancel(self, user: str) -> bool:
        number = self.submitted("--gpus=1", LATER)
        self.does(user, "scancel", str(number))
        return self.slurm.state(number) == "CANCELLED"

    def shows(self, *command: str, what: str) -> Callable[[str], bool]:
        """Whether a user's answer to a question has this in it."""
        return lambda user: what in (self.says(user, *command) or "")

    def add_user(self, user: str) -> bool:
        """To the account: none of our calls, but what such a level may besides."""
        words = ("-i", "-Q", "add", "user", "dave", f"account={ACCOUNT}")
        done = self.does(user, "sacctmgr", *words)
        if done:
            _manage(self.slurm, "delete", "user", "dave", f"account={ACCOUNT}")
        return done

    def set_level(self, user: str) -> bool:
        """Make somebody an Operator: none of our calls, either."""
        done = self.does(user, "sacctmgr", "-i", "-Q", "modify", "user", "bob", "set", "admin=Op")
        if done:
            _manage(self.slurm, "modify", "user", "bob", "set", "adminlevel=None")
        return done

    def set_node(self, user: str) -> bool:
        done = self.does(user, "scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=r")
        if done:
            self.slurm.root("scontrol", "update", "NodeName=n4", "State=RESUME")
            idle = ("sinfo", "-h", "-n", "n4", "-o", "%t")
            self.slurm.eventually(
                lambda: self.slurm.root(*idle).strip() in ("idle", "mix", "alloc"),
                within=60,
                what="n4 back",
            )
        return done

    def writes(self) -> dict[str, Callable[[str], bool]]:
        """Calls that change Slurm, by how docs/security.md calls them."""
        return {
            "`scontrol hold`": self.hold,
            "`scontrol hold` that the job's owner can't release": self.lock,
            "`scontrol release` of what `job_submit.lua` held": self.release_submitted,
            "`scontrol release` of what was requeued and held": self.release_requeued,
            "`scontrol release` of one's own hold": self.release_locked,
            "`scontrol release` of an administrator's hold": self.release_others,
            "`scontrol update` of GPUs, nodes, tasks, `ReqNodeList`, `StartTime`": self.reshape,
            "`scontrol update` of CPUs and memory (`[needs]`)": self.fill,
            "`scontrol update Priority=`": self.go_first,
            "`scontrol update Comment=` (`comment_every`)": self.comment,
            "`scontrol requeuehold incomplete`": self.requeue_hold,
            "`scontrol update NodeList=` of a running job (live)": self.give_back,
            "`scancel --ctld --signal`": self.signal,
            "`scancel` of a satellite or stage-in job": self.cancel,
        }

    def beyond(self) -> dict[str, Callable[[str], bool]]:
        """What we never do, but such a user could."""
        return {
            "*add a user to the account*": self.add_user,
            "*make somebody an Operator*": self.set_level,
            "*drain a node*": self.set_node,
        }

    def reads(self) -> dict[str, Callable[[str], bool]]:
        """Questions, and what their answers must show, of others' jobs where they are of jobs."""
        job = self.slurm.submit("--gpus=1")
        self.slurm.wait(job, "RUNNING")
        self.slurm.eventually(lambda: bool(self.slurm.runs(job)), within=30, what="accounting")
        until = 3600
        assert self.slurm.reserve("class", "n4", "bob", begins=600, ends=until, flags="") == ""
        show = ("sacctmgr", "-nP", "show")
        return {
            "`squeue`": self.shows("squeue", "--all", "-h", "-o", "%A", what=str(job)),
            "`sacct`": self.shows(
                "sacct", "-X", "-n", "-j", str(job), "--format=User", what="alice"
            ),
            "`scontrol show node`": self.shows("scontrol", "show", "node", "--json", what='"n4"'),
            "`scontrol show partition`": self.shows("scontrol", "show", "partition", what="gpu"),
            "`scontrol show topology`": self.shows("scontrol", "show", "topology", what="n["),
            "`scontrol show reservation`": self.shows(
                "scontrol", "--all", "show", "reservation", what="class"
            ),
            "`scontrol show config`": self.shows("scontrol", "show", "config", what="PriorityType"),
            "`sdiag`": self.shows("sdiag", what="Data since"),
            "`scontrol show assoc_mgr`": self.shows(
                "scontrol", "show", "assoc_mgr", "flags=assoc", what="UserName=alice"
            ),
            "`sinfo`": self.shows("sinfo", "-h", "-N", what="n4"),
            "`sshare -a`": self.shows("sshare", "-anP", "--format=User", what="alice"),
            "`sacctmgr show qos`": self.shows(*show, "qos", "format=name", what="normal"),
            "`sacctmgr show assoc`": self.shows(*show, "assoc", "format=user", what="alice"),
            "`sacctmgr show user` (who may steer)": self.shows(
                *show, "user", "format=user,adminlevel", what="oper|Operator"
            ),
        }


def markdown(rows: Sequence[Sequence[str]], first: str) -> list[str]:
    """A table as docs/security.md has it."""
    head = [first, *(level.shown for level in LEVELS)]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
