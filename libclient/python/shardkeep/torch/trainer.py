# SPDX-License-Identifier: Apache-2.0
"""Snapshots for the Hugging Face Trainer: one callback.

>>> trainer = Trainer(..., callbacks=[Snapshots("run7")])

A run that is started again restores model, optimizer, scheduler, generators
and the Trainer's state, goes on with the batch after the last one that was
trained, and ends at the step at which it would have ended; a finished one
trains nothing. Where an epoch's batches are no multiple of
``gradient_accumulation_steps``, the rest of the epoch that is resumed is left
out.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from ._callback import Callback
from ._generators import rng_state, set_rng_state

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


class _Remaining:
    """A batch sampler whose first epoch is what is left of one."""

    def __init__(self, sampler: Any, start: int, stop: int) -> None:
        self._sampler = sampler
        self._slice: tuple[int, int] | None = (start, stop)

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks for two iterators, and uses the second.
        part, self._slice = self._slice, None
        batches = iter(self._sampler)
        yield from itertools.islice(batches, *part) if part else batches

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Position:
    """Where in the data a restored run goes on.

    The Trainer begins at epoch 0 whatever a callback restores: the loader is
    told that its first epoch is a later one, and of that one gives only what
    has not been trained. Batches that were are not loaded.
    """

    def __init__(self, loader: Any, step: int, steps: int,
                 accumulate: int) -> None:
        self.now = -1       # the Trainer's epoch
        self._drawn = False     # batches that are skipped
        try:
            batches = len(loader)
        except TypeError:   # no length: one epoch that does not end
            batches = 0
        each = max(-(-batches // accumulate), 1) if batches else 0
        self.epochs = step // each if each else 0
        self.done = (step % each if each else step) * accumulate
        self.batches, self._accumulate = batches, accumulate
        self._before = step / steps     # of the epoch, where it has no length

    def is_at(self, epoch: float | None) -> bool:
        """Whether the epoch that a snapshot tells is this place."""
        return not self.batches or epoch is None or abs(
            epoch - self.epochs - self.done / self.batches
            ) * self.batches < 0.5

    def move(self, epoch: float) -> None:
        """To the batch where so much of the data was trained."""
        self.epochs = int(epoch)
        done = round((epoch - self.epochs) * self.batches)
        self.done = done - done % self._accumulate

    def take(self, loader: Any) -> None:
        """Has the loader go on here."""
        stop = self.batches
        if self.done:
            stop -= stop % self._accumulate
            if 0 < stop <= self.done:   # an epoch without a step ends all
                self.epochs, self.done, stop = self.epochs + 1, 0, self.batches
        if not self._is_drawn(loader):
            self._slice(loader, self.done, stop)
        elif self.done:
            self._drawn = True
            loader.skip_batches = self.done
            if stop < self.batches:
                self._slice(loader, 0, stop)
        self._count_on(loader)

    def nothing(self, loader: Any) -> None:
        """Leaves nothing of the first epoch."""
        if not self._is_drawn(loader):
            self._slice(loader, 0, 0)
            return
        # One batch of all ranks is drawn: a loader that deals them out to
        # them does not do without.
        loader.skip_batches = 1
        self._slice(loader, 0, getattr(
            getattr(loader, "state", None), "num_processes", 1))

    def next_epoch(self, loader: Any) -> None:
        """What is skipped is of the first one alone."""
        self.now += 1
        if self.now == 1 and self._drawn:
            loader.skip_batches = 0

    @staticmethod
    def _is_drawn(loader: Any) -> bool:
        """Whether nobody gets at a batch but by drawing those before it."""
        base = getattr(loader, "base_dataloader", loader)
        return getattr(base, "batch_sampler", None) is None or isinstance(
            base.dataset, IterableDataset)

    @staticmethod
    def _slice(loader: Any, start: int, stop: int) -> None:
        base = getattr(loader, "base_dataloader", loader)
        sampler = getattr(base, "batch_sampler", None)
        if sampler is None:     # the dataset's own batches
            return
        if isinstance(sampler, _Remaining):
            sampler = sampler._sampler
        # A DataLoader lets nobody set it later, and asks it at each epoch.
        object.__setattr__(base, "batch_sampler",
                           _Remaining(sampler, start, stop))

    def _count_on(self, loader: Any) -> None:
        """The loader's epochs are the run's; its own calls know them.

        It is not to hold itself by that: what only the garbage collector
        ends has its workers' pipes closed before they are told to go.
        """
        real = getattr(loader, "set_epoch", None)
        if not inspect.ismethod(real):
            return
        weak = weakref.WeakMethod(real)
        loader.set_epoch = lambda epoch: weak()(
            epoch + self.epochs if epoch == self.now else epoch)

    def epoch(self, epoch: float) -> float:
        """The run's epoch of what the Trainer believes to be one."""
        if not self.batches:
            return epoch + self._before if self.now == 0 else epoch
        here = round((epoch - self.now) * self.batches)
        before = self.done if self.now == 0 else 0
        return self.epochs + self.now + (before + here) / self.batches


class Snapshots(Callback, TrainerCallback):
    """Snapshots in the node's memory while the Trainer trains."""

    _position: _Position | None = None
    _rng: dict[str, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any,
                       model: Any = None, optimizer: Any = None,
                       lr_scheduler: Any = None, train_dataloader: Any = None,
                       **_: Any) -> None:
        self._position = self._rng = None
        self._open(model, optimizer, {
            "progress": _Progress(state), "scheduler": lr_scheduler})
        if self._restores(f"step {state.global_step}"
                          if state.global_step else None):
            self._restore()
        if self.restored is None:
            return
        self._position = _Position(
            train_dataloader, state.global_step, max(state.max_steps, 1),
            args.gradient_accumulation_steps)
        if not self._position.is_at(state.epoch):
            log.warning(
                "job %s: step %d was trained at epoch %.4g, with other ranks, "
                "batches or gradient accumulation than now: the data goes on "
                "there, and steps and learning rates are counted as they are "
                "now; keep ranks x batch size x accumulation the same to end "
                "where the run would have ended", self._job,
                state.global_step, state.epoch)
            self._position.move(state.epoch)
        self._position.take(train_dataloader)
        # What draws the next batches of an epoch must not be the generators
        # that the next step had. What begins one draws from those it had.
        if self._position.done:
            self._rng = rng_state()
        if state.global_step >= state.max_steps:
            log.info("job %s is at its end: nothing is trained", self._job)
            self._position.nothing(train_dataloader)
            control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any,
                       train_dataloader: Any = None, **_: Any) -> None:
        if self._position is not None:
            self._position.next_epoch(train_dataloader)

    def on_step_begin(self, args: Any, state: Any, control: Any,
                      **_: Any) -> None:
        if self._rng is not None:
            set_rng_state(self._rng)
            self._rng = None

    def on_step_end(self, args: Any, state: Any, control: Any,
                    **_: Any) -> None:
        if self._position is not None:
            state.epoch = self._position.epoch(state.epoch)
        if self.checkpointer is not None and \
                state.global_step % self._every == 0:
            self.checkpointer.snapshot(state.global_step, wait=self._wait)

    def on_train_end(self, args: Any, state: Any, control: Any,
                     **_: Any) -> None:
        self._close()
