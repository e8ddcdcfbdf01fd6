"""The quickstart's story, told on the controller of the container cluster.

The same jobs run twice, steered by `ones` and by `fifo`: elastic jobs of different lengths, one of
which asks for half of the cluster, a plain job beside them, and a late burst. What happened is read
from onesctl, from the jobs' own result files, and checked against sacct. Ends non-zero when
something that the README promises did not happen; how fast the machine was decides nothing.
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
    *("JOB", "ASKED", "SIZES OVER TIME (s:GPUs)", "MOVES"),
    *("WAITED", "fifo", "DONE AFTER", "fifo", "SAMPLES", "LOSS", "fifo"),
)
COLUMNS = "job,name,user,state,sizes,gpus,nodes,batch,progress,waited,note"
POLICIES = ("ones", "fifo")
TOGETHER = 3.0  # seconds within which changes of a job's size are shown as one
PATIENCE = 1200.0  # seconds after which a run of the story is given up: ten times what it takes


@dataclass(frozen=True)
class Submission:
    """One job of the story; GPUs as the job itself asks for them."""

    name: str
    user: str
    at: float  # seconds after the start
    gpus: int
    epochs: int
    sizes: str = ""  # of --elastic; empty: a plain job
    example: str = "live_digits.sbatch"
    gpu_type: str = ""  # empty: any

    @property
    def command(self) -> list[str]:
        options = [
            f"--job-name={self.name.split('-')[0]}",
            "--gpus=" + ":".join(filter(None, (self.gpu_type, str(self.gpus)))),
            f"--ntasks={self.gpus}",
        ]
        if self.sizes:
            options.append(f"--elastic={self.sizes}")
        script = [f"{EXAMPLES}/{self.example}", f"--epochs={self.epochs}"]
        return ["sbatch", "--parsable", f"--output=/home/{self.user}/%j.out", *options, *script]


# Alone it grows at once; then a job asks for more than the half of the cluster that it has left.
STORY = (
    Submission("long", "bob", 0, gpus=1, epochs=11, sizes="1-8", gpu_type="v100"),
    Submission(
        "plain", "carol", 0, gpus=2, epochs=8, example="fixed_digits.sbatch", gpu_type="k80"
    ),
    # No library of ours in this one: it is resized by a restart.
    Submission("free", "dave", 1, gpus=1, epochs=4, sizes="1-2", example="plain_digits.sbatch"),
    Submission("broad", "alice", 14, gpus=8, epochs=12, sizes="2-8", gpu_type="v100"),
    Submission("medium", "carol", 16, gpus=2, epochs=6, sizes="1-4"),
    Submission("burst-1", "dave", 28, gpus=4, epochs=4, sizes="1-4"),
    Submission("burst-2", "dave", 29, gpus=4, epochs=4, sizes="1-4"),
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
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if daemon.poll() is not None:
                sys.exit(f"quickstart: error: onesd ended at once: {log.read_text()[-500:]}")
            probe = subprocess.run(
                ["onesctl", "status", "--json"], capture_output=True, check=False
            )
            ready = probe.returncode == 0 and not json.loads(probe.stdout)["problems"]
            if ready and holding():
                link = run(["onesctl", "web"]).strip()
                print(f"\nThe page of this cluster: {link}", flush=True)
                break
            time.sleep(0.3)
        else:
            sys.exit(f"quickstart: error: onesd does not become ready; see {log}")
        yield
    finally:
        subprocess.run(["pkill", "-x", "-u", "ones", "onesd"], check=False)
        daemon.wait(timeout=30)


def holding() -> bool:
    """Whether Slurm holds new jobs for onesd by now."""
    heartbeat = Path("/run/ones/heartbeat")
    return heartbeat.exists() and "hold yes" in heartbeat.read_text()


def tell(policy: str, story: Sequence[Submission]) -> dict[str, Any]:
    """Run the story once; returns its part of the table."""
    print(f"\n== {policy} ==", flush=True)
    ids: dict[str, int] = {}
    begun = time.time()
    waiting = list(story)
    shown: object = None
    while True:
        elapsed = time.time() - begun
        while waiting and waiting[0].at <= elapsed:
            one = waiting.pop(0)
            ids[one.name] = int(run(one.command, user=one.user).split(";")[0])
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
        # Slurm's times are whole seconds: a first start may look earlier than its submission.
        "sizes": [[round(max(0.0, at - begun), 1), gpus] for at, gpus in sizes([*runs, *parts])],
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
    ones, fifo = (results[policy]["jobs"] for policy in POLICIES)
    found = []
    had = [pair for row in ones for pair in pairwise(gpus for _, gpus in row["sizes"])]
    if not any(after > before for before, after in had):
        found.append("no job grew")
    if not any(after < before for before, after in had):
        found.append("no job shrank")
    if not any(row["moves"].get("live") for row in ones):
        found.append("no job was resized live")
    for row in ones + fifo:
        if row["state"] != "COMPLETED":
            found.append(f"{row['name']} ended {row['state']}")
        if not row["agrees_with_sacct"]:
            found.append(f"{row['name']}: onesctl and sacct differ")
    for row, alone in zip(ones, fifo, strict=True):
        if not row["elastic"] and (len(row["sizes"]) != 1 or row["moves"]):
            found.append("the plain job was touched")
        if row["samples"] != alone["samples"] or row["samples"] is None:
            found.append(f"{row['name']}: {row['samples']} samples, unresized {alone['samples']}")
        if row["loss"] is not None and abs(row["loss"] - alone["loss"]) > 0.15:
            found.append(f"{row['name']}: loss {row['loss']:.3f}, unresized {alone['loss']:.3f}")
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    ones, fifo = (results[policy] for policy in POLICIES)
    lines = [HEADINGS]
    for one, row, alone in zip(STORY, ones["jobs"], fifo["jobs"], strict=True):
        had = " ".join(f"{at:.0f}:{gpus}" for at, gpus in row["sizes"])
        moves = " ".join(f"{kind} {count}" for kind, count in row["moves"].items()) or "-"
        lines.append(
            (
                row["name"],
                f"{one.gpus} ({one.sizes})" if one.sizes else str(one.gpus),
                had,
                moves if row["elastic"] else "plain job",
                *(f"{each['waiting_s']:.0f}" for each in (row, alone)),
                *(f"{each['completion_s']:.0f}" for each in (row, alone)),
                str(row["samples"]),
                *("-" if each["loss"] is None else f"{each['loss']:.3f}" for each in (row, alone)),
            )
        )
    both = (ones, fifo)
    lines.append(
        (
            *("average", "", "", ""),
            *(f"{each['average_waiting_s']:.0f}" for each in both),
            *(f"{each['average_completion_s']:.0f}" for each in both),
            *("", "", ""),
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
    for policy in POLICIES:
        with onesd(policy):
            results[policy] = tell(policy, STORY)
    found = faults(results)
    if options.json:
        options.json.write_text(json.dumps({**results, "faults": found}, indent=2))
    print("\nThe same jobs on the same cluster under ones, and beside it under fifo:\n")
    print(table(results))
    if found:
        sys.exit("\nquickstart: error: " + "; ".join(found))
    ones, fifo = (results[policy]["average_completion_s"] for policy in POLICIES)
    print(f"\nAverage completion time: {ones / fifo:.2f} of fifo's.")


main()
