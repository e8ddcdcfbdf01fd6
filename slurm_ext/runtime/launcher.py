"""ones-run: starts the workers of a training script on this node, one for each of its GPUs.

    srun ones-run train.py ...

Run once per node, it starts a worker for each GPU the job has there; run once per GPU, each is one
worker. Workers find torchrun's variables. Signals are passed on to them; when one fails the others
are ended, and its exit code is ours.

The script's framework is imported once, before the workers are forked from this process: with
several workers on a node that saves most of the time which a restart costs.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import importlib.util
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime import resized
from ones.slurm_ext.runtime.environment import (
    EnvironmentFault,
    Place,
    in_step,
    read_environment,
    slurm_place,
    tasks_on_node,
)
from ones.slurm_ext.runtime.version import SayVersion

GRACE = 10.0  # seconds between SIGTERM and SIGKILL for the workers that outlive a failed one
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
PRELOADED = ("torch", "torch._dynamo")  # optimizers import the second one at their first use
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Program:
    """What each worker runs."""

    name: str  # a .py file, a module's name, or a program
    arguments: tuple[str, ...]
    is_module: bool = False

    @property
    def is_python(self) -> bool:
        return self.is_module or self.name.endswith(".py")


def parser() -> argparse.ArgumentParser:
    """What ones-run is told."""
    found = argparse.ArgumentParser(
        prog="ones-run",
        description="Start one worker of a training script for each GPU of this node.",
        epilog="Example: srun --ntasks-per-node=1 ones-run train.py --epochs=10",
    )
    found.add_argument("--version", action=SayVersion, nargs=0, help="say which version this is")
    found.add_argument("--workers", type=int, help="workers on this node (default: its GPUs)")
    found.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    found.add_argument("--live", action="store_true", help="let workers come and go (docs/live.md)")
    found.add_argument("--slots", type=int, help="with --live: most workers on this node")
    found.add_argument("--folder", type=Path, help="with --live: where others find the job")
    found.add_argument(
        "--join", type=Path, metavar="FILE", help="join the live job whose join.json this is"
    )
    found.add_argument("script", metavar="SCRIPT", help="a .py file, or a program")
    found.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER)
    return found


def main() -> None:
    given = parser().parse_args()
    live = given.live or given.join is not None
    program = Program(given.script, tuple(given.arguments), given.module)
    try:
        if not live and (given.slots is not None or given.folder is not None):
            raise EnvironmentFault("--slots and --folder are of live jobs; add --live")
        places = places_here(os.environ, workers=given.workers)
        if program.is_python and not program.is_module and not Path(program.name).is_file():
            raise EnvironmentFault(
                f"there is no script {program.name} in {Path.cwd()}; give its path, or -m and a"
                " module"
            )
    except OnesError as fault:
        sys.exit(f"ones-run: error: {fault}")
    _warn_of_idle_nodes(os.environ)
    os.environ.setdefault("ONES_STARTED", f"{time.time():.3f}")
    # Otherwise each worker's arithmetic takes all cores of the node.
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // len(places))))
    own = resized.folder_of(os.environ)
    if places[0].rank == 0 and given.join is None and own is not None:
        resized.at_start(os.environ, gpus=places[0].world_size, folder=own)
    if live:
        run_live(program, places, join=given.join, slots=given.slots, folder=given.folder)
    if len(places) == 1:
        become(program, places[0])
    else:
        run_workers(program, places)


def _warn_of_idle_nodes(environ: Mapping[str, str]) -> None:
    """Where a batch script leaves out srun, which does no harm while the job has one node."""
    nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and not in_step(environ):
        print(
            f"ones-run: the job has {nodes} nodes, of which only this one trains; start it on all"
            " of them: srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 ones-run ...",
            file=sys.stderr,
        )


def places_here(environ: Mapping[str, str], *, workers: int | None = None) -> list[Place]:
    """The places of the workers that this process is to start."""
    gpus = workers if workers is not None else max(1, len(visible_gpus(environ)))
    if gpus < 1:
        raise EnvironmentFault(f"--workers is {gpus}; give at least 1")
    if not in_step(environ):
        place = Place(nodes=1, port=_free_port())
    elif tasks_on_node(environ) > 1 or slurm_place(environ).world_size > slurm_place(environ).nodes:
        if workers is not None:
            raise EnvironmentFault("--workers needs one task per node; add --ntasks-per-node=1")
        return [slurm_place(environ)]
    else:
        place = slurm_place(environ)
    world = gpus * place.nodes
    planned = environ.get("ONES_GPUS", "")
    if workers is None and planned.isdigit() and place.nodes > 1 and int(planned) != world:
        raise EnvironmentFault(
            f"this node has {gpus} of the job's {planned} GPUs on {place.nodes} nodes, so its nodes"
            " are unequal; start one task per GPU: srun --ntasks=$ONES_GPUS ones-run ..."
        )
    return [
        replace(
            place,
            rank=place.node_rank * gpus + local,
            world_size=world,
            local_rank=local,
            local_world_size=gpus,
        )
        for local in range(gpus)
    ]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of this node that Slurm gave to this task."""
    return [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]


def become(program: Program, place: Place) -> NoReturn:
    """Run the program in this process, as the worker at this place."""
    os.environ.update(place.variables())
    # Nobody who asks for a checkpoint can know that the script does not listen yet.
    signal.signal(read_environment(os.environ).checkpoint_signal, signal.SIG_IGN)
    if not program.is_python:
        _execute(program)
    sys.argv = [program.name, *program.arguments]
    code = 0
    try:
        if program.is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program.name).resolve().parent)
            runpy.run_path(program.name, run_name="__main__")
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except OnesError as fault:
        print(f"ones-run: error: {_place_in(program, fault)}{fault}", file=sys.stderr)
        code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    _leave(code)


def _execute(program: Program) -> NoReturn:
    """Replace this process by the program; where that fails, say so and exit as a shell does."""
    try:
        os.execvp(program.name, [program.name, *program.arguments])
    except OSError as fault:
        # In one piece, or the lines of several workers would run together.
        sys.stderr.write(f"ones-run: error: {program.name}: {fault.strerror}\n")
        _leave(127 if isinstance(fault, FileNotFoundError) else 126)


def _place_in(program: Program, fault: BaseException) -> str:
    """Where in the script a fault of the way it uses our library arose: `train.py:41: `."""
    own = [
        f"{program.name}:{line}: "
        for frame, line in traceback.walk_tb(fault.__traceback__)
        if frame.f_code.co_filename == program.name
    ]
    return own[-1] if own else ""


def _exit_code(leaving: SystemExit) -> int:
    match leaving.code:
        case None:
            return 0
        case int(code):
            return code
        case text:
            print(text, file=sys.stderr)
            return 1


def _leave(code: int) -> NoReturn:
    """End this process as a forked one of multiprocessing does.

    Taking a framework apart object by object takes a second, for which the next run waits; and a
    signal that comes while Python does would end it as if it had failed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def run_workers(program: Program, places: Sequence[Place]) -> NoReturn:
    """Fork a worker for each place and exit as they do."""
    flock = Flock()
    flock.listen()
    if program.is_python:
        _preload()
        gc.freeze()  # or each worker's garbage collector would copy all of it
    parent = os.getpid()
    for place in places:
        if flock.start():
            _die_with(parent)
            become(program, place)
    _leave(flock.wait())


def run_live(
    program: Program,
    places: Sequence[Place],
    *,
    join: Path | None,
    slots: int | None,
    folder: Path | None,
) -> NoReturn:
    """Lead the workers of a job that can be resized while it runs, or join one; exit as it does."""
    from ones.slurm_ext.runtime.live.entrance import lead, unable  # noqa: PLC0415 (only live)

    if fault := unable(program.is_python):
        sys.exit(f"ones-run: error: {fault}")
    _preload()
    gc.freeze()  # or each worker's garbage collector would copy all of it
    try:
        code = lead(
            lambda place: become(program, place),
            _die_with,
            place=places[0],
            workers=len(places),
            slots=slots,
            folder=folder,
            join=join,
            words=(*(("-m",) if program.is_module else ()), program.name, *program.arguments),
        )
    except OnesError as fault:
        sys.exit(f"ones-run: error: {fault}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Flock:
    """Worker processes that live and die together."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._stopped = False

    def listen(self) -> None:
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)

    def start(self) -> bool:
        """Fork a worker; True in the worker."""
        if self._stopped:
            sys.exit(128 + signal.SIGTERM)
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing may arrive between the fork and the end of our handlers in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        pid = os.fork()
        if pid == 0:
            self._pids.clear()
            for number in PASSED_ON:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(read_environment(os.environ).checkpoint_signal, signal.SIG_IGN)
        else:
            self._pids.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return pid == 0

    def wait(self) -> int:
        """Wait for all; the exit code of the first that failed, or 0."""
        result = 0
        while self._pids:
            pid, status = os.waitpid(-1, 0)
            if pid not in self._pids:
                continue
            self._pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not result:
                result = 128 - code if code < 0 else code
                self._end_others()
        return result

    def _end_others(self) -> None:
        self._send(signal.SIGTERM)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopped |= number in (signal.SIGTERM, signal.SIGINT)
        self._send(signal.Signals(number))

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _preload() -> None:
    """Import what every worker would, once. Nothing of CUDA may be started before a fork."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            return


def _die_with(parent: int) -> None:
    """Have the kernel end this worker when ones-run dies without a word."""
    import ctypes  # noqa: PLC0415 (workers only)

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
