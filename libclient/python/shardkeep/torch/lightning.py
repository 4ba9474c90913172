# SPDX-License-Identifier: Apache-2.0
"""Snapshots for Lightning: one callback.

>>> trainer = lightning.Trainer(callbacks=[Snapshots("run7")])

A run that is started again goes on where the newest snapshot was taken: model,
optimizers, schedulers, generators, and the loops' progress, as Lightning's own
checkpoints have it. A data loader with ``state_dict`` goes on in its epoch.
"""

from __future__ import annotations

import copy
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:         # the package under its older name
    from pytorch_lightning import Callback

from . import _callback
from .checkpointer import Checkpointer


class _Loops:
    """The progress of a trainer's fit loop."""

    def __init__(self, trainer: Any) -> None:
        self._loop = trainer.fit_loop

    def state_dict(self) -> dict[str, Any]:
        return self._loop.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loop.load_state_dict(copy.deepcopy(state))


class Snapshots(_callback.Callback, Callback):
    """Snapshots in the node's memory while Lightning trains."""

    _last = 0       # the step that was looked at

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        extra = {"loops": _Loops(trainer), **self._extra}
        for i, c in enumerate(trainer.lr_scheduler_configs):
            extra[f"scheduler.{i}"] = c.scheduler
        self.checkpointer = Checkpointer(
            trainer.strategy.model, list(trainer.optimizers), job=self._job,
            extra=extra, **self._options)
        if self._resume:
            self.restored = self.checkpointer.restore()
        self._last = self.restored or 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        step = trainer.global_step
        if self.checkpointer is None or step == self._last or \
                step % self._every:
            return
        self._last = step
        self.checkpointer.snapshot(step, wait=self._wait)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any,
                     exception: BaseException) -> None:
        self._close()
