# SPDX-License-Identifier: Apache-2.0
"""Tensors that lie on GPUs: all that the package knows of ``torch.cuda``.

A CUDA tensor is described by its device's ordinal, and its address is the
device's. What was asked of a device's current stream before a snapshot is in
it; what is asked of it after the fence is not.

The storages that a snapshot reads are held until it has let go of them:
memory that a trainer lets go of meanwhile, as ``model.to("cpu")`` does, would
be given to the next tensor by the caching allocator at once, and the copy
would have that one's values. Those of host memory, which is less dear, are held
from their description on, so that no snapshot has to ask for them.
``Tensor.record_stream()`` would not do: it marks what a stream has been asked
for when the memory is freed, and a thread of the library may ask for a copy
after that.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterable
from typing import Any

import torch

from .. import Busy
from ._versions import RAW_STREAM

#: The types of devices whose memory is CUDA's. Tests add a simulated one.
TYPES = {"cuda"}


def is_device(t: torch.Tensor) -> bool:
    """Whether it lies on a GPU."""
    # Asked first: a device is an object that has to be made.
    return not t.is_cpu and t.device.type in TYPES


def unfit(t: torch.Tensor) -> str | None:
    """Why its memory cannot be reached, None if it can."""
    kind = t.device.type
    if kind == "cpu":
        return None
    if kind not in TYPES:
        return (f"is on {t.device}: Shardkeep copies tensors of host memory "
                "and of CUDA devices only; move it to the CPU")
    if kind == "cuda" and torch.version.hip is not None:
        return (f"is on {t.device}, a ROCm device; Shardkeep reaches GPUs by "
                "the CUDA driver only; move it to the CPU")
    return None


def ordinal(t: torch.Tensor) -> int | None:
    """As ``State.tensors`` has it: None for host memory."""
    return t.device.index if is_device(t) else None


def ordinal_of(name: str, tensors: Iterable[torch.Tensor]) -> int | None:
    """Where all parts of one tensor lie; refused by name if not together."""
    found = {ordinal(t) for t in tensors}
    if len(found) > 1:
        where = ", ".join(sorted("the CPU" if i is None else f"device {i}"
                                 for i in found))
        raise ValueError(f"{name} lies in parts on {where}; a rank's parts of "
                         "a tensor must be in one memory")
    return found.pop() if found else None


def devices_of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The GPUs that they lie on, each once."""
    return sorted({t.device for t in tensors if is_device(t)}, key=str)


def storages_of(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """What keeps their memory, whatever becomes of them; each snapshot asks
    for it of thousands."""
    return list(map(torch.Tensor.untyped_storage, tensors))


def can_pin() -> bool:
    """Whether there is a driver that page-locks memory."""
    return torch.cuda.is_available()


def current(kind: str) -> torch.device:
    """The rank's device of a type."""
    if kind not in TYPES:
        return torch.device(kind)
    return torch.device(kind, torch.get_device_module(kind).current_device())


def default() -> torch.device:
    """Where tensors are made that say nothing of it."""
    device = torch.get_default_device()
    return torch.device("cpu") if device.type == "meta" else device


@functools.cache
def _module_of(kind: str) -> Any:
    """torch.cuda, or what a simulated device has like it: looked for once."""
    return torch.get_device_module(kind)


def _modules() -> list[Any]:
    """torch.cuda, where this process uses it."""
    found = []
    for kind in sorted(TYPES):
        try:
            module = _module_of(kind)
        except RuntimeError:    # there is none
            continue
        if module.is_initialized():
            found.append(module)
    return found


def captures() -> bool:
    """Whether the current stream captures a graph."""
    return any(m.is_current_stream_capturing() for m in _modules())


def refuse_capture() -> None:
    """What is captured has not happened, and no snapshot can have it."""
    if captures():
        raise Busy(errno.EBUSY, "the current stream captures a CUDA graph, "
                   "and what it captures has not happened; call snapshot() "
                   "outside of the capture")


class Streams:
    """The streams on which tensors are written, as the library takes them."""

    def __init__(self) -> None:
        self._joined: dict[torch.device, Any] = {}

    @staticmethod
    def _current(device: torch.device) -> Any:
        return _module_of(device.type).current_stream(device)

    @staticmethod
    def _number(device: torch.device) -> int:
        """The current one's."""
        if device.type == "cuda" and RAW_STREAM:    # no object is made
            return int(RAW_STREAM(device.index))
        return int(Streams._current(device).cuda_stream)

    def for_snapshot(self, devices: list[torch.device]) -> int:
        """One stream behind all that the current streams have been asked
        for; where there are several, one of ours waits for them."""
        if not devices:
            return 0
        numbers = {self._number(d) for d in devices}
        if len(numbers) == 1:   # also of 0: each device's default stream
            return numbers.pop()
        first = devices[0]
        if first not in self._joined:
            self._joined[first] = _module_of(first.type).Stream(first)
        joined = self._joined[first]
        for d in devices:
            joined.wait_stream(self._current(d))
        return joined.cuda_stream

    def for_fence(self, devices: list[torch.device]) -> list[int]:
        """Those that must wait before tensors are written."""
        return sorted({self._number(d) for d in devices})


def settle(devices: list[torch.device]) -> None:
    """Waits for what the current streams have been asked for."""
    for d in devices:
        Streams._current(d).synchronize()


# ---- generators ----

def generator_state() -> torch.Tensor | None:
    """Of the rank's device; None where it uses none."""
    return next((m.get_rng_state() for m in _modules()), None)


def set_generator_state(state: torch.Tensor) -> None:
    for module in _modules():
        module.set_rng_state(state)
