"""A real Prometheus on the loopback that scrapes what a test serves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
"""


def program(name: str) -> str:
    """Where a program of Debian's package is; the test is skipped without it, and fails in CI."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {name}")
        pytest.skip(f"no {name}; apt-get install prometheus")
    return found


def free_port() -> int:
    """Of the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Prometheus:
    """Asked through its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **words: str) -> Any:
        """The data of an answer; an error of its is one of the test."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as fault:
            raise AssertionError(f"{path} {words}: {fault.read().decode()}") from None
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expression: str) -> list[Any]:
        """The samples that an expression has now."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=30):
                return True
        except OSError:  # nobody there yet, or 503
            return False


@contextmanager
def scraping(folder: Path, rules: Path, jobs: Mapping[str, int]) -> Iterator[Prometheus]:
    """One that has scraped every job, NAME -> port of the loopback, three times."""
    port = free_port()
    targets = "".join(
        f"  - job_name: {name}\n    static_configs: [{{targets: ['127.0.0.1:{at}']}}]\n"
        for name, at in jobs.items()
    )
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(rules=rules) + targets)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    server = Prometheus(port)
    try:
        eventually(lambda: process.poll() is not None or server.answers())
        assert process.poll() is None, (folder / "log").read_text()
        scraped = f"count(sum_over_time(up[5m]) >= 3) == {len(jobs)}"
        eventually(lambda: server.query(scraped))
        yield server
    finally:
        process.kill()
        process.wait()
