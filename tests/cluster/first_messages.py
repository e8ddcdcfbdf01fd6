"""Many threads at once decode the first messages of a process, as in an onesd just started.

Ends by a signal where a library is not up to that.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ones.daemon.agent.messages import read_message
from ones.daemon.onesd.doors.orders import decoded
from ones.daemon.wire import HEARD, LEASE, NODE_REPORT, REPORT
from ones.slurm_ext.live_moves import LiveMove

THREADS = 8


def decode() -> None:
    """One message of each kind."""
    decoded(b'{"node": "n1", "taken": 1.0, "interval": 2.0, "version": "1"}', NODE_REPORT)
    REPORT.decode(b'{"op": "report", "job": 1}')
    LEASE.decode(b'{"job": 1}')
    HEARD.decode(b"{}")
    read_message(b'{"op": "report"}', job=1)
    with suppress(ValueError):  # it lacks the rest: only a type worked out tells so
        LiveMove.from_json('{"target": {}}')


def main() -> None:
    """Let all threads begin at the same moment, and take turns as often as they can."""
    sys.setswitchinterval(1e-6)
    gate = threading.Barrier(THREADS)

    def begin() -> None:
        gate.wait()
        decode()

    with ThreadPoolExecutor(THREADS) as pool:
        for begun in [pool.submit(begin) for _ in range(THREADS)]:
            begun.result()


if __name__ == "__main__":
    main()
