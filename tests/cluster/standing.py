"""A second host for onesd beside the cluster's controller, and onesd on both."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steering import IMPATIENT, Steering

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/cluster"
HOSTS = ("ctl", "ctl2")
SHARED = "/home/ones-shared"
AGENTS = "/etc/ones/ones.d/standby.toml"

SIGNS = (
    "from ones.daemon.config import load_config; from ones.daemon.signatures import signatures_of;"
    "signatures_of(load_config().auth_type).sign('none', '', b'')"
)


class Pair:
    """onesd on ctl and ctl2, with their terms and databases in a folder that both see.

    slurmctld is on ctl, so that of the two only ctl2 can be killed as a host.
    """

    def __init__(self, onesd: Steering, *, takeover: float, more: str = "") -> None:
        self.onesd = onesd
        self.cluster = onesd.cluster
        self.takeover = takeover
        self._more = more  # of the configuration, over all else

    def settings(self, host: str) -> str:
        """What onesd and onesctl of that host go by, over the cluster's configuration."""
        other = HOSTS[1 - HOSTS.index(host)]
        return (
            f'controller = "{host}:7667"\nstore = "{SHARED}/ones.sqlite"\n'
            f'heartbeat = "{SHARED}/heartbeat"\n{IMPATIENT}'
            f'[standby]\ncontrollers = ["{other}:7667"]\ntakeover = {self.takeover}\n'
        )

    def configure(self) -> None:
        """Both hosts and all agents."""
        run = self.cluster.run
        run("ctl", f"rm -rf {SHARED}; install -d -o ones -m 0711 {SHARED}")
        run("ctl", f"install -d -o ones -m 0700 {SHARED}/terms")
        run("ctl", f"ln -sfn {SHARED}/heartbeat /run/ones/heartbeat")
        for host in HOSTS:
            run(host, "mkdir -p /etc/ones/ones.d")
            run(host, "cat > /etc/ones/ones.d/test.toml", stdin=self.settings(host))
            run(host, "cat > /etc/ones/ones.d/test_more.toml", stdin=self._more)
        told = '[standby]\ncontrollers = ["ctl2:7667"]\n'
        told = f'store = "{SHARED}/ones.sqlite"\nheartbeat = "{SHARED}/heartbeat"\n{told}'
        for node in ("n1", "n2", "n3", "n4"):
            run(node, f"mkdir -p /etc/ones/ones.d && cat > {AGENTS}", stdin=told)
            self._restart_agent(node)

    def _restart_agent(self, node: str) -> None:
        self.cluster.run(node, "pkill -f '[b]in/ones-agent'", check=False)

        def gone() -> bool:
            return not self.cluster.run(node, "pgrep -f '[b]in/ones-agent'", check=False).stdout

        self.cluster.eventually(gone, within=10, what=f"the agent of {node} gone")
        again = "/opt/ones/bin/ones-agent >> /var/log/ones/ones-agent.log 2>&1"
        self._detached(node, again)

    def _detached(self, host: str, command: str) -> None:
        name = f"{self.cluster.name}-{host}"
        subprocess.run(["docker", "exec", "--detach", name, "sh", "-c", command], check=True)

    def start(self, host: str, *, policy: str = "seesaw") -> None:
        """onesd on that host, with a policy that never leaves a job at its size."""
        program = f"/opt/ones/bin/python /home/jobs/steered_onesd.py -- --policy {policy}"
        self._detached(host, f"runuser -u ones -- {program} >> /var/log/ones/onesd.log 2>&1")

    def role(self, host: str) -> Any:
        """What the onesd of that host says of its role, or None."""
        ask = (
            "import sys, urllib.request as r;"
            f"sys.stdout.write(r.urlopen('http://{host}:7667/v1/role', timeout=2).read().decode())"
        )
        done = self.cluster.run("ctl", ["/opt/ones/bin/python", "-c", ask], check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def active(self) -> str:
        """The host whose onesd acts, or ''."""
        for host in HOSTS:
            said = self.role(host)
            if said is not None and said["role"] == "active":
                return host
        return ""

    def wait_for(self, host: str, role: str) -> None:
        def there() -> bool:
            said = self.role(host)
            return said is not None and said["role"] == role

        self.cluster.eventually(there, within=40, what=f"onesd of {host} {role}")

    def moving(self) -> int:
        """How many moves are under way."""
        done = self.cluster.run("ctl", "onesctl status --json", check=False)
        return int(json.loads(done.stdout)["jobs"]["moving"]) if done.returncode == 0 else 0

    def signal(self, host: str, number: str) -> None:
        self.cluster.run(host, f"pkill -{number} -u ones -f steered_onesd", check=False)

    def kill_host(self) -> None:
        """ctl2 with all that runs on it, at once."""
        name = f"{self.cluster.name}-ctl2"
        subprocess.run(["docker", "kill", name], check=True, capture_output=True)

    def start_host(self) -> None:
        name = f"{self.cluster.name}-ctl2"
        subprocess.run(["docker", "start", name], check=True, capture_output=True)
        signs = ["/opt/ones/bin/python", "-c", SIGNS]
        there = lambda: not self.cluster.run("ctl2", signs, check=False).returncode  # noqa: E731
        self.cluster.eventually(there, within=20, what="ctl2 back")

    def asked(self, question: str) -> list[list[Any]]:
        """Rows of the database of the last term."""
        ask = (
            "import json, sqlite3, sys;"
            "from ones.daemon.presence import latest_store; from pathlib import Path;"
            f"store = latest_store(Path('{SHARED}/ones.sqlite'));"
            "rows = sqlite3.connect(store, timeout=20).execute(sys.argv[1]).fetchall();"
            "print(json.dumps(rows))"
        )
        command = ["/opt/ones/bin/python", "-c", ask, question]
        return list(json.loads(self.cluster.run("ctl", command).stdout))

    def restore(self) -> None:
        """The cluster as it was."""
        for host in HOSTS:
            self.signal(host, "KILL")
        remove = ["docker", "rm", "--force", "--volumes", f"{self.cluster.name}-ctl2"]
        subprocess.run(remove, check=True, capture_output=True)
        for node in ("n1", "n2", "n3", "n4"):
            self.cluster.run(node, f"rm -f {AGENTS}")
            self._restart_agent(node)
        self.cluster.run("ctl", f"rm -rf {SHARED} /run/ones/heartbeat")
        self.cluster.run("ctl", "rm -f /etc/ones/ones.d/test_more.toml")


@contextmanager
def pair_on(onesd: Steering, *, takeover: float, more: str = "") -> Iterator[Pair]:
    """Both hosts, the first of which acts; the cluster is as before in the end."""
    pair = Pair(onesd, takeover=takeover, more=more)
    environment = {**os.environ, "ONES_CLUSTER_NAME": onesd.cluster.name}
    subprocess.run([SCRIPT, "standby"], env=environment, check=True, capture_output=True)
    try:
        pair.configure()
        pair.start("ctl")
        pair.wait_for("ctl", "active")
        pair.start("ctl2")
        pair.wait_for("ctl2", "standby")
        yield pair
    finally:
        pair.restore()
