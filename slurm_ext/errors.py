"""What can go wrong with Slurm, each keeping its parts."""

from __future__ import annotations


def in_a_line(text: str, *, longest: int = 2000) -> str:
    """Foreign text as a message may show it: on one line, with nothing hidden in it, and cut."""
    shown = text[: longest + 1]  # no shorter once it is spelt out
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else " " if char in "\n\r\t" else ascii(char)[1:-1]
            for char in shown
        )
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


class OnesError(Exception):
    """The root of our errors; its text is one line that names the fault and the next step.

    Much of that line may be foreign: it is cut, and line ends and control characters are spelt out.
    """

    def __init__(self, text: str) -> None:
        super().__init__(in_a_line(text))


class SlurmError(OnesError):
    """A Slurm command failed, was refused or did not answer in time."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"{command}: {reason}")
        self.command = command
        self.reason = reason


class RecordFault(SlurmError):
    """Slurm's record of one job or node makes no sense; those of others may."""

    def __init__(self, record: str, fault: Exception) -> None:
        what = str(fault) if isinstance(fault, ValueError) else repr(fault)
        super().__init__(record, f"what Slurm says of it makes no sense: {what[:200]}")
        self.record = record


class SlurmUnreachable(SlurmError):
    """slurmctld does not answer."""


class Superseded(OnesError):
    """Another onesd has taken over: this one may touch nothing any more."""
