"""The hosts of scripts/test-install: two containers with systemd and Debian's Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

import pytest  # noqa: E402
from conftest import Cluster  # noqa: E402
from pages import Typed  # noqa: E402

HOSTS = ("ctl", "n1")
ACCOUNTS = """
mariadb -e "create database slurm_acct_db; create user slurm@localhost identified via unix_socket;
            grant all on slurm_acct_db.* to slurm@localhost;"
systemctl start slurmdbd
until sacctmgr -nP show cluster > /dev/null 2>&1; do sleep 0.5; done
sacctmgr -iQ add cluster ones
sacctmgr -iQ add account vision
sacctmgr -iQ add user alice account=vision
"""
# What changes by itself on a host, what Slurm and its jobs write, and apt's own notes.
BUSY = re.compile(
    r"/(proc|sys|dev|tmp|home|var/(cache|log|tmp|lib/(apt|dpkg|mysql|slurm|systemd|private))|etc/\.pwd\.lock"
    r"|run/(systemd|udev|lock|dbus|mysqld|munge|slurm\w*|user|log|credentials|sudo|adduser)|root)(/|$)"
    r"|/(etc/(passwd|group|shadow|gshadow|subuid|subgid)-?|etc/ld\.so\.cache|var/spool/slurm.*)$"
    r"|__pycache__|/run/utmp|/run/[a-z]+\.pid$"
)


@dataclass
class Site:
    """Two hosts with systemd and Debian's Slurm."""

    name: str
    image: str
    hosts: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.hosts = Cluster(self.name)

    def up(self) -> None:
        """Slurm answers and its node is idle."""
        unified = Path("/sys/fs/cgroup/unified")
        cgroups = unified if unified.is_dir() else Path("/sys/fs/cgroup")
        _docker("network", "create", self.name)
        _docker("volume", "create", f"{self.name}-home")
        for host in HOSTS:
            # systemd makes cgroups and the name spaces of its units; nothing else of the host's.
            _docker(
                *("run", "--detach", "--name", f"{self.name}-{host}", "--hostname", host),
                *("--network", self.name, "--network-alias", host),
                *("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE"),
                *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
                *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp"),
                *("--volume", f"{cgroups}:/sys/fs/cgroup", "--cgroupns", "host"),
                *("--volume", f"{self.name}-home:/home:nocopy", "--env", "container=docker"),
                self.image,
            )
        for host in HOSTS:
            self.hosts.eventually(
                lambda host=host: (
                    self.on(host, "systemctl is-system-running", check=False)
                    in ("running", "degraded")
                ),
                within=120,
                what=f"systemd at work on {host}",
            )
            self.on(host, "systemctl start munge")
        self.on("ctl", "install -d -o alice -g alice /home/alice; systemctl start mariadb")
        self.on("ctl", ACCOUNTS)
        self.on("ctl", "systemctl start slurmctld")
        self.on("n1", "systemctl start gpu-emulator slurmd")
        self.hosts.eventually(
            lambda: self.on("ctl", "sinfo -h -t idle -o %D") == "1",
            within=120,
            what="an idle node",
        )

    def down(self) -> None:
        for host in HOSTS:
            _docker("rm", "--force", "--volumes", f"{self.name}-{host}", check=False)
        _docker("volume", "rm", f"{self.name}-home", check=False)
        _docker("network", "rm", self.name, check=False)

    def on(self, host: str, command: str, user: str | None = None, *, check: bool = True) -> str:
        """What a command printed."""
        return self.hosts.run(host, command, user, timeout=900, check=check).stdout.strip()

    def write(self, host: str, path: str, text: str) -> None:
        """A file there, in a folder that is made where it is missing."""
        self.on(host, f"mkdir -p {Path(path).parent}")
        self.hosts.run(host, f"cat > {path}", stdin=text)

    def follow(self, commands: list[Typed]) -> None:
        """Type what the page says."""
        assert commands, "the page has no such commands any more"
        for one in commands:
            self.on(one.node, one.command, one.user)

    def bring(self, packages: Path) -> None:
        """The packages that the page speaks of, and no other version of them."""
        for host in HOSTS:
            self.on(host, "rm -rf /root/ones && mkdir /root/ones")
        for one in packages.glob("*.deb"):
            if "-dbgsym_" not in one.name:
                self.carry(one, "/root/ones/")

    def carry(self, source: Path, to: str) -> None:
        """A file or folder of this tree, to every host."""
        for host in HOSTS:
            _docker("cp", "--quiet", str(source), f"{self.name}-{host}:{to}")

    def files(self) -> dict[str, set[str]]:
        """Host -> all that stands on its disks and in /run, but what is always busy."""
        found = {}
        for host in HOSTS:
            listed = self.on(host, "find / /run -xdev -print 2> /dev/null || true").splitlines()
            found[host] = {one for one in listed if not BUSY.search(one)}
        return found

    def submit(self, options: str, command: str) -> str:
        return self.on("ctl", f"sbatch --parsable {options} --wrap 'exec {command}'", "alice")

    def state(self, job: str) -> str:
        """Of a job, from accounting, which knows it for longer than slurmctld."""
        return self.on("ctl", f"sacct -X -n -P -o State -j {job}")


def _docker(*words: str, check: bool = True) -> None:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        pytest.fail(f"docker {words[0]}: {done.stderr.strip()}")
