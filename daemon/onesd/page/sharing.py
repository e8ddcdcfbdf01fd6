"""Which jobs share a GPU, as one viewer may see it: of a pair with another's job his own half."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from ones.daemon.onesd.doors import views
from ones.daemon.onesd.page.parts import Json
from ones.daemon.onesd.service import Service


def sharing(service: Service, only: str | None) -> Json:
    """Pairs that there are and were, the latest first, and how many GPUs two jobs share in all.

    `only` is the user who asks; None: an operator, who may see all.
    """
    told = views.sharing(service, only)
    own = None if only is None else service.books.lives.of_user(only)
    return {
        **told,
        "pairs": [_pair(pair, own) for pair in told["pairs"]],
        "shared": len(service.books.pairs.together()),
        "now": service.clock(),
    }


def _pair(pair: Json, own: Container[int] | None) -> Json:
    """Job, expected and measured speed of each; all None of another's."""
    jobs, why = [], pair["parted"]
    for which, job in enumerate((pair["first"], pair["second"])):
        seen = own is None or job in own
        half: dict[str, Any] = {
            "job": job,
            "expected": pair["expected"][which],
            "measured": pair["measured"][which],
        }
        jobs.append(half if seen else dict.fromkeys(half))
        if not seen:
            why = re.sub(rf"\bjob {job}\b", "the other job", why)
    kept = {name: pair[name] for name in ("node", "gpu", "since", "ended")}
    return {**kept, "jobs": jobs, "parted": why}
