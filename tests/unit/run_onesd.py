"""onesd with a stand-in for munge: run_onesd.py MOST_DESCRIPTORS CONFIG."""

from __future__ import annotations

import resource
import sys

import sealing

from ones.daemon import munge
from ones.daemon.onesd import main as onesd

munge.encode, munge.decode = sealing.encode, sealing.decode
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
onesd.main(["--config", sys.argv[2]])
