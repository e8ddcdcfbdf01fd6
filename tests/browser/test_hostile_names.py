"""Names that are meant to do harm, in every view."""

from __future__ import annotations

from served_page import ServedPage
from surfer import Surfer

MARKUP = "<img src=x onerror=window.harmed=1><script>window.harmed=1</script>"
NAMES = {
    "markup": MARKUP,
    "attribute": '"><svg onload=window.harmed=1>',
    "url": "javascript:window.harmed=1//",
    "long": "x" * 10_000,
    "bidi": "report\u202egnp.exe\u2066",
    "control": "a\x1b[31mred\x07\x00end",
    "arabic": "تدريب النموذج",
    "template": "${window.harmed=1}{{7*7}}",
    "keys": "__proto__",
}
VIEWS = (
    "overview",
    "map/job",
    "map/load",
    "queue/all",
    "plan",
    "sharing",
    "events",
    "shares",
    "steering",
)


def test_hostile_names_are_shown_and_do_nothing(page: ServedPage, browser: Surfer) -> None:
    jobs = {
        what: page.work.submit(1, "nobody", name=name, elastic="1-2")
        for what, name in NAMES.items()
    }
    jobs |= {
        f"{what} waits": page.work.submit(16, "nobody", name=NAMES[what], elastic="16")
        for what in ("markup", "long")
    }
    page.live(30)
    browser.open(page.link())
    browser.reads("in all")
    for view in (*VIEWS, *(f"job/{job}" for job in jobs.values())):
        browser.go(f"#/{view}")
        browser.sees("main > *")
        assert browser.run("return window.harmed") is None
        assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
        assert not browser.overflows(), view
    for what, name in NAMES.items():
        browser.go(f"#/job/{jobs[what]}")
        browser.reads(f"Job {jobs[what]}")
        shown = str(browser.first("h1 bdi", "textContent"))
        assert len(shown) <= 500
        assert not any(ord(char) < 32 or char in "\u202e\u2066" for char in shown)
        assert shown == name or what in ("long", "bidi", "control")
        if what == "bidi":
            assert "⟨U+202E⟩" in shown


def test_a_hostile_node_user_and_reason_do_nothing_either(
    page: ServedPage, browser: Surfer
) -> None:
    page.work.submit(4, "nobody")
    page.work.world.drain("n2", MARKUP)
    page.live(30)
    page.work.onesd.service.pause(MARKUP, MARKUP)
    page.page.changed()
    browser.open(page.link())
    browser.reads("paused by <img")
    for view in VIEWS:
        browser.go(f"#/{view}?find={'%3Cimg%20src=x%20onerror=window.harmed=1%3E'}&node=<script>")
        browser.sees("main > *")
        assert browser.run("return window.harmed") is None
        assert not browser.overflows(), view


def test_a_link_that_was_cut_or_made_up_shows_a_view(page: ServedPage, browser: Surfer) -> None:
    page.live(15)
    browser.open(page.link())
    browser.reads("in all")
    for hash_ in ("#/%E0%A4%A", "#/constructor", "#/job/<b>1</b>", "#/map/__proto__?node=%", "#//"):
        browser.go(hash_)
        browser.sees("main > *")
        assert "can't be drawn" not in browser.text
