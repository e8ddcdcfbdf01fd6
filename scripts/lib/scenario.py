"""The quickstart's story, told on the controller of the container cluster.

The same jobs run three times, steered by `fifo`, by `ones` with restarts, and by `ones` with jobs
that are resized live: elastic jobs of different lengths, a plain job beside them, and a late burst.
What happened is read from onesctl, from the jobs' own result files, and checked against sacct. Ends
non-zero when something that the README promises did not happen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

EXAMPLES = "/home/examples"
HEADINGS = (
    "JOB",
    "SIZES OVER TIME (s:GPUs)",
    "MOVES",
    "WAITED",
    "restart",
    "fifo",
    "DONE AFTER",
    "restart",
    "fifo",
    "SAMPLES",
    "LOSS",
    "fifo",
)
COLUMNS = "job,name,user,state,sizes,gpus,nodes,batch,progress,waited,note"
LIVE = {"train_digits.sbatch": "live_digits.sbatch"}  # the same training, resized live
TELLINGS = {"fifo": ("fifo", False), "restart": ("ones", False), "live": ("ones", True)}
TOGETHER = 3.0  # seconds within which changes of a job's size are shown as one
PATIENCE = 300.0  # seconds after which a run of the story is given up


@dataclass(frozen=True)
class Submission:
    """One job of the story; GPUs as the job itself asks for them."""

    name: str
    user: str
    at: float  # seconds after the start
    gpus: int
    epochs: int
    sizes: str = ""  # of --elastic; empty: a plain job
    example: str = "train_digits.sbatch"
    gpu_type: str = ""  # empty: any

    def command(self, *, live: bool) -> list[str]:
        example = LIVE.get(self.example, self.example) if live else self.example
        options = [
            f"--job-name={self.name.split('-')[0]}",
            "--gpus=" + ":".join(filter(None, (self.gpu_type, str(self.gpus)))),
            f"--ntasks={self.gpus}",
        ]
        if self.sizes:
            options.append(f"--elastic={self.sizes}")
        script = [f"{EXAMPLES}/{example}", f"--epochs={self.epochs}"]
        return ["sbatch", "--parsable", f"--output=/home/{self.user}/%j.out", *options, *script]


STORY = (
    Submission("plain", "carol", 0, gpus=2, epochs=22, example="fixed_digits.sbatch"),
    Submission("broad", "alice", 0, gpus=8, epochs=54, sizes="4,8", gpu_type="k80"),
    # From this one onesd learns how short the later ones are, for which long jobs make way.
    Submission("burst-1", "dave", 1, gpus=4, epochs=5, sizes="4"),
    # A change of the type of GPU would take a restart even from a live job.
    Submission("long", "bob", 9, gpus=1, epochs=30, sizes="1-4", gpu_type="v100"),
    Submission("medium", "carol", 12, gpus=1, epochs=24, sizes="1-4", gpu_type="v100"),
    # No library of ours in this one.
    Submission("free", "dave", 13, gpus=2, epochs=10, sizes="1-4", example="plain_digits.sbatch"),
    Submission("burst-2", "dave", 42, gpus=4, epochs=5, sizes="4"),
    Submission("burst-3", "dave", 43, gpus=4, epochs=5, sizes="4"),
    Submission("burst-4", "dave", 44, gpus=4, epochs=5, sizes="4"),
)


def run(command: Sequence[str], user: str | None = None, timeout: float = 60) -> str:
    if user is not None:
        command = ["runuser", "-u", user, "--", "env", "-C", f"/home/{user}", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        sys.exit(f"quickstart: error: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def ask(*words: str) -> Any:
    return json.loads(run(["onesctl", *words, "--json"]))


@contextmanager
def onesd(policy: str) -> Iterator[None]:
    """A fresh daemon with an empty history, so that no run learns from the other."""
    for file in [*Path("/var/lib/ones").glob("ones.*"), Path("/run/ones/heartbeat")]:
        file.unlink(missing_ok=True)
    log = Path(f"/var/log/ones/onesd-{policy}.log")
    with log.open("w") as output:
        daemon = subprocess.Popen(
            ["runuser", "-u", "ones", "--", "onesd", "--policy", policy],
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if daemon.poll() is not None:
                sys.exit(f"quickstart: error: onesd ended at once: {log.read_text()[-500:]}")
            probe = subprocess.run(
                ["onesctl", "status", "--json"], capture_output=True, check=False
            )
            ready = probe.returncode == 0 and not json.loads(probe.stdout)["problems"]
            if ready and holding():
                break
            time.sleep(0.3)
        else:
            sys.exit(f"quickstart: error: onesd is not ready after 30 s; see {log}")
        yield
    finally:
        subprocess.run(["pkill", "-x", "-u", "ones", "onesd"], check=False)
        daemon.wait(timeout=30)


def holding() -> bool:
    """Whether Slurm holds new jobs for onesd by now."""
    heartbeat = Path("/run/ones/heartbeat")
    return heartbeat.exists() and "hold yes" in heartbeat.read_text()


def tell(telling: str, story: Sequence[Submission], *, live: bool) -> dict[str, Any]:
    """Run the story once; returns its part of the table."""
    print(f"\n== {telling} ==", flush=True)
    ids: dict[str, int] = {}
    begun = time.time()
    waiting = list(story)
    shown: object = None
    while True:
        elapsed = time.time() - begun
        while waiting and waiting[0].at <= elapsed:
            one = waiting.pop(0)
            ids[one.name] = int(run(one.command(live=live), user=one.user).split(";")[0])
        held = [(job["job"], job["gpus"], job["batch"]) for job in ask("jobs")["jobs"]]
        if held != shown:
            shown = held
            print(f"-- {elapsed:.0f} s, {run(['onesctl', 'status']).splitlines()[1]}")
            print(run(["onesctl", "jobs", "-o", COLUMNS]), flush=True)
        if not waiting and not alive(ids.values()):
            break
        if elapsed > PATIENCE:
            print(run(["squeue"]), file=sys.stderr)
            sys.exit(f"quickstart: error: jobs are still there after {PATIENCE:.0f} s")
        time.sleep(1.5)
    return summary([job_row(one, ids[one.name], begun) for one in story])


def alive(ids: Sequence[int]) -> bool:
    listed = run(["squeue", "-h", "-o", "%i", "-t", "all", "--states=PD,R,CG,CF,S"])
    return bool({int(line) for line in listed.split()} & set(ids))


def accounted(job: int) -> list[dict[str, Any]]:
    """The runs of a job as sacct has them; in parts where it gave back nodes."""
    fields = "Start,End,AllocTRES,NodeList,State"
    text = run(
        [
            "env",
            "SLURM_TIME_FORMAT=%s",
            "sacct",
            "-D",
            "-X",
            "-n",
            "-P",
            "-j",
            str(job),
            "-o",
            fields,
        ]
    )
    runs = []
    for line in text.splitlines():
        start, end, tres, nodes, state = line.split("|")
        gpus = [part.split("=")[1] for part in tres.split(",") if part.startswith("gres/gpu=")]
        if start.isdigit() and gpus:
            ended = float(end) if end.isdigit() else None
            runs.append(
                {
                    "started": float(start),
                    "ended": ended,
                    "gpus": int(gpus[0]),
                    "nodes": nodes,
                    "state": state.split()[0],
                }
            )
    runs.sort(key=lambda each: (each["started"], each["ended"] or time.time()))
    for before, after in pairwise(runs):
        if before["state"] == "RESIZING":  # Slurm has the next record begin as the run did
            after["started"] = before["ended"]
    return runs


def job_row(one: Submission, job: int, begun: float) -> dict[str, Any]:
    runs = accounted(job)
    parts: list[dict[str, Any]] = []
    moves: dict[str, int] = {}
    agrees = True
    if one.sizes:
        life = ask("job", str(job))
        for move in life["moves"]:
            if move["outcome"] == "done":
                moves[move["kind"]] = moves.get(move["kind"], 0) + 1
        parts = [part for each in life["satellites"] for part in accounted(each["satellite"])]
        told = [each for each in (*life["runs"], *life["satellites"]) if each["started"]]
        agrees = _held(told) == _held((*runs, *parts))
    submitted = begun + one.at
    ended = runs[-1]["ended"]
    held = sum(each["ended"] - each["started"] for each in runs)
    result = Path(f"/home/{one.user}/result-{job}.json")
    outcome = json.loads(result.read_text()) if result.exists() else {}
    return {
        "name": one.name,
        "job": job,
        "elastic": bool(one.sizes),
        "state": runs[-1]["state"],
        "sizes": [[round(at - begun, 1), gpus] for at, gpus in sizes([*runs, *parts])],
        "waiting_s": round(max(0.0, ended - submitted - held), 1),
        "completion_s": round(ended - submitted, 1),
        "samples": outcome.get("samples"),
        "loss": outcome.get("loss"),
        "moves": moves,
        "agrees_with_sacct": agrees,
    }


def _held(runs: Sequence[dict[str, Any]]) -> list[tuple[float, float, int]]:
    """From when until when how many GPUs were held; onesctl tells parts as `earlier` of a run."""
    found = []
    for run in runs:
        began = run["started"]
        for part in run.get("earlier", ()):
            found.append((began, part["until"], part["gpus"]))
            began = part["until"]
        found.append((began, run["ended"], run["gpus"]))
    return sorted(found)


def sizes(runs: Sequence[dict[str, Any]]) -> list[tuple[float, int]]:
    """When a job had how many GPUs, satellites included; without the times when it had none."""
    changes = sorted(
        change
        for run in runs
        for change in ((run["started"], run["gpus"]), (run["ended"], -run["gpus"]))
    )
    total, found = 0, list[tuple[float, int]]()
    for at, gpus in changes:
        total += gpus
        if found and at - found[-1][0] < TOGETHER:
            found[-1] = (found[-1][0], total)
        elif not found or found[-1][1] != total:
            found.append((at, total))
    return [(at, gpus) for at, gpus in found if gpus]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "jobs": rows,
        "average_completion_s": round(sum(row["completion_s"] for row in rows) / len(rows), 1),
        "average_waiting_s": round(sum(row["waiting_s"] for row in rows) / len(rows), 1),
    }


def faults(results: dict[str, dict[str, Any]]) -> list[str]:
    """What was promised and did not happen."""
    fifo, restart, live = (results[telling] for telling in TELLINGS)
    found = []
    before = {row["name"]: row for row in fifo["jobs"]}
    had = [[gpus for _, gpus in row["sizes"]] for row in restart["jobs"]]
    pairs = [pair for each in had for pair in pairwise(each)]
    if not any(after > earlier for earlier, after in pairs):
        found.append("no job grew")
    if not any(after < earlier for earlier, after in pairs):
        found.append("no job shrank")
    if not any(
        row["moves"].get("preempt") and row["state"] == "COMPLETED" for row in restart["jobs"]
    ):
        found.append("no job was preempted and resumed")
    if not any(row["moves"].get("live") for row in live["jobs"]):
        found.append("no job was resized live")
    for row in fifo["jobs"] + restart["jobs"] + live["jobs"]:
        if row["state"] != "COMPLETED":
            found.append(f"{row['name']} ended {row['state']}")
        if not row["agrees_with_sacct"]:
            found.append(f"{row['name']}: onesctl and sacct differ")
    for row in restart["jobs"] + live["jobs"]:
        alone = before[row["name"]]
        if not row["elastic"] and (len(row["sizes"]) != 1 or row["moves"]):
            found.append("the plain job was touched")
        if row["samples"] != alone["samples"] or row["samples"] is None:
            found.append(f"{row['name']}: {row['samples']} samples, unresized {alone['samples']}")
        if row["loss"] is not None and abs(row["loss"] - alone["loss"]) > 0.15:
            found.append(f"{row['name']}: loss {row['loss']:.3f}, unresized {alone['loss']:.3f}")
    if restart["average_completion_s"] >= fifo["average_completion_s"]:
        found.append("the average completion time does not beat fifo")
    if live["average_completion_s"] >= restart["average_completion_s"]:
        found.append("live resizing does not beat restarts")
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    fifo, restart, live = (results[telling] for telling in TELLINGS)
    peers = [{row["name"]: row for row in one["jobs"]} for one in (restart, fifo)]
    lines = [HEADINGS]
    for row in live["jobs"]:
        others = [peer[row["name"]] for peer in peers]
        had = " ".join(f"{at:.0f}:{gpus}" for at, gpus in row["sizes"])
        moves = " ".join(f"{kind} {count}" for kind, count in row["moves"].items()) or "-"
        lines.append(
            (
                row["name"],
                had,
                moves if row["elastic"] else "plain job",
                *(f"{one['waiting_s']:.0f}" for one in (row, *others)),
                *(f"{one['completion_s']:.0f}" for one in (row, *others)),
                str(row["samples"]),
                *("-" if one["loss"] is None else f"{one['loss']:.3f}" for one in (row, others[1])),
            )
        )
    three = (live, restart, fifo)
    lines.append(
        (
            "average",
            "",
            "",
            *(f"{one['average_waiting_s']:.0f}" for one in three),
            *(f"{one['average_completion_s']:.0f}" for one in three),
            "",
            "",
            "",
        )
    )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for telling, (policy, live) in TELLINGS.items():
        with onesd(policy):
            results[telling] = tell(telling, STORY, live=live)
    found = faults(results)
    if options.json:
        options.json.write_text(json.dumps({**results, "faults": found}, indent=2))
    print(
        "\nThe same jobs on the same cluster, steered by ones and resized live; beside it, how they"
        " fared when resized by restarts, and under fifo:\n"
    )
    print(table(results))
    if found:
        sys.exit("\nquickstart: error: " + "; ".join(found))
    average = {telling: one["average_completion_s"] for telling, one in results.items()}
    print(
        f"\nAverage completion time: {average['live'] / average['fifo']:.2f} of fifo's;"
        f" with restarts {average['restart'] / average['fifo']:.2f}."
    )


main()
