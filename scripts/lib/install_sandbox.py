"""What the sandboxes of our units really keep services from: tried under systemd, not read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from install_site import Site

PROBE = "/etc/ones-build/site/sandbox-probe"
# Settings of a unit that would not fit a program that tries things and ends.
OF_SERVICES = re.compile(r"^(#.*|(Exec|Restart|Type|Watchdog|TimeoutStart)\w*=.*)\n", re.MULTILINE)
NO_CAPABILITY = "0000000000000000"
# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_SYS_PTRACE, by their numbers in capability.h
OF_AGENT = f"{1 << 0 | 1 << 1 | 1 << 3 | 1 << 19:016x}"
STATE, RUN, STAGE = "/var/lib/ones", "/run/ones", "/var/spool/ones-stage"
# What each of them does; more of what the probe tries none may.
ALL = frozenset({"an internet socket", "munge"})


@dataclass(frozen=True, slots=True)
class Service:
    """One of ours, on the host where it runs."""

    name: str
    host: str
    user: str
    may: frozenset[str]  # of what the probe tries
    capabilities: str  # as /proc shows them


SERVICES = (
    Service("onesd", "ctl", "ones", ALL | {f"write in {STATE}", f"write in {RUN}"}, NO_CAPABILITY),
    Service("ones-release", "ctl", "ones", ALL | {f"write in {STATE}"}, NO_CAPABILITY),
    Service(
        "ones-agent",
        "n1",
        "root",
        ALL
        | {
            f"write in {RUN}",
            f"write in {STAGE}",
            "give a file away",
            "see other users' processes",
            "read the environment of other users' processes",
            "read /proc/cpuinfo",
            "see a GPU's device",
            "memory that is written and executed",
        },
        OF_AGENT,
    ),
)


@dataclass
class Sandboxes:
    """Tries what each service may, with its unit's settings and without any."""

    site: Site

    def __post_init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}  # attempt -> who -> yes, or why not

    def check(self) -> None:
        """Raises AssertionError where a service may more, or less, than is written here."""
        for service in SERVICES:
            host = service.host
            self.site.on(host, "touch /tmp/of-the-host")
            free = self._tried(host, f"User={service.user}\n", f"{service.user}, no sandbox")
            unit = OF_SERVICES.sub("", self.site.on(host, f"systemctl cat {service.name}") + "\n")
            settings = unit.partition("[Service]\n")[2].partition("[Install]")[0]
            held = self._tried(host, settings, service.name)
            self.site.on(host, "rm /tmp/of-the-host")
            may = {attempt for attempt, why in held["may"].items() if not why}
            assert may == service.may, (
                f"{service.name}: may also {sorted(may - service.may)},"
                f" may not {sorted(service.may - may)}"
            )
            kernel = held["kernel"]
            assert kernel["CapBnd"] == service.capabilities, kernel
            assert (kernel["NoNewPrivs"], kernel["Seccomp"]) == ("1", "2"), kernel
            kept = [name for name, why in held["may"].items() if why and not free["may"][name]]
            assert kept, f"the sandbox of {service.name} keeps it from nothing"
        for service in SERVICES:
            if service.name != "ones-release":  # which runs once a minute
                self._real(service)

    def _real(self, service: Service) -> None:
        """The kernel's word of the process that runs."""
        show = f"systemctl show --value -p MainPID {service.name}"
        status = self.site.on(service.host, f"cat /proc/$({show})/status")
        said = dict(line.split(":\t", 1) for line in status.splitlines())
        assert said["CapBnd"].strip() == service.capabilities, said
        assert said["CapEff"].strip() == service.capabilities, said
        assert (said["NoNewPrivs"].strip(), said["Seccomp"].strip()) == ("1", "2"), said

    def _tried(self, host: str, settings: str, who: str) -> dict[str, dict[str, str]]:
        """What the probe found under these settings."""
        answer = "/run/sandbox-probe.json"
        unit = (
            f"[Service]\n{settings}\nType=oneshot\nExecStart=/usr/bin/python3 {PROBE}\n"
            f"StandardOutput=truncate:{answer}\n"
        )
        path = "/run/systemd/system/sandbox-probe.service"
        self.site.write(host, path, unit)
        self.site.on(host, "systemctl daemon-reload && systemctl start sandbox-probe")
        found = json.loads(self.site.on(host, f"cat {answer}"))
        self.site.on(host, f"rm {path} {answer} && systemctl daemon-reload")
        for attempt, why in found["may"].items():
            self.rows.setdefault(attempt, {})[who] = why or "yes"
        result: dict[str, dict[str, str]] = found
        return result
