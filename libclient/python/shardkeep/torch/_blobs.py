# SPDX-License-Identifier: Apache-2.0
"""Python objects in a state, as bytes.

What one rank alone ever wants back is a local blob. What another rank may
need, because parameters or ranks moved, is a tensor of bytes that its rank
holds whole: any rank of a later mesh reads it, and each is read by one.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import DTYPES, State, _core
from ._common import SHARED

_LOCAL = "python."
_ROOM = 1024        # least bytes of an object: it may grow without a new layout


def _room_for(n: int) -> int:
    return max(_ROOM, 1 << (2 * n - 1).bit_length())


class Blobs:
    """The objects of one rank, each in room of its own.

    The same layout needs no new memory of the agent, so that rooms are larger
    than what lies in them, and stay as they are while it fits.
    """

    def __init__(self, state: State, rank: int, world: int) -> None:
        self._state, self._rank, self._world = state, rank, world
        self._local: dict[str, bytearray] = {}
        self._shared: dict[tuple[str, int], bytearray] = {}    # name, rank
        #: What was put last, by name: bytes that are the same object stay.
        self._put: dict[str, bytes] = {}
        #: What the state's other tensors point into: descriptions replace
        #: what keeps memory alive, all of it at once.
        self.keep: Any = None

    # ---- describing ----

    def rooms(self) -> list[bytearray]:
        """What the descriptions of objects point into."""
        return list(self._shared.values())

    def _describe(self, *which: tuple[str, int]) -> None:
        self._state.tensors(
            [(f"{SHARED}{name}:{rank}", DTYPES["U8"], (len(room),), None, (),
              0, None, None, (((0,), (len(room),), _address(room), None),))
             for name, rank in which
             for room in (self._shared[name, rank],)],
            (self.keep, self.rooms()))

    def put(self, objects: dict[str, tuple[bytes, bool]]) -> None:
        """The objects of the next snapshot: bytes, whether no other rank
        will want them. What is not among them is forgotten."""
        mine = {n for n, (_, local) in objects.items() if local}
        self._drop({n for n in self._local if n not in mine},
                   {key for key in self._shared
                    if key[1] != self._rank or key[0] not in objects
                    or key[0] in mine})
        new = []
        last, self._put = self._put, {}
        for name, (raw, local) in objects.items():
            if last.get(name) is raw:
                continue
            if local:
                room = self._local_room(name, len(raw))
            else:
                key = (name, self._rank)
                room = self._shared.get(key)
                if room is None or len(room) < len(raw):
                    room = self._shared[key] = bytearray(_room_for(len(raw)))
                    new.append(key)
            room[:] = raw.ljust(len(room), b" ")
        if new:
            self._describe(*new)
        self._put = {name: raw for name, (raw, _) in objects.items()}

    def _local_room(self, name: str, least: int) -> bytearray:
        room = self._local.get(name)
        if room is None or len(room) < least:
            room = bytearray(_room_for(least))
            self._state.blob(_LOCAL + name, room, True)
            self._local[name] = room
        return room

    def _drop(self, local: set[str], shared: set[tuple[str, int]]) -> None:
        for name in local:
            self._state.remove(_LOCAL + name)
            del self._local[name]
        for name, rank in shared:
            self._state.remove(f"{SHARED}{name}:{rank}")
            del self._shared[name, rank]

    def clear(self) -> None:
        """Forgets all of them."""
        self._put = {}
        self._drop(set(self._local), set(self._shared))

    # ---- reading ----

    def expect(self, world: int, beyond: list[_core.Beyond]) -> None:
        """Makes room for what a snapshot of so many ranks has: this rank's
        own, and its share of what saved ranks had. None is described yet."""
        for name, kind, mine, _, shape in beyond:
            if kind == "local" and mine and name.startswith(_LOCAL):
                room = bytearray(shape[0])
                self._state.blob(name, room, True)
                self._local[name.removeprefix(_LOCAL)] = room
            elif kind == "tensor" and name.startswith(SHARED):
                name, _, rank = name.removeprefix(SHARED).rpartition(":")
                if int(rank) % self._world == self._rank:
                    self._shared[name, int(rank)] = bytearray(shape[0])
        self._describe(*self._shared)
        # What ranks had that are no more is left alone, not asked for by none.
        for name, kind, mine, _, _ in beyond:
            if kind == "local" and not mine and world > self._world and \
                    name.startswith(_LOCAL):
                self._local_room(name.removeprefix(_LOCAL), 1)

    def local(self, name: str) -> bytes | None:
        """What this rank's number had saved for itself."""
        return _content(self._local.get(name))

    def shared(self) -> dict[int, dict[str, bytes]]:
        """What was read of saved ranks, by their numbers."""
        found: dict[int, dict[str, bytes]] = {}
        for (name, rank), room in self._shared.items():
            raw = _content(room)
            if raw is not None:
                found.setdefault(rank, {})[name] = raw
        return found

    def settle(self) -> None:
        """Lets go of what other ranks had saved."""
        self._drop(set(), {k for k in self._shared if k[1] != self._rank})


def _content(room: bytearray | None) -> bytes | None:
    raw = bytes(room or b"").rstrip(b" \0")
    return raw or None


def _address(room: bytearray) -> int:
    return torch.frombuffer(room, dtype=torch.uint8).data_ptr()
