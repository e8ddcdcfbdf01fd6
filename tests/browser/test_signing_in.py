"""Signing in at the page, and what becomes of it: in a real browser, by `onesctl web`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from patience import eventually
from served_page import USER, ServedPage
from surfer import Surfer

from ones.daemon.onesd.page import server

RUN = "from ones.daemon.ctl.main import main; main(prog_name='onesctl')"
# Three quarters of a minute pass within two seconds.
IMPATIENT = """
    const usual = setTimeout;
    window.setTimeout = (act, ms, ...more) => usual(act, ms < 40000 ? ms : ms / 30, ...more);
"""


def onesctl_web(page: ServedPage) -> str:
    """The link that it prints."""
    command = [sys.executable, "-c", RUN, "--socket", str(page.socket), "web"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "within 00:02:00, and once" in done.stderr
    return done.stdout.strip()


def test_onesctl_web_prints_a_link_that_signs_in_once(page: ServedPage, browser: Surfer) -> None:
    page.live(15)
    link = onesctl_web(page)
    browser.open(link)
    browser.reads("Overview", "(operator)")
    assert browser.driver.current_url == f"{page.url}/#/overview"
    browser.click("header button")
    browser.reads("Sign in", "onesctl web")
    browser.open(link)
    browser.reads("this link can't be used (any more)", "onesctl web")


def test_whoever_is_signed_in_stays_so_on_other_tabs_and_later(
    page: ServedPage, browser: Surfer
) -> None:
    page.live(15)
    browser.open(page.link())
    browser.reads("in all")
    browser.open(f"{page.url}/#/queue")
    browser.reads("No such job")


@pytest.mark.parametrize("part", ["events.js", "style.css"])
def test_a_page_of_which_a_part_did_not_come_is_loaded_again(
    page: ServedPage, browser: Surfer, part: str
) -> None:
    """A browser drops what is under way when the network changes, and asks for it no more."""
    page.live(15)
    link = page.link()
    with browser.without(f"*/static/{part}"):
        browser.open(link)
        browser.reads("A part of this page did not come")
    styled = "return document.body && getComputedStyle(document.body).margin === '0px'"
    eventually(lambda: browser.run(styled))
    browser.reads("Overview", "(operator)")


@pytest.mark.parametrize("what", ["expired", "forged", "cut"])
def test_a_link_that_is_no_good_says_what_to_do(
    page: ServedPage, browser: Surfer, what: str, audited: pytest.LogCaptureFixture
) -> None:
    page.live(15)
    links = {
        "expired": page.link(lasts=0.0),
        "forged": f"{page.url}/#sign-in={'A' * 43}",
        "cut": page.link()[:-5],
    }
    browser.open(links[what])
    browser.reads("Sign in", "this link can't be used (any more)", "onesctl web")
    assert 'event=refused uid=- from=127.0.0.1 what="POST /sign-in"' in audited.text


def test_without_a_session_nothing_is_told(page: ServedPage, browser: Surfer) -> None:
    page.work.submit(4, "alice", name="a-secret-name")
    page.live(15)
    browser.open(page.url)
    browser.reads("Sign in", "onesctl web")
    seen = browser.run(
        "return fetch('/data/state', {headers: {'Ones-Proof': 'x'}}).then((a) => a.text())"
    )
    assert "not signed in" in seen
    assert "a-secret-name" not in seen


def test_a_page_left_open_over_a_restart_says_so_and_goes_on_after_a_new_link(
    page: ServedPage, browser: Surfer
) -> None:
    page.live(15)
    browser.open(page.link())
    browser.reads("in all")
    page.stop()
    browser.reads("onesd does not answer", "it is tried again", "in all")
    page.start()
    browser.reads("Signed out", "onesd was restarted", "onesctl web")
    browser.open(page.link(USER))
    browser.reads("nobody", "in all")


def test_signing_out_ends_the_session_of_all_tabs(page: ServedPage, browser: Surfer) -> None:
    page.live(15)
    browser.open(page.link())
    browser.reads("in all")
    proof = browser.run("return localStorage.getItem('ones-proof')")
    cookie = browser.driver.get_cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    browser.click("header button")
    browser.reads("Sign in")
    assert page.api.sessions.whose(cookie["value"], proof) is None


def test_a_used_link_signs_nobody_out(page: ServedPage, browser: Surfer) -> None:
    page.live(15)
    link = page.link()
    browser.open(link)
    browser.reads("in all")
    browser.open(link)
    browser.reads("this link can't be used (any more)", "You stay signed in", "in all")
    browser.go("#/map")
    browser.reads("GPUs held")
    assert "this link" not in browser.text


def test_the_end_of_an_old_session_leaves_the_new_one_of_another_window(
    page: ServedPage, browser: Surfer
) -> None:
    page.live(15)
    browser.open(page.link())
    browser.reads("in all")
    cookie = browser.driver.get_cookies()[0]["value"]
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("window")
    browser.driver.get(page.link(USER))
    browser.reads("nobody", "in all")
    browser.driver.close()
    browser.driver.switch_to.window(first)
    assert "(operator)" in browser.text
    page.api.sessions.end(cookie)  # as its time limit does
    page.live(15)
    browser.reads("nobody", "in all")
    assert "(operator)" not in browser.text


def test_a_connection_that_hangs_is_told_and_made_anew(
    page: ServedPage, browser: Surfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BEAT", 3600.0)  # as if nothing came through any more
    page.live(15)
    added = browser.driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": IMPATIENT}
    )
    try:
        browser.open(page.link())
        browser.reads("onesd has not been heard for 45 s", "it is tried again", "in all")
        page.live(15)
        browser.reads(f"round {page.work.onesd.rounds.published.number},")
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
