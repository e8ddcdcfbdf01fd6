"""Forecasts in a process of their own, so that no round waits for one: one at a time, bounded.

`python -m ones.daemon.onesd.forecast.process` is that process. It reads questions from its standard
input and answers on its standard output, both as pickles of ours, and ends when nobody asks any
more.
"""

from __future__ import annotations

import os
import pickle
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import numpy as np

from ones.daemon import site
from ones.daemon.config import Config
from ones.daemon.onesd.deciding import Question
from ones.daemon.onesd.forecast.draws import forecast, with_newcomer
from ones.daemon.onesd.forecast.model import Forecast, Lately, Length, Newcomer
from ones.estimator.experience import Experience
from ones.slurm_ext.errors import OnesError, in_a_line

CPU_SECONDS = 5.0  # of one forecast; what is not foreseen by then is cut short
PATIENCE = 40.0  # seconds for an answer, the start of the process included
IDLE = 600.0  # seconds without a question, after which the process ends
NICE = 10
MOST_ANSWER = 2**20  # bytes
_LENGTH = struct.Struct("!Q")


class Unforeseen(OnesError):
    """No forecast could be made; asking again may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All that a forecast is made of."""

    question: Question
    newcomer: Newcomer
    experience: Experience
    config: Config  # with the policy that decides
    memory: object  # of the policy
    lately: Lately
    round: int
    most: float = CPU_SECONDS


def foresee(
    asked: Asked, clock: Callable[[], float] = time.process_time
) -> tuple[Forecast, Length]:
    """What becomes of the job, and how long it is taken to be; `clock` counts what that costs."""
    config, begun = asked.config, clock()
    question, length = with_newcomer(
        asked.question,
        asked.newcomer,
        asked.experience,
        lately=asked.lately,
        priors=site.priors(config.estimator),
        knowledge=site.knowledge(config.estimator),
    )
    found = forecast(
        question,
        asked.newcomer.job.id,
        site.make_policy(config),
        asked.memory,
        lately=asked.lately,
        seed=(config.seed, asked.round + 1),
        generator=_generator,
        wake=config.events.debounce + 1.0 if config.events.wake else None,
        spent=lambda: clock() - begun,
        most=asked.most,
        spread=length.spread,
    )
    return found, length


def _generator(seed: Sequence[int]) -> np.random.Generator:
    return np.random.default_rng(list(seed))


class Forecaster:
    """Asks the process, which it starts when it is first needed and ends when it takes too long."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._one = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, asked: Asked) -> tuple[Forecast, Length]:
        """The forecast. Raises Unforeseen."""
        with self._one:
            begun = time.monotonic()
            data = pickle.dumps(asked)
            for again in (True, False):
                if self._closed:
                    raise Unforeseen("onesd is about to end")
                process = self._process or self._start()
                try:
                    answer = _exchange(process, data, begun + self._patience)
                except TimeoutError:
                    self._end()
                    raise Unforeseen(
                        f"no forecast within {self._patience:g} s; try again in a while"
                    ) from None
                except (OSError, EOFError):
                    self._end()  # it had ended because nobody asked
                    if again:
                        continue
                    raise Unforeseen("the process that makes forecasts has ended") from None
                found = pickle.loads(answer)
                if isinstance(found, str):
                    raise Unforeseen(found)
                assert isinstance(found, tuple)
                return found
            raise AssertionError("it was tried twice")

    def close(self) -> None:
        """End the process, if there is one; whoever waits for it is told."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._one:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.set_blocking(_pipe(self._process.stdin).fileno(), False)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    _pipe(pipe).close()
            process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "the process was started with pipes"
    return pipe


def _exchange(process: subprocess.Popen[bytes], data: bytes, until: float) -> bytes:
    """Raises TimeoutError, OSError, or EOFError where the process has ended."""
    source, sink = _pipe(process.stdout).fileno(), _pipe(process.stdin).fileno()
    left = memoryview(_LENGTH.pack(len(data)) + data)
    answer = bytearray()
    with selectors.DefaultSelector() as ready:
        ready.register(source, selectors.EVENT_READ)
        ready.register(sink, selectors.EVENT_WRITE)
        while True:
            patience = until - time.monotonic()
            if patience <= 0:
                raise TimeoutError
            for key, _ in ready.select(patience):
                if key.fd == sink:
                    left = left[os.write(sink, left[: 2**16]) :]
                    if not left:
                        ready.unregister(sink)
                    continue
                piece = os.read(source, 2**16)
                if not piece:
                    raise EOFError
                answer += piece
            if len(answer) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(answer)
                if length > MOST_ANSWER:
                    raise EOFError
                if len(answer) >= _LENGTH.size + length:
                    return bytes(answer[_LENGTH.size :])


def main() -> None:
    """The process: one question after the other."""
    with suppress(OSError):  # systemd may forbid it
        os.nice(NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets between answers
    questions = sys.stdin.buffer
    with selectors.DefaultSelector() as ready:
        ready.register(0, selectors.EVENT_READ)
        while ready.select(IDLE):
            head = questions.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return
            data = questions.read(_LENGTH.unpack(head)[0])
            answer = pickle.dumps(_answered(data))
            answers.write(_LENGTH.pack(len(answer)) + answer)
            answers.flush()


def _answered(data: bytes) -> tuple[Forecast, Length] | str:
    try:
        asked = pickle.loads(data)
        assert isinstance(asked, Asked)
        return foresee(asked)
    except (ArithmeticError, LookupError, ValueError, TypeError, RuntimeError) as fault:
        return f"no forecast could be made: {in_a_line(str(fault) or type(fault).__name__)}"


if __name__ == "__main__":
    # Under its own name, because what is asked was pickled under that.
    from ones.daemon.onesd.forecast.process import main as begin

    begin()
