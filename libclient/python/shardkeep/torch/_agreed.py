# SPDX-License-Identifier: Apache-2.0
"""Which step the nodes of a job have on disk, all of them.

Where each has a store of its own, no agent knows what the others' hold, and
each deletes by what is whole of its own ranks: if one cannot write for long,
the rest would delete the last step that all had. So one rank of each agent
looks now and then, in a store of torch.distributed where nobody waits for
anybody. Rank 0 says which step, of those that its agent has written, is to be
the next one. From there on each agent keeps that, beside the one that all
agreed on before, and each of those ranks says once that its agent has it. When
all have said so it is what all agree on, and the one before may go. Where one
has gone on without it that cannot be: rank 0 takes it back, and says another.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import torch.distributed as dist

from .. import State

log = logging.getLogger("shardkeep")

_NONE = -1
#: Seconds from one look to the next.
APART = 10.0


class Agreed:
    """Of the ranks of so many ``agents``, in a ``store`` that nobody else
    writes to. For one rank of each agent; ``first``: that is rank 0."""

    def __init__(self, store: Any, agents: int, first: bool) -> None:
        self._store, self._agents, self._first = store, agents, first
        #: What all have, and what is to be.
        self.step, self.next = _NONE, _NONE
        self._last = _NONE      # that was to be
        self._told = False      # what this one's agent has of the next
        self._looked = time.monotonic()
        self._thread: threading.Thread | None = None

    def look(self, state: State) -> None:
        """Beside training: the store may be slow, or hang."""
        now = time.monotonic()
        if now < self._looked + APART or (
                self._thread is not None and self._thread.is_alive()):
            return
        self._looked = now
        self._thread = threading.Thread(
            target=self.look_now, args=(state,), daemon=True,
            name="shardkeep-agreed")
        self._thread.start()

    def end(self) -> None:
        """No look is in a state of this process any more, unless one
        hangs."""
        if self._thread is not None:
            self._thread.join(1)
        self._thread = None

    def look_now(self, state: State) -> None:
        """Asks each a word, and waits for none. What fails is no reason to
        stop training: what was agreed on stays."""
        try:
            self._look(state)
        except Exception as e:  # of stores there are many
            log.debug("ranks cannot agree on what is on disk: %s", e)

    def _look(self, state: State) -> None:
        # Before the count is read: it is final where there is another one.
        next = self._said()
        self._decide(next)
        self.next = next
        written, there = state.keep(self.step, self.next)
        if self.next != _NONE:
            self._tell(there)
        if self._first and self.next in (_NONE, self.step) and \
                written > self._last:
            self._say(state, written)

    def _said(self) -> int:
        return int(self._store.get("next")) if self._store.check(["next"]) \
            else _NONE

    def _count(self, what: str, more: int = 0) -> int:
        n: int = self._store.add(f"{self.next}/{what}", more)
        return n

    def _decide(self, next: int) -> None:
        """What became of the one that was to be."""
        if self.next == _NONE:
            return
        if self._count("there") == self._agents:
            self.step = self.next
        if self.next != next:
            self._told = False

    def _tell(self, there: int) -> None:
        """Once: who lacks it is never one of those that have it."""
        if there and not self._told:
            self._told = True
            self._count("there" if there > 0 else "lacking", 1)
        if self._first and self.step != self.next and self._count("lacking"):
            self._store.set("next", str(_NONE))

    def _say(self, state: State, step: int) -> None:
        """This agent keeps it before anybody hears of it."""
        _, there = state.keep(self.step, step)
        if there > 0:
            self._told = False
            self.next = self._last = step
            self._store.set("next", str(step))
            self._tell(there)


def agreeing(store: dist.Store, agents: list[int], rank: int
             ) -> Agreed | None:
    """By the agents of all ranks; None where this one has not to look."""
    if agents.index(agents[rank]) != rank:
        return None
    return Agreed(store, len(set(agents)), rank == 0)
