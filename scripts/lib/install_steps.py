"""The steps of scripts/test-install: the packages installed, tried, upgraded and removed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from install_jobs import COUNTING, Jobs
from install_sandbox import Sandboxes
from install_site import HOSTS, ROOT, Site
from pages import FROM_PACKAGES, Typed, typed

INVENTORY = """[ones_controller]
ctl
[ones_nodes]
n1
[all:vars]
ansible_connection=local
ansible_become=false
ones_packages=/root/ones
"""
RUNS = "squeue -h -j {job} -O StartTime,RestartCnt"
# Takes what nobody needs, though somebody recommends or suggests it.
ALONE = "-o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false"
PLAIN = "sbatch --parsable --wait --gpus=1 --wrap true"


@dataclass
class Journey:
    """The steps in their order; each leaves the site as the next one needs it."""

    site: Site
    earlier: Path
    packages: Path
    done: dict[str, str] = field(default_factory=dict)
    before: dict[str, set[str]] = field(default_factory=dict)
    had: dict[str, set[str]] = field(default_factory=dict)  # host -> packages
    job: str = ""  # that counts
    training: str = ""  # that can be resized live
    jobs: Jobs = field(init=False)
    sandboxes: Sandboxes = field(init=False)

    def __post_init__(self) -> None:
        self.jobs, self.sandboxes = Jobs(self.site), Sandboxes(self.site)

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
        with self.step("site"):
            site.up()
            site.on("ctl", PLAIN, "alice")
            self.before = site.files()
            self.had = {host: self.packages_on(host) for host in HOSTS}
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
            self.act()
        with self.step("neighbours"):
            self.neighbours()
        with self.step("upgrade"):
            self.upgrade()
        with self.step("live"):
            self.jobs.steer()
            self.jobs.live(self.training)
        with self.step("sandbox"):
            self.sandboxes.check()
        with self.step("restart"):
            self.jobs.survive()
        with self.step("resize"):
            self.jobs.resize()
        with self.step("stage-in"):
            self.jobs.stage_in()
            self.jobs.let_go()
        with self.step("remove at once"):
            self.remove_at_once()
        with self.step("remove"):
            self.remove()
        with self.step("purge"):
            self.purge()
        with self.step("Ansible"):
            self.play()

    def act(self) -> None:
        """Enabled: onesd starts two elastic jobs, of which it hears."""
        site = self.site
        site.follow(self.page(lambda section: section.startswith("7.")))
        site.hosts.eventually(
            lambda: "hold yes" in site.on("ctl", "cat /run/ones/heartbeat", check=False),
            within=60,
            what="a heartbeat that lets jobs be held",
        )
        # Of one size, so that no policy has a reason to restart it while we look.
        self.job = site.submit("--elastic=2 --gpus=2", COUNTING.format(samples=100000))
        site.hosts.eventually(
            lambda: site.state(self.job) == "RUNNING", within=120, what="a job started by onesd"
        )
        self.training = self.jobs.train()
        self.go_on()
        # Or a policy would have reasons of its own to move them while we look.
        site.on("ctl", "onesctl pause")

    def neighbours(self) -> None:
        """The node upgraded before the controller, and back again: jobs and reports go on."""
        was = self.running()
        self.install("n1", self.packages)
        self.go_on()
        self.install("n1", self.earlier, "--allow-downgrades")
        self.go_on()
        assert self.running() == was

    def upgrade(self) -> None:
        """The new packages by the same words, under running jobs and the operator's settings."""
        was = self.running(), self.settings()
        units = {"ctl": "onesd", "n1": "ones-agent"}
        old = {host: self.site.on(host, "pgrep -f 'bin/ones(d|-agent)'") for host in HOSTS}
        for host, unit in units.items():
            self.install(host, self.packages)
            assert self.site.on(host, f"systemctl is-active {unit}") == "active"
            assert self.site.on(host, "pgrep -f 'bin/ones(d|-agent)'") != old[host], f"old {unit}"
            # First with the agent of before.
            self.go_on()
        assert (self.running(), self.settings()) == was
        self.site.on("ctl", f"onesctl resume && scancel {self.job}")

    def install(self, host: str, packages: Path, *options: str) -> None:
        """These packages in the place of others, by the page's own words."""
        self.site.bring(packages)
        commands = self.page(lambda section: section.startswith("1."))
        command = " ".join(["apt-get install", *options])
        for one in commands:
            if one.node == host:
                self.site.on(host, one.command.replace("apt-get install", command), one.user)

    def running(self) -> list[str]:
        """Since when the jobs run, and after how many restarts."""
        found = [self.site.on("ctl", RUNS.format(job=job)) for job in (self.job, self.training)]
        assert all(found), "a job ended before the upgrade; give it more to do"
        return found

    def settings(self) -> list[str]:
        return [self.site.on(host, "cat /etc/ones/ones.toml") for host in HOSTS]

    def go_on(self) -> None:
        """Reports of both jobs come through, by the agent and onesd that are there now."""
        for job in (self.job, self.training):
            self.jobs.goes_on(job)

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
            self.kept_by_others(host)
        for host, now in site.files().items():
            left, lost = sorted(now - self.before[host]), sorted(self.before[host] - now)
            assert not left, f"left behind on {host}: {len(left)} files, such as {left[:10]}"
            assert not lost, f"taken away from {host}: {len(lost)} files, such as {lost[:10]}"
        site.on("ctl", PLAIN, "alice")

    def kept_by_others(self, host: str) -> None:
        """Purge what came with us and stays because a package that the site had recommends it."""
        site = self.site
        stays = self.packages_on(host) - self.had[host]
        if not stays:
            return
        would_go = site.on(
            host, f"apt-get autoremove --simulate {ALONE} | awk '/^Remv/ {{print $2}}'"
        )
        held = sorted(stays - set(would_go.split()))
        assert not held, f"on {host} nobody recommends {held}, and they stay"
        site.on(host, f"apt-get purge --yes {' '.join(sorted(stays))}")

    def packages_on(self, host: str) -> set[str]:
        """What dpkg has there, whatever is left of it."""
        return set(self.site.on(host, "dpkg-query -W -f '${Package}\\n'").split())

    def play(self) -> None:
        """The role on hosts without ONES, and once more, when there is nothing to do."""
        site = self.site
        site.carry(ROOT / "scripts" / "ansible", "/root/ansible")
        play = "cd /root/ansible && ansible-playbook --inventory hosts --limit $(hostname) site.yml"
        for host in HOSTS:
            site.write(host, "/root/ansible/hosts", INVENTORY)
            site.on(host, "apt-get install --yes --no-install-recommends ansible-core")
            site.on(host, play)
            again = site.on(host, play)
            assert "changed=0" in again and "failed=0" in again, again
        assert site.on("ctl", "systemctl is-enabled onesd") == "enabled"
        site.hosts.eventually(
            lambda: not json.loads(site.on("ctl", "onesctl nodes --json"))["nodes"][0]["note"],
            within=60,
            what="a report of the agent",
        )
        assert "elastic" in site.on("ctl", "sbatch --help")
        self.ended(site.submit("--elastic --gpus=2", "sleep 1"), within=60)

    def ended(self, job: str, *, within: float) -> None:
        self.site.hosts.eventually(
            lambda: self.site.state(job) == "COMPLETED", within=within, what=f"job {job} at its end"
        )
