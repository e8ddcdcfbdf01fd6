"""What this node has sent and received over its network, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

from ones.daemon.wire import Traffic

PROC = Path("/proc/net/dev")
SYS = Path("/sys/class")
WORD = 4  # bytes: InfiniBand counts its data in such words


def read(proc: Path = PROC, sys: Path = SYS) -> Traffic | None:
    """Bytes since the node's start; None where the kernel does not say.

    Real interfaces only, so that what a bridge or a bond passes on isn't counted twice; where there
    are none, as in a container, all but the loopback. InfiniBand beside them: what goes past the
    kernel is in the adapter's own counters alone.
    """
    try:
        lines = proc.read_text().splitlines()[2:]
    except OSError:
        return None
    counts = {}
    for line in lines:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name.strip() != "lo" and len(fields) >= 16 and fields[0].isdigit():
            counts[name.strip()] = int(fields[0]), int(fields[8])
    real = {name: both for name, both in counts.items() if (sys / "net" / name / "device").exists()}
    chosen = (real or counts).values()
    return Traffic(
        received=sum(received for received, _ in chosen) + _infiniband(sys, "port_rcv_data"),
        sent=sum(sent for _, sent in chosen) + _infiniband(sys, "port_xmit_data"),
    )


def _infiniband(sys: Path, counter: str) -> int:
    total = 0
    for file in sys.glob(f"infiniband/*/ports/*/counters/{counter}"):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        total += WORD * int(text) if text.isdigit() else 0
    return total
