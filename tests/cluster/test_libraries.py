"""What the cluster's own libraries, which may be older than those of a developer, stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.cluster


def test_the_first_messages_of_a_process_may_come_all_at_once(cluster: Cluster) -> None:
    script = (Path(__file__).parent / "first_messages.py").read_text()
    for _ in range(8):  # with the fault every second one ended by a signal
        cluster.run("ctl", ["/opt/ones/bin/python", "-"], "ones", stdin=script)
