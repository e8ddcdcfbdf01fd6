"""Who calls onesctl."""

from __future__ import annotations

import os
import pwd

from ones.slurm_ext.errors import OnesError


class Nameless(OnesError):
    """Who calls has no user name on this host."""


def my_name() -> str:
    """The name of the user who calls. Raises Nameless."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Nameless(
            f"uid {uid} has no name on this host; is sssd or nslcd running? getent passwd {uid}"
        ) from None
