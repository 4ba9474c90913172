# SPDX-License-Identifier: Apache-2.0
"""A state's descriptions, kept in step with the live tensors."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from .. import State
from . import _device
from ._aside import Aside
from ._blobs import Blobs, rows_of
from ._comm import Comm
from ._common import forget
from ._describe import (Description, Meshes, describe, in_memory, is_whole,
                        locals_of, parts_of, some_values, usual)
from ._flat import FlatPart
from ._tensors import LiveTensors
from ._versions import wrote_to
from ._watch import Watch

log = logging.getLogger("shardkeep")

#: Tensors that a processor's own cache has, with what they consist of.
AT_ONCE = 512

#: A tensor's name, itself, the name of the one that it belongs to.
Item = tuple[str, Any, str]


def _digest(raw: str | bytes) -> str:
    raw = raw.encode() if isinstance(raw, str) else raw
    return hashlib.sha256(raw).hexdigest()[:16]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector, which would look at all of the trainer's objects
    again and again while thousands of descriptions are made."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Describing:
    """What the C library was told of the live tensors."""

    def __init__(self, state: State, comm: Comm, tensors: LiveTensors,
                 blobs: Blobs, sizes: Callable[[], dict[str, int] | None]
                 ) -> None:
        self._state, self._comm = state, comm
        self._tensors, self._blobs = tensors, blobs
        self._sizes = sizes     # of the objects that other ranks may need
        self._meshes = Meshes()
        self._usual = usual(self._meshes)
        self._watch: Watch | None = None
        self._names: set[str] = set()
        self._live: list[Any] = []      # what is called so
        self._whole: list[str] | None = None
        self._holders: dict[str, tuple[int, ...] | None] = {}
        self._values: dict[str, str] = {}
        #: Whether the optimizer keeps anything but tensors of parameters.
        self.more = False
        #: The GPUs that have any of it.
        self.devices: list[torch.device] = []
        self._on_devices: list[torch.Tensor] = []
        #: What stands in for the model's buffers.
        self.aside = Aside()

    def all(self) -> bool:
        """Describes the tensors anew where anything about them changed, and
        says whether it did."""
        if self._watch is not None and self._watch.holds():
            return False
        with uncollected():
            items = self._tensors.items()
            self.find_holders(items)
            self.describe(items)
            self.is_current()
        return True

    def again(self) -> None:
        """Describes what may look as it was."""
        self._watch = None
        self.all()

    def move(self, state: State) -> None:
        """Goes on with a state that was told nothing yet."""
        self._state, self._names = state, set()
        self._watch = None

    def names(self) -> set[str]:
        """Of what is described."""
        return self._names

    def ordinal(self) -> int | None:
        """The rank's GPU, for NCCL; None where it has none, or several."""
        return self.devices[0].index if len(self.devices) == 1 else None

    def storages(self) -> list[Any]:
        """What a snapshot of it must hold."""
        return _device.storages_of(self._on_devices)

    def is_current(self) -> None:
        """What is described is what there is: watched from here on."""
        self._watch = self._tensors.watch(self._usual)
        self.has_more()

    def has_more(self) -> None:
        """Looks whether the optimizer keeps anything but tensors."""
        self.more = (self._tensors.mixed and bool(self._tensors.scalars())
                     ) or any(self._tensors.others())

    def describe(self, items: list[Item], absent: set[str] | None = None
                 ) -> None:
        """What has no memory is refused, or is left out where ``absent`` is
        given, which then has its names."""
        self._watch = None
        for gone in self._names - {name for name, _, _ in items}:
            forget(self._state, gone)
            self._names.discard(gone)
        model = {name: t for name, t, _ in items}
        had = set(self._names)
        self._names |= model.keys()     # whoever is interrupted from here on
        for name in self._tensors.buffers & model.keys():
            if absent is None or not model[name].is_meta:
                describe(name, model[name], self._meshes)   # or refuses it
        aside = self.aside.choose({name: model[name] for name in
                                   self._tensors.buffers & model.keys()})
        others: list[torch.Tensor] = []     # what the library did not read
        # A tensor lets go of its memory where it is given other data.
        storages: list[Any] = []

        apart = self._apart(model)

        def slowly(name: str, t: Any, owner: str) -> Description | None:
            if absent is not None and t.is_meta:
                absent.add(name)
                return None
            others.extend(locals_of(aside.get(name, t)))
            if name in apart:
                return describe(name, FlatPart(aside.get(name, t), None, 0),
                                self._meshes)
            return in_memory(describe(
                name, t, self._meshes, self._holders.get(owner),
                model.get(owner)), aside.get(name))

        held, on_devices = self._state.describe(
            items, self._usual, self._odd(aside) | apart, model, slowly,
            (others, storages, self._blobs.rooms()))
        for name in had & (absent or set()):    # taken back
            forget(self._state, name)
        held += others
        storages += _device.storages_of(x for x in held if x.is_cpu)
        self._blobs.keep = held, storages
        self._on_devices = on_devices + [x for x in others
                                         if _device.is_device(x)]
        self.devices = _device.devices_of(self._on_devices)
        self._names = set(model) - (absent or set())
        self._live = list(model.values())

    def wrote(self) -> None:
        """The library has written to what is described."""
        self.aside.give()
        for i in range(0, len(self._live), AT_ONCE):
            wrote_to(self._usual.parts(self._live, i, i + AT_ONCE, parts_of)
                     if self._usual else
                     [x for t in self._live[i:i + AT_ONCE]
                      for x in parts_of(t)])

    def _apart(self, model: dict[str, Any]) -> set[str]:
        """What ranks have values of their own of, under one name: each keeps
        its own. Of what is the same everywhere one copy goes to disk."""
        if self._comm.world == 1:
            return set()
        return {name for name in self._tensors.statistics & model.keys()
                if is_whole(model[name])}

    def _odd(self, aside: dict[str, torch.Tensor]) -> set[str]:
        """Whose descriptions the tensors alone do not tell."""
        return {*aside, *(name for name, ranks in self._holders.items()
                          if ranks)}

    # ---- who has what is whole ----

    @staticmethod
    def whole_of(items: list[Item]) -> list[str]:
        """The model's whole tensors. An optimizer makes its state when
        gradients come, which a rank's experts may get later than another's:
        it belongs to its parameter."""
        return sorted(name for name, t, _ in items
                      if name.startswith("model.") and is_whole(t))

    def knows_holders(self) -> bool:
        """Whether no other rank would have to be asked."""
        return self._comm.world == 1 or \
            self._whole == self.whole_of(self._tensors.items())

    def find_holders(self, items: list[Item]) -> None:
        """Who has which whole tensor, and which rows objects have; a
        collective where the first changed."""
        whole = self.whole_of(items)
        if whole != self._whole:
            self.take_words([json.loads(x) for x in self._comm.share(
                json.dumps(self.word(items)).encode(), "snapshot()")],
                "snapshot()")

    def word(self, items: list[Item]) -> dict[str, Any]:
        """What this rank tells of its whole tensors and its objects, in forms
        that JSON has, for :meth:`take_words`."""
        self._values = self._values_of(items)
        return {"whole": self.whole_of(items), "objects": self._sizes(),
                "values": _digest(json.dumps(self._values))}

    def take_words(self, words: list[dict[str, Any]], what: str) -> None:
        """What all ranks told, in the call that is named."""
        self.set_holders([x["whole"] for x in words])
        self._blobs.agree(rows_of([x["objects"] for x in words]))
        if len({x["values"] for x in words}) > 1:
            self._compare([json.loads(x) for x in self._comm.share(
                json.dumps(self._values).encode(), what)])

    def _values_of(self, items: list[Item]) -> dict[str, str]:
        """A digest of some of the values of each whole parameter."""
        if self._comm.world == 1:
            return {}
        return {name: _digest(raw) for name, t, _ in items
                if name.startswith("model.") and is_whole(t) and
                name not in self._tensors.buffers
                for raw in [some_values(t)] if raw}

    def _compare(self, values: list[dict[str, str]]) -> None:
        """Says where ranks have parameters of one name that are not the same:
        stages of a pipeline that are not called as in the whole model."""
        first: dict[str, tuple[str, int]] = {}
        apart: dict[str, int] = {}
        for rank, mine in enumerate(values):
            for name, digest in mine.items():
                if first.setdefault(name, (digest, rank))[0] != digest:
                    apart.setdefault(name, rank)
        if not apart or self._comm.rank:
            return
        names = sorted(apart)
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        log.warning(
            "%s%s: not the same on ranks %d and %d, and one rank's may come "
            "back on both; what is not made the same before the first step "
            "needs names of its own", ", ".join(names[:4]), more,
            first[names[0]][1], apart[names[0]])

    def holders(self) -> Any:
        """What is known of them, for :meth:`take_holders`."""
        return self._whole, self._holders

    def take_holders(self, known: Any) -> None:
        self._whole, self._holders = known

    def suppose(self, items: list[Item]) -> None:
        """That all ranks have what this one has, until they have agreed;
        what was agreed on stands while this rank's tensors are the same."""
        whole = self.whole_of(items)
        if whole != self._whole:
            self._whole, self._holders = whole, {}

    def supposed(self) -> str:
        """A digest of the whole tensors that this rank has and takes all
        ranks to have; "" where some are known not to be everywhere."""
        if any(self._holders.values()):
            return ""
        return hashlib.sha256("\0".join(self._whole or ()).encode()
                              ).hexdigest()[:32]

    @staticmethod
    def all_alike(supposed: list[str]) -> bool:
        """Whether what all ranks supposed is so."""
        return bool(supposed[0]) and all(x == supposed[0] for x in supposed)

    def set_holders(self, lists: list[list[str]]) -> None:
        """By the whole tensors of all ranks."""
        whole = lists[self._comm.rank]
        if all(x == whole for x in lists):
            self._whole, self._holders = whole, dict.fromkeys(whole)
            return
        ranks: dict[str, list[int]] = {}
        for r, names in enumerate(lists):
            for name in names:
                ranks.setdefault(name, []).append(r)
        self._whole, self._holders = whole, {
            name: tuple(ranks[name])
            if len(ranks[name]) < self._comm.world else None
            for name in whole}
