"""Running Slurm's own programs: every call bounded in time, every fault one line."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable

from ones.slurm_ext.errors import SlurmError, SlurmUnreachable

# What Slurm's programs say when slurmctld (or slurmdbd) is not there; scontrol update says the
# second one, which names the wrong fault.
_UNREACHABLE = (
    "unable to contact slurm controller",
    "unexpected message received",
    "connection refused",
    "connection reset by peer",
    "connection timed out",
    "socket timed out",
    "zero bytes were transmitted",
    "slurm persistent connection",
    "unable to establish controller machine",
    "slurm_kill_jobs: unable to signal jobs",  # "Operation not permitted", it goes on
)
# Variables by which a site or a user changes what the programs print or whom they ask.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "LD_LIBRARY_PATH", "TZ")
_FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Commands:
    """Runs Slurm's programs; `calls`, `errors` and `seconds` count what was run, for metrics.

    `fence` is asked just before each program that changes something, and raises where it may not.
    """

    def __init__(
        self,
        *,
        timeout: float = 20.0,
        writes_per_second: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout = timeout
        self.calls = 0
        self.errors = 0
        self.seconds = 0.0
        self._clock = clock
        self._sleep = sleep
        self._fence = fence
        self._lock = threading.Lock()
        self._rate = writes_per_second
        self._burst = max(1.0, writes_per_second)
        self._tokens = self._burst
        self._refilled = clock()

    def run(self, program: str, *args: str, timeout: float | None = None, refusal: str = "") -> str:
        """What the program printed. Raises SlurmError, or SlurmUnreachable where nobody answers.

        `refusal` are the words by which a program that ends with status 0 all the same tells on
        its standard error that Slurm has refused; '' where the status tells.
        """
        begun = self._clock()
        failed = True
        try:
            limit = self.timeout if timeout is None else timeout
            text = self._run(program, args, limit, refusal)
            failed = False
            return text
        finally:
            with self._lock:
                self.calls += 1
                self.errors += failed
                self.seconds += self._clock() - begun

    def write(
        self, program: str, *args: str, timeout: float | None = None, refusal: str = ""
    ) -> str:
        """As `run`, for what changes Slurm: waits until the bound on writes a second allows it.

        A write that ran into its timeout may have happened: read again before doing it again.
        Raises what the fence raises, too, and then nothing was done.
        """
        self._wait_for_token()
        self._fence()  # behind the wait, which may have been long
        return self.run(program, *args, timeout=timeout, refusal=refusal)

    def _wait_for_token(self) -> None:
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
            self._refilled = now
            self._tokens -= 1.0
            wait = max(0.0, -self._tokens / self._rate)
        if wait:
            self._sleep(wait)

    def _run(self, program: str, args: tuple[str, ...], timeout: float, refusal: str) -> str:
        shown = " ".join((program, *args[:3]))[:120].replace("\n", " ")
        try:
            done = subprocess.run(
                (program, *args),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
                env=_environment(),
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnreachable(
                shown, f"no answer in {timeout:g} s; see `scontrol ping`, or raise the timeout"
            ) from None
        except (OSError, ValueError) as fault:  # ValueError: a NUL in an argument
            reason = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise SlurmError(shown, f"{reason}; are Slurm's programs on PATH?") from None
        errors = done.stderr.decode(errors="replace")
        if done.returncode != 0 or (refusal and refusal in errors):
            said = errors or done.stdout.decode(errors="replace")
            reason = " ".join(said.split())[:500] or f"exit status {done.returncode}"
            if any(words in reason.lower() for words in _UNREACHABLE):
                raise SlurmUnreachable(shown, f"{reason}; see `scontrol ping`")
            raise SlurmError(shown, reason)
        return done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {"PATH": _FALLBACK_PATH, **kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
