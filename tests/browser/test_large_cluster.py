"""The page of a large cluster: 1,280 nodes, 10,000 jobs."""

from __future__ import annotations

from pathlib import Path

from large_round import large_round
from served_page import ServedPage
from surfer import Surfer


def test_every_view_opens_and_follows_what_changes(tmp_path: Path, browser: Surfer) -> None:
    with ServedPage(tmp_path, policy="fifo") as page:
        rounds = page.work.onesd.rounds
        rounds.published = large_round(1, at=20_000.0)
        browser.open(page.link())
        browser.reads("5,120 in all", "elastic jobs run", "Waiting longest")
        browser.go("#/map")
        browser.reads("leaf01", "leaf40", "128 of 128 GPUs held")
        assert len(browser.all("button.node")) == 1280
        browser.go("#/queue/all")
        browser.reads("the first 200 of 10,000 jobs")
        browser.type("input[type=search]", "train-9999")
        browser.reads("train-9999", "1 job")
        browser.go("#/plan")
        browser.reads("50 jobs would change")
        rounds.published = large_round(2, at=20_015.0)
        page.page.changed()
        browser.reads("round 2,")
