"""One row of scripts/test-install: one distribution, in two containers with systemd."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from install_site import Site
from install_steps import Journey
from install_table import Row


def main() -> None:
    """Take the way, and write the row down; exit status 1 where a step failed."""
    parser = argparse.ArgumentParser(prog="test-install", description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--earlier", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--row", type=Path, required=True)
    given = parser.parse_args()
    site = Site(os.environ.get("ONES_CLUSTER_NAME", "ones-install"), given.image)
    journey = Journey(site, given.earlier, given.packages)
    fault = ""
    site.down()
    try:
        journey.travel()
    except (AssertionError, pytest.fail.Exception, subprocess.TimeoutExpired) as error:
        fault = f"{list(journey.done)[-1]}: {error}"
        for host, unit in (("ctl", "onesd"), ("n1", "ones-agent")):
            print(
                site.on(host, f"journalctl -u {unit} -n 20 --no-pager", check=False),
                file=sys.stderr,
            )
    debian = site.on("ctl", ". /etc/os-release && echo $PRETTY_NAME", check=False)
    slurm = site.on("ctl", "dpkg-query -W -f '${Version}' slurm-client", check=False)
    if "ONES_INSTALL_KEEP" not in os.environ:
        site.down()
    row = Row({"distribution": debian, "Slurm": slurm, **journey.done}, journey.sandboxes.rows)
    given.row.write_bytes(msgspec.json.encode(row))
    if fault:
        sys.exit(f"test-install: error: {debian}: {fault}")


if __name__ == "__main__":
    main()
