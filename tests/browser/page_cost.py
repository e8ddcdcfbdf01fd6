"""What the page costs on a large cluster: page_cost.py [NODES [JOBS]]; for docs/page.md."""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "unit")]

from large_round import large_round  # noqa: E402
from served_page import ServedPage  # noqa: E402
from surfer import Surfer  # noqa: E402

T = TypeVar("T")


def main() -> None:
    nodes, jobs = (int(word) for word in (sys.argv[1:] + ["1280", "10000"][len(sys.argv) - 1 :]))
    with (
        tempfile.TemporaryDirectory() as folder,
        ServedPage(Path(folder), policy="fifo") as page,
    ):
        measure(page, nodes, jobs)


def measure(page: ServedPage, nodes: int, jobs: int) -> None:
    rounds, broadcast = page.work.onesd.rounds, page.page._broadcast

    def ends(number: int) -> None:
        at = page.work.world.now + 15 * number
        rounds.published = large_round(number, at=at, nodes=nodes, jobs=jobs)

    ends(1)
    print("| | |\n|---|---|")
    rendering = broadcast._rendering
    seconds, outline = timed(rendering.outline)
    row("what is the same for all, once", seconds)
    seconds, picture = timed(lambda: rendering.picture(outline))
    row("the jobs, once for all pages", seconds)
    row("for all operators, once", timed(lambda: rendering.for_viewer(picture, None))[0])
    row("for a user, once", timed(lambda: rendering.for_viewer(picture, "user007"))[0])
    browser = Surfer()
    try:
        words = ("elastic jobs run", "Waiting longest", f"{4 * nodes:,} in all")
        link = page.link()
        seconds, _ = timed(lambda: (browser.open(link), browser.reads(*words)))
        row("from the link to the first view, in Chromium", seconds)
        packed = next(iter(broadcast._whole.values()))
        sizes = [len(text) / 2**20 for text in (packed, gzip.decompress(packed))]
        print(f"| what an operator's page loads | {sizes[0]:.2f} MiB ({sizes[1]:.1f} unpacked) |")
        for view, text in {
            "map": "leaf01",
            "queue": "the first 200",
            "plan": "would change",
        }.items():
            row(f"on to the view {view}", timed(lambda v=view, t=text: visit(browser, v, t))[0])
        browser.go("#/overview")
        browser.reads(*words)
        ends(2)
        page.page.changed()
        browser.reads("round 2,")
        ends(3)
        seconds, _ = timed(lambda: (page.page.changed(), browser.reads("round 3,")))
        row("from a round's end until it is seen", seconds)
    finally:
        browser.close()
    print(f"\n{nodes:,} nodes of four GPUs, {jobs:,} elastic jobs.")


def visit(browser: Surfer, view: str, text: str) -> None:
    browser.go(f"#/{view}")
    browser.reads(text)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def row(what: str, seconds: float) -> None:
    print(f"| {what} | {seconds:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
