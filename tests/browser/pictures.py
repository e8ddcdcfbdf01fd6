"""Takes the pictures of docs/pictures: pictures.py [FOLDER]."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "unit")]

from sharing_jobs import a_page_where_gpus_are_shared, share_gpus  # noqa: E402
from surfer import Surfer  # noqa: E402

RUN = "from ones.daemon.ctl.main import main; main(prog_name='onesctl')"
ROUNDS = 40  # after which the cluster has something to show
PATIENCE = 1800.0  # seconds
WIDE, PHONE = (1280, 860), (390, 844)
REPORT = 1080  # pixels high
TRAININGS = ("resnet50", "bert", "llama-7b", "whisper", "vit-l", "ppo", "gpt2", "unet")
USERS = ("ada", "grace", "alan", "barbara", "edsger")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    report(folder / "report.png")
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "out"
        demo = subprocess.Popen(
            [sys.executable, "-c", RUN, "demo", "--speed=600"],
            env={**os.environ, "TMPDIR": work, "TZ": "UTC"},
            stdout=out.open("w"),
        )
        try:
            take(folder, out)
        finally:
            demo.terminate()
            demo.wait()
        sharing(folder / "sharing.png", Path(work))


def sharing(path: Path, work: Path) -> None:
    """Of a cluster of its own: the demonstration's policy puts no two jobs on a GPU."""
    with a_page_where_gpus_are_shared(work) as page:
        share_gpus(page)
        browser = Surfer(*WIDE)
        try:
            browser.open(page.link())
            browser.reads("in all")
            picture(browser, "#/sharing", path)
        finally:
            browser.close()


def take(folder: Path, out: Path) -> None:
    await_text(out, r"GPUs busy")
    link = await_text(out, r"(http://\S+)")
    sock = await_text(out, r"ONESCTL_SOCKET=(\S+)")
    end = time.monotonic() + PATIENCE
    while told(sock, "status")["round"]["number"] < ROUNDS:
        assert time.monotonic() < end, "the demonstration is too slow here"
        time.sleep(2.0)
    running = [job for job in told(sock, "jobs")["jobs"] if job["gpus"]]
    moved = max(running, key=lambda job: (min(job["moves"], 9), job["gpus"]))["job"]
    courses = {job["job"]: told(sock, "job", str(job["job"]))["course"] for job in running}
    trained = max(courses, key=lambda job: len(set(courses[job]["batch"])))
    browser = Surfer(*WIDE)
    try:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
        browser.open(link)
        browser.reads("in all")
        for name, view in {
            "overview": "#/overview",
            "map": "#/map/job",
            "utilisation": "#/map/load",
            "queue": "#/queue",
            "job": f"#/job/{moved}",
            "training": f"#/job/{trained}",
            "events": "#/events",
            "shares": "#/shares",
            "steering": "#/steering",
        }.items():
            picture(browser, view, folder / f"{name}.png")
        plan(browser, folder / "plan.png", sock)
        dress(browser, *PHONE, scheme="dark")
        picture(browser, "#/overview", folder / "phone.png")
    finally:
        browser.close()


def report(path: Path) -> None:
    """Of made-up jobs on 64 GPUs, half a day of which is looked at."""
    with tempfile.TemporaryDirectory() as work:
        trace, file = Path(work) / "days.csv", Path(work) / "report.html"
        trace.write_text(a_trace(random.Random(3)))
        command = [sys.executable, "-c", RUN, "replay", str(trace), "--report", str(file)]
        subprocess.run([*command, "--policy", "slurm,tiresias,ones"], check=True)
        browser = Surfer(WIDE[0], REPORT)
        try:
            browser.open(f"{file.as_uri()}#from=115200&to=133200&sort=gained-2")
            browser.sees("main > *")
            browser.run("document.querySelector('.side').closest('section').scrollIntoView()")
            time.sleep(1.0)  # until it is drawn
            browser.driver.save_screenshot(str(path))
        finally:
            browser.close()
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)


def a_trace(rng: random.Random) -> str:
    """As many elastic jobs in three days as keep the cluster busy."""
    lines = ["submitted,name,user,gpus,duration_s,sizes"]
    for number in range(210):
        name, user = rng.choice(TRAININGS), rng.choice(USERS)
        gpus = 2 ** rng.choices(range(5), (2, 3, 4, 3, 1))[0]
        seconds = min(rng.lognormvariate(9.0, 1.0), 86400)
        sizes = f"{max(1, gpus // 2)}-{4 * gpus}"
        at = rng.uniform(0, 3 * 86400)
        lines.append(f"{at:.0f},{name}-{number},{user},{gpus},{seconds:.0f},{sizes}")
    return "\n".join((*lines, ""))


def plan(browser: Surfer, path: Path, sock: str) -> None:
    """Where there is one that changes something."""
    end = time.monotonic() + 300
    while len(told(sock, "plan")["decisions"]) < 3 and time.monotonic() < end:
        time.sleep(0.2)
    picture(browser, "#/plan", path)


def picture(browser: Surfer, view: str, path: Path) -> None:
    browser.go(view)
    browser.sees("main > *")
    time.sleep(1.5)  # what comes from onesd, and what moves into its place
    if path.stem == "training":
        browser.run("document.querySelector('.courses').parentElement.scrollIntoView()")
        browser.run("scrollBy(0, -70)")  # from below the head
        time.sleep(0.5)
    if view.startswith("#/map/job"):
        browser.click("button.node")
        time.sleep(0.5)
    browser.driver.save_screenshot(str(path))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)


def dress(browser: Surfer, width: int, height: int, *, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def told(sock: str, *words: str) -> Any:
    command = [sys.executable, "-c", RUN, "--socket", sock, *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def await_text(out: Path, pattern: str) -> str:
    end = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, out.read_text())):
        assert time.monotonic() < end, out.read_text()
        time.sleep(0.2)
    return found[found.re.groups]


if __name__ == "__main__":
    main()
