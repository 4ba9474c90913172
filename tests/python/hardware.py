# SPDX-License-Identifier: Apache-2.0
"""GPUs as they are, for the tests that otherwise have simulated ones: what
:mod:`vcuda` does by its driver, by PyTorch and the machine's driver.

:func:`begin` is for the ranks, which must be forked before: a process that has
initialized a driver cannot fork, and one that has asked
``torch.cuda.is_available()`` may have.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

KIND = os.environ.get("SK_TORCH_DEVICE", "cuda")
#: Nothing is built.
CAN_BUILD = True


def variables(devices: int) -> dict[str, str]:
    """None: all is found as by users."""
    return {}


def _module() -> Any:
    return torch.get_device_module(KIND)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("SHARDKEEP_LIBCUDA", "libcuda.so.1"))


def _call(name: str, *args: Any) -> None:
    r = getattr(_driver(), name)(*args)
    assert not r, f"{name}: {r}"


def index(rank: int) -> int:
    """Which is a rank's: where there are too few, several have one."""
    return rank % max(1, _module().device_count())


def begin(rank: int = 0) -> None:
    if _module().device_count() < dist.get_world_size():
        # NCCL is to take them for ranks of several hosts.
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
    _module().set_device(index(rank))
    torch.zeros(1, device=KIND)         # whoever has no GPU says so here


def warm(checkpointer: Any) -> None:
    """A driver may wait for all that a GPU has to do before it loads a
    kernel, which is no matter later, with a stream that is held."""
    checkpointer.snapshot(0)
    checkpointer.wait()


def Stream(device: Any = None) -> Any:
    return _module().Stream(device)


def use(s: Any) -> None:
    """It is its device's current one from here on."""
    _module().set_stream(s)


def current_stream() -> Any:
    return _module().current_stream()


def _number() -> ctypes.c_void_p:
    return ctypes.c_void_p(current_stream().cuda_stream)


def set_async(t: torch.Tensor, byte: int) -> None:
    """What a kernel does, of which none has to be loaded: queued on the
    current stream, and not waited for."""
    _call("cuMemsetD8Async", ctypes.c_ulonglong(t.data_ptr()),
          ctypes.c_ubyte(byte), ctypes.c_size_t(t.untyped_storage().nbytes()),
          _number())


@contextlib.contextmanager
def capture() -> Iterator[None]:
    """The current stream captures a graph, of which nobody hears."""
    t = torch.zeros(4, device=KIND)
    t.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t.zero_()
        yield


_gates: list[Any] = []          # the driver looks at one after it is open


@contextlib.contextmanager
def hold() -> Iterator[contextlib.ExitStack]:
    """What comes on the current stream from here on waits for its end, or
    for close(). It waits in C: whoever has Python's lock may wait for it."""
    libc = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(64)
    _gates.append(semaphore)
    assert not libc.sem_init(semaphore, 0, 0)
    with contextlib.ExitStack() as gate:
        _call("cuLaunchHostFunc", _number(), libc.sem_wait, semaphore)
        gate.callback(libc.sem_post, semaphore)
        yield gate


def empty_cache() -> None:
    _module().empty_cache()


def rand(n: int) -> torch.Tensor:
    """By the device's generator."""
    return torch.rand(n, device=KIND)


def calls(function: str) -> int:
    """Only a simulation counts them."""
    return 0


def count(what: str) -> int:
    """The same."""
    return 0
