# SPDX-License-Identifier: Apache-2.0
"""Which step the nodes of a job have on disk, all of them.

Where each has a store of its own, no agent knows what the others' hold, and
each deletes by what is whole of its own ranks: if one cannot write for long,
the rest would delete the last step that all had. So one rank of each agent
looks twice a second, in a store of torch.distributed where nobody waits for
anybody. Rank 0 says which step, of those that its agent has written, is to be
the next one. From there on each agent keeps that, beside the one that all
agreed on before, and each of those ranks says once that its agent has it. When
all have said so it is what all agree on, and the one before may go. Where one
has gone on without it that cannot be: rank 0 takes it back, and says another.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
import weakref
from typing import Any

import torch.distributed as dist

from .. import State

log = logging.getLogger("shardkeep")

_NONE = -1
#: Seconds from one step that is to be to the next.
APART = 10.0
#: Looks in that time: what is to be is not to be deleted before all heard it.
LOOKS = 20


class Agreed:
    """Of the ranks that have these ``agents``, in one ``run``, in a ``store``
    that nobody else writes to. For one rank of each agent; ``first``: that is
    rank 0."""

    def __init__(self, store: Any, agents: list[int], run: int,
                 first: bool) -> None:
        self._store, self._agents, self._first = store, agents, first
        self._run = run
        #: What all have, and what is to be.
        self.step, self.next = _NONE, _NONE
        self._last = _NONE      # that was to be
        self._told = False      # what this one's agent has of the next
        self._said_at = self._looked = time.monotonic()
        self._asking = False
        self._thread: threading.Thread | None = None
        _there.add(self)

    def is_of(self, agents: list[int], run: int) -> bool:
        """Whether it is those agents' in that run, or of those that came in
        their place: it goes on then."""
        return self._run == run and \
            [self._agents.index(x) for x in self._agents] == \
            [agents.index(x) for x in agents]

    def look(self, state: State) -> None:
        """Beside training: the store may be slow, or hang."""
        now = time.monotonic()
        if now < self._looked + APART / LOOKS or (
                self._thread is not None and self._thread.is_alive()):
            return
        self._looked = now
        self._thread = threading.Thread(
            target=self.look_now, args=(state,), daemon=True,
            name="shardkeep-agreed")
        self._thread.start()

    def end(self) -> None:
        """Nobody is in the state any more. A look whose store hangs may be
        left behind: it finds the state closed."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(1)
        while thread.is_alive() and self._asking:   # bounded as any request
            thread.join(0.05)

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
        before = self.step
        self._decide(next)
        # The agent, and its store, are asked where there is something new.
        if next == self.next and self.step == before and \
                (self._told or next == _NONE) and not self._is_due():
            self._take_back()
            return
        self.next = next
        written, there = self._keep(state, self.next)
        if self.next != _NONE:
            self._tell(there)
        if self._is_due() and written > self._last:
            self._say(state, written)

    def _is_due(self) -> bool:
        """Whether it is this rank's to say what is to be."""
        return self._first and self.next in (_NONE, self.step) and \
            time.monotonic() >= self._said_at + APART

    def _keep(self, state: State, next: int) -> tuple[int, int]:
        self._asking = True
        try:
            return state.keep(self.step, next)
        finally:
            self._asking = False

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
        if self._count("there") == len(set(self._agents)):
            self.step = self.next
        if self.next != next:
            self._told = False

    def _tell(self, there: int) -> None:
        """Once: who lacks it is never one of those that have it."""
        if there and not self._told:
            self._told = True
            self._count("there" if there > 0 else "lacking", 1)
        self._take_back()

    def _take_back(self) -> None:
        if self._first and self.next not in (_NONE, self.step) and \
                self._count("lacking"):
            self._store.set("next", str(_NONE))

    def _say(self, state: State, step: int) -> None:
        """This agent keeps it before anybody hears of it."""
        self._said_at = time.monotonic()
        _, there = self._keep(state, step)
        if there > 0:
            self._told = False
            self.next = self._last = step
            self._store.set("next", str(step))
            self._tell(there)


def agreeing(store: dist.Store, agents: list[int], run: int, rank: int
             ) -> Agreed | None:
    """By the agents of all ranks; None where this one has not to look."""
    if agents.index(agents[rank]) != rank:
        return None
    return Agreed(store, agents, run, rank == 0)


# A thread that is within a store when the interpreter ends takes the process
# with it.
_there: weakref.WeakSet[Agreed] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for agreed in list(_there):
        with contextlib.suppress(Exception):
            agreed.end()
