"""The file of a trained network, for policy `drl`."""

from __future__ import annotations

import json
from pathlib import Path

from ones.daemon.replay.faults import ReplayError, clean
from ones.policies.drl_network import Network

MOST_BYTES = 64 << 20


def read(path: Path) -> Network:
    """Raises ReplayError that names the file and what is wrong in it."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
        return Network.read(json.loads(content))
    except (OSError, ValueError, RecursionError) as fault:
        raise ReplayError(f"{path}: {clean(str(fault))}") from None
