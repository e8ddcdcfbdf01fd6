"""Each view of the page, as an operator sees it, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from patience import eventually
from served_page import SITE, ServedPage
from simulated_world import NODES
from surfer import Surfer

VIEWS = ("overview", "map", "queue", "plan", "sharing", "events", "shares", "steering")


@pytest.fixture
def busy(page: ServedPage) -> ServedPage:
    """More jobs than four nodes hold: the first ones run, one waits, and there were moves."""
    for number in range(5):
        page.work.submit(4, "nobody", name=f"train-{number}", elastic="4-8")
    page.live(60)
    return page


def test_the_overview_says_what_the_cluster_does(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("16 elastic jobs", "0 free", "16 in all", "4\nelastic jobs run", "1\nwait")
    browser.reads("needs 4 GPUs on 1 to 2 nodes", "moves begun", "Latest events", "policy ones")
    assert "sign-in" not in browser.driver.current_url


def test_a_round_changes_what_is_shown(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("4\nelastic jobs run")
    busy.work.submit(4, "daemon", name="late")
    busy.live(30)
    browser.reads("2\nwait", "late")


def test_the_map_shows_every_gpu_by_switch_and_node(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/map")
    browser.reads("n1", "n4", "16 of 16 GPUs held")
    assert len(browser.all("button.node i[data-job]")) == 16
    assert len(set(browser.each("button.node i", "className"))) == 4
    browser.click("button.node")
    browser.reads("Utilisation", "train-")
    assert "node=n1" in browser.driver.current_url
    browser.press("ARROW_RIGHT")
    browser.reads("n2", "train-")
    assert browser.run("return document.activeElement.dataset.node") == "n2"


def test_a_node_that_is_not_used_stands_out(busy: ServedPage, browser: Surfer) -> None:
    busy.work.world.drain("n3", "a fan is broken")
    busy.live(30)
    browser.open(busy.link())
    browser.reads("not used for new work")
    browser.go("#/map/load")
    assert browser.first("button.node.out", "dataset.node") == "n3"


def test_the_queue_says_why_jobs_wait_and_is_searched(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/queue/waiting")
    browser.reads("needs 4 GPUs on 1 to 2 nodes", "pending", "1 job")
    browser.go("#/queue/all")
    browser.reads("5 jobs", "running")
    browser.press("/")
    browser.press("train-2")
    browser.reads("1 job")
    assert "find=train-2" in browser.driver.current_url
    browser.driver.refresh()  # a link to what was found
    browser.reads("1 job", "train-2")
    browser.click(".tabs a:first-child")  # those of them that wait
    browser.reads("No such job")
    browser.press("/")
    browser.press("END")
    for _ in "train-2":
        browser.press("BACKSPACE")
    browser.reads("1 job")
    browser.click(".tabs a:last-child")
    browser.reads("5 jobs")


def test_a_job_on_several_nodes_is_found_by_each(page: ServedPage, browser: Surfer) -> None:
    job = page.work.submit(12, "nobody", name="wide", elastic="12")
    page.live(45)
    browser.open(page.link())
    browser.reads("1\nelastic jobs run")
    for node in page.work.job(job).nodes:
        browser.go(f"#/queue/running?find={node}")
        browser.reads("1 job", "wide")


def test_rounds_that_hang_are_told_on_every_view(page: ServedPage, browser: Surfer) -> None:
    page.live(30)
    page.work.offset += 3600
    browser.open(page.link())
    browser.reads("in all")
    for view in VIEWS:
        browser.go(f"#/{view}")
        browser.sees(f"main.{view} > *")
        assert browser.first(".notice").startswith("no round for 01:00:"), view
    page.live(15)
    eventually(lambda: not any(browser.each(".notice", "checkVisibility()")))


def test_a_sorted_queue_says_so(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/queue")
    browser.click("th.job button")
    browser.click("th.job button")
    assert browser.first("th.job", "ariaSort") == "descending"
    numbers = [int(each) for each in browser.each("tbody th.job")]
    assert numbers == sorted(numbers, reverse=True)
    assert browser.run("return document.activeElement.closest('th').className") == "job"


def test_a_job_s_life_is_drawn(busy: ServedPage, browser: Surfer) -> None:
    job = next(iter(busy.work.onesd.rounds.published.jobs)).id
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go(f"#/job/{job}")
    browser.reads(f"Job {job}", "GPUs over time", "asked for (4–8)", "starts on")
    assert browser.all("svg rect.runs")
    assert browser.all("svg g.mark")
    assert "believed" in browser.text


def test_a_job_s_view_has_its_answer_beside_the_newest_jobs(
    page: ServedPage, browser: Surfer
) -> None:
    first = page.work.submit(16, "nobody", elastic="16")
    page.live(60)
    job = page.work.submit(8, "nobody", elastic="8")
    page.live(15)
    browser.open(page.link())
    browser.reads("elastic jobs run")
    browser.go(f"#/job/{job}")
    browser.reads(f"Job {job}", "0\nGPUs now")
    # From now on the view asks no more, and only hears of the jobs.
    browser.run("window.fetch = () => new Promise(() => {})")
    page.work.world.finish(first)
    page.live(60)
    browser.reads("8\nGPUs now", "running")


@pytest.fixture
def trained(busy: ServedPage) -> ServedPage:
    """The same some reports later: losses fall, and speeds grow."""
    busy.work.again = True
    for loss in (4.0, 3.0, 2.25):
        busy.work.says |= {"loss": loss, "step_seconds": 0.1 * loss}
        busy.live(15)
    return busy


def see_job(page: ServedPage, browser: Surfer) -> int:
    job = int(page.work.onesd.rounds.published.jobs[0].id)
    browser.open(page.link())
    browser.reads("elastic jobs run")
    browser.go(f"#/job/{job}")
    browser.reads(f"Job {job}", "Training over time")
    return job


def in_time(page: ServedPage, seen: Callable[[], bool]) -> None:
    """After a few rounds: the view of a job asks again after a round, though not after each."""

    def looked() -> bool:
        page.live(15)
        return seen()

    eventually(looked)


def test_a_job_s_training_is_drawn_on_the_time_axis_of_its_sizes(
    trained: ServedPage, browser: Surfer
) -> None:
    see_job(trained, browser)
    browser.reads("Batch 64", "Loss 2.25", "Speed 284 samples/s", "Not reported: utilisation")
    drawn = browser.each("main .courses path.line", "getAttribute('d')")
    assert len(drawn) == 3
    assert all(one.count("L") >= 2 for one in drawn)
    ends = "return [...document.querySelectorAll('main .courses svg, main svg:has(rect.runs)')]"
    widths = browser.run(f"{ends}.map((one) => [one.viewBox.baseVal.width, one.clientWidth])")
    assert len({tuple(one) for one in widths}) == 1
    said = browser.each("main .courses svg", "ariaLabel")
    assert any("Loss of job" in one and "2.25 at last, between 2.25 and 4" in one for one in said)


def test_a_job_s_training_is_a_table_that_the_keyboard_opens_and_that_stays_open(
    trained: ServedPage, browser: Surfer
) -> None:
    see_job(trained, browser)
    browser.run("document.querySelector('main summary').focus()")
    browser.press("ENTER")
    browser.reads("2.25", "Utilisation")
    before = len(browser.all("main details tbody tr"))
    assert before >= 4
    in_time(trained, lambda: len(browser.all("main details tbody tr")) > before)
    assert browser.first("main details", "open")
    assert browser.run("return document.activeElement.tagName") == "SUMMARY"


def test_a_job_that_reports_nothing_says_so_and_absurd_losses_are_not_drawn(
    page: ServedPage, browser: Surfer
) -> None:
    page.work.says = {}
    page.work.submit(4, "nobody")
    page.live(45)
    see_job(page, browser)
    browser.reads("Drawn as soon as the job reports how it trains")
    page.work.again = True
    page.work.says = {"loss": -7.0, "batch": 64, "step_seconds": 0.5}
    in_time(page, lambda: "Speed 128 samples/s" in browser.text)
    browser.reads("Not reported: loss, utilisation")


def test_a_job_s_training_fits_a_phone_and_the_dark(trained: ServedPage, browser: Surfer) -> None:
    see_job(trained, browser)
    with browser.as_phone():
        browser.driver.refresh()
        browser.reads("Loss 2.25")
        assert not browser.overflows()
        seen = browser.each("main .courses svg", "getBoundingClientRect().width")
        assert all(0 < width <= 390 for width in seen)
        stroke = browser.run("return getComputedStyle(document.querySelector('.line')).stroke")
        assert stroke == "rgb(108, 177, 255)"


def test_the_plan_stands_beside_the_present(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/plan")
    browser.reads("The plan beside the present", "policy ones", "4 jobs stay as they are")


def test_events_are_listed_and_chosen(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/events/moves")
    browser.reads("start", "done in", "starts on 4 GPUs")
    assert len(browser.all("main .events li")) >= 4
    browser.go("#/events/refusals")
    browser.reads("Refusals")
    assert all("done" not in each for each in browser.each("main .outcome"))


def test_moves_that_came_to_nothing_are_among_the_refusals(
    page: ServedPage, browser: Surfer
) -> None:
    for _ in range(3):
        page.work.submit(4, "nobody", elastic="4")
    page.work.live(60)
    for number, outcome in enumerate(("expired: too late", "abandoned: its job has ended"), 1):
        page.work.store.write(
            "UPDATE moves SET outcome = ?1, record = json_set(record, '$.outcome', ?1)"
            " WHERE id = ?2",
            outcome,
            number,
        )
    browser.open(page.link())
    browser.reads("elastic jobs run")
    browser.go("#/events/refusals")
    browser.reads("expired", "abandoned")


def test_shares_are_summed_by_account(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    browser.go("#/shares")
    browser.reads("vision", "nobody", "100\u00a0%")


def test_every_view_fits_a_phone_and_the_dark(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    with browser.as_phone():
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(13, 17, 23)"
        for view in VIEWS:
            browser.go(f"#/{view}")
            browser.sees(f"main.{view} > *")
            assert not browser.overflows(), view


def test_every_view_is_reached_by_the_keyboard_alone(busy: ServedPage, browser: Surfer) -> None:
    browser.open(busy.link())
    browser.reads("elastic jobs run")
    seen = set()
    for _ in range(14):
        browser.press("TAB")
        seen.add(browser.run("return document.activeElement.getAttribute('href') || ''"))
    assert {f"#/{view}" for view in VIEWS} <= seen


def test_before_the_first_round_it_says_so(page: ServedPage, browser: Surfer) -> None:
    browser.open(page.link())
    browser.reads("no round has ended yet")
    for view in VIEWS:
        browser.go(f"#/{view}")
        browser.sees(f"main.{view} > *")


def test_a_cluster_without_gpus_is_shown_too(tmp_path: Path, browser: Surfer) -> None:
    bare = tuple(type(NODES[0])(name=node.name, gpus=0) for node in NODES)
    with ServedPage(tmp_path, site={**SITE, "nodes": bare}) as page:
        page.live(30)
        browser.open(page.link())
        browser.reads("0 in all")
        for view in VIEWS:
            browser.go(f"#/{view}")
            browser.sees(f"main.{view} > *")
