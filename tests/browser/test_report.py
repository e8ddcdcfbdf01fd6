"""The report of a replay, opened as the file that it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from large_replay import a_report, a_run
from patience import eventually
from surfer import Surfer
from test_hostile_names import MARKUP, NAMES

from ones.daemon.replay import report
from ones.daemon.replay.simulation import Run

POLICIES = {"slurm": 1.3, "tiresias": 1.1, "ones": 1.0}
HOSTILE = (
    *NAMES.values(),
    "</script><script>window.harmed=1</script>",
    "<!--<script>",
    "]]>\\u003cscript>",
    "\ud800\udfff",
    "a\u2028b\u2029c",
    " ",
)
HOVERED = """
const [done] = arguments;
const frame = () => new Promise((then) => requestAnimationFrame(then));
(async () => {
  const lane = document.querySelector(".lane");
  const { x, y } = lane.getBoundingClientRect();
  const { clearRect } = CanvasRenderingContext2D.prototype;
  let cleared = 0;
  CanvasRenderingContext2D.prototype.clearRect = function (...where) {
    cleared += 1;
    clearRect.apply(this, where);
  };
  const seen = new Set();
  for (const below of [30, 60, 90]) {
    const at = { clientX: x + 200, clientY: y + below, bubbles: true };
    lane.dispatchEvent(new PointerEvent("pointermove", at));
    await frame();
    await frame();
    const { top, bottom } = document.querySelector(".lit").getBoundingClientRect();
    seen.add(top <= y + below && y + below <= bottom ? top : "elsewhere");
  }
  CanvasRenderingContext2D.prototype.clearRect = clearRect;
  done([cleared, seen.size, seen.has("elsewhere")]);
})();
"""
# Labels of one drawing, and of those beside it, that run into each other or out of their drawing.
RUN_TOGETHER = """
const found = [];
const texts = [...document.querySelectorAll("svg text[text-anchor=middle]")].map((one) =>
  [one.textContent, one.getBoundingClientRect()]);
for (const [one, a] of texts) {
  if (a.left < 0) found.push([one]);
  for (const [other, b] of texts)
    if (a !== b && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
      found.push([one, other]);
}
return found;
"""
PAINTED = """
const [node] = [...document.querySelectorAll(arguments[0])].slice(arguments[1] ?? 0);
const copy = new OffscreenCanvas(node.width, node.height);
const pen = copy.getContext("2d", { willReadFrequently: true });
pen.drawImage(node, 0, 0);
const { data } = pen.getImageData(0, 0, node.width, node.height);
let painted = 0;
for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
return painted;
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of 2,000 jobs under three policies."""
    runs = [a_run(policy, pace=pace) for policy, pace in POLICIES.items()]
    return a_report(tmp_path_factory.mktemp("large"), *runs)


@pytest.fixture(autouse=True)
def as_usual(browser: Surfer) -> Iterator[None]:
    yield
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def as_wide(browser: Surfer, width: int, height: int = 800) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def as_media(browser: Surfer, media: str, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    asked = {"media": media, "features": features}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", asked)


def lasting_jobs(policy: str, *seconds: float) -> Run:
    """A job of each of these lengths, all submitted at once."""
    done = a_run(policy, jobs=len(seconds))
    for job, length in zip(done.jobs, seconds, strict=True):
        job.trace = replace(job.trace, submitted=0.0)
        job.started, job.finished, job.waited, job.resizes = 0.0, length, 0.0, 0
        job.sizes[:] = [(0.0, 2), (length, 0)]
    return done


def opened(browser: Surfer, link: str, words: str = "in these times") -> None:
    browser.open(link)
    browser.reads("Replay of", words)
    eventually(lambda: browser.run(PAINTED, ".lane canvas") > 0)


def fragment(browser: Surfer) -> str:
    return str(browser.driver.current_url).partition("#")[2]


def times_shown(browser: Surfer) -> list[list[str]]:
    """What stands below the curves of each column."""
    return list(
        browser.run(
            """const marks = (one) => [...one.querySelectorAll("text[text-anchor=middle]")];
            return [...document.querySelectorAll(".above section")].map(
                (one) => marks(one).map((each) => each.textContent))"""
        )
    )


def mouse(browser: Surfer, kind: str, x: float, y: float, **more: Any) -> None:
    event = {"type": kind, "x": x, "y": y, **more}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def place(browser: Surfer, selector: str) -> dict[str, float]:
    """Where it is, once it has been scrolled to."""
    browser.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
    return dict(
        browser.run(
            "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
        )
    )


def first_rows(browser: Surfer, count: int = 3) -> list[str]:
    return browser.each("table.jobs tbody th")[:count]


def test_2000_jobs_under_three_policies_stand_side_by_side(large: str, browser: Surfer) -> None:
    assert Path(large.removeprefix("file://")).stat().st_size < 5_000_000
    opened(browser, large, "2,000 jobs")
    browser.reads("slurm", "tiresias", "ones", "Average completion time", "Bold: the least")
    assert len(browser.all(".lane canvas")) == 3
    for column in range(3):
        assert browser.run(PAINTED, ".lane canvas", column) > 1000
    assert len(browser.all(".above section svg")) == 6
    first, *others = times_shown(browser)
    assert len(first) > 3
    assert others == [first, first]
    assert len(browser.all("table.jobs tbody tr")) == 100  # and no more, until they are asked for
    assert not browser.overflows()
    assert fragment(browser) == ""


def test_dragging_chooses_the_same_times_for_all_columns(large: str, browser: Surfer) -> None:
    opened(browser, large, "2,000 jobs")
    lane = place(browser, ".lane")
    x, y = lane["x"] + 48, lane["y"] + lane["height"] / 2
    each = (lane["width"] - 48 - 14) / 30
    mouse(browser, "mousePressed", x + 10 * each, y, button="left", clickCount=1)
    mouse(browser, "mouseMoved", x + 15 * each, y, button="left", buttons=1)
    browser.sees(".selecting")
    mouse(browser, "mouseReleased", x + 20 * each, y, button="left", clickCount=1)
    browser.reads("of 2,000 jobs in these times")
    first, *others = times_shown(browser)
    assert others == [first, first]
    assert all(10 <= int(one.split("-")[0].split()[0]) <= 21 for one in first)
    eventually(lambda: "from=" in fragment(browser) and "to=" in fragment(browser))


def test_ctrl_and_the_wheel_zoom_and_the_wheel_alone_scrolls(large: str, browser: Surfer) -> None:
    opened(browser, large, "2,000 jobs")
    curve = place(browser, ".curve")
    at = {"x": curve["x"] + curve["width"] / 2, "y": curve["y"] + 30, "deltaX": 0}
    mouse(browser, "mouseWheel", **at, deltaY=-200, modifiers=2)
    browser.reads("in these times", " to ")
    before, top = browser.first(".zoomed"), browser.run("return scrollY")
    mouse(browser, "mouseWheel", **at, deltaY=-200)
    eventually(lambda: browser.run("return scrollY") < top)
    assert browser.first(".zoomed") == before


def test_the_keyboard_alone_zooms_and_chooses(large: str, browser: Surfer) -> None:
    opened(browser, large, "2,000 jobs")
    browser.press("TAB")
    browser.press("ENTER")  # skip to the jobs
    assert browser.run("return document.activeElement.className") == "side"
    for _ in range(8):
        browser.press("+")
    browser.reads("in these times")
    zoomed = browser.first(".zoomed")
    browser.press("ARROW_RIGHT")
    eventually(lambda: browser.first(".zoomed") != zoomed)
    browser.press("ARROW_DOWN")
    browser.press("ARROW_DOWN")
    browser.reads("Job train-", "changes of placement")
    eventually(lambda: "job=" in fragment(browser))
    browser.press("ESCAPE")
    eventually(lambda: "job=" not in fragment(browser))
    browser.press("0")
    browser.reads("2,000 jobs.")
    eventually(lambda: fragment(browser) == "")


def test_a_job_is_searched_by_name_and_user(large: str, browser: Surfer) -> None:
    opened(browser, large, "2,000 jobs")
    browser.press("/")
    browser.press("train-1999")
    browser.reads("1 of 2,000 jobs.")
    assert first_rows(browser) == ["train-1999 bert-19"]
    browser.run("document.querySelector('input[type=search]').select()")
    browser.press("user3 bert-7")
    browser.reads("of 2,000 jobs.")
    users = set(browser.each("table.jobs td.user"))
    assert users <= {"user3", *(f"user3{number}" for number in range(7))}
    eventually(lambda: "find=user3+bert-7" in fragment(browser))
    browser.press("nobody")
    browser.reads("No such job.")
    assert browser.all("table.jobs tbody tr") == []


def test_jobs_are_sorted_by_what_they_gained_and_lost(large: str, browser: Surfer) -> None:
    def gains(order: str) -> list[float]:
        browser.go(f"#sort={order}")
        eventually(
            lambda: order in str(browser.run("return document.querySelector('select').value"))
        )
        return [
            float(value)
            for value in browser.run(
                """return [...document.querySelectorAll("table.jobs tbody tr")].slice(0, 20).map(
                (row) => [...row.querySelectorAll("td")].slice(-3).map((cell) =>
                    cell.firstChild.textContent.split(/[-:]/).map(Number)
                        .reverse().reduce((sum, one, k) => sum + one * [1, 60, 3600, 86400][k], 0))
                ).map(([first, , third]) => third - first)"""
            )
        ]

    opened(browser, large, "2,000 jobs")
    gained, lost = gains("gained-2"), gains("lost-2")
    assert gained == sorted(gained)
    assert gained[0] < -600
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > gained[0]


def test_a_link_shows_the_same_again(large: str, browser: Surfer) -> None:
    link = f"{large}#from=864000&to=950400&find=train&sort=lost-1&rows=named&job=7"
    opened(browser, link, "Job train-6")
    browser.reads("10-00:00:00 to 11-00:00:00", "2,000 jobs.", "All rows at once", "train-6")
    assert browser.first("input[type=search]", "value") == "train"
    assert browser.first("select", "value") == "lost-1"
    before = first_rows(browser)
    eventually(lambda: set(fragment(browser).split("&")) == set(link.partition("#")[2].split("&")))
    browser.driver.refresh()
    browser.reads("10-00:00:00 to 11-00:00:00", "Job train-6")
    assert first_rows(browser) == before


def test_a_link_that_was_made_up_shows_a_report(large: str, browser: Surfer) -> None:
    for made_up in (
        "from=-1e99&to=NaN&sort=gained-9&rows=%00&job=-3",
        "from=5&to=1&job=1e9",
        f"find={MARKUP}&sort=__proto__-constructor&job=toString",
        "%E0%A4%A&&==",
        "from=Infinity&to=&job=",
    ):
        browser.open(f"{large}#{made_up}")
        browser.reads("Replay of month.csv", "job")
        assert browser.all(".above section svg")
        assert browser.run("return window.harmed") is None


def test_a_job_that_is_clicked_is_shown_under_every_policy(large: str, browser: Surfer) -> None:
    opened(browser, f"{large}#from=864000&to=900000&rows=named")
    lane = place(browser, ".lanes")
    at = {"x": lane["x"] + 300, "y": lane["y"] + 30}
    mouse(browser, "mousePressed", **at, button="left", clickCount=1)
    mouse(browser, "mouseReleased", **at, button="left", clickCount=1)
    browser.reads("Job train-", "Zoom to its times", "accepts")
    assert len(browser.all("section.life svg")) == 3
    assert browser.first("table.jobs tr.now th") == first_rows(browser, 2)[1]
    browser.click("section.life .head button")
    eventually(lambda: "from=864000" not in fragment(browser) and "job=" in fragment(browser))
    assert browser.first(".zoomed")


def test_what_is_pointed_at_is_told(large: str, browser: Surfer) -> None:
    opened(browser, f"{large}#from=864000&to=900000")
    lane = place(browser, ".lane")
    mouse(browser, "mouseMoved", lane["x"] + 150, lane["y"] + 30)
    assert "train-" in browser.first(".tip")
    mouse(browser, "mouseMoved", 5, 5)
    eventually(lambda: not browser.run("return document.querySelector('.tip').checkVisibility()"))


def test_a_large_report_is_soon_drawn_again(large: str, browser: Surfer) -> None:
    opened(browser, large, "2,000 jobs")
    spent = browser.driver.execute_async_script(
        """const done = arguments[0];
        const select = document.querySelector("select");
        const frame = () => new Promise((then) => requestAnimationFrame(then));
        (async () => {
          await frame();
          const begun = performance.now();
          for (const order of ["gained-1", "lost-2", "name", "took", "changes", "submitted"]) {
            select.value = order;
            select.dispatchEvent(new Event("change"));
            await frame();
          }
          await frame();
          done((performance.now() - begun) / 6);
        })();"""
    )
    assert spent < 1000  # ms; 130 on two busy cores


def test_names_in_rows_of_their_own_are_scrolled(large: str, browser: Surfer) -> None:
    opened(browser, f"{large}#rows=named", "2,000 jobs")
    assert browser.run("return document.querySelector('.lanes').scrollHeight") >= 40_000
    browser.run("document.querySelector('.lanes').scrollTop = 20000")
    browser.run("document.querySelector('.side').focus()")
    eventually(lambda: browser.run(PAINTED, ".names canvas") > 100)
    browser.press("END")
    browser.reads("Job train-")
    eventually(lambda: browser.run("return document.querySelector('.lanes').scrollTop") > 39_000)


def test_it_fits_a_phone_and_the_dark(large: str, browser: Surfer) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    opened(browser, f"{large}#from=864000&to=900000&job=9", "Job train-8")
    assert (
        browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    )
    assert not browser.overflows()
    browser.run("document.querySelector('.lanes').scrollLeft = 200")
    eventually(lambda: browser.run("return document.querySelector('.above').scrollLeft") == 200)


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path, browser: Surfer) -> None:
    run = a_run(jobs=len(HOSTILE), names=HOSTILE)
    link = a_report(tmp_path, run, a_run("srtf", jobs=len(HOSTILE), names=HOSTILE), trace=MARKUP)
    opened(browser, link, f"{len(HOSTILE)} jobs")
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    shown = set(browser.each("table.jobs tbody th bdi", "textContent"))
    assert {MARKUP, "report⟨U+202E⟩gnp.exe⟨U+2066⟩"} <= shown
    assert all(len(name or "") <= 200 for name in shown)
    hidden = {"\u202e", "\u2066", "\u2028", "\x1b", "\x07", "\x00"}
    assert not hidden & set("".join(map(str, shown)))
    for number in range(len(HOSTILE)):
        browser.go(
            f"#job={number + 1}&rows=named&find={'%3Cimg%20src=x%20onerror=window.harmed=1%3E'}"
        )
        browser.sees("section.life svg")
        assert not browser.overflows()
    assert browser.run("return window.harmed") is None


def test_no_script_that_was_put_in_later_runs(tmp_path: Path, browser: Surfer) -> None:
    opened(browser, a_report(tmp_path, a_run(jobs=3)), "3 jobs")
    browser.run(
        """const script = document.createElement("script");
        try { script.textContent = "window.harmed = 1"; } catch {}
        document.body.append(script);
        const image = document.createElement("img");
        image.setAttribute("src", "https://example.org/x.png");
        document.body.append(image);"""
    )
    assert browser.run("return window.harmed") is None
    assert any("Content Security Policy" in one for one in browser.complaints())


def test_one_job_under_one_policy_is_a_report_too(tmp_path: Path, browser: Surfer) -> None:
    opened(browser, a_report(tmp_path, a_run(jobs=1)), "1 job")
    assert "Gained most" not in browser.text
    assert "×" not in browser.first("table.figures")
    browser.press("/")
    browser.press("zzz")
    browser.reads("No such job.")


def test_a_job_that_its_time_limit_ended_is_not_shown_as_done(
    tmp_path: Path, browser: Surfer
) -> None:
    runs = [lasting_jobs("slurm", 3000, 4000, 900), lasting_jobs("ones", 600, 3000, 900)]
    runs[1].jobs[0].at_limit = True
    link = a_report(tmp_path, *runs)
    opened(browser, f"{link}#sort=gained-1&job=1", "Job train-0")
    cut, done = browser.each("section.life figcaption")[::-1]
    assert "ended by its time limit after 00:10:00" in cut
    assert "×" not in cut
    assert "done in 00:50:00" in done
    assert "ended by its time limit after 00:10:00" in browser.first(".said", "textContent")
    # It has gained nothing that could be told: it comes last, and no ratio makes it look quick.
    rows = browser.each("table.jobs tbody tr")
    assert [row.split()[0] for row in rows] == ["train-1", "train-2", "train-0"]
    assert "00:45:00" not in rows[2]
    assert "00:10:00 time limit" in rows[2]
    assert "×" not in rows[2]
    browser.reads("ended by its time limit\n")  # beside the colours
    lane = place(browser, ".lane:last-child")
    mouse(browser, "mouseMoved", lane["right"] - 100, lane["y"] + 50)
    assert "ended by its time limit after 00:10:00" in browser.first(".tip")


def test_completion_times_have_an_axis_whatever_they_are(tmp_path: Path, browser: Surfer) -> None:
    for width in (360, 1280):
        as_wide(browser, width)
        for times in ((700, 720, 800), (70,), (0.2,), (2e8, 4e9), tuple(3**k for k in range(16))):
            browser.open(a_report(tmp_path, lasting_jobs("fifo", *times)))
            browser.sees("svg[aria-label^='Share of the jobs']")
            labels = browser.each(
                "svg[aria-label^='Share of the jobs'] text[text-anchor=middle]", "textContent"
            )
            assert len(labels) >= 2, (times, width)
            assert browser.run(RUN_TOGETHER) == [], (times, width)


def test_labels_of_times_have_room_in_narrow_columns(large: str, browser: Surfer) -> None:
    for width in (360, 700, 1000):
        as_wide(browser, width)
        for part in ("from=864000&to=864040", "from=2400000&to=2400013&job=3", "", "job=9"):
            opened(browser, f"{large}#{part}", "Replay of")
            first, *others = times_shown(browser)
            assert first
            assert others == [first, first]
            assert browser.run(RUN_TOGETHER) == [], (part, width)


def test_a_phone_has_room_for_policies_with_long_names(tmp_path: Path, browser: Surfer) -> None:
    as_wide(browser, 360)
    runs = [a_run(f"ones:generations=0:exponent=0.5:{'x' * 60}{k}", jobs=20) for k in range(2)]
    opened(browser, a_report(tmp_path, *runs), "20 jobs")
    assert not browser.overflows()


def test_numbers_of_sacct_stand_with_the_names_of_their_jobs(
    tmp_path: Path, browser: Surfer
) -> None:
    named = {"1001": "train", "1002": "eval", "1003": "train", "1004": "1004", "1005": "zeta"}
    done = a_run(jobs=len(named), names=list(named))
    for job, family in zip(done.jobs, named.values(), strict=True):
        job.trace = replace(job.trace, family=family)
    opened(browser, f"{a_report(tmp_path, done)}#sort=name", "5 jobs")
    assert first_rows(browser, 5) == ["1004", "1002 eval", "1001 train", "1003 train", "1005 zeta"]
    lane = place(browser, ".lane")
    mouse(browser, "mouseMoved", lane["x"] + 150, lane["y"] + 30)
    assert browser.first(".tip").startswith("1002\neval\n")


def test_the_tip_is_seen_wherever_the_pointer_is(large: str, browser: Surfer) -> None:
    for width in (360, 1280):
        as_wide(browser, width)
        opened(browser, f"{large}#from=864000&to=900000")
        browser.run(
            """const { bottom } = document.querySelector(".lanes").getBoundingClientRect();
            scrollTo(0, scrollY + bottom - innerHeight + 2)"""
        )
        lane = browser.run(
            "return document.querySelector('.lane').getBoundingClientRect().toJSON()"
        )
        for x in (lane["x"] + 60, min(lane["right"], width) - 10):
            mouse(browser, "mouseMoved", x, 790)
            browser.first(".tip")
            inside = """const { left, right, top, bottom } =
                document.querySelector(".tip").getBoundingClientRect();
                return [left >= 0, right < innerWidth + 1, top >= 0, bottom <= innerHeight]"""
            assert browser.run(inside) == [True] * 4, (width, x)
        # Beside the times there is none to tell of.
        mouse(browser, "mouseMoved", lane["x"] + 20, 600)
        assert "done in" in browser.first(".tip")
        assert "at 9-" not in browser.first(".tip")


def test_what_is_pointed_at_is_lit_and_nothing_is_painted_anew(large: str, browser: Surfer) -> None:
    for how in ("rows=all", "rows=named"):
        opened(browser, f"{large}#{how}", "2,000 jobs")
        place(browser, ".lanes")
        assert browser.driver.execute_async_script(HOVERED) == [0, 3, False]


def test_nothing_is_cut_off_on_paper(large: str, tmp_path: Path, browser: Surfer) -> None:
    many = a_report(tmp_path, *(a_run(f"policy-{k}:exponent=0.5", jobs=60) for k in range(5)))
    for link in (large, many):
        opened(browser, link, "Replay of")
        as_media(browser, "print", "dark")
        as_wide(browser, 718)  # A4, within its margins; what was laid out for a screen stays
        reach = """return [...document.querySelectorAll("canvas, svg, td, th")].map(
            (one) => one.getBoundingClientRect()).map(({ right }) => Math.round(right))"""
        assert max(browser.run(reach)) <= 718
        assert browser.run("return document.querySelector('.side').clientHeight") < 2000
        assert not browser.overflows()
        as_media(browser, "", "light")
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_is_light(large: str, browser: Surfer) -> None:
    as_media(browser, "screen", "dark")
    opened(browser, f"{large}#rows=named", "2,000 jobs")
    light = """const [node] = document.querySelectorAll(".names canvas");
        const copy = new OffscreenCanvas(node.width, node.height);
        const pen = copy.getContext("2d");
        pen.drawImage(node, 0, 0);
        const { data } = pen.getImageData(0, 0, node.width, node.height);
        for (let at = 0; at < data.length; at += 4)
          if (data[at + 3] > 250) return data[at] > 128;"""
    assert browser.run(light)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    as_media(browser, "print", "dark")
    assert not browser.run(light)
    ink = browser.run("return getComputedStyle(document.body).color")
    assert ink == "rgb(27, 31, 36)"
    as_media(browser, "screen", "dark")
    browser.run("dispatchEvent(new Event('afterprint'))")
    eventually(lambda: browser.run(light))


def test_a_report_says_what_of_a_replay_is_not_drawn(
    tmp_path: Path, browser: Surfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MOST_ROWS", 10)
    monkeypatch.setattr(report, "MOST_CHANGES", 10)
    opened(browser, a_report(tmp_path, *(a_run(one, jobs=12) for one in POLICIES)), "12 jobs")
    browser.reads("The first 3 jobs are drawn", "Of each job its 3 longest stretches are drawn")
    browser.press("/")
    browser.press("train-11")
    browser.reads("No such job among the 3 drawn.")


def test_small_numbers_are_told_as_they_are(tmp_path: Path, browser: Surfer) -> None:
    runs = [lasting_jobs("slurm", 600, 600), lasting_jobs("ones", 0.3, 300)]
    runs[0].jobs[0].resizes = 1
    for run in runs:
        for job in run.jobs:
            job.held = {"t4": 2 * (job.finished or 0.0)}
    opened(browser, f"{a_report(tmp_path, *runs)}#job=1", "Job train-0")
    browser.reads("1 change of placement", "0 changes of placement", "GPU-hours held\t0.67\t0.17 ")
    assert not [row for row in browser.each("tr") if "0.5×" in row and " 0.5×" not in row]
    marks = "return document.querySelectorAll('section.life rect.runs').length"
    assert browser.run(marks) == 2  # of the one that took 0.3 s, too
