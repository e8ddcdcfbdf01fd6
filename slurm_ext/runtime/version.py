"""The version as a command of ours tells it."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

import ones


class SayVersion(argparse.Action):
    """Looks the version up only where it is asked for: that takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{parser.prog}, version {ones.__version__}")
        sys.exit(0)
