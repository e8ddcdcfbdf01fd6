"""The view of jobs that share a GPU, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_page import USER, ServedPage
from sharing_jobs import a_page_where_gpus_are_shared, share_gpus
from surfer import Surfer

from ones.daemon.config import SharingConfig

SLOW = "slow: job {} runs at 30% of its speed alone, expected 90%"


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[ServedPage]:
    """Where jobs may share GPUs: two of nobody's, one of daemon's and one of alice's."""
    with ServedPage(tmp_path, sharing=SharingConfig(allow=True)) as page:
        for user, name in (("nobody", "a"), ("nobody", "b"), ("daemon", "c"), ("alice", "d")):
            page.work.submit(1, user, name=f"train-{name}", elastic="1-2")
        page.live(45)
        yield page


def see(page: ServedPage, browser: Surfer, uid: int | None = None) -> None:
    browser.open(page.link(uid))
    browser.reads("in all")
    browser.click("nav a[href='#/sharing']")
    browser.sees("main.sharing h2")


def numbers(page: ServedPage) -> list[int]:
    return sorted(int(job.id) for job in page.work.onesd.rounds.published.jobs)


def test_jobs_that_liquid_puts_together_are_shown_with_what_they_reach(
    tmp_path: Path, browser: Surfer
) -> None:
    with a_page_where_gpus_are_shared(tmp_path) as page:
        share_gpus(page)
        see(page, browser)
        browser.reads("96 %", "93 %", "189 % measured", "samples/s")
        assert len(browser.all("main.sharing tbody tr")) == 8
        browser.reads("Shared a GPU before", "runs at 31% of its speed alone, expected 100%")


def test_each_one_s_speed_stands_beside_what_it_does_alone(
    sharing: ServedPage, browser: Surfer
) -> None:
    one, two, three, four = numbers(sharing)
    sharing.share(one, two, first_speed=0.85, second_speed=0.8)
    sharing.share(three, four, node="n2", gpu=3)
    see(sharing, browser)
    browser.reads("n1 GPU\u00a00", "train-a", "85\u00a0%", "80\u00a0%", "165\u00a0% measured")
    browser.reads("n2 GPU\u00a03", "train-d", "not yet", "180\u00a0% expected", "128 samples/s")
    said = browser.each("main [role=img]", "ariaLabel")
    assert "expected: 90\u00a0%, measured: 85\u00a0%" in said
    assert len(browser.all("main.sharing tbody tr")) == 4
    browser.click(f"main a[href='#/job/{one}']")
    browser.reads(f"Job {one}", "GPUs over time")


def test_pairs_that_were_separated_say_why_and_gpus_that_are_closed(
    sharing: ServedPage, browser: Surfer
) -> None:
    one, two, *_ = numbers(sharing)
    now = sharing.work.world.now
    sharing.share(one, two, ended=now, parted=SLOW.format(one), first_speed=0.3, second_speed=0.9)
    gpu = {"node": "n4", "gpu": 2, "at": now, "why": "XID 31"}
    sharing.work.store.put("unshared", [gpu])
    see(sharing, browser)
    browser.reads("No two jobs share a GPU now", "Shared a GPU before", "30\u00a0%")
    browser.reads(f"job {one} runs at 30% of its speed alone, expected 90%")
    browser.reads("not shared for a while", "n4 GPU\u00a02: XID 31")


def test_a_user_sees_his_half_of_a_pair_alone(sharing: ServedPage, browser: Surfer) -> None:
    one, two, three, four = numbers(sharing)
    sharing.share(one, three, parted=SLOW.format(three), second_speed=0.3, first_speed=0.85)
    sharing.share(two, four, node="n2")
    sharing.share(three, four, node="n3")
    see(sharing, browser, USER)
    browser.reads(
        "train-a", "85\u00a0%", "another user's", "another user's job runs slower than expected"
    )
    browser.reads("two jobs share each of 3 GPUs now")
    assert len(browser.all("main.sharing tbody tr")) == 4
    told = browser.run(
        "return fetch('/data/sharing', {headers: {'Ones-Proof': localStorage['ones-proof']}})"
        ".then((answer) => answer.json())"
    )
    seen = [half["job"] for pair in told["pairs"] for half in pair["jobs"]]
    assert sorted(seen, key=str) == [one, two, None, None]
    assert told["closed"] == []
    assert f"job {three}" not in str(told)
    assert "n3" not in str(told)


@pytest.mark.parametrize("uid", [None, USER])
def test_where_nobody_shares_it_says_so(
    sharing: ServedPage, browser: Surfer, uid: int | None
) -> None:
    see(sharing, browser, uid)
    browser.reads(
        "share" if uid is None else "None of your jobs shares a GPU now", "such as liquid"
    )


def test_where_it_is_off_it_says_how_it_is_switched_on(page: ServedPage, browser: Surfer) -> None:
    page.live(15)
    see(page, browser)
    browser.reads("Jobs share no GPUs here", "[sharing] allow")


def test_pairs_fit_a_phone_and_the_dark(sharing: ServedPage, browser: Surfer) -> None:
    one, two, *_ = numbers(sharing)
    hostile = "<img src=x onerror=window.harmed=1>" * 9
    sharing.share(one, two, node="n" * 200, parted=f"slow: {hostile}")
    see(sharing, browser)
    with browser.as_phone():
        browser.driver.refresh()
        browser.reads("180\u00a0% expected", "<img src=x")
        assert not browser.overflows()
    assert browser.run("return window.harmed") is None
