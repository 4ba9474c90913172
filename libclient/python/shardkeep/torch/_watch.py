# SPDX-License-Identifier: Apache-2.0
"""Whether the live tensors, and what holds them, are as they were."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _core
from ._flat import Piece

#: The framework's functions that show a tensor to C; older ones have none.
_API = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
#: Whose data those functions show as it is.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Watch:
    """Every snapshot looks at every tensor's address, shape and strides, in
    the trainer's own time: C does it. A tensor that was replaced,
    reallocated, resized, added or lost is seen.
    """

    def __init__(self, sizes: list[tuple[Any, int]],
                 states: list[tuple[Any, Any]],
                 places: list[tuple[Any, str]],
                 params: list[tuple[Any, Any, tuple[Any, ...]]],
                 pieces: list[Piece]) -> None:
        self._states, self._params = states, params
        self._flats = [(x, x.shard().data_ptr(), x.shard().numel())
                       for x in pieces]
        self._locals: list[tuple[DTensor, torch.Tensor]] = []
        self._tensors: _core.Watch | None = None
        tensors = []
        for where, key in places:
            t = local = where[key]
            if isinstance(t, DTensor):
                local = t._local_tensor
                self._locals.append((t, local))
            elif hasattr(t, "local_shards") or hasattr(t, "global_offsets"):
                return      # it says itself what it holds, each time
            if not isinstance(where, dict):
                return      # nothing that could be looked into by itself
            tensors.append((where, key, t, local, type(local) in _PLAIN))
        self._tensors = _core.Watch(tensors, sizes, _API)

    def holds(self) -> bool:
        """Whether nothing changed since."""
        if self._tensors is None:
            return False
        for stepped, state in self._states:
            if stepped.state is not state:
                return False
        for group, params, was in self._params:
            if group["params"] is not params or not all(
                    map(operator.is_, params, was)):
                return False
        for piece, at, numel in self._flats:
            now = piece.shard()
            if now.data_ptr() != at or now.numel() != numel:
                return False
        for dt, local in self._locals:
            if dt._local_tensor is not local:
                return False
        return self._tensors.holds()
