# SPDX-License-Identifier: Apache-2.0
"""The states that saves of distributed checkpoint write through.

Saves of one job share a state, so that its slots stay warm. A job that is
saved once, under an id of its own, must not hold memory for ever: states that
were not used lately are let go, and all others when memory is short.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import FLUSH_NEVER, Client, Error, State, _core
from . import _device
from ._common import milliseconds
from ._dcp_nodes import Nodes

#: Jobs whose states stay, such as a model's and its optimizer's.
_WARM = 4
#: Seconds for the agent to write what it may then evict.
_MOMENT = 10

#: Process, socket, job, rank, world.
Key = tuple[int, str | None, str, int, int]


def key_of(socket: str | None, job: str, rank: int, world: int) -> Key:
    """Whose state: of this process, at the agent that it would find now."""
    return (os.getpid(), socket or os.environ.get("SHARDKEEP_SOCKET"), job,
            rank, world)


def _world() -> weakref.ref[Any] | None:
    """The ranks that there are; None where this process is none of
    several."""
    up = dist.is_available() and dist.is_initialized()
    return weakref.ref(dist.group.WORLD) if up else None


class Entry:
    """The state of a job, as one thread at a time uses it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.world = _world()
        self.lock = threading.RLock()       # one save at a time
        self.client: Client | None = None
        self.state: State | None = None
        self.names: set[str] = set()        # described
        self.steps: set[int] = set()        # of this run
        self.joined = False     # in one run with the ranks of other nodes
        self.streams = _device.Streams()

    def open(self) -> State:
        if self.state is None:
            _, socket, job, rank, world = self.key
            self.client = Client(socket)
            self.state = State(self.client, job, rank, world,
                               flush_every=FLUSH_NEVER)
            self.names, self.steps, self.joined = set(), set(), False
        return self.state

    def close(self) -> None:
        state, self.state = self.state, None
        client, self.client = self.client, None
        if state is not None:
            state.close()
        if client is not None:
            client.close()

    def save(self, step: int, flags: int, timeout: float,
             described: list[Any], keep: list[Any]) -> None:
        """One snapshot, sealed when this returns."""
        names = {d[0] for d in described}
        state = self.open()
        # The same names again: new pointers alone cost nothing.
        if self.names != names:
            state.clear()
        state.tensors(described, keep)
        self.names = names
        self.steps.add(step)
        ms = milliseconds("timeout", timeout)
        devices = _device.devices_of(
            t for t in keep if isinstance(t, torch.Tensor))
        _device.refuse_capture()
        state.snapshot(step, flags, ms, keep,
                       self.streams.for_snapshot(devices))
        state.fence()
        state.wait(step, _core.SEALED, ms)


class States:
    """The states of this process, by what they are of; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Key, Entry] = {}       # the oldest use first

    @contextlib.contextmanager
    def use(self, key: Key) -> Iterator[Entry]:
        """The job's state, no other thread's while this one has it."""
        with self._lock:
            entry = self._entries.pop(key, None) or Entry(key)
            self._entries[key] = entry
            old = list(self._entries.values())[:-_WARM]
        for other in old:
            self._let_go(other)
        with entry.lock:
            yield entry

    def _let_go(self, entry: Entry) -> bool:
        """Closes it where no other thread uses it."""
        if not entry.lock.acquire(blocking=False):
            return False
        try:
            with self._lock:
                if self._entries.get(entry.key) is entry:
                    del self._entries[entry.key]
            entry.close()
        finally:
            entry.lock.release()
        return True

    def save(self, key: Key, step: int, flags: int, timeout: float,
             described: list[Any], keep: list[Any],
             nodes: Nodes | None = None) -> None:
        """A snapshot of the job; where memory is short, others' states go,
        and the agent gets a moment to write to disk what they held.
        ``nodes``: the ranks have several agents."""
        end = time.monotonic() + min(timeout, _MOMENT)
        with self.use(key) as entry:
            if nodes is not None:
                nodes.begin(entry)
            while True:
                try:
                    entry.save(step, flags, timeout, described, keep)
                    return
                except Error as e:
                    if e.errno == errno.EEXIST and nodes is None and \
                            entry.state is not None:
                        # It is there already: a new run writes it anew.
                        entry.close()
                        entry.save(step, flags, timeout, described, keep)
                        return
                    if e.errno != errno.ENOMEM or \
                            not (self._others(key) or
                                 time.monotonic() < end and
                                 flags & _core.SNAPSHOT_FLUSH):
                        raise
                time.sleep(0.05)

    def _others(self, key: Key) -> bool:
        with self._lock:
            others = [e for k, e in self._entries.items() if k != key]
        return any([self._let_go(e) for e in others])

    def close(self) -> None:
        for entry in list(self._entries.values()):
            self._let_go(entry)

    def close_former(self) -> None:
        """Those of ranks of a group that was destroyed: this process may be
        another rank of the job now, and another process that one."""
        now = _world()
        for entry in list(self._entries.values()):
            if entry.world != now:
                self._let_go(entry)


#: A process has one agent, and its saves share its memory.
STATES = States()
atexit.register(STATES.close)
