"""The steps of scripts/test-install: the packages installed, tried, upgraded and removed."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

import pytest  # noqa: E402
from conftest import Cluster  # noqa: E402
from pages import FROM_PACKAGES, Typed, typed  # noqa: E402

HOSTS = ("ctl", "n1")
JOB = "python3 /opt/jobs/counting.py {samples} 10"  # samples, of which one GPU makes 10 a second
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
    r"|run/(systemd|udev|lock|dbus|mysqld|munge|slurm\w*|user|log|credentials|sudo)|root)(/|$)"
    r"|/(etc/(passwd|group|shadow|gshadow|subuid|subgid)-?|etc/ld\.so\.cache|var/spool/slurm.*)$"
    r"|__pycache__|/run/utmp|/run/[a-z]+\.pid$"
)
NOT_TRIED = (
    "Debian 12, Slurm 22.05: none, for want of python3-msgspec, aiohttp 3.9, NumPy 1.26, SciPy 1.11"
)
PLAIN = "sbatch --parsable --wait --gpus=1 --wrap true"


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
                    _docker("cp", "--quiet", str(one), f"{self.name}-{host}:/root/ones/")

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


@dataclass
class Journey:
    """The steps in their order; each leaves the site as the next one needs it."""

    site: Site
    earlier: Path
    packages: Path
    done: dict[str, str] = field(default_factory=dict)
    before: dict[str, set[str]] = field(default_factory=dict)
    job: str = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One column of the table."""
        began = time.monotonic()
        self.done[name] = "FAILED"
        print(f"test-install: {name}", file=sys.stderr, flush=True)
        yield
        self.done[name] = f"{time.monotonic() - began:.0f} s"

    def page(self, wanted: Callable[[str], bool]) -> list[Typed]:
        """The commands of the page's sections that are wanted, for who installs packages."""
        return [one for one in typed("operators.md", FROM_PACKAGES) if wanted(one.section)]

    def travel(self) -> None:
        site = self.site
        with self.step("Slurm"):
            site.up()
            site.on("ctl", PLAIN, "alice")
            self.before = site.files()
        with self.step("install"):
            site.bring(self.earlier)
            site.follow(self.page(lambda section: section[:2] in ("Wh", "1.")))
            assert site.on("ctl", "systemctl is-active onesd", check=False) == "inactive"
            assert site.on("ctl", "systemctl is-enabled onesd", check=False) == "disabled"
        with self.step("observe"):
            site.follow(self.page(lambda section: section[:2] in ("2.", "3.", "4.", "5.", "6.")))
            site.hosts.eventually(
                lambda: "n1" in site.on("ctl", "onesctl nodes", check=False),
                within=60,
                what="a report of the agent",
            )
            job = site.submit("--elastic --gpus=2", "sleep 1")
            self.ended(job, within=60)
        with self.step("elastic job"):
            site.follow(self.page(lambda section: section.startswith("7.")))
            site.hosts.eventually(
                lambda: "hold yes" in site.on("ctl", "cat /run/ones/heartbeat", check=False),
                within=60,
                what="a heartbeat that lets jobs be held",
            )
            self.job = site.submit("--elastic=1-4 --gpus=1", JOB.format(samples=3000))
            site.hosts.eventually(
                lambda: site.state(self.job) == "RUNNING", within=120, what="a job started by onesd"
            )
            site.hosts.eventually(
                lambda: "samples" in site.on("ctl", f"onesctl job {self.job}", check=False),
                within=60,
                what="the job's own report, by way of its agent",
            )
        with self.step("upgrade"):
            self.upgrade()
        with self.step("remove at once"):
            self.remove_at_once()
        with self.step("remove"):
            self.remove()
        with self.step("purge"):
            self.purge()

    def upgrade(self) -> None:
        """The new packages by the same words, under a running job and the operator's settings."""
        site, running = self.site, f"squeue -h -j {self.job} -O StartTime,RestartCnt"
        settings = "cat /etc/ones/ones.toml"
        was = site.on("ctl", running), site.on("ctl", settings), site.on("n1", settings)
        assert was[0], "the job ended before the upgrade; give it more samples"
        old = {host: site.on(host, "pgrep -f 'bin/ones(d|-agent)'") for host in HOSTS}
        site.bring(self.packages)
        site.follow(self.page(lambda section: section.startswith("1.")))
        assert (site.on("ctl", running), site.on("ctl", settings), site.on("n1", settings)) == was
        for host, unit in (("ctl", "onesd"), ("n1", "ones-agent")):
            assert site.on(host, f"systemctl is-active {unit}") == "active"
            assert site.on(host, "pgrep -f 'bin/ones(d|-agent)'") != old[host], f"old {unit}"
        version = site.on("ctl", "onesd --version").split()[-1]
        site.hosts.eventually(
            lambda: version in site.on("ctl", "onesctl status", check=False) or not version,
            within=60,
            what=f"onesd {version} that answers",
        )
        self.ended(self.job, within=900)
        assert site.on("ctl", f"cat /home/alice/result-{self.job}.json") == '{"samples": 3000}'

    def remove_at_once(self) -> None:
        """Without section 8: refused while Slurm calls the hook, and no job stays held after it."""
        site = self.site
        first, waiting = (site.submit("--elastic=4 --gpus=4", f"sleep {s}") for s in (600, 1))
        reason = f"squeue -h -j {waiting} -O Reason"
        site.hosts.eventually(
            lambda: site.state(first) == "RUNNING", within=120, what="a job on every GPU"
        )
        assert "JobHeld" in site.on("ctl", reason)
        site.on("ctl", "! apt-get remove --yes ones-controller")
        assert site.on("ctl", "systemctl is-active onesd") == "active"
        site.on("ctl", "sed -i '/ones-event$/d' /etc/slurm/slurm.conf && scontrol reconfigure")
        site.on("ctl", "apt-get remove --yes ones-controller")
        assert "JobHeld" not in site.on("ctl", reason)
        site.on("ctl", f"scancel {first}")
        self.ended(waiting, within=120)
        site.follow(self.page(lambda section: section[:2] in ("1.", "4.", "5.")))

    def remove(self) -> None:
        """Section 8 to the point where the two ways part, then `apt-get remove`."""
        site = self.site
        last = self.page(lambda section: section.startswith("8."))
        site.follow([one for one in last if "apt-get" not in one.command])
        for one in last:
            if "apt-get" in one.command:
                site.on(one.node, one.command.replace("purge", "remove"))
        assert site.on("ctl", "ls /var/lib/ones/ones.sqlite /etc/ones/ones.toml")
        assert "elastic" not in site.on("ctl", "sbatch --help")
        site.on("ctl", PLAIN, "alice")

    def purge(self) -> None:
        """Installed once more, then purged: nothing is left but the user, as Debian has it."""
        site = self.site
        last = self.page(lambda section: section.startswith("8."))
        site.follow(self.page(lambda section: section.startswith("1.")))
        assert 'mode = "act"' in site.on("ctl", "cat /etc/ones/ones.toml")
        site.follow([one for one in last if "apt-get" in one.command])
        for host in HOSTS:
            site.on(host, "apt-get autoremove --purge --yes")
        left = {host: sorted(all_ - self.before[host]) for host, all_ in site.files().items()}
        assert not any(left.values()), f"left behind: {left}"
        lost = {host: sorted(self.before[host] - all_) for host, all_ in site.files().items()}
        assert not any(lost.values()), f"taken away: {lost}"
        site.on("ctl", PLAIN, "alice")

    def ended(self, job: str, *, within: float) -> None:
        self.site.hosts.eventually(
            lambda: self.site.state(job) == "COMPLETED", within=within, what=f"job {job} at its end"
        )


def main() -> None:
    """Take the way, print the table; exit status 1 where a step failed."""
    parser = argparse.ArgumentParser(prog="test-install", description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--earlier", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    given = parser.parse_args()
    site = Site(os.environ.get("ONES_CLUSTER_NAME", "ones-install"), given.image)
    journey = Journey(site, given.earlier, given.packages)
    fault = None
    site.down()
    try:
        journey.travel()
    except (AssertionError, pytest.fail.Exception, subprocess.TimeoutExpired) as error:
        fault = error
        for host, unit in (("ctl", "onesd"), ("n1", "ones-agent")):
            print(
                site.on(host, f"journalctl -u {unit} -n 20 --no-pager", check=False),
                file=sys.stderr,
            )
    slurm = site.on("ctl", "dpkg-query -W -f '${Version}' slurm-client", check=False)
    debian = site.on("ctl", ". /etc/os-release && echo $PRETTY_NAME", check=False)
    if "ONES_INSTALL_KEEP" not in os.environ:
        site.down()
    columns = {"distribution": debian, "Slurm release": slurm, **journey.done}
    widths = [max(len(name), len(said)) for name, said in columns.items()]
    for line in (columns.keys(), columns.values()):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))
    print(NOT_TRIED)
    if fault is not None:
        sys.exit(f"test-install: error: {list(journey.done)[-1]}: {fault}")


if __name__ == "__main__":
    main()
