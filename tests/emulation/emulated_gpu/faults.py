"""gpu-fault: break an emulated GPU of this node, and mend it.

    gpu-fault MINOR xid CODE       an XID event, such as 79
    gpu-fault MINOR lost           the GPU falls off the bus, with XID 79
    gpu-fault MINOR set KEY VALUE  any line of the state, such as: set ecc_uncorrected 3
    gpu-fault MINOR ok             as if nothing had been

The emulator takes it up with its next state, half a second later at most.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulated_gpu.loads import root

FOLDER = "faults"
FELL_OFF_THE_BUS = "79"


def read(where: Path, minor: int) -> dict[str, str]:
    """What is wrong with a GPU: lines of its state."""
    try:
        found = json.loads((where / FOLDER / str(minor)).read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()}


def change(known: Mapping[str, str], words: Sequence[str], sequence: int) -> dict[str, str]:
    """A GPU's faults after one more; ValueError if there is no such fault.

    The sequence number, which rises, tells one XID from the next.
    """
    match words:
        case ["xid", code] if code.isdigit():
            return {**known, "xid": f"{sequence} {code}"}
        case ["lost"]:
            return {**known, "lost": "1", "xid": f"{sequence} {FELL_OFF_THE_BUS}"}
        case ["set", key, value] if key and not set(key + value) & {"\n", "\r"} and " " not in key:
            return {**known, key: value}
        case ["ok"]:
            return {}
    raise ValueError(f"no such fault: {' '.join(words)}")


def main() -> None:
    where, words = root(), sys.argv[1:]
    if not words or not words[0].isdigit():
        sys.exit(f"usage: {__doc__}")
    minor = int(words[0])
    try:
        faults = change(read(where, minor), words[1:], time.time_ns())
    except ValueError as fault:
        sys.exit(f"gpu-fault: error: {fault}; see gpu-fault --help")
    try:
        beside = where / FOLDER / f".{minor}"
        beside.write_text(json.dumps(faults))
        beside.replace(where / FOLDER / str(minor))
    except OSError as fault:
        sys.exit(f"gpu-fault: error: {fault}; run it as root where gpu-emulator runs")


if __name__ == "__main__":
    main()
