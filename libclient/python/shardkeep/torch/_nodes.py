# SPDX-License-Identifier: Apache-2.0
"""What several agents have of a job: each knows its own images alone."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import (
    DTYPES, Client, Error, Invalid, NotFound, State, _core, inspect, snapshots)
from ._blobs import is_own
from ._comm import Comm
from ._common import milliseconds
from ._links import Links
from ._naming import is_statistic

#: Snapshots that a node tells of.
_OFFERS = 16
#: Times that a job's snapshots are listed, where those that were listed have
#: gone when they are looked at.
LISTED_MOST = 8
#: A step that is nobody's.
_NEVER = (1 << 62) - 1


def offers(client: Client, job: str, step: int | None,
           worlds: dict[tuple[int, int], int] | None = None
           ) -> dict[str, Any]:
    """What this rank's agent has, newest first: what it knows to be complete,
    and what may be with what others have. How many ranks saved each run and
    step is put into ``worlds``, which is not for the others."""
    known = [s for s in snapshots(client, job) if step in (None, s["step"])]
    if worlds is not None:
        worlds.update({(s["run"], s["step"]): s["world"] for s in known})
    return {"agent": client.instance(),
            "asked": "the newest step" if step is None else f"step {step}",
            "complete": [[s["run"], s["step"]] for s in known
                         if s["complete"]],
            "local": [[s["run"], s["step"]] for s in known
                      if s["local"]][:_OFFERS],
            "memory": [[s["run"], s["step"]] for s in known
                       if s["memory_bytes"]][:_OFFERS],
            "parts": [[s["run"], s["step"]] for s in known][:_OFFERS],
            "rests": [[s["run"], s["step"], s["note"]] for s in known
                      if _in_part(s)][:1]}


def _in_part(s: dict[str, Any]) -> bool:
    """Whether the agent knows that others had what it lacks of a snapshot, or
    has files of some ranks alone: those are written of what is whole, or of
    what one of several agents has."""
    return not s["complete"] and "have no image" in s["note"] and (
        s["disk_bytes"] > 0 or "came to another" in s["note"])


def in_part(told: list[dict[str, Any]], than: tuple[int, int] = (-1, -1)
            ) -> str:
    """What the agent of all ranks has in part that is newer ``than`` a run and
    a step: no reason to begin anew, though it has nothing else. "": nothing."""
    for x in told:
        for run, step, note in x["rests"]:
            if (run, step) > than:
                return f"step {step} of run {run} is not complete: {note}"
    return ""


def left_of(client: Client, job: str, step: int | None, run: int
            ) -> list[Any]:
    """Of the newest that this rank's agent has some of, where none is whole:
    run, step and a sentence; nothing where there is nothing."""
    for s in snapshots(client, job):
        if not s["complete"] and s["note"] and \
                step in (None, s["step"]) and run in (0, s["run"]):
            return [s["run"], s["step"], f"step {s['step']} of run {s['run']} "
                    f"is not complete: {s['note']}"]
    return []


def several(told: list[dict[str, Any]]) -> bool:
    """Whether ranks have different agents."""
    return any(x["agent"] != told[0]["agent"] for x in told)


def _check_alike(told: list[dict[str, Any]]) -> None:
    """All get the same step: who asks for another would take it for that."""
    first = told[0]["asked"]
    for rank, x in enumerate(told):
        if x["asked"] != first:
            raise Invalid(errno.EINVAL, f"rank 0 asks for {first}, and rank "
                          f"{rank} for {x['asked']}: all ranks must ask for "
                          "the same")


def candidates(told: list[dict[str, Any]], together: bool
               ) -> list[tuple[int, int]]:
    """Runs and steps to try, newest first; ``together``: in parts, too."""
    _check_alike(told)
    return sorted({(run, step) for x in told for run, step in
                   x["complete"] + (x["parts"] if together else [])},
                  reverse=True)


def before_in_memory(told: list[dict[str, Any]], run: int, step: int
                     ) -> list[tuple[int, int]]:
    """Runs and steps that are older, and that any agent has in memory, newest
    first."""
    return sorted({(r, s) for x in told for r, s in x["memory"]
                   if (r, s) < (run, step)}, reverse=True)


def lost_of(told: Iterable[tuple[int, list[list[int]]]]) -> set[int]:
    """How many ranks saved a snapshot, and rows of those that each agent has
    images of: ranks of which none has."""
    ranks, world = set(), 0
    for saved, rows in told:
        world = max(world, saved)
        for first, last in rows:
            ranks.update(range(first, last + 1))
    return set(range(world)) - ranks


def left_here(told: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Those of which one agent, which serves all ranks, has all that it
    knows of, and other agents had the rest."""
    complete = set(candidates(told, False))
    return {(run, step) for x in told for run, step in x["local"]
            if all([run, step] in y["local"] for y in told)} - complete


def each(job: str, listed: Callable[[], list[tuple[int, int]]]
         ) -> Iterator[tuple[int, int]]:
    """Runs and steps to try, newest first. They are listed again after each
    that cannot be had, for it may have gone because newer ones came: what is
    older is not to take their place. Error where others come each time."""
    tried: set[tuple[int, int]] = set()
    before: list[tuple[int, int]] = []
    for _ in range(LISTED_MOST):
        found = listed()
        left = [x for x in found if x not in tried]
        if not left:
            return
        yield left[0]
        tried.add(left[0])
        moving, before = left[0] not in before, found
    if moving:
        raise went_each_time(job)
    yield from left[1:]


def went_each_time(job: str) -> Error:
    """What is raised of snapshots that never stand still."""
    return Error(errno.EIO, f"job {job} has snapshots that went each of "
                 f"{LISTED_MOST} times that they were listed")


class Held:
    """The names of one snapshot, of all agents together."""

    def __init__(self, told: list[dict[str, Any]],
                 ranks: list[list[int]]) -> None:
        self.world = 0
        #: Kind and name; of local blobs the rank: dtype, shape.
        self._items: dict[tuple[str, str, int],
                          tuple[int, tuple[int, ...]]] = {}
        for each in told:
            self._add(each)
        #: Ranks of which no agent has an image.
        self.lost = lost_of([(self.world, ranks)])

    def has_own(self) -> bool:
        """Whether ranks had what need not be as others had it, who may have
        the same by name."""
        return any(kind == "local" or is_own(name) or is_statistic(name)
                   for kind, name, _ in self._items)

    def _add(self, told: dict[str, Any]) -> None:
        self.world = max(self.world, told["world"])
        for name, kind, rank, dtype, shape in told["tensors"]:
            self._items.setdefault((kind, name, rank), (
                DTYPES[dtype], tuple(shape)))

    def beyond(self, known: set[str], rank: int) -> list[_core.Beyond]:
        """As ``State.beyond()``: what is not among the known names."""
        found: dict[tuple[str, str], _core.Beyond] = {}
        for (kind, name, whose), (dtype, shape) in self._items.items():
            mine = kind != "local" or whose == rank
            if name not in known and (mine or (kind, name) not in found):
                found[kind, name] = (name, kind, mine, dtype, shape)
        return list(found.values())


def over(comm: Comm, links: Links | None,
         device: int | None) -> dict[str, Any]:
    """For ``State.restore()``: the links, or the comm of torch.distributed
    for words alone."""
    words: dict[str, Any] = {
        "timeout_ms": milliseconds("timeout", comm.timeout)}
    if links is not None:
        return {**words, **links.way(), "device": device}
    return {**words, "allgather": comm.for_restore, "world": comm.world}


def join_runs(state: State, comm: Comm, links: Links) -> None:
    """A run's number comes from each agent: all ranks agree on one, as every
    restore has them do, also one of nothing."""
    with contextlib.suppress(NotFound):
        state.restore(_NEVER, **over(comm, links, None))


def names_of(client: Client, job: str, run: int, step: int) -> Any:
    """What :class:`Held` wants to know; None where nothing is here."""
    try:
        held = inspect(client, job, step, run, brief=True)
    except NotFound:
        return None
    return {"world": held["world"], "ranks": held["ranks"],
            "tensors": [[t["name"], t["kind"], t.get("rank", -1), t["dtype"],
                         t["shape"]] for t in held["tensors"]]}


class Teller:
    """What the lowest rank of each agent tells of a snapshot; ``look(run,
    step)`` gives it, in forms that JSON has, or None."""

    def __init__(self, comm: Comm, agents: list[int],
                 look: Callable[[int, int], Any]) -> None:
        self._comm, self._look = comm, look
        self._tells = agents.index(agents[comm.rank]) == comm.rank
        self._mine = b""

    def size(self, run: int, step: int) -> list[Any]:
        """Of what this rank has to tell; what it is, in short; and of which
        ranks its agent has images."""
        told = self._look(run, step) if self._tells else None
        ranks = told.pop("ranks", []) if told else []
        self._mine = b"" if told is None else zlib.compress(
            json.dumps(told).encode(), 1)
        return [len(self._mine), hashlib.sha256(self._mine).hexdigest(),
                ranks]

    def ranks(self, run: int, step: int) -> list[Any]:
        """How many ranks saved it, 0 where this rank does not tell; and of
        which ranks its agent has images."""
        told = self._look(run, step) if self._tells else None
        return [told["world"], told["ranks"]] if told else [0, []]

    def told(self, sizes: list[list[Any]]) -> list[Any]:
        """What all tell, each different list once."""
        found, seen, links = [], set(), self._comm.links()
        for rank, (size, digest, _) in enumerate(sizes):
            if not size or digest in seen:
                continue
            seen.add(digest)
            raw = bytearray(self._mine if rank == self._comm.rank else size)
            links.spread(rank, raw, self._comm.timeout)
            found.append(json.loads(zlib.decompress(raw)))
        return found
