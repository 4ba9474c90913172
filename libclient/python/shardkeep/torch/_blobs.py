# SPDX-License-Identifier: Apache-2.0
"""Python objects in a state, as bytes.

What one rank alone ever wants back is a local blob. What another rank may
need, because parameters or ranks moved, is bytes of a tensor: any rank of a
later mesh reads them, and each is read by one. Objects that all ranks have are
rows of one tensor, a row for each rank; so ranks describe the same, and who
knows the layout of one of them knows all. What not all have, or what has
outgrown its row, is a tensor of its own, which its rank holds whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import DTYPES, Mesh, State, _core
from ._common import SHARED, forget

_LOCAL = "python."
_ROOM = 1024        # least bytes of an object: it may grow without a new layout
_ROWS = "all"       # in the place of the rank: the tensor of all ranks' rows
_UNEVEN = 4         # what needs more times the least room has no row
#: A tensor's name, a box of it, and why nobody has that.
_UNHELD = re.compile(
    r"(?:^|, )(\S(?:(?!, ).)*?) \[[^\]]*\] \((?:rank \d+ does not describe it|"
    r"(?:described|held) by no rank|no rank describes all of it)\)")


def _room_for(n: int) -> int:
    return max(_ROOM, 1 << (2 * n - 1).bit_length())


def _row_for(rooms: Iterable[int]) -> int:
    """The bytes of a row: one rank's huge object is not room for all."""
    rooms = list(rooms)
    return max(n for n in rooms if n <= _UNEVEN * min(rooms))


def rows_of(told: list[dict[str, int] | None]) -> dict[str, int]:
    """The rows that all ranks will have, by name: of objects that each of
    them has, by the bytes that each ``told``; None: it could not tell."""
    sizes = [x or {} for x in told]
    return {name: _row_for(_room_for(x[name]) for x in sizes)
            for name in _common_to(sizes)}


def rows_in(world: int, beyond: list[_core.Beyond],
            names: set[str]) -> dict[str, int]:
    """The rows that objects of these names are to have, by the rooms of a
    snapshot of so many ranks: of those that each of them had."""
    rooms: dict[str, dict[str, int]] = {}
    for full, kind, _, _, shape in beyond:
        if kind == "tensor" and full.startswith(SHARED):
            name, whose = _split(full)
            rooms.setdefault(name, {})[whose] = shape[-1]
    found = {}
    for name in sorted(names & rooms.keys()):
        row = rooms[name].pop(_ROWS, None)
        if len(rooms[name]) < world:    # the others have theirs in a row
            if row is None:
                continue
            rooms[name][_ROWS] = row
        found[name] = _row_for(rooms[name].values())
    return found


def objects_in(beyond: list[_core.Beyond]) -> set[str]:
    """The names of what any rank of a snapshot kept for others as well."""
    return {_split(full)[0] for full, kind, *_ in beyond
            if kind == "tensor" and full.startswith(SHARED)}


def own_in(beyond: list[_core.Beyond], rank: int) -> set[str]:
    """And of what the rank of that number had; what all had, rank 0 tells."""
    whose = {str(rank)} if rank else {"0", _ROWS}
    return {full.removeprefix(_LOCAL) for full, kind, mine, *_ in beyond
            if kind == "local" and mine and full.startswith(_LOCAL)} | {
        _split(full)[0] for full, kind, *_ in beyond
        if kind == "tensor" and full.startswith(SHARED) and
        _split(full)[1] in whose}


def unheld_in(note: str) -> set[str]:
    """Of what an agent says is missing, what no rank has, as one that was to
    have it does not describe it: names, as far as the agent says them."""
    return set(_UNHELD.findall(note.removeprefix("missing: ")))


def is_own(full: str) -> bool:
    """Whether the tensor is of objects that ranks need not have alike, as
    they do the settings of optimizers."""
    return full.startswith(SHARED) and \
        _split(full)[0] not in ("optim", "params")


def are_apart(note: str) -> bool:
    """Whether an agent says that the rows of one rank are not those of the
    others: one of them was not told what they agreed on."""
    if "disagree" in note:
        return SHARED in note and f":{_ROWS}" in note
    return any(map(is_row, unheld_in(note)))


def is_row(name: str) -> bool:
    """Whether it is that of a tensor of all ranks' rows."""
    return name.startswith(SHARED) and name.endswith(f":{_ROWS}")


def alike(told: list[dict[str, int]]) -> dict[str, int]:
    """Those that are the same for all ranks."""
    return {name: told[0][name] for name in _common_to(told)
            if all(x[name] == told[0][name] for x in told)}


def _common_to(told: list[dict[str, int]]) -> list[str]:
    return sorted(set.intersection(*map(set, told)))


def _split(name: str) -> tuple[str, str]:
    """An object's name and its rank's number, or that of the rows."""
    name, _, whose = name.removeprefix(SHARED).rpartition(":")
    return name, whose


class Blobs:
    """The objects of one rank, each in room of its own.

    The same layout needs no new memory of the agent, so that rooms are larger
    than what lies in them, and stay as they are while it fits.
    """

    def __init__(self, state: State, rank: int, world: int) -> None:
        self._state, self._rank, self._world = state, rank, world
        self._local: dict[str, bytearray] = {}
        self._shared: dict[tuple[str, int], bytearray] = {}    # name, rank
        #: This rank's rows, and of which bytes all ranks have agreed that
        #: they are to be: a tensor that one of them lacks is never whole.
        self._rows: dict[str, bytearray] = {}
        self._agreed: dict[str, int] = {}
        #: Rows of another set of ranks, by name and rank, while they are read.
        self._theirs: dict[str, dict[int, bytearray]] = {}
        self._mesh: Mesh | None = None      # of all ranks
        #: What may be described and is no more, or is there and may not be
        #: described: where, and what lay there before. Who is interrupted
        #: leaves it so.
        self._doubts: dict[str, tuple[dict[Any, bytearray], Any,
                                      bytearray | None]] = {}
        #: What was put last, by name: bytes that are the same object stay.
        self._put: dict[str, bytes] = {}
        #: What the state's other tensors point into: descriptions replace
        #: what keeps memory alive, all of it at once.
        self.keep: Any = None

    def move(self, state: State) -> None:
        """Goes on with a state that knows none of them yet."""
        self._state = state
        self._local, self._shared = {}, {}
        self._rows, self._theirs, self._doubts = {}, {}, {}
        self._put, self.keep = {}, None

    # ---- describing ----

    def rooms(self) -> list[bytearray]:
        """What the descriptions of objects point into."""
        return [*self._rows.values(), *self._shared.values(), *(
            room for rows in self._theirs.values() for room in rows.values()),
            *(room for *_, room in self._doubts.values() if room is not None)]

    def _tell_row(self, name: str) -> None:
        self._tell(self._row(name))

    def _tell_own(self, key: tuple[str, int]) -> None:
        self._tell(self._own(key))

    def _tell_local(self, name: str) -> None:
        self._state.blob(_LOCAL + name, self._local[name], True)

    def _row(self, name: str) -> Any:
        """This rank's row, as State.tensors() takes it."""
        if self._mesh is None:
            self._mesh = Mesh((self._world,))
        room = self._rows[name]
        return (f"{SHARED}{name}:{_ROWS}", DTYPES["U8"],
                (self._world, len(room)), self._mesh, ((_core.SHARD, 0, 0),),
                _address(room), None, (1, len(room)), None)

    def _own(self, key: tuple[str, int]) -> Any:
        """What a rank holds whole."""
        room, (name, rank) = self._shared[key], key
        return (f"{SHARED}{name}:{rank}", DTYPES["U8"], (len(room),), None,
                (), 0, None, None,
                (((0,), (len(room),), _address(room), None),))

    def _name_in(self, where: dict[Any, bytearray], key: Any) -> str:
        """What is described of a room."""
        if where is self._local:
            return _LOCAL + str(key)
        name, whose = key if where is self._shared else (key, _ROWS)
        return f"{SHARED}{name}:{whose}"

    def _make(self, where: dict[Any, bytearray], key: Any, size: int,
              tell: Callable[[Any], None]) -> None:
        """Room, in the place of what there may be, which ``tell`` describes;
        both or none of it and its description."""
        full = self._name_in(where, key)
        self._doubts[full] = where, key, where.get(key)
        where[key] = bytearray(size)
        tell(key)
        del self._doubts[full]

    def _let_go(self, where: dict[Any, bytearray], keys: Iterable[Any]
                ) -> None:
        """Rooms and their descriptions."""
        self._doubts.update({self._name_in(where, key): (where, key, None)
                             for key in keys})
        self._be_sure()

    def _be_sure(self) -> None:
        """Neither is there of what may have been left in halves."""
        for full, (where, key, _) in list(self._doubts.items()):
            forget(self._state, full)
            where.pop(key, None)
            del self._doubts[full]

    def _tell(self, described: Any) -> None:
        self._state.tensors([described], (self.keep, self.rooms()))

    def agree(self, rows: dict[str, int]) -> None:
        """What the rows of all ranks are from the next :meth:`put` on: the
        same on each of them."""
        self._agreed = rows
        self._put = {}

    def rows(self) -> dict[str, int]:
        """The bytes of this rank's rows, by name."""
        return {name: len(room) for name, room in self._rows.items()}

    def disagree(self) -> bool:
        """Leaves off rows, which are not those of all ranks; whether there
        were any."""
        had = bool(self._agreed)
        if had:
            self.agree({})
        return had

    def _make_rows(self) -> bool:
        """As was agreed on; whether that was new."""
        gone = self._rows.keys() - self._agreed.keys()
        new = [name for name, size in self._agreed.items()
               if len(self._rows.get(name, b"")) != size]
        self._let_go(self._rows, gone)
        for name in new:
            self._make(self._rows, name, self._agreed[name], self._tell_row)
        return bool(gone or new)

    def put(self, objects: dict[str, tuple[bytes, bool]]) -> bool:
        """The objects of the next snapshot: bytes, whether no other rank
        will want them. What is not among them is forgotten. Whether what all
        ranks have of them is another than before."""
        if self._put and objects.keys() == self._put.keys() and all(
                self._put[name] is raw for name, (raw, _) in objects.items()):
            return False        # nor was anything else done since
        # Whoever is interrupted from here on has put nothing.
        last, self._put = self._put, {}
        self._be_sure()
        changed = self._make_rows()
        shared = {n for n, (_, local) in objects.items() if not local}
        fit = {n for n in shared & self._rows.keys()
               if len(objects[n][0]) <= len(self._rows[n])}
        self._let_go(self._local, {n for n in self._local
                                   if n in shared or n not in objects})
        self._let_go(self._shared, {
            key for key in self._shared if key[1] != self._rank
            or key[0] not in shared - fit})
        for name in self._rows.keys() - fit:
            _fill(self._rows[name], b"")    # all ranks have it: a blank one
        for name, (raw, local) in objects.items():
            if last.get(name) is raw:
                continue
            _fill(self._local_room(name, len(raw)) if local else
                  self._rows[name] if name in fit else
                  self._own_room(name, len(raw)), raw)
        self._put = {name: raw for name, (raw, _) in objects.items()}
        return changed

    def _own_room(self, name: str, least: int) -> bytearray:
        key = (name, self._rank)
        if len(self._shared.get(key, b"")) < least:
            self._make(self._shared, key, _room_for(least), self._tell_own)
        return self._shared[key]

    def _local_room(self, name: str, least: int) -> bytearray:
        room = self._local.get(name)
        if room is None or len(room) < least:
            self._make(self._local, name, _room_for(least), self._tell_local)
        return self._local[name]

    def clear(self) -> None:
        """Forgets all of them, and what was agreed on."""
        self.agree({})
        self._make_rows()
        self._leave_theirs()
        self._let_go(self._local, self._local)
        self._let_go(self._shared, self._shared)

    # ---- reading ----

    def expect(self, world: int, beyond: list[_core.Beyond],
               lost: set[int]) -> None:
        """Makes room for what a snapshot of so many ranks has: this rank's
        own, and its share of what saved ranks had, but for those that are
        ``lost``. None is described yet."""
        kept = [x for x in beyond if x[0].startswith((SHARED, _LOCAL))]
        # Rows first, as they are put.
        kept.sort(key=lambda x: not x[0].endswith(f":{_ROWS}"))
        for name, kind, mine, _, shape in kept:
            if kind == "local" and mine and name.startswith(_LOCAL):
                self._make(self._local, name.removeprefix(_LOCAL), shape[0],
                           self._tell_local)
            elif kind == "tensor" and name.startswith(SHARED):
                self._expect_shared(world, *_split(name), shape, lost)
        # What ranks had that are no more is left alone, not asked for by none.
        for name, kind, mine, _, _ in kept:
            if kind == "local" and not mine and \
                    (world > self._world or lost) and name.startswith(_LOCAL):
                self._local_room(name.removeprefix(_LOCAL), 1)

    def _expect_shared(self, world: int, name: str, whose: str,
                       shape: tuple[int, ...], lost: set[int]) -> None:
        if whose != _ROWS:
            if int(whose) % self._world == self._rank:
                self._make(self._shared, (name, int(whose)), shape[0],
                           self._tell_own)
        elif world == self._world and not lost:
            self._make(self._rows, name, shape[1], self._tell_row)
        else:
            self._expect_theirs(name, shape, lost)

    def _expect_theirs(self, name: str, shape: tuple[int, ...],
                       lost: set[int]) -> None:
        """Rows of other ranks than there are now, each read by one."""
        rows = {rank: bytearray(shape[1]) for rank in
                range(self._rank, shape[0], self._world)
                if rank not in lost}
        if not rows:
            return
        self._theirs[name] = rows
        self._tell((f"{SHARED}{name}:{_ROWS}", DTYPES["U8"], shape, None, (),
                    0, None, None, tuple(
                        ((rank, 0), (1, shape[1]), _address(room), None)
                        for rank, room in rows.items())))

    def local(self, name: str) -> bytes | None:
        """What this rank's number had saved for itself."""
        return _content(self._local.get(name))

    def shared(self) -> dict[int, dict[str, bytes]]:
        """What was read of saved ranks, by their numbers."""
        found: dict[int, dict[str, bytes]] = {}
        every = [(name, self._rank, room) for name, room in self._rows.items()]
        every += [(name, rank, room) for name, rows in self._theirs.items()
                  for rank, room in rows.items()]
        every += [(*key, room) for key, room in self._shared.items()]
        for name, rank, room in every:
            raw = _content(room)
            if raw is not None:
                found.setdefault(rank, {})[name] = raw
        return found

    def _leave_theirs(self) -> None:
        for name in self._theirs:
            forget(self._state, f"{SHARED}{name}:{_ROWS}")
        self._theirs = {}

    def settle(self, rows: dict[str, int]) -> None:
        """Lets go of what other ranks had saved; ``rows`` are those of all
        ranks from here on."""
        self._leave_theirs()
        self._let_go(self._shared, {k for k in self._shared
                                    if k[1] != self._rank})
        self.agree(rows)


def _fill(room: bytearray, raw: bytes) -> None:
    room[:] = raw.ljust(len(room), b" ")


def _content(room: bytearray | None) -> bytes | None:
    raw = bytes(room or b"").rstrip(b" \0")
    return raw or None


def _address(room: bytearray) -> int:
    return torch.frombuffer(room, dtype=torch.uint8).data_ptr()
