"""Whether an estimate is one that a policy can reckon with."""

from __future__ import annotations

from math import inf

from ones.policies.model import Outlook

FAULTS = (ArithmeticError, LookupError, ValueError)
"""What is raised over numbers that make no sense."""
LONGEST = 200  # characters of a reason


def sound(outlook: Outlook) -> Outlook:
    """The outlook. Raises ValueError, with the part at fault, where it is none."""
    for name in ("alpha", "beta", "remaining", "batch"):
        if not 0 < (number := getattr(outlook, name)) < inf:
            raise ValueError(f"{name} comes to {number}")
    for name in ("processed", "restart_cost", "epochs", "speed_error"):
        if not 0 <= (number := getattr(outlook, name)) < inf:
            raise ValueError(f"{name} comes to {number}")
    if outlook.live_cost is not None and not 0 <= outlook.live_cost < inf:
        raise ValueError(f"live_cost comes to {outlook.live_cost}")
    for kind, error in outlook.type_errors.items():
        if not 0 <= error < inf:
            raise ValueError(f"the error of its speed on {kind} comes to {error}")
    for part in outlook.segments:
        told = (part.noise or 0.0, *(number for pair in part.noise_at for number in pair))
        # A noise scale may be infinite, which is not known, but it is a number.
        if not 0 <= part.samples < inf or not all(number >= 0 for number in told):
            raise ValueError(f"a part of its work comes to {part.samples} samples, noise {told}")
    return outlook


def words(fault: Exception) -> str:
    """Why no estimate can be made, on one line."""
    said = " ".join(f"{type(fault).__name__}: {fault}".split())[:LONGEST]
    return f"no estimate can be made of it: {said}"
