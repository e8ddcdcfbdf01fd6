"""Which jobs share a GPU, as one viewer may see it: of a pair with another's job his own half."""

from __future__ import annotations

from ones.daemon.onesd.doors import views
from ones.daemon.onesd.page.parts import Json
from ones.daemon.onesd.service import Service


def sharing(service: Service, only: str | None) -> Json:
    """Pairs that there are and were, the latest first, and how many GPUs two jobs share in all.

    `only` is the user who asks; None: an operator, who may see all.
    """
    told = views.sharing(service, only)
    return {
        **told,
        "pairs": [_pair(pair) for pair in told["pairs"]],
        "shared": len(service.books.pairs.together()),
        "now": service.clock(),
    }


def _pair(pair: Json) -> Json:
    """Job, expected and measured speed of each; all None of another's."""
    halves = zip((pair["first"], pair["second"]), pair["expected"], pair["measured"], strict=True)
    jobs = [
        {"job": job, "expected": expected, "measured": measured}
        for job, expected, measured in halves
    ]
    kept = {name: pair[name] for name in ("node", "gpu", "since", "ended", "parted")}
    return {**kept, "jobs": jobs}
