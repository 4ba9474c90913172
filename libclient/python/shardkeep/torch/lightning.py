# SPDX-License-Identifier: Apache-2.0
"""Snapshots for Lightning: one callback.

>>> trainer = lightning.Trainer(callbacks=[Snapshots("run7")])

A run that is started again goes on where the newest snapshot was taken: model,
optimizers, schedulers, generators, and the loops' progress, as Lightning's own
checkpoints have it, and the state of its callbacks. A data loader with
``state_dict`` goes on in its epoch, or with the next one.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule
except ImportError:         # the package under its older name
    from pytorch_lightning import Callback, LightningModule

from . import _callback, _objects
from ._generators import rng_state, set_rng_state

log = logging.getLogger("shardkeep")

#: Among the progress of the loops.
_CALLBACKS = "callbacks"
_BATCHES, _LOADERS = "epoch_loop.batch_progress", "combined_loader"
#: What adds to a checkpoint of Lightning's own.
_ADDS = "on_save_checkpoint"


class _Loops:
    """The progress of a trainer's fit loop, and of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._loop = trainer.fit_loop
        self._callbacks = {c.state_key: c for c in trainer.callbacks}
        self._lost: set[str] = set()    # and said so
        #: What was restored is of an epoch's last batch, and where loaders
        #: were in their data.
        self.ended = self.loaders = False

    def state_dict(self) -> dict[str, Any]:
        states = {key: state for key, c in self._callbacks.items()
                  if (state := c.state_dict()) and self._has_form(key, state)}
        return {**self._loop.state_dict(), _CALLBACKS: states}

    def _has_form(self, key: str, state: Any) -> bool:
        if key in self._lost:
            return False
        try:
            _objects.dumps(state, key)
            return True
        except Exception as e:
            self._lost.add(key)
            log.warning("snapshots do not hold the state of a callback: %s",
                        e)
            return False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        for key, mine in state.pop(_CALLBACKS, {}).items():
            if key in self._callbacks:
                self._callbacks[key].load_state_dict(mine)
        self.ended = state.get(_BATCHES, {}).get("is_last_batch", False)
        self.loaders = bool(state.get("state_dict", {}).get(_LOADERS))
        self._loop.load_state_dict(state)


def _adds_more(x: Any, kind: type) -> bool:
    """Whether it adds to checkpoints what only itself knows."""
    return getattr(type(x), _ADDS, None) is not getattr(kind, _ADDS)


class Snapshots(_callback.Callback, Callback):
    """Snapshots in the node's memory while Lightning trains."""

    _last = 0       # the step that was looked at
    _loops: _Loops
    _rng: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._loops, self._rng = _Loops(trainer), None
        extra: dict[str, Any] = {"loops": self._loops}
        for i, c in enumerate(trainer.lr_scheduler_configs):
            extra[f"scheduler.{i}"] = c.scheduler
        self._say_what_is_lost(trainer, pl_module)
        self._open(trainer.strategy.model, list(trainer.optimizers), extra)
        # Lightning loads its own checkpoint's training state after this.
        if self._restores(trainer.ckpt_path):
            self._restore()
        if self.restored is not None:
            self._rng = rng_state()
        self._last = self.restored or 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning has asked its loaders for the batches of an epoch.

        That draws from the generators. Where the epoch had begun before, the
        next step is to have them as they were. Where it had ended, a loader
        that knows where it was would give the rest of that one, nothing: who
        goes on would train one epoch less.
        """
        rng, self._rng = self._rng, None
        ended, fetcher = self._loops.ended, trainer.fit_loop._data_fetcher
        if rng is None or (ended and not self._loops.loaders):
            return
        set_rng_state(rng)
        if ended and fetcher is not None:
            iter(fetcher)

    def _say_what_is_lost(self, trainer: Any, pl_module: Any) -> None:
        adding = [c for c in trainer.callbacks if _adds_more(c, Callback)]
        if _adds_more(pl_module, LightningModule):
            adding.append(pl_module)
        for x in adding:
            log.warning("job %s: snapshots do not hold what %s.%s() adds to a "
                        "checkpoint; what must come back is given as extra={"
                        "...}", self._job, type(x).__qualname__, _ADDS)

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
