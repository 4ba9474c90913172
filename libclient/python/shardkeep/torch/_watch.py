# SPDX-License-Identifier: Apache-2.0
"""Whether the live tensors, and what holds them, are as they were."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

from .. import _core
from ._flat import Piece


def _local_of(t: Any) -> Any:
    """What has the data of a tensor; None of one that says itself what it
    holds, each time."""
    if isinstance(t, DTensor):
        return t._local_tensor
    if hasattr(t, "local_shards") or hasattr(t, "global_offsets"):
        return None
    return t


class Watch:
    """Every snapshot looks at every tensor's address, shape and strides, in
    the trainer's own time: C does it. A tensor that was replaced,
    reallocated, resized, added or lost is seen, and so is another module, or
    another dict of the optimizer or of an object's attributes, in the place of
    one.

    Args:
        sizes: what keeps its length, and that.
        held: dicts and lists that keep their values of a type, and the type;
            or dicts that keep those of some names, and the names.
        owners: objects that keep the dict of their attributes.
        states: optimizers, their states and groups.
        places: the dicts that tensors are in, and their names there.
        params: groups, and their lists of parameters.
        pieces: what is flattened.
        sets: those of names that may change and keep their length, and what
            is in them.
        usual: how most tensors are looked at, if not by their attributes.
    """

    def __init__(self, sizes: list[tuple[Any, int]],
                 held: list[tuple[Any, type | tuple[str, ...]]],
                 owners: list[Any],
                 states: list[tuple[Any, Any, Any]],
                 places: list[tuple[Any, str]],
                 params: list[tuple[Any, Any]],
                 pieces: list[Piece], sets: list[tuple[Any, Any]],
                 usual: _core.Usual | None) -> None:
        self._states, self._params, self._sets = states, params, sets
        self._flats = [(x, x.shard().data_ptr(), x.shard().numel())
                       for x in pieces]
        self._tensors: _core.Watch | None = None
        if all(isinstance(x, (dict, list)) for x, _ in held):
            self._tensors = _core.Watch(
                places, sizes, [*held, *((x, None) for x in owners)], usual,
                _local_of)

    def holds(self) -> bool:
        """Whether nothing changed since."""
        if self._tensors is None:
            return False
        for stepped, state, groups in self._states:
            if stepped.state is not state or stepped.groups is not groups:
                return False
        for group, params in self._params:
            if group["params"] is not params:
                return False
        for now, were in self._sets:
            if now != were:
                return False
        for piece, at, numel in self._flats:
            now = piece.shard()
            if now.data_ptr() != at or now.numel() != numel:
                return False
        return self._tensors.holds()
