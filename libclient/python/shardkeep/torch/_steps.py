# SPDX-License-Identifier: Apache-2.0
"""Before a step of any optimizer, whoever made it.

A Checkpointer knows the optimizers that it was given. One that was made anew
since, or that steps a model that was given alone, writes to the same
parameters, while a snapshot of them may still be copied.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook


class Steps:
    """Who is told of all steps in this process; for any thread."""

    def __init__(self) -> None:
        self._registered = False
        self._forget()

    def _forget(self) -> None:
        """A forked child writes to memory of its own."""
        self._lock = threading.Lock()
        # Never changed in place: another thread may be in a step.
        self._told: tuple[weakref.WeakMethod[Callable[[Any], None]], ...] = ()

    def tell(self, method: Callable[[Any], None]) -> None:
        """Before each step the method gets the optimizer, as long as its
        object is there."""
        with self._lock:
            self._told = (*(x for x in self._told if x() is not None),
                          weakref.WeakMethod(method))
            if not self._registered:
                register_optimizer_step_pre_hook(self._before)
                self._registered = True

    def tell_no_more(self, method: Callable[[Any], None]) -> None:
        with self._lock:
            self._told = tuple(x for x in self._told
                               if x() not in (None, method))

    def _before(self, optim: Any, *_: Any) -> None:
        for there in self._told:
            method = there()
            if method is not None:
                method(optim)


#: PyTorch has one list of such hooks for a process.
STEPS = Steps()
os.register_at_fork(after_in_child=STEPS._forget)
