# SPDX-License-Identifier: Apache-2.0
"""What the callbacks of all frameworks are told, and their Checkpointer."""

from __future__ import annotations

import logging
import operator
import weakref
from typing import Any

from .checkpointer import Checkpointer

log = logging.getLogger("shardkeep")

#: Who trains in this process, by job.
_TRAINING: weakref.WeakValueDictionary[str, Callback] = \
    weakref.WeakValueDictionary()


class Callback:
    """Comes before the framework's own class."""

    def __init__(self, job: str, *, every_n_steps: int = 1,
                 resume: bool = True, wait: float = 0, lost_ok: bool = False,
                 **options: Any) -> None:
        """Takes no snapshot yet.

        Args:
            job: the name that snapshots are kept under.
            every_n_steps: of the optimizer, between two snapshots.
            resume: whether the newest snapshot is restored before the first
                step.
            wait: seconds that a step may wait for a free slot; 0 skips the
                snapshot.
            lost_ok: as ``Checkpointer.restore()`` takes it, where a node is
                lost.
            options: whatever else ``Checkpointer`` takes.
        """
        super().__init__()
        try:
            self._every = operator.index(every_n_steps)
        except TypeError:
            raise TypeError(f"every_n_steps={every_n_steps!r}: a whole "
                            "number") from None
        if self._every < 1:
            raise ValueError(f"every_n_steps={every_n_steps}: 1 or more")
        self._job, self._resume, self._wait = job, resume, wait
        self._lost_ok = lost_ok
        self._extra = options.pop("extra", {})
        self._options = options
        #: The Checkpointer while the framework trains.
        self.checkpointer: Checkpointer | None = None
        #: The step that was restored, None on a first run.
        self.restored: int | None = None

    def _open(self, model: Any, optim: Any, extra: dict[str, Any]
              ) -> Checkpointer:
        """The Checkpointer of a training that begins.

        One that an exception ended, as a cell of a notebook is, may have told
        its callback nothing: what that left open is this job's, and closed.
        """
        self._close()
        left = _TRAINING.get(self._job)
        if left is not None:
            left._close()
        self.restored = None
        self.checkpointer = Checkpointer(
            model, optim, job=self._job, extra={**extra, **self._extra},
            **self._options)
        _TRAINING[self._job] = self
        return self.checkpointer

    def _restore(self) -> None:
        """The newest snapshot, or nothing on a first run."""
        assert self.checkpointer is not None
        self.restored = self.checkpointer.restore(lost_ok=self._lost_ok)

    def _restores(self, other: int | str | None) -> bool:
        """Whether the newest snapshot is to be restored: not beside ``other``,
        a checkpoint of the framework's own that it was told to resume from.
        Half of the state would be of one step and half of another."""
        if self._resume and other is not None:
            log.warning(
                "job %s: training resumes from a checkpoint of the "
                "framework's own (%s), as it was told to, and no snapshot is "
                "restored; leave that out to go on at the newest snapshot",
                self._job, other)
        return self._resume and other is None

    def _close(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()
            self.checkpointer = None
