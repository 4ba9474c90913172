# SPDX-License-Identifier: Apache-2.0
"""What the callbacks of all frameworks are told, and their Checkpointer."""

from __future__ import annotations

import operator
from typing import Any

from .checkpointer import Checkpointer


class Callback:
    """Comes before the framework's own class."""

    def __init__(self, job: str, *, every_n_steps: int = 1,
                 resume: bool = True, wait: float = 0, **options: Any) -> None:
        """Takes no snapshot yet.

        Args:
            job: the name that snapshots are kept under.
            every_n_steps: of the optimizer, between two snapshots.
            resume: whether the newest snapshot is restored before the first
                step.
            wait: seconds that a step may wait for a free slot; 0 skips the
                snapshot.
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
        self._extra = options.pop("extra", {})
        self._options = options
        #: The Checkpointer while the framework trains.
        self.checkpointer: Checkpointer | None = None
        #: The step that was restored, None on a first run.
        self.restored: int | None = None

    def _close(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()
            self.checkpointer = None
