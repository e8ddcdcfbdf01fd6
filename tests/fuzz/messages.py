"""What jobs, agents, onesd, onesctl, browsers and launchers say to each other."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from fuzz.files import in_file
from fuzz.target import Target, as_text, must
from ones.daemon.agent.attribution import (
    job_of_cgroup,
    job_of_environ,
    job_of_title,
    parse_stat,
)
from ones.daemon.agent.messages import Refused, read_message
from ones.daemon.agent.node import _environment_of
from ones.daemon.agent.push import _refusal
from ones.daemon.onesd.audit import line as audit_line
from ones.daemon.onesd.books.needs import QUESTION
from ones.daemon.onesd.doors.http import _LINK
from ones.daemon.onesd.doors.orders import _CHOICE, _PAUSE, decoded
from ones.daemon.onesd.doors.sessions import Sessions
from ones.daemon.onesd.doors.where import QUESTION as WHERE
from ones.daemon.onesd.page.server import _SIGN_IN
from ones.daemon.web.readable import all_readable
from ones.daemon.wire import HEARD, LEASE, NODE_REPORT, Lease, NodeReport, Received
from ones.slurm_ext.described import NoSuchJob
from ones.slurm_ext.elastic import elastic_jobs
from ones.slurm_ext.live_moves import LiveMove
from ones.slurm_ext.moves import MoveRecord
from ones.slurm_ext.runtime.live.agent_line import read_order
from ones.slurm_ext.runtime.live.link import (
    Admitting,
    Joining,
    LinkFault,
    Sealed,
    decode,
    read_join_file,
)
from ones.slurm_ext.snapshot import NodeRecord, Snapshot

REPORT = (
    b'{"op":"report","job":7,"restarts":1,"samples":100,"epoch":1.5,"loss":NaN,"step_seconds":0.25,'
    b'"batch":64,"gpus":4,"total_samples":10000,"batch_most":256,"tunes":true,"grad_sqr":1e-3}'
)
CHECKPOINT = b'{"op":"checkpoint","samples":100,"path":"/scratch/a.pt"}'
LIVE = (
    b'{"op":"live","job":7,"workers":4,"parts":{"11":2},"order":700,"state":"failed",'
    b'"reason":"no room","own":{"n2":2},"pause":1.5,"able":false}'
)
NODE = (
    b'{"node":"n1","taken":1000.5,"interval":10,"version":"1","gpus":[{"minor":0,"uuid":"GPU-1",'
    b'"type":"v100","utilization":0.5,"memory_used":5,"memory_total":9,"jobs":[7],"linked":[1]}],'
    b'"received":[{"at":1.5,"evidence":"cgroup","message":' + REPORT.replace(b"NaN", b"0.5")
    + b'},{"at":2,"evidence":"environ","message":' + LIVE + b'}],"ended":[8],'
    b'"network":{"received":5,"sent":6},"note":"x"}'
)  # fmt: skip
HEARD_ANSWER = (
    b'{"ok":true,"leases":[{"job":7,"sizes":"1-4","gpus":4,"batch":64,"checkpoint_signal":"USR1",'
    b'"order":{"number":700,"restarts":2,"keep":[11],"add":[{"node":"n2","gpus":3}],'
    b'"leave":["n3"],"gpu_type":"v100","batch":64,"patience":60.0}}],"staged":[5],"staged_at":1.0}'
)
ORDER = (
    b'{"ok":true,"order":{"number":700,"restarts":2,"keep":[11],"add":[{"node":"n2","gpus":3}],'
    b'"leave":["n3"],"gpu_type":"v100","batch":64,"patience":60.0,"withdrawn":false}}'
)
LIVE_MOVE = (
    b'{"id":7,"job":3,"restarts":0,"target":{"n1":2,"n9":4},"batch":null,"reason":"","begun_at":5.0,'
    b'"step":"ordered","order":{"number":700,"keep":[8],"add":[["n9",4]],"leave":["n2"]},"orders":1,'
    b'"deadline":9.5,"because":"","refused":"","given":["n3"],"outcome":"","kind":"live"}'
)
MOVE = (
    b'{"id":7,"job":3,"kind":"resize","restarts":0,"target":{"n1":2},"batch":null,"reason":"",'
    b'"begun_at":5.0,"step":"begun","deadline":null,"outcome":""}'
)
SECRET, NONCE = b"secret", "0123456789abcdef"


def _message(data: bytes) -> object:
    first, rest = data[:1], data[1:]
    op = {b"r": "report", b"c": "checkpoint"}.get(first)
    message = read_message(data if op is None else rest, job=7, op=op)  # type: ignore[arg-type]
    # It goes on to onesd, in a report that must not be refused for it.
    received = (Received(at=1.0, evidence="cgroup", message=message),)
    report = NodeReport(node="n1", taken=1.0, interval=1.0, version="1", received=received)
    must(NODE_REPORT.decode(msgspec.json.encode(report)) == report, "onesd reads something else")
    return message


def _json_of(decoder: msgspec.json.Decoder[object]) -> Callable[[bytes], object]:
    return lambda data: decoded(data, decoder)


def _answer(data: bytes) -> object:
    must(len(str(_refusal("ctl:7667", data, ""))) <= 300, "a long error")
    heard = decoded(data, HEARD)
    told = [_environment_of(lease) for lease in heard.leases]
    must(all(line.isprintable() for lines in told for line in lines), "a variable of two lines")
    return heard


def _lease(data: bytes) -> object:
    lease: Lease = decoded(data, LEASE)
    return _environment_of(lease)


def _question(data: bytes) -> object:
    """Whatever onesctl may send: each is read by all, as if it had come to the wrong door."""
    faults: list[Exception] = []
    found: list[object] = []
    for decoder in (_PAUSE, _CHOICE, QUESTION, _LINK):
        try:
            found.append(decoded(data, decoder))  # type: ignore[arg-type]
        except (msgspec.DecodeError, ValueError) as fault:
            faults.append(fault)
    link = [each.digest for each in found if hasattr(each, "digest")]
    sessions = Sessions(link=60.0, session=60.0)
    for digest in link:
        sessions.offer(1000, digest)
    if not found:
        raise faults[0]
    return found


def _described(data: bytes) -> object:
    """What asks for a forecast, and what its job would be to a round."""
    asked = decoded(data, WHERE)
    if asked.asks is None:
        return None
    record = asked.asks.record(7, user="alice", now=0.0, partitions={})
    nodes = {
        name: NodeRecord(
            name=name, states=frozenset(), gpu_type="v100", gpus=4, partitions=frozenset({"a"})
        )
        for name in ("n1", "n2")
    }
    found, ignored = elastic_jobs(Snapshot(taken=0.0, jobs={7: record}, nodes=nodes, switches={}))
    must(len(found) + len(ignored) == 1, "a job that is neither planned for nor named")
    return None


def _sign_in(data: bytes) -> object:
    sessions = Sessions(link=60.0, session=60.0)
    secret = decoded(data, _SIGN_IN).secret
    must(sessions.begin(secret) is None, "a secret that was never drawn lets in")
    must(sessions.whose(secret, secret) is None, "a cookie that was never drawn lets in")
    return secret


def _shown(data: bytes) -> object:
    text = data.decode(errors="surrogateescape")
    line = audit_line("refused", {"what": text, "why": text, "uid": None})
    must(len(line.splitlines()) == 1 and line.isprintable(), "a line of the audit log is none")
    shown = all_readable({"name": text, "list": [text]})
    msgspec.json.encode(shown)
    return shown


def _move(data: bytes) -> object:
    text = as_text(data)
    if '"live"' in text or "orders" in text:
        move = LiveMove.from_json(text)
        must(LiveMove.from_json(move.to_json()) == move, "written, it is another one")
        return move
    return MoveRecord.from_json(text)


def _order(data: bytes) -> object:
    return read_order(decode(data).get("order"), restarts=2)


def _handshake(data: bytes) -> object:
    for half in (
        lambda: Admitting(SECRET).admit(data),
        lambda: Joining(SECRET, {"name": "7"}).answer(data),
        lambda: _joined().admitted(data),
    ):
        try:
            found = half()
        except LinkFault as fault:
            told = fault
        else:
            must(isinstance(found, bytes), "it got in without the secret")
            return found
    raise told


def _joined() -> Joining:
    joining = Joining(SECRET, {})
    joining.answer(f'{{"ones":1,"nonce":"{NONCE}"}}'.encode())
    return joining


def _sealed(data: bytes) -> object:
    line = Sealed(SECRET, ours=b"joiner", theirs=b"base").open(data)
    must(False, "a line without a proof was taken")
    return line


def _process(data: bytes) -> object:
    text = as_text(data)
    return job_of_cgroup(text), job_of_title(text), job_of_environ(data), parse_stat(text)


def _join_file(data: bytes) -> object:
    def read(data: bytes) -> object:
        return in_file(data, "join", read_join_file, mode=0o600)

    return read(data)


TARGETS = (
    Target(
        name="agent-messages",
        feed=_message,
        seeds=(REPORT, LIVE, CHECKPOINT, b"r" + REPORT, b"c" + CHECKPOINT),
        faults=(Refused,),
        words=(b'"op":"live"', b'"parts":{', b'"own":{"n1":', b'"path":"'),
        largest=70_000,
    ),
    Target(
        name="node-reports",
        feed=_json_of(NODE_REPORT),
        seeds=(NODE,),
        faults=(msgspec.DecodeError, ValueError),
        says_in_a_line=False,
        words=(b'"message":', b'"gpus":[', b'"jobs":['),
    ),
    Target(
        name="onesd-answers",
        feed=_answer,
        seeds=(HEARD_ANSWER, b'{"error":"no"}'),
        faults=(msgspec.DecodeError, ValueError),
        says_in_a_line=False,
    ),
    Target(
        name="leases",
        feed=_lease,
        seeds=(b'{"job":7,"sizes":"1-4","gpus":4,"batch":64,"checkpoint_signal":"USR1"}',),
        faults=(msgspec.DecodeError, ValueError),
        says_in_a_line=False,
    ),
    Target(
        name="questions",
        feed=_question,
        seeds=(
            b'{"reason":"new disks"}',
            b'{"policy":"ones:generations=0"}',
            b'{"job":7,"user":"alice","name":"train","gpus":4,"memory":1.5,"time":3600}',
            b'{"digest":"' + b"0" * 64 + b'"}',
        ),
        faults=(msgspec.DecodeError, ValueError),
        says_in_a_line=False,
    ),
    Target(
        name="descriptions",
        feed=_described,
        seeds=(
            b'{"asks":{"sizes":"1-8","name":"train","gpus":"v100:4","time_limit":3600}}',
            b'{"asks":{"sizes":"2,4","gres":"gpu:2","nodes":2,"excluded":"n[1-2]"},"length":60}',
            b'{"asks":{"gpus_per_task":"1","tasks":4,"tasks_per_node":2,"features":"a|b"}}',
            b'{"job":7,"length":60.5,"spread":0.3}',
        ),
        faults=(msgspec.DecodeError, ValueError, NoSuchJob),
        says_in_a_line=False,
        words=(b'"asks":{', b'"gpus":"', b'"excluded":"', b'"nodes":65536', b'"partition":"'),
        largest=8192,
    ),
    Target(
        name="sign-in",
        feed=_sign_in,
        seeds=(b'{"secret":"0123456789"}',),
        faults=(msgspec.DecodeError, ValueError),
        says_in_a_line=False,
    ),
    Target(
        name="shown",
        feed=_shown,
        seeds=(b"train", "\u202eevil\u2066".encode(), b'POST /v1/pause\r\nx="y"'),
    ),
    Target(
        name="moves",
        feed=_move,
        seeds=(LIVE_MOVE, MOVE),
        faults=(ValueError,),
    ),
    Target(name="live-orders", feed=_order, seeds=(ORDER, b'{"ok":true}'), faults=(LinkFault,)),
    Target(
        name="handshake",
        feed=_handshake,
        seeds=(
            f'{{"ones":1,"nonce":"{NONCE}"}}'.encode(),
            f'{{"name":"7","job":"7","slots":4,"nonce":"{NONCE}","mac":"{"0" * 64}"}}'.encode(),
            b'{"mac":"' + b"0" * 64 + b'"}',
            b'{"error":"full"}',
        ),
        faults=(LinkFault,),
        largest=4096,
    ),
    Target(
        name="sealed-lines",
        feed=_sealed,
        seeds=(b"0" * 64 + b' {"do":"start","worker":1}',),
        faults=(LinkFault,),
    ),
    Target(
        name="join-file",
        feed=_join_file,
        seeds=(json.dumps({"host": "n1", "port": 5, "control": "/x", "secret": "00ff"}).encode(),),
        faults=(LinkFault,),
    ),
    Target(
        name="processes",
        feed=_process,
        seeds=(
            b"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            b"1:x:/slurm/uid_1000/job_7/step_batch\n",
            b"slurmstepd: [7.0+1]",
            b"A=1\0SLURM_JOB_ID=7\0B=2\0",
            b"7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 1 1 0 0 20 0 1 0 12345 1 1",
        ),
        words=(b"job_", b"/slurm/", b"slurmstepd.scope/", b"\0SLURM_JOB_ID=", b"user@1/", b")"),
    ),
)
