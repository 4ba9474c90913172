# SPDX-License-Identifier: Apache-2.0
"""What several agents have of a job: each knows its own images alone."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

from .. import DTYPES, Client, NotFound, _core, inspect, snapshots
from ._comm import Comm

#: Snapshots that a node tells of.
_OFFERS = 16


def offers(client: Client, job: str, step: int | None) -> dict[str, Any]:
    """What this rank's agent has, newest first: what it knows to be complete,
    and what may be with what others have."""
    known = [s for s in snapshots(client, job) if step in (None, s["step"])]
    return {"agent": client.instance(),
            "complete": [[s["run"], s["step"]] for s in known
                         if s["complete"]],
            "parts": [[s["run"], s["step"]] for s in known][:_OFFERS]}


def several(told: list[dict[str, Any]]) -> bool:
    """Whether ranks have different agents."""
    return any(x["agent"] != told[0]["agent"] for x in told)


def candidates(told: list[dict[str, Any]], together: bool
               ) -> list[tuple[int, int]]:
    """Runs and steps to try, newest first; ``together``: in parts, too."""
    if not together:        # all take the first's
        return [(run, step) for run, step in told[0]["complete"]]
    return sorted({(run, step) for x in told
                   for run, step in x["complete"] + x["parts"]}, reverse=True)


class Held:
    """The names of one snapshot, of all agents together."""

    def __init__(self) -> None:
        self.world = 0
        #: Kind and name; of local blobs the rank: dtype, shape.
        self._items: dict[tuple[str, str, int],
                          tuple[int, tuple[int, ...]]] = {}

    def add(self, told: dict[str, Any]) -> None:
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


def _told(client: Client, job: str, run: int, step: int) -> bytes:
    try:
        held = inspect(client, job, step, run, brief=True)
    except NotFound:
        return b""
    return zlib.compress(json.dumps({
        "world": held["world"],
        "tensors": [[t["name"], t["kind"], t.get("rank", -1), t["dtype"],
                     t["shape"]] for t in held["tensors"]]}).encode(), 1)


class Teller:
    """What the lowest rank of each agent tells of a snapshot."""

    def __init__(self, client: Client, comm: Comm, job: str,
                 agents: list[int]) -> None:
        self._client, self._comm, self._job = client, comm, job
        self._tells = agents.index(agents[comm.rank]) == comm.rank
        self._mine = b""

    def size(self, run: int, step: int) -> list[Any]:
        """Of what this rank has to tell; and what it is, in short."""
        self._mine = _told(self._client, self._job, run, step) \
            if self._tells else b""
        return [len(self._mine), hashlib.sha256(self._mine).hexdigest()]

    def held(self, sizes: list[list[Any]]) -> Held:
        """What all tell, each different list once."""
        held, seen, links = Held(), set(), self._comm.links()
        for rank, (size, digest) in enumerate(sizes):
            if not size or digest in seen:
                continue
            seen.add(digest)
            raw = bytearray(self._mine if rank == self._comm.rank else size)
            links.spread(rank, raw, self._comm.timeout)
            held.add(json.loads(zlib.decompress(raw)))
        return held
