"""The steps of scripts/test-install: the packages installed, tried, upgraded and removed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from install_jobs import COUNTING, Jobs
from install_sandbox import Sandboxes
from install_site import HOSTS, ROOT, Site
from pages import FROM_PACKAGES, Typed, typed

NOT_TRIED = (
    "Debian 12, Slurm 22.05: none, for want of python3-msgspec, aiohttp 3.9, NumPy 1.26, SciPy 1.11"
)
INVENTORY = """[ones_controller]
ctl
[ones_nodes]
n1
[all:vars]
ansible_connection=local
ansible_become=false
ones_packages=/root/ones
"""
PLAIN = "sbatch --parsable --wait --gpus=1 --wrap true"


@dataclass
class Journey:
    """The steps in their order; each leaves the site as the next one needs it."""

    site: Site
    earlier: Path
    packages: Path
    done: dict[str, str] = field(default_factory=dict)
    before: dict[str, set[str]] = field(default_factory=dict)
    job: str = ""
    sandboxes: Sandboxes = field(init=False)

    def __post_init__(self) -> None:
        self.sandboxes = Sandboxes(self.site)

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
            self.job = site.submit("--elastic=1-4 --gpus=1", COUNTING.format(samples=3000))
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
        with self.step("sandbox"):
            self.sandboxes.check()
        jobs = Jobs(site)
        with self.step("restart"):
            jobs.steer()
            jobs.survive()
        with self.step("resize"):
            jobs.resize()
        with self.step("stage-in"):
            jobs.stage_in()
        with self.step("live"):
            jobs.live()
            jobs.let_go()
        with self.step("remove at once"):
            self.remove_at_once()
        with self.step("remove"):
            self.remove()
        with self.step("purge"):
            self.purge()
        with self.step("Ansible"):
            self.play()

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
    print("\nUnder systemd, in these containers:", *journey.sandboxes.table(), sep="\n")
    if fault is not None:
        sys.exit(f"test-install: error: {list(journey.done)[-1]}: {fault}")


if __name__ == "__main__":
    main()
