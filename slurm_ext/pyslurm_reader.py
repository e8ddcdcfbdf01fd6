"""Reads Slurm through PySlurm: binary messages instead of programs and their text."""

from __future__ import annotations

import json
import os
import pwd
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ones.slurm_ext.command_reader import switches_of
from ones.slurm_ext.errors import RecordFault, SlurmError, SlurmUnreachable
from ones.slurm_ext.job_json import (
    MALFORMED,
    checked,
    gpus_on_nodes,
    gpus_used,
    memory_known,
    shards_per_gpu,
    shares_on_nodes,
)
from ones.slurm_ext.snapshot import ENDED, HOLDING, NOT_KNOWN, JobRecord, NodeRecord, Snapshot
from ones.slurm_ext.tres import gpus_by_type

WORKER = "ones.slurm_ext.pyslurm_worker"


class PyslurmReader:
    """Takes snapshots through a worker process, which is given up when it misses the deadline."""

    name = "pyslurm"

    def __init__(self, timeout: float = 20.0) -> None:
        self.timeout = timeout
        self._worker: _Worker | None = None
        self._known = Known()
        self._one_at_a_time = threading.Lock()

    def snapshot(self) -> Snapshot:
        """All jobs, nodes and switches as slurmctld has them now."""
        with self._one_at_a_time:
            deadline = time.monotonic() + self.timeout
            if self._worker is None:
                worker = _Worker()
                try:
                    answer = worker.ask("releases", deadline)
                    refuse_other_releases(answer)
                    if answer["controller"] is None:
                        raise SlurmUnreachable("pyslurm", "slurmctld does not answer; is it up?")
                except SlurmError:
                    worker.end()
                    raise
                self._worker = worker
            taken = time.time()
            try:
                return snapshot_of(self._worker.ask("read", deadline), taken, self._known)
            except SlurmError:
                # Another worker tells everything: what this one takes for told may not be known.
                self.close()
                raise

    def close(self) -> None:
        """End the worker; the next snapshot starts another."""
        self._known = Known()
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def available(timeout: float = 20.0) -> str | None:
    """Why PySlurm cannot be used here; None when it can."""
    worker = _Worker()
    try:
        refuse_other_releases(worker.ask("releases", time.monotonic() + timeout))
    except SlurmError as error:
        return error.reason
    finally:
        worker.end()
    return None


def refuse_other_releases(answer: Mapping[str, Any]) -> None:
    """Raise unless PySlurm was compiled for the libslurm and the slurmctld that are in use."""
    try:
        _refuse_other_releases(answer)
    except MALFORMED as fault:
        raise SlurmError("pyslurm", f"does not say what it is built for: {fault!r}") from None


def _refuse_other_releases(answer: Mapping[str, Any]) -> None:
    built_for = "{}.{:02}".format(*answer["built_for"][:2])
    if answer["library"] != answer["built_for_library"]:
        raise SlurmError(
            "pyslurm",
            f"is built for Slurm {built_for} (libslurm {answer['built_for_library']}) and finds "
            f'libslurm {answer["library"]}; build it again or set reader = "commands"',
        )
    controller = answer["controller"]
    if controller is not None and controller.split(".")[:2] != built_for.split("."):
        raise SlurmError(
            "pyslurm",
            f"is built for Slurm {built_for} and slurmctld is of {controller}; "
            'build it again or set reader = "commands"',
        )


class _Worker:
    """A worker process and the pipes to it."""

    def __init__(self) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER],
            env=_environment(),
            bufsize=0,  # nothing left to be written when it has died
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
        )

    def ask(self, request: str, deadline: float) -> Mapping[str, Any]:
        """The worker's answer, or SlurmError when there is none by the deadline."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        self._complaints.truncate(0)
        self._complaints.seek(0)
        pieces: list[bytes] = []
        try:
            self._process.stdin.write(f"{request}\n".encode())
            while not pieces or not pieces[-1].endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([pipe], [], [], left)[0]:
                    raise SlurmUnreachable("pyslurm", "slurmctld did not answer in time; is it up?")
                pieces.append(os.read(pipe, 1 << 20))
                if not pieces[-1]:
                    raise SlurmError("pyslurm", f"its process ended: {self._last_complaint()}")
        except BrokenPipeError as error:
            raise SlurmError("pyslurm", f"its process ended: {self._last_complaint()}") from error
        return answer_in(b"".join(pieces))

    def _last_complaint(self) -> str:
        self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip("\0\n ").splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"

    def end(self) -> None:
        """Kill the process; it only reads, and a blocked one would not notice anything gentler."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._complaints):
            if pipe is not None:
                pipe.close()


def answer_in(line: bytes) -> Mapping[str, Any]:
    """The worker's answer. Raises SlurmError for what is none, or says that something is wrong."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise SlurmError("pyslurm", f"its answer is not JSON: {fault}") from None
    if not isinstance(answer, Mapping):
        raise SlurmError("pyslurm", "its answer is no object of JSON")
    if "error" in answer:
        kind = SlurmUnreachable if answer.get("unreachable") else SlurmError
        raise kind("pyslurm", str(answer["error"]))
    return answer


def _environment() -> dict[str, str]:
    """Ours, less the variables by which a job or a user steers Slurm's library."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM_")
    }


class Known:
    """The jobs of which a worker has told, who tells of each again when it has changed."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobRecord] = {}
        self.unread: dict[str, str] = {}  # what makes no sense of them, and why

    def take(self, changed: Iterable[Any], gone: Iterable[Any]) -> None:
        """What it tells next."""
        for fields in changed:
            number = fields.get("id") if isinstance(fields, Mapping) else None
            self._forget(number)
            try:
                job = job_record(fields)
                self.jobs[job.id] = job
            except RecordFault as fault:
                self.unread[fault.record] = fault.reason
        for number in gone:
            if isinstance(number, int):
                self._forget(number)

    def _forget(self, number: Any) -> None:
        if isinstance(number, int):
            self.jobs.pop(number, None)
        self.unread.pop(_named(number), None)


def snapshot_of(answer: Mapping[str, Any], taken: float, known: Known) -> Snapshot:
    """The worker's answer as records, and what is `known` with it.

    Raises SlurmError where it has no lists of them.
    """
    listed = [answer.get(what) for what in ("jobs", "gone", "nodes")]
    topology = answer.get("topology")
    if not all(isinstance(each, list) for each in listed) or not isinstance(topology, str):
        raise SlurmError("pyslurm", "its answer has no jobs, nodes and topology")
    known.take(answer["jobs"], answer["gone"])
    nodes: dict[str, NodeRecord] = {}
    unread = dict(known.unread)
    for fields in answer["nodes"]:
        try:
            node = node_record(fields)
            nodes[node.name] = node
        except RecordFault as fault:
            unread[fault.record] = fault.reason
    switches = switches_of(topology)
    jobs = dict(known.jobs)
    return Snapshot(taken=taken, jobs=jobs, nodes=nodes, switches=switches, unread=unread)


def job_record(fields: Mapping[str, Any]) -> JobRecord:
    """A job's fields as a record. Raises RecordFault."""
    try:
        return checked(_job_record(fields))
    except MALFORMED as fault:
        name = fields.get("id") if isinstance(fields, Mapping) else None
        raise RecordFault(_named(name), fault) from None


def node_record(fields: Mapping[str, Any]) -> NodeRecord:
    """A node's fields as a record. Raises RecordFault."""
    try:
        return checked(_node_record(fields))
    except MALFORMED as fault:
        name = fields.get("name") if isinstance(fields, Mapping) else None
        raise RecordFault(f"node {str(name)[:80]}", fault) from None


def _named(number: Any) -> str:
    return f"job {str(number)[:20]}"


def _job_record(fields: Mapping[str, Any]) -> JobRecord:
    state, limit = fields["state"], fields["time_limit"]
    least = fields["least_nodes"] or 0
    ending = fields.get("exit") or 0  # one built before this field does not say
    ran = state != "PENDING" and bool(fields["nodes"])
    return JobRecord(
        id=fields["id"],
        name=fields["name"],
        user=fields["user"] or user_name(fields["uid"]),
        account=fields["account"],
        partition=fields["partition"],
        qos=fields["qos"],
        state=state,
        flags=frozenset(fields["flags"]),
        reason=fields["reason_text"] or fields["reason"],
        priority=fields["priority"],
        nice=fields.get("nice", 0),  # one built before this field does not say
        held=fields["priority"] == 0,
        restarts=fields["restarts"],
        submitted=float(fields["submitted"]),
        eligible=float(fields["eligible"]),
        # Of a pending job Slurm foretells the start, of a running one the end.
        expected=float(fields["started"]) if state == "PENDING" else 0.0,
        started=float(fields["started"]) if ran else 0.0,
        ended=float(fields["ended"]) if state in ENDED else 0.0,
        exit_code=os.WEXITSTATUS(ending) if state in ENDED else 0,
        exit_signal=os.WTERMSIG(ending) if state in ENDED else 0,
        time_limit=None if limit is None or limit < 0 else 60.0 * limit,
        nodes_wanted=(least, max(least, fields["most_nodes"] or 0)),
        tasks=fields["tasks"] or least,
        cpus_per_task=fields["cpus_per_task"] or 1,
        tasks_per_node=fields["tasks_per_node"] or 0,
        cpus=fields["cpus"] or 0,
        tres_per_job=fields["tres_per_job"],
        tres_per_node=fields["tres_per_node"],
        tres_per_task=fields["tres_per_task"],
        tres=fields.get("tres", ""),
        # A worker built before these fields knows no better: its jobs don't share GPUs.
        cpus_per_gpu=fields.get("cpus_per_gpu", NOT_KNOWN),
        memory=fields.get("memory", 0),
        memory_of=fields.get("memory_of", NOT_KNOWN),
        memory_per_gpu=fields.get("memory_per_gpu", ""),
        licenses=fields.get("licenses", ""),
        features=fields["features"],
        dependency=fields["dependency"],
        required_nodes=fields["required_nodes"],
        excluded_nodes=fields["excluded_nodes"],
        nodes=fields["nodes"],
        gpus_on=gpus_on_nodes(fields["nodes"], fields["gres"]) if state in HOLDING else {},
        shares=shares_on_nodes(fields["nodes"], fields["gres"]) if state in HOLDING else {},
        batch_host=fields["batch_host"],
        admin_comment=fields["admin_comment"],
        requeue=bool(fields["requeue"]),
        array_job=fields["array_job"],
        array_task=_task(fields),
        reservation=fields.get("reservation", ""),
    )


def _task(fields: Mapping[str, Any]) -> str:
    index = fields.get("array_task")
    return str(fields.get("array_tasks") or ("" if index is None else index))


def _node_record(fields: Mapping[str, Any]) -> NodeRecord:
    gpus = gpus_by_type(fields["gres"])
    return NodeRecord(
        name=fields["name"],
        states=frozenset(fields["states"].split("+")),
        reason=fields["reason"],
        gpu_type="+".join(sorted(kind or "gpu" for kind in gpus)),
        gpus=sum(gpus.values()),
        gpus_used=gpus_used(fields["gres_used"]),
        shards_per_gpu=shards_per_gpu(fields["gres"]),
        cpus=fields.get("cpus", 0),  # one built before these fields does not say
        cpus_used=fields.get("cpus_used", 0),
        memory=memory_known(fields.get("memory", 0)),
        memory_used=fields.get("memory_used", 0),
        partitions=frozenset(filter(None, fields["partitions"].split(","))),
        features=frozenset(filter(None, fields["features"].split(","))),
    )


def user_name(uid: int) -> str:
    """The user's name, or the number of one whom this host does not know."""
    try:
        return _known_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=4096)
def _known_name(uid: int) -> str:
    """Raises KeyError for a stranger, who is asked for again: the name service may be away."""
    return pwd.getpwuid(uid).pw_name
