"""release_table.py FOLDER: what the contract and cluster tests said on each release of Slurm.

FOLDER has pytest's reports of scripts/test-releases, RELEASE-DEBIAN-AUTH.xml. Ends with 1 where a
test failed or no report is there.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """How a test ended, and why it did not pass."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            reason = (found.get("message") or "").splitlines() or [""]
            return ("skipped" if kind == "skipped" else "failed"), reason[0][:160]
    return "passed", ""


def main(folder: Path) -> int:
    """Print the table, and what did not pass."""
    reports = sorted(folder.glob("*-*-*.xml"))
    if not reports:
        print(f"release_table.py: error: no reports in {folder}; scripts/test-releases makes them")
        return 1
    left: Counter[tuple[str, str, str]] = Counter()
    failed = False
    print(
        "| Slurm | Debian | authentication | passed | failed | skipped |\n|---|---|---|---|---|---|"
    )
    for report in reports:
        release, debian, auth = report.stem.split("-")
        ended: Counter[str] = Counter()
        for case in ElementTree.parse(report).iter("testcase"):
            how, why = outcome(case)
            ended[how] += 1
            if how != "passed":
                name = f"{case.get('classname')}.{case.get('name')}" if how == "failed" else ""
                left[f"{release}, auth/{auth}", how, f"{name}: {why}" if name else why] += 1
        failed |= bool(ended["failed"])
        counts = " | ".join(str(ended[how]) for how in ("passed", "failed", "skipped"))
        print(f"| {release} | {debian} | auth/{auth} | {counts} |")
    for (where, how, why), times in left.items():
        print(f"\n{where}: {times} {how}: {why}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
