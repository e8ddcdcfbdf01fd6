"""Process groups that have lost a member must let go of those who wait in them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE, eventually

pytestmark = pytest.mark.torch
LARGE = 1 << 28  # bytes, more than any socket takes at once
OTHER = """
import sys, torch
from ones.slurm_ext.runtime.live import group
store, name = group.store("127.0.0.1", int(sys.argv[1])), f"both-{sys.argv[1]}"
made = group.make(store, name=name, rank=1, size=2, device=torch.device("cpu"))
sent = torch.ones(int(sys.argv[2]), dtype=torch.uint8)
made.finish_all([made.pg.send([sent], 0, 1)])
print("sent", flush=True)
sys.stdin.read()
"""


class Pair:
    """This process, and another one that sends it something large."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        from ones.slurm_ext.runtime.live import group

        stores: Any = dist
        self.store = stores.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False
        )
        words = [sys.executable, "-c", OTHER, str(self.store.port), str(LARGE)]
        self.other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        connection = group.store("127.0.0.1", self.store.port)
        name, device = f"both-{self.store.port}", torch.device("cpu")
        self.group = group.make(connection, name=name, rank=0, size=2, device=device)
        self.got = torch.zeros(LARGE, dtype=torch.uint8)
        self.fault: str | None = None

    def receive(self) -> threading.Thread:
        """Begin to wait for what the other one sends."""

        def wait() -> None:
            self.fault = ""
            try:
                self.group.finish_all([self.group.pg.recv([self.got], 1, 1)])
            except RuntimeError as fault:
                self.fault = str(fault)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        return waiting


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.other.kill()
    made.other.communicate()


def test_what_is_sent_arrives(pair: Pair) -> None:
    pair.receive().join(PATIENCE)
    assert pair.fault == ""
    assert bool(pair.got.all())


def test_making_a_group_calls_nothing_that_pytorch_gives_up() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        made = Pair()
    made.other.kill()
    made.other.communicate()


def test_who_waits_for_data_that_are_on_their_way_is_freed_when_the_group_is_cut(
    pair: Pair,
) -> None:
    waiting = pair.receive()
    eventually(lambda: pair.got[0].item() == 1)
    os.kill(pair.other.pid, signal.SIGSTOP)
    status = Path(f"/proc/{pair.other.pid}/status")
    eventually(lambda: "T (stopped)" in status.read_text())
    assert pair.got[-1].item() == 0, "all had arrived before the other one was stopped"
    pair.group.cut()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert pair.fault


@pytest.mark.parametrize("what", ["all_did", "barrier", "save_shards"])
def test_a_worker_that_is_lost_while_a_checkpoint_is_written_means_no_checkpoint_and_no_more(
    pair: Pair, tmp_path: Path, what: str
) -> None:
    from ones.slurm_ext.runtime import sharding
    from ones.slurm_ext.runtime.live.torch_live import LiveFramework

    if what == "save_shards" and (fault := sharding.supported()):
        pytest.skip(f"{fault}; scripts/test-sharded runs this")
    framework = LiveFramework()
    framework._group, framework._control = pair.group, pair.group.pg
    pair.group.install()
    pair.other.kill()
    for _ in range(2):  # once it is lost nobody waits for the others any more
        match what:
            case "all_did":
                assert framework.all_did(True) is False
            case "barrier":
                framework.barrier()
            case "save_shards":
                with pytest.raises(OSError, match="a worker was lost"):
                    framework.save_shards(tmp_path, [], [], beside=False)
        assert framework.lost
    pair.group.drop()


def a_connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        mine = socket.create_connection(door.getsockname())
        return mine, door.accept()[0]


def test_a_cut_leaves_the_connections_of_the_script_alone() -> None:
    """One that was made while the group was is not told from gloo's own by its time."""
    from ones.slurm_ext.runtime.live import group

    scripts, others = a_connection()
    gloos, peer = a_connection()
    links = {scripts.fileno(): (scripts.getsockname(), scripts.getpeername())}
    ends = gloos.getsockname(), gloos.getpeername()
    number = gloos.detach()
    group.Group(object(), rank=0, size=2, links={**links, number: ends}).cut()
    scripts.sendall(b"still there")
    assert others.recv(64) == b"still there"
    assert peer.recv(64) == b""
    os.close(number)
    for each in (scripts, others, peer):
        each.close()


class Nccl:
    """What of NCCL a group calls, where there is no GPU."""

    def __init__(self) -> None:
        self.may_abort = threading.Event()
        self.calls: list[str] = []

    def abort(self) -> None:
        self.may_abort.wait(PATIENCE)
        self.calls.append("abort")


def test_a_cut_ends_what_is_under_way_on_the_gpu_without_waiting_for_it() -> None:
    from ones.slurm_ext.runtime.live import group

    nccl = Nccl()
    made = group.Group(object(), rank=0, size=2, links={}, nccl=nccl)
    made.cut()  # an abort may wait for a call that connects to the lost worker
    made.cut()
    assert made.cut_at is not None
    nccl.may_abort.set()
    eventually(lambda: nccl.calls == ["abort"])


def test_who_leaves_a_group_of_nccl_waits_for_no_other_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To destroy one in good order is a collective, and others may have left already."""
    from ones.slurm_ext.runtime.live import group

    nccl, pg = Nccl(), object()
    nccl.may_abort.set()
    monkeypatch.setattr(group.dist, "destroy_process_group", lambda _: nccl.calls.append("destroy"))
    monkeypatch.setattr(group, "QUIET", 0.0)
    group.Group(pg, rank=0, size=2, links={}, nccl=nccl).drop()
    eventually(lambda: nccl.calls == ["abort", "destroy"])


def test_a_worker_with_a_gpu_is_not_ended_by_a_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    from ones.slurm_ext.runtime.live import group

    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    monkeypatch.setenv("NCCL_RUNTIME_CONNECT", "1")
    group.prepare_nccl()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["NCCL_RUNTIME_CONNECT"] == "1"  # whoever sets it knows why


@pytest.mark.parametrize("cut", [False, True])
def test_a_step_on_a_gpu_is_left_out_where_its_gradients_were_cut(
    monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """The host is ahead of the GPU: what was cut there ends with numbers that mean nothing."""
    import torch

    from ones.slurm_ext.runtime.live.torch_live import LiveFramework

    framework = LiveFramework()
    framework.device = SimpleNamespace(type="cuda")
    group: Any = SimpleNamespace(size=2, cut_at=None)
    framework._group = group

    class Stream:
        def synchronize(self) -> None:
            group.cut_at = 1.0 if cut else None

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    framework.scale_rate(optimizer, lambda: 1.0)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == (1.0 if cut else 0.5)
    assert framework.lost is cut
