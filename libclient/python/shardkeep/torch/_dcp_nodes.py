# SPDX-License-Identifier: Apache-2.0
"""A save of distributed checkpoint by ranks of several nodes.

That they have several agents is known from their plans, which the framework
gathers. The writer is given no process group, and where a planner caches its
plans nothing new comes back with them either; so ranks meet in the store of
torch.distributed, under a key that the coordinator makes for each save.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan

from .. import Client, Error, NotFound, inspect
from ._comm import Comm
from ._links import available as links_available
from ._nodes import join_runs
from ._together import together
from ._versions import default_store

if TYPE_CHECKING:
    from ._dcp_states import Entry

_MARK = "shardkeep"
#: What the plans of as many ranks last said: those of a planner that caches
#: say nothing of agents.
_known: dict[int, bool] = {}
_mine = uuid.uuid4().hex


# ---- in the plans ----

def tell(socket: str | None, job: str, step: int, parts: bool) -> Any:
    """What a rank's plan says of its agent; ``parts``: and of what is there
    of the step already."""
    client = Client(socket)
    try:
        return (_MARK, client.instance(),
                _parts(client, job, step) if parts else [])
    finally:
        client.close()


def _parts(client: Client, job: str, step: int) -> list[Any]:
    try:
        held = inspect(client, job, step)
    except NotFound:
        return []
    ranks = {b["rank"] for t in held["tensors"] for b in t["boxes"]}
    return [(held["run_id"], held["world"], ranks)]


def _told(plans: list[SavePlan]) -> list[Any]:
    return [p.storage_data for p in plans
            if isinstance(p.storage_data, tuple) and
            p.storage_data[:1] == (_MARK,)]


def is_there(plans: list[SavePlan]) -> bool:
    """Whether what ranks found of the step is all of a snapshot."""
    found: dict[str, set[int]] = {}
    for _, _, parts in _told(plans):
        for run_id, world, ranks in parts:
            mine = found.setdefault(run_id, set(range(world)))
            mine -= ranks
    return any(not lacking for lacking in found.values())


def several(plans: list[SavePlan]) -> bool:
    """Whether the ranks have different agents."""
    told = _told(plans)
    if len({agent for _, agent, _ in told}) > 1:
        _known[len(plans)] = True
    elif len(told) == len(plans):
        _known[len(plans)] = False
    return _known.get(len(plans), False) and links_available()


# ---- the meeting ----

def _key(channel: str, job: str, step: int) -> str:
    return f"shardkeep/dcp/{channel}/{job}/{step}"


def _channel() -> str:
    return f"{_mine}-{os.getpid()}"


class _Place:
    """Where the ranks of one save meet, which its coordinator takes away."""

    def __init__(self, key: str, world: int) -> None:
        self.key, self._value = key, uuid.uuid4().hex
        self._thread = threading.current_thread()
        self.comm = Comm.at(f"{key}/{self._value}", 0, world, 1)

    def tell(self) -> None:
        default_store().set(self.key, self._value)

    def is_over(self) -> bool:
        """Whether its save has ended, if only because it failed: the thread
        that made it has, or makes another."""
        return self._thread is threading.current_thread() or \
            not self._thread.is_alive()

    def take_away(self) -> None:
        self.comm.end()
        with contextlib.suppress(RuntimeError, NotImplementedError):
            default_store().delete_key(self.key)


#: By job and ranks: of saves that this process coordinates, until they end.
_places: dict[tuple[str, int], _Place] = {}
_placing = threading.Lock()
#: Seconds between two looks at whether a save has ended.
_PAUSE = 0.01


def announce(job: str, step: int, world: int, timeout: float) -> str:
    """By the coordinator, before its plans go out: where the ranks of this
    save meet. The same text for all saves, as plans may be kept. Another
    save of the job that is under way ends first, or ``timeout`` seconds:
    ranks that came to the two in another order would wait for each other."""
    place = _Place(_key(_channel(), job, step), world)
    before = _follow((job, world), place, time.monotonic() + timeout)
    if before is not None:
        before.take_away()
    place.tell()
    return _channel()


def _follow(mine: tuple[str, int], place: _Place, end: float
            ) -> _Place | None:
    """Puts it there; what was left there by a save that has ended."""
    while True:
        with _placing:
            before = _places.get(mine)
            if before is None or before.is_over() or time.monotonic() >= end:
                _places[mine] = place
                return before
        time.sleep(_PAUSE)


class Nodes:
    """The ranks of one save, each with an agent that knows its own images
    alone. ``timeout`` is in seconds."""

    def __init__(self, channel: str, job: str, step: int, rank: int,
                 world: int, timeout: float) -> None:
        self._step, self._mine = step, (job, world)
        self._what = f"dcp.save() of {job}/{step}"
        store, key = default_store(), _key(channel, job, step)
        store.wait([key], datetime.timedelta(seconds=timeout))
        self._comm = Comm.at(f"{key}/{store.get(key).decode()}", rank, world,
                             timeout)
        place = _places.get(self._mine)     # where this is the coordinator
        if place is not None and place.key == key:
            place.comm = self._comm

    def begin(self, entry: Entry) -> None:
        """Has all ranks write in one run, and in a new one where one of them
        has none, or has written this step."""
        try:
            entry.open()
        except Exception:
            self.fail()
            raise
        anew = not entry.joined or self._step in entry.steps
        if self._comm.whether(anew, self._what):
            self._join(entry)

    def _join(self, entry: Entry) -> None:
        if entry.joined:
            entry.close()
        links = self._comm.links()

        def join() -> None:
            with links.needed():
                state = entry.open()
            join_runs(state, self._comm, links)

        together(self._comm, self._what, join)
        entry.joined = True

    def fail(self) -> None:
        """This rank cannot come, and the others need not wait for it."""
        with contextlib.suppress(Error):
            self._comm.fail(self._what)

    def end(self) -> None:
        """By the coordinator, when all ranks have written."""
        with _placing:
            place = _places.get(self._mine)
            if place is None or place.comm is not self._comm:
                return      # it took too long: another one followed
            del _places[self._mine]
        place.take_away()


def can_be() -> bool:
    """Whether there are other ranks at all."""
    return dist.is_available() and dist.is_initialized() and \
        dist.get_world_size() > 1
