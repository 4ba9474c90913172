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
import uuid
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan

from .. import Client, Error, NotFound, inspect
from ._comm import Comm, default_store
from ._links import available as links_available
from ._nodes import join_runs
from ._together import together

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

    def __init__(self, key: str, comm: Comm) -> None:
        self.comm, self._key = comm, key

    def take_away(self) -> None:
        self.comm.end()
        with contextlib.suppress(RuntimeError, NotImplementedError):
            default_store().delete_key(self._key)


#: By job and ranks: of saves that this process coordinates, until they end.
_places: dict[tuple[str, int], _Place] = {}


def announce(job: str, step: int, world: int) -> str:
    """By the coordinator, before its plans go out: where the ranks of this
    save meet. The same text for all saves, as plans may be kept. All ranks
    are through with the save before, which may have failed."""
    before = _places.pop((job, world), None)
    if before is not None:
        before.take_away()
    key, value = _key(_channel(), job, step), uuid.uuid4().hex
    default_store().set(key, value)
    _places[job, world] = _Place(key, Comm.at(f"{key}/{value}", 0, world, 1))
    return _channel()


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
        if channel == _channel():
            _places[self._mine].comm = self._comm

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
        _places.pop(self._mine).take_away()


def can_be() -> bool:
    """Whether there are other ranks at all."""
    return dist.is_available() and dist.is_initialized() and \
        dist.get_world_size() > 1
