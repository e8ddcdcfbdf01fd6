"""How the state of a training becomes a checkpoint: by rank 0 alone, or by all workers together."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ones.slurm_ext.runtime.checkpoint import Checkpoints, Moment, full_disk
from ones.slurm_ext.runtime.framework import Framework, Writing

log = logging.getLogger(__name__)
NONE = "ones: no checkpoint: %s; training goes on"


class Saving:
    """One worker's part in it. All workers call `save` at the same step; whatever fails on a disk
    leaves them all without a checkpoint, and in step with each other."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        framework: Framework,
        models: Sequence[Any],
        tracked: Sequence[Any],
        confirm: Callable[[Path], None],
    ) -> None:
        """`confirm` is told by rank 0 of each checkpoint that is complete."""
        self._checkpoints = checkpoints
        self._framework = framework
        self._models, self._tracked = models, tracked
        self._confirm = confirm
        self.by: Callable[[Path], None] | None = None
        """Another library's function, which all workers call in place of our own writing."""
        self._writing: tuple[Moment, int, Writing] | None = None  # beside training, and our rank

    def save(self, moment: Moment, *, rank: int, sharded: bool, beside: bool) -> bool:
        """Whether there is a checkpoint of this moment now, as far as this worker knows.

        That of sharded models is written beside training where rank 0 says so by `beside`.
        """
        path = None
        if self.by is not None or sharded:
            path = self._together(moment, rank, beside=beside)
        elif rank == 0:
            path = self._alone(moment)
        if path is not None:
            self._confirm(path)
        return path is not None

    def finish(self, *, wait: bool = True) -> None:
        """Let the checkpoint exist that was written beside training, once all of it is there."""
        if self._writing is None or not (wait or self._writing[2].done()):
            return
        (moment, rank, writing), self._writing = self._writing, None
        try:
            writing.finish()
            if rank == 0:
                self._confirm(self._checkpoints.complete(moment))
        except OSError as fault:
            if rank == 0:
                log.warning(NONE, fault)

    def _alone(self, moment: Moment) -> Path | None:
        state = {
            "models": [model.state_dict() for model in self._models],
            "tracked": [each.state_dict() for each in self._tracked],
        }
        try:
            return self._checkpoints.save(moment, lambda file: self._framework.dump(state, file))
        except OSError as fault:
            log.warning(NONE, fault)
            return None

    def _together(self, moment: Moment, rank: int, *, beside: bool) -> Path | None:
        """Have all workers write; what rank 0 then makes of it is None on the others."""
        self.finish()
        draft, refused = None, ""
        if rank == 0:
            try:
                draft = self._checkpoints.begin(moment)
            except OSError as fault:
                refused = str(fault)
        stands = not (draft or refused)
        told = self._framework.share(json.dumps([str(draft or ""), refused, stands]).encode())
        if not told:
            return None  # a worker was lost
        folder, refused, stands = json.loads(told)
        try:
            if refused:
                raise OSError(refused)
            if not stands and not self._written(Path(folder), moment, rank, beside=beside):
                return None
            if rank:
                return None
            return self._checkpoints.path(moment) if stands else self._checkpoints.complete(moment)
        except OSError as fault:
            if rank == 0:
                log.warning(NONE, fault)
            return None

    def _written(self, folder: Path, moment: Moment, rank: int, *, beside: bool) -> bool:
        """Write all workers' parts into the folder; False where that goes on beside training.

        Raises OSError on all workers where one of them could not write.
        """
        fault = None
        try:
            if self.by is not None:
                self._written_by(self.by, folder, rank)
            else:
                beside = self._framework.share(b"1" if beside else b"0") == b"1"
                writing = self._framework.save_shards(
                    folder, self._models, self._tracked, beside=beside
                )
                if writing is not None:
                    self._writing = moment, rank, writing
                    return False
        except OSError as told:
            fault = told
        if not self._framework.all_did(fault is None):
            raise fault or OSError("another worker could not write its part")
        return True

    def _written_by(self, save: Callable[[Path], None], folder: Path, rank: int) -> None:
        """Raises OSError where the function fails on a full disk, whatever it says of it itself."""
        try:
            save(folder)
        except Exception as fault:
            full = fault if isinstance(fault, OSError) else full_disk(folder)
            if full is None:
                raise
            if rank:  # rank 0 tells of its own
                log.warning("ones: rank %d could not write its part: %s", rank, full)
            raise full from None
