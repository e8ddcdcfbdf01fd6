"""The site's limits, read now and then; the last answer counts where Slurm gives none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ones.slurm_ext.cluster import Cluster
from ones.slurm_ext.errors import SlurmError
from ones.slurm_ext.limits import NO_LIMITS, SiteLimits

log = logging.getLogger(__name__)
MOST_REST = 600.0  # seconds from one reading that failed to the next


class LimitsKnown:
    """Asks at most every `every` seconds, and less and less often while nobody answers."""

    def __init__(
        self, cluster: Cluster, *, every: float, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.trouble = ""  # why what is known may be old
        self._cluster = cluster
        self._every = every
        self._changed = changed
        self._known = NO_LIMITS
        self._read: float | None = None
        self._failures = 0

    def now(self, at: float) -> SiteLimits:
        """The limits as far as they are known; `changed` is called where they have changed."""
        rest = min(self._every * 2.0**self._failures, max(self._every, MOST_REST))
        if self._read is not None and 0.0 <= at - self._read < rest:
            return self._known
        self._read = at
        try:
            found = self._cluster.limits()
            trouble = found.unread
        except SlurmError as fault:
            found, trouble = self._known, str(fault)
        if trouble:
            if not self.trouble:
                log.warning("the site's limits could not be read: %s; those known count", trouble)
            self._failures = min(self._failures + 1, 10)
            known = self._known
            if found is not known:
                found = replace(found, qos=known.qos, associations=known.associations)
                found = replace(found, used=known.used)
        else:
            self._failures = 0
        self.trouble = trouble
        if replace(found, used={}) != replace(self._known, used={}):
            self._changed()
        self._known = found
        return found
