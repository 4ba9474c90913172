# SPDX-License-Identifier: Apache-2.0
"""GPUs without a GPU, for PyTorch: the device "vcuda" on the simulated driver
(tests/sim), with what of torch.cuda a trainer and the package call.

:func:`build` compiles both; :func:`begin` is for the ranks, which must be
forked before: a process that has initialized a driver cannot fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.cpp_extension import include_paths

_HERE = pathlib.Path(__file__).parent
_SOURCES = _HERE.parents[2]
#: What a compiler is needed for; without one its tests are skipped.
CAN_BUILD = bool(shutil.which("cc") and shutil.which("c++") and
                 pathlib.Path(include_paths()[0], "ATen/ATen.h").exists())


def _compile(command: list[str], to: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=to.parent) as d:
        made = f"{d}/{to.name}"
        # What lacks a source does not link.
        subprocess.run([*command, "-fPIC", "-shared", "-Wl,-z,defs", "-o",
                        made], check=True)
        os.replace(made, to)    # whole, whoever else builds it


def _made(to: pathlib.Path, sources: list[pathlib.Path],
          command: list[str]) -> str:
    to.parent.mkdir(parents=True, exist_ok=True)
    newest = max(s.stat().st_mtime for s in sources)
    if not to.exists() or to.stat().st_mtime < newest:
        _compile(command, to)
    return str(to)


def _kernels(to: pathlib.Path) -> pathlib.Path:
    """The product's code for devices, which is all that the driver takes."""
    cuda = _SOURCES / "cache/cuda"
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent) as d:
        made = f"{d}/{to.name}"
        subprocess.run([sys.executable, cuda / "embed.py",
                        cuda / "kernels.ptx", "sk_cuda_kernels_text", made],
                       check=True)
        os.replace(made, to)
    return to


@functools.cache
def build() -> dict[str, str]:
    """Paths of the driver, of NCCL and of the device; made where they lack,
    or are older than their sources."""
    where = _SOURCES / "build" / f"vcuda-{torch.__version__}"
    sim = _SOURCES / "tests" / "sim"
    cc = ["cc", "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-w",
          f"-I{_SOURCES}/cache", f"-I{_SOURCES}/tests", f"-I{sim}"]
    plain = [sim / f"{x}.c" for x in
             "backing capture copy device entry forks ipc kernel leaks memory "
             "mode seen share stream".split()]
    text = _kernels(where / "kernels-text.c")
    code = [_SOURCES / f"cache/cuda/kernels.{x}" for x in ("cl", "ptx")]
    nccl = sorted(sim.glob("vnccl*.c"))
    headers = sorted(sim.glob("*.h")) + sorted(
        (_SOURCES / "cache").glob("*/abi.h"))
    cpp = _HERE / "device.cpp"
    lib = f"{pathlib.Path(torch.__file__).parent}/lib"
    return {
        "driver": _made(where / "vcuda.so.1", plain + headers + code,
                        [*cc, *map(str, plain), str(text), "-lpthread", "-ldl",
                         "-Wl,-soname,libcuda.so.1"]),
        "nccl": _made(where / "vnccl.so.2", nccl + headers,
                      [*cc, *map(str, nccl), "-lpthread", "-ldl",
                       "-Wl,-soname,libnccl.so.2"]),
        "device": _made(where / "device.so", [cpp],
                        ["c++", "-std=c++20", "-O0", "-w",
                         *(f"-I{p}" for p in include_paths()), str(cpp),
                         f"-L{lib}", "-ltorch_cpu", "-lc10", "-ldl",
                         f"-D_GLIBCXX_USE_CXX11_ABI="
                         f"{int(torch.compiled_with_cxx11_abi())}"])}


# ---- the device's module, as torch.cuda ----

class Stream:
    """A stream of the driver; ``cuda_stream`` is its number."""

    def __init__(self, device: Any = None, number: int | None = None) -> None:
        self.device_index = _index(device)
        if number is None:
            at = ctypes.c_void_p()
            _use(self.device_index)
            _call("cuStreamCreate", ctypes.byref(at), 1)
            number = at.value or 0
        self.cuda_stream = number

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        _use(self.device_index)
        _call("cuEventCreate", ctypes.byref(event), 2)
        _call("cuEventRecord", event, ctypes.c_void_p(self.cuda_stream))
        return event

    def wait_stream(self, other: Stream) -> None:
        event = other._event()
        _use(self.device_index)
        _call("cuStreamWaitEvent", ctypes.c_void_p(self.cuda_stream), event,
              0)
        _call("cuEventDestroy_v2", event)

    def synchronize(self) -> None:
        _use(self.device_index)
        _call("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def query(self) -> bool:
        _use(self.device_index)
        return not driver().cuStreamQuery(ctypes.c_void_p(self.cuda_stream))


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["SHARDKEEP_LIBCUDA"])


@functools.cache
def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(build()["device"])
    lib.vcuda_stream.restype = ctypes.c_void_p
    lib.vcuda_set_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
    return lib


def _call(name: str, *args: Any) -> None:
    r = getattr(driver(), name)(*args)
    assert not r, f"{name}: {r}"


def _use(device: int) -> None:
    _library().vcuda_use(device)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def current_device() -> int:
    return _library().vcuda_device()


def set_device(device: Any) -> None:
    _library().vcuda_set_device(_index(device))


def device_count() -> int:
    return _library().vcuda_count()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    pass


_generator = torch.Generator()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return _generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    _generator.set_state(state)


def rand(n: int) -> torch.Tensor:
    """By the device's generator."""
    return torch.rand(n, generator=_generator)


def current_stream(device: Any = None) -> Stream:
    index = _index(device)
    return Stream(index, _library().vcuda_stream(index) or 0)


@contextlib.contextmanager
def stream(s: Stream) -> Iterator[None]:
    was = _library().vcuda_stream(s.device_index)
    _library().vcuda_set_stream(s.device_index, s.cuda_stream)
    try:
        yield
    finally:
        _library().vcuda_set_stream(s.device_index, was)


def is_current_stream_capturing() -> bool:
    index, status = current_device(), ctypes.c_uint()
    _use(index)
    return not driver().cuStreamIsCapturing(
        ctypes.c_void_p(_library().vcuda_stream(index)),
        ctypes.byref(status)) and bool(status.value)


# ---- what only tests do; tests/python/hardware.py has the same ----

def variables(devices: int) -> dict[str, str]:
    """By which ranks find so many."""
    made = build()
    return {"SHARDKEEP_LIBCUDA": made["driver"],
            "SHARDKEEP_LIBNCCL": made["nccl"], "VCUDA_DEVICES": str(devices)}


def index(rank: int) -> int:
    """Which is a rank's."""
    return rank


def warm(checkpointer: Any) -> None:
    """Nothing has to be, here."""


def begin(device: int = 0) -> None:
    """Makes "vcuda" a device of PyTorch, and one of the package's."""
    from shardkeep.torch import _device
    torch.ops.load_library(build()["device"])
    torch.utils.rename_privateuse1_backend("vcuda")
    torch._register_device_module("vcuda", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    _device.TYPES.add("vcuda")
    set_device(device)


def use(s: Stream) -> None:
    """It is its device's current one from here on."""
    _library().vcuda_set_stream(s.device_index, s.cuda_stream)


def set_async(t: torch.Tensor, byte: int) -> None:
    """What a kernel does: queued on the current stream, and not waited for."""
    index = t.device.index
    _use(index)
    _call("cuMemsetD8Async", ctypes.c_ulonglong(t.data_ptr()),
          ctypes.c_ubyte(byte), ctypes.c_size_t(t.untyped_storage().nbytes()),
          ctypes.c_void_p(_library().vcuda_stream(index)))


@contextlib.contextmanager
def capture() -> Iterator[None]:
    """The current stream captures a graph, of which nobody hears."""
    at = ctypes.c_void_p(_library().vcuda_stream(current_device()))
    graph = ctypes.c_void_p()
    _use(current_device())
    _call("cuStreamBeginCapture_v2", at, 0)
    try:
        yield
    finally:
        _use(current_device())
        _call("cuStreamEndCapture", at, ctypes.byref(graph))


@contextlib.contextmanager
def hold(device: int = 0) -> Iterator[contextlib.ExitStack]:
    """What comes on the current stream from here on waits for its end, or
    for close()."""
    with contextlib.ExitStack() as gate:
        _library().vcuda_hold(device)
        gate.callback(_library().vcuda_open)
        yield gate


def empty_cache() -> None:
    _library().vcuda_empty_cache()


def calls(function: str) -> int:
    driver().vcudaCalls.restype = ctypes.c_uint64
    return driver().vcudaCalls(function.encode())


def count(what: str) -> int:
    driver().vcudaCount.restype = ctypes.c_uint64
    return driver().vcudaCount(what.encode())


__all__ = [n for n, x in list(globals().items())
           if isinstance(x, types.FunctionType)]
