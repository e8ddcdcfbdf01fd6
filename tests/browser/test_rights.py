"""What users and operators may see and do on the page."""

from __future__ import annotations

import time

import pytest
from patience import eventually
from served_page import OTHER, USER, ServedPage
from surfer import Surfer


@pytest.fixture
def shared(page: ServedPage) -> ServedPage:
    """Jobs of two users, and one that waits of each."""
    for user in ("nobody", "daemon"):
        page.work.submit(4, user, name=f"of-{user}", elastic="4-8")
        page.work.submit(8, user, name=f"large-of-{user}", elastic="8-16")
    page.live(45)
    return page


def test_a_user_sees_his_own_jobs_alone(shared: ServedPage, browser: Surfer) -> None:
    browser.open(shared.link(USER))
    browser.reads("nobody", "in all")
    assert "(operator)" not in browser.text
    for view, words in {"queue/all": "2 jobs of yours", "map": "of 16 GPUs held"}.items():
        browser.go(f"#/{view}")
        browser.reads(words)
    for view in ("overview", "queue/all", "map", "plan", "sharing", "events", "shares", "steering"):
        browser.go(f"#/{view}")
        browser.sees("main > *")
        assert "of-daemon" not in browser.run("return document.body.innerHTML")
    state = browser.run(
        "return fetch('/data/state', {headers: {'Ones-Proof': localStorage['ones-proof']}})"
        ".then((answer) => answer.text())"
    )
    assert "of-nobody" in state
    assert "daemon" not in state


def test_the_map_shows_that_others_have_gpus_but_not_who(
    shared: ServedPage, browser: Surfer
) -> None:
    browser.open(shared.link(USER))
    browser.reads("in all")
    browser.go("#/map")
    browser.reads("GPUs held")
    assert browser.all("button.node i.others")
    assert browser.all("button.node i[data-job]")


def test_another_s_job_is_not_told_from_one_that_is_not_there(
    shared: ServedPage, browser: Surfer
) -> None:
    theirs = next(job for job in shared.work.world.state.jobs.values() if job.user == "daemon")
    browser.open(shared.link(USER))
    browser.reads("in all")
    for number in (theirs.id, 999_999):
        browser.go(f"#/job/{number}")
        browser.reads(f"job {number} is not one of your elastic jobs")
        assert "of-daemon" not in browser.run("return document.body.innerHTML")


def test_a_user_is_offered_no_orders_and_refused_them(
    shared: ServedPage, browser: Surfer, audited: pytest.LogCaptureFixture
) -> None:
    browser.open(shared.link(USER))
    browser.reads("in all")
    browser.go("#/steering")
    browser.reads("Only operators")
    assert not any(browser.each("main button, main select", "checkVisibility()"))
    for path in ("pause", "resume", "policy"):
        status = browser.run(
            "return fetch(arguments[0], {method: 'POST', body: '{}', headers:"
            " {'Ones-Proof': localStorage['ones-proof']}}).then((answer) => answer.status)",
            f"/do/{path}",
        )
        assert status == 403
    assert shared.work.onesd.service.paused is None
    assert f'event=refused uid={USER} from=127.0.0.1 what="POST /do/pause"' in audited.text


def test_an_operator_pauses_and_resumes(
    shared: ServedPage, browser: Surfer, audited: pytest.LogCaptureFixture
) -> None:
    browser.open(shared.link())
    browser.reads("(operator)", "in all")
    browser.go("#/steering")
    browser.type("#reason", "new disks")
    browser.click("button[type=submit]")
    browser.reads("Paused by", "new disks", "paused, policy ones")
    paused = shared.work.onesd.service.paused
    assert paused is not None
    assert paused["reason"] == "new disks"
    assert 'reason="new disks" door=page' in audited.text
    browser.click("main .card > button")
    browser.reads("onesd acts", "Resumed.")
    eventually(lambda: shared.work.onesd.service.paused is None)
    assert "event=resume uid=" in audited.text


def test_an_operator_sets_the_policy(
    shared: ServedPage, browser: Surfer, audited: pytest.LogCaptureFixture
) -> None:
    browser.open(shared.link())
    browser.reads("in all")
    browser.go("#/steering")
    browser.type("select#policy", "srtf")
    browser.click("form:has(#policy) button")
    browser.reads("Policy srtf decides, set by an operator", "The policy is set")
    assert shared.work.onesd.service.config.policy == "srtf"
    assert "policy=srtf door=page" in audited.text


def test_an_operator_of_slurm_s_who_is_none_any_more_loses_what_he_saw(
    page: ServedPage, browser: Surfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.work.world.state.operators = {"ones", "daemon"}
    page.work.submit(4, "nobody", name="of-nobody")
    page.live(30)
    browser.open(page.link(OTHER))
    browser.reads("daemon (operator)", "1\nelastic jobs run")
    browser.go("#/queue")
    browser.reads("of-nobody")
    page.work.world.state.operators = {"ones"}
    # onesd asks for operators once a minute, whatever becomes of the time of day.
    asks = page.api.askers._operators._refresher
    monkeypatch.setattr(asks, "_clock", lambda: time.monotonic() + 120.0)
    page.live(15)
    browser.reads("No such job of yours")
    assert "(operator)" not in browser.text
