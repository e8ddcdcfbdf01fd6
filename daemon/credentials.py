"""What proves who sent a message on this cluster, and that it is unaltered.

A credential proves, it does not hide: nothing secret travels in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ones.slurm_ext.errors import OnesError

AuthType = Literal["auth/munge", "auth/slurm"]
TTL = 60  # seconds in which a request must arrive


class CredentialError(OnesError):
    """No credential could be had, or one is not good."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What the authentication of Slurm vouches for: who sealed this payload, and when."""

    uid: int
    gid: int
    payload: bytes
    encoded_at: int  # seconds since 1970
