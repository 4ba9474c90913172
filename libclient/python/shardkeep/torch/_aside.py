# SPDX-License-Identifier: Apache-2.0
"""Copies of buffers, which stand in for them.

A forward pass writes to buffers, as batch normalization does, before any
optimizer's step: before the fence, while a snapshot may still be copied. So
what the library copies is a copy of ours, taken within ``snapshot()``, and what
it restores goes through there as well.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from . import _device
from ._common import made_to_last
from ._describe import is_whole
from ._versions import Buffer, copy_each, overlaps

#: Bytes of a rank's buffers that are copied within a snapshot's call, the
#: smallest ones: some milliseconds at most. Frozen tables and quantized
#: weights may be buffers, too, and as large as the model.
MOST_BYTES = 64 << 20

#: Whose memory is what they say: subclasses may be written to otherwise. Those
#: that say which shards they hold say it of themselves, and not of a copy.
_PLAIN = (torch.Tensor, Buffer)


def _memory_of(t: Any) -> Any:
    """What a rank holds of a buffer: of a DTensor, as distribute_module()
    makes them, its local part."""
    return t._local_tensor if type(t) is DTensor else t


def _can_stand_aside(t: Any) -> bool:
    return (type(t) in _PLAIN and is_whole(t) and
            t.layout is torch.strided and
            (t.is_cpu or _device.is_device(t)) and t.numel() > 0 and
            not t.is_inference() and not t.is_quantized and
            not t.is_conj() and not t.is_neg() and
            not overlaps(t))


class Aside:
    """Those of one description."""

    def __init__(self) -> None:
        self._live: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []

    def choose(self, buffers: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Makes the copies anew, of what this rank holds of the buffers that
        they are to stand in for, by name; what is in them is nothing yet."""
        memory = {name: _memory_of(t) for name, t in buffers.items()}
        fit = sorted(((t.numel() * t.element_size(), name)
                      for name, t in memory.items() if _can_stand_aside(t)))
        chosen: dict[str, torch.Tensor] = {}
        left = MOST_BYTES
        for size, name in fit:
            left -= size
            if left < 0:
                break
            with made_to_last():
                chosen[name] = torch.empty_like(
                    memory[name], requires_grad=False)
        self._live = [memory[name] for name in chosen]
        self._copies = list(chosen.values())
        return chosen

    def take(self, stream: Any = None) -> None:
        """As the buffers are now; of those on GPUs when the current streams,
        or the one that is named, get there. No snapshot may be under way."""
        if not self._live:
            return
        on = contextlib.nullcontext() if stream is None else \
            torch.get_device_module(stream.device).stream(stream)
        with torch.no_grad(), on:
            copy_each(self._copies, self._live)

    def give(self) -> None:
        """The buffers are what the copies are."""
        if self._live:
            with torch.no_grad():
                copy_each(self._live, self._copies)
