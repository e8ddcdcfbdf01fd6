"""The quickstart's story, told on the controller of the container cluster.

The same jobs run twice, steered by the policies `fifo` and `ones`: elastic jobs of different
lengths, a plain job beside them, and a late burst. What happened is read from onesctl, from the
jobs' own result files, and checked against sacct. Ends non-zero when something that the README
promises did not happen.
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
    "fifo",
    "DONE AFTER",
    "fifo",
    "SAMPLES",
    "LOSS",
    "fifo",
)
COLUMNS = "job,name,user,state,sizes,gpus,nodes,batch,progress,waited,note"
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

    def command(self) -> list[str]:
        options = [
            f"--job-name={self.name.split('-')[0]}",
            f"--gpus={self.gpus}",
            f"--ntasks={self.gpus}",
        ]
        if self.sizes:
            options.append(f"--elastic={self.sizes}")
        script = [f"{EXAMPLES}/{self.example}", f"--epochs={self.epochs}"]
        return ["sbatch", "--parsable", f"--output=/home/{self.user}/%j.out", *options, *script]


STORY = (
    Submission("plain", "carol", 0, gpus=2, epochs=22, example="fixed_digits.sbatch"),
    Submission("broad", "alice", 0, gpus=8, epochs=54, sizes="4,8"),
    Submission("long", "bob", 9, gpus=4, epochs=30, sizes="4,8"),
    Submission("medium", "carol", 12, gpus=4, epochs=24, sizes="4,8"),
    # No library of ours in this one.
    Submission("free", "dave", 13, gpus=2, epochs=10, sizes="1-4", example="plain_digits.sbatch"),
    Submission("burst-1", "dave", 42, gpus=4, epochs=5, sizes="4"),
    Submission("burst-2", "dave", 43, gpus=4, epochs=5, sizes="4"),
    Submission("burst-3", "dave", 44, gpus=4, epochs=5, sizes="4"),
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
            ids[one.name] = int(run(one.command(), user=one.user).split(";")[0])
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
    """The runs of a job as sacct has them."""
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
    return sorted(runs, key=lambda each: each["started"])


def job_row(one: Submission, job: int, begun: float) -> dict[str, Any]:
    runs = accounted(job)
    moves: dict[str, int] = {}
    agrees = True
    if one.sizes:
        life = ask("job", str(job))
        for move in life["moves"]:
            if move["outcome"] == "done":
                moves[move["kind"]] = moves.get(move["kind"], 0) + 1
        seen = [(each["started"], each["ended"], each["gpus"]) for each in life["runs"]]
        agrees = seen == [(each["started"], each["ended"], each["gpus"]) for each in runs]
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
        "sizes": [[round(each["started"] - begun, 1), each["gpus"]] for each in runs],
        "waiting_s": round(max(0.0, ended - submitted - held), 1),
        "completion_s": round(ended - submitted, 1),
        "samples": outcome.get("samples"),
        "loss": outcome.get("loss"),
        "moves": moves,
        "agrees_with_sacct": agrees,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "jobs": rows,
        "average_completion_s": round(sum(row["completion_s"] for row in rows) / len(rows), 1),
        "average_waiting_s": round(sum(row["waiting_s"] for row in rows) / len(rows), 1),
    }


def faults(fifo: dict[str, Any], ones: dict[str, Any]) -> list[str]:
    """What was promised and did not happen."""
    found = []
    before = {row["name"]: row for row in fifo["jobs"]}
    sizes = {row["name"]: [gpus for _, gpus in row["sizes"]] for row in ones["jobs"]}
    pairs = [pair for each in sizes.values() for pair in pairwise(each)]
    if not any(after > earlier for earlier, after in pairs):
        found.append("no job grew")
    if not any(after < earlier for earlier, after in pairs):
        found.append("no job shrank")
    if not any(row["moves"].get("preempt") and row["state"] == "COMPLETED" for row in ones["jobs"]):
        found.append("no job was preempted and resumed")
    for row in fifo["jobs"] + ones["jobs"]:
        if row["state"] != "COMPLETED":
            found.append(f"{row['name']} ended {row['state']}")
        if not row["agrees_with_sacct"]:
            found.append(f"{row['name']}: onesctl and sacct differ")
    for row in ones["jobs"]:
        alone = before[row["name"]]
        if not row["elastic"] and (len(row["sizes"]) != 1 or row["moves"]):
            found.append("the plain job was touched")
        if row["samples"] != alone["samples"] or row["samples"] is None:
            found.append(f"{row['name']}: {row['samples']} samples, unresized {alone['samples']}")
        if row["loss"] is not None and abs(row["loss"] - alone["loss"]) > 0.15:
            found.append(f"{row['name']}: loss {row['loss']:.3f}, unresized {alone['loss']:.3f}")
    if ones["average_completion_s"] >= fifo["average_completion_s"]:
        found.append("the average completion time does not beat fifo")
    return found


def table(fifo: dict[str, Any], ones: dict[str, Any]) -> str:
    before = {row["name"]: row for row in fifo["jobs"]}
    lines = [HEADINGS]
    for row in ones["jobs"]:
        alone = before[row["name"]]
        sizes = " ".join(f"{at:.0f}:{gpus}" for at, gpus in row["sizes"])
        moves = " ".join(f"{kind} {count}" for kind, count in row["moves"].items()) or "-"
        lines.append(
            (
                row["name"],
                sizes,
                moves if row["elastic"] else "plain job",
                f"{row['waiting_s']:.0f}",
                f"{alone['waiting_s']:.0f}",
                f"{row['completion_s']:.0f}",
                f"{alone['completion_s']:.0f}",
                str(row["samples"]),
                f"{row['loss']:.3f}" if row["loss"] is not None else "-",
                f"{alone['loss']:.3f}" if alone["loss"] is not None else "-",
            )
        )
    lines.append(
        (
            "average",
            "",
            "",
            f"{ones['average_waiting_s']:.0f}",
            f"{fifo['average_waiting_s']:.0f}",
            f"{ones['average_completion_s']:.0f}",
            f"{fifo['average_completion_s']:.0f}",
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
    for policy in ("fifo", "ones"):
        with onesd(policy):
            results[policy] = tell(policy, STORY)
    found = faults(results["fifo"], results["ones"])
    results["faults"] = found
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    print("\nThe same jobs on the same cluster, steered by ones; under `fifo`, the other run:\n")
    print(table(results["fifo"], results["ones"]))
    if found:
        sys.exit("\nquickstart: error: " + "; ".join(found))
    ratio = results["ones"]["average_completion_s"] / results["fifo"]["average_completion_s"]
    print(f"\nAverage completion time: {ratio:.2f} of fifo's.")


main()
