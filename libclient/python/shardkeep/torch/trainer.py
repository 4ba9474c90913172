# SPDX-License-Identifier: Apache-2.0
"""Snapshots for the Hugging Face Trainer: one callback.

>>> trainer = Trainer(..., callbacks=[Snapshots("run7")])   # doctest: +SKIP

A run that is started again restores model, optimizer, scheduler, generators
and the Trainer's state, and ends at the step at which it would have ended. The
Trainer hands its callbacks no position in the data: it begins an epoch anew.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from transformers import TrainerCallback

from .checkpointer import Checkpointer

log = logging.getLogger("shardkeep")

_KEPT = ("global_step", "epoch", "log_history", "best_metric",
         "best_global_step", "best_model_checkpoint", "total_flos",
         "num_input_tokens_seen")


class _Progress:
    """What a TrainerState has of its own."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._names = [f.name for f in dataclasses.fields(state)
                       if f.name in _KEPT]

    def state_dict(self) -> dict[str, Any]:
        return {n: getattr(self._state, n) for n in self._names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self._state, name, value)


class Snapshots(TrainerCallback):
    """Snapshots in the node's memory while the Trainer trains.

    Args:
        job: the name that snapshots are kept under.
        every_n_steps: of the optimizer, between two snapshots.
        resume: whether the newest snapshot is restored before the first step.
        options: whatever else ``Checkpointer`` takes.
    """

    def __init__(self, job: str, *, every_n_steps: int = 1,
                 resume: bool = True, **options: Any) -> None:
        self._job, self._every, self._resume = job, every_n_steps, resume
        self._extra = options.pop("extra", {})
        self._options = options
        #: The Checkpointer while ``train`` runs.
        self.checkpointer: Checkpointer | None = None
        #: The step that was restored, None on a first run.
        self.restored: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any,
                       model: Any = None, optimizer: Any = None,
                       lr_scheduler: Any = None, **_: Any) -> None:
        # Accelerate wraps both; what they wrap has the state.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self._close()
        self.checkpointer = Checkpointer(
            model, optimizer, job=self._job,
            extra={"progress": _Progress(state), "scheduler": lr_scheduler,
                   **self._extra}, **self._options)
        if self._resume:
            self.restored = self.checkpointer.restore()
        if self.restored is not None:
            log.info("job %s goes on at step %d", self._job, self.restored)
            if state.global_step >= state.max_steps:
                control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any,
                    **_: Any) -> None:
        if self.checkpointer is not None and \
                state.global_step % self._every == 0:
            self.checkpointer.snapshot(state.global_step)

    def _close(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()
            self.checkpointer = None

    def on_train_end(self, args: Any, state: Any, control: Any,
                     **_: Any) -> None:
        self._close()
