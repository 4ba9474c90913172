# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch modules share: dtypes, and tensors as memory."""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import unicodedata
from collections.abc import Iterator
from typing import Any

import torch

from .. import DTYPES, NotFound, State
from . import _device
from ._versions import KINDS, is_of_a_transformation

#: Objects stand as tensors of bytes under these names (docs/format.md): one
#: that a later rank may need, an object of a DCP state dict, what DCP's
#: planners said of keys.
SHARED, BYTES, PLAN = "python:", "dcp.bytes.", "dcp.plan."
OBJECTS = (SHARED, BYTES, PLAN)

_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16",
    "uint16": "U16", "float16": "F16", "bfloat16": "BF16", "int32": "I32",
    "uint32": "U32", "float32": "F32", "complex64": "C64", "float64": "F64",
    "int64": "I64", "uint64": "U64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}

#: torch.dtype to the number that the C library has for it.
TO_DTYPE = {getattr(torch, t): DTYPES[s] for t, s in _NAMES.items()
            if hasattr(torch, t)}
#: The same the other way.
FROM_DTYPE = {n: t for t, n in TO_DTYPE.items()}
#: The name in safetensors to torch.dtype.
FROM_NAME = {s: getattr(torch, t) for t, s in _NAMES.items()
             if hasattr(torch, t)}


def check_name(name: str, of_tensor: bool) -> None:
    """Refuses what no tensor, or no object, can be called."""
    taken = next((x for x in OBJECTS if name.startswith(x)), None)
    if taken and of_tensor:
        raise ValueError(f"{name!r} begins with {taken!r}, as what Shardkeep "
                         "keeps of objects does; give it another name")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise ValueError(f"the name {name!r} has control characters, or "
                         "surrogates; give it another one")


#: Seconds that the library can be told: it has a word of milliseconds.
_LONGEST = 2**32 // 1000


def lasting(name: str, seconds: float, some: bool = False) -> float:
    """Seconds to wait, of any length; refused by name. ``some``: not 0."""
    try:
        fine = bool(seconds >= 0 and (seconds or not some))
    except TypeError:
        raise TypeError(f"{name}={seconds!r}: a number of seconds") from None
    if not fine:            # or it is not a number
        raise ValueError(f"{name}={seconds!r}: seconds, "
                         f"{'more than 0' if some else '0 or more'}")
    return min(seconds, _LONGEST)


def milliseconds(name: str, seconds: float) -> int:
    """The same, for the library; a part of one is one."""
    return math.ceil(1000 * lasting(name, seconds))


def step_of(step: Any) -> int:
    """A step that somebody named: refused where it only looks like one, which
    no snapshot would be found of."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r}: a whole number") from None
    if not -2**63 <= number < 2**63:
        raise ValueError(f"step={number}: a whole number of 64 bits")
    return number


def number_of(stream: Any) -> int:
    """What the driver knows a ``torch.cuda.Stream`` by."""
    try:
        return int(stream.cuda_stream)
    except AttributeError:
        raise TypeError(f"stream={stream!r}: a torch.cuda.Stream") from None


def dtype_of(name: str, tensor: torch.Tensor) -> int:
    """The C library's number for the dtype of a tensor; refused by name."""
    try:
        return TO_DTYPE[tensor.dtype]
    except KeyError:
        way = "torch.view_as_real(it)" if tensor.is_complex() else \
            "it.view(torch.uint8)"
        raise TypeError(f"{name}: {tensor.dtype} has no place in a "
                        f"safetensors image; {way} has") from None


def _inner(t: torch.Tensor) -> str:
    """Which ones, where it says so."""
    try:
        return f" ({', '.join(t.__tensor_flatten__()[0])})"  # type: ignore
    except Exception:
        return ""


def _of_another_kind(t: torch.Tensor) -> str | None:
    """Why the values of a tensor are not the bytes at its address."""
    if torch.nn.parameter.is_lazy(t):
        return "is not initialized yet; run a batch through its module first"
    if t.is_nested:
        return "is a nested tensor; store its values and offsets"
    if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return (f"is a {type(t).__qualname__}, whose values are in other "
                f"tensors{_inner(t)}; store those, as "
                "shardkeep.torch.dcp.parts() gives them")
    if is_of_a_transformation(t):
        return "is a tensor of a transformation, such as vmap, and has no " \
            "memory outside of it"
    if t.is_quantized:
        return "is quantized; store int_repr(), its scale and zero point"
    if t.layout != torch.strided:
        return f"has the layout {t.layout}; only strided tensors can be stored"
    if t.is_conj() or t.is_neg():
        return "is a view that conjugates or negates what its memory holds; " \
            "resolve_conj() and resolve_neg() it"
    return None


#: Types and dispatch keys whose values were found to be the bytes at their
#: address, on which kind of device. The keys say all that is asked about.
fit: dict[Any, str] = {}


def _kind(t: torch.Tensor) -> Any:
    return (type(t), KINDS(t).raw_repr()) if KINDS else None


def _without_memory(t: torch.Tensor) -> bool:
    """Whether its storage does not hold all of its elements."""
    n = t.numel()
    if not n:
        return False
    end = t.storage_offset() + (n if t.is_contiguous() else 1 + sum(
        (n - 1) * s for n, s in zip(t.shape, t.stride())))
    return not t.data_ptr() or \
        t.untyped_storage().nbytes() < end * t.element_size()


def forget(state: State, name: str) -> None:
    """Has a state describe nothing of that name: whoever was interrupted may
    have had it do so already."""
    with contextlib.suppress(NotFound):
        state.remove(name)


def bytes_of(t: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor of host memory. ``t.numpy()`` gives
    them only where numpy is, which torch can be without."""
    if _without_memory(t):
        raise ValueError("has no memory")
    n = t.numel() * t.element_size()
    return ctypes.string_at(t.data_ptr(), n) if n else b""


def unfit(t: torch.Tensor) -> str | None:
    """Why the bytes of a tensor cannot be stored, None if they can."""
    kind = _kind(t)
    if kind is None or kind not in fit:
        device = t.device.type
        if device == "meta":
            return "is on the meta device and has no bytes; materialize it " \
                "first"
        why = _of_another_kind(t)
        if why is None:
            why = _device.unfit(t)
        if why is not None:
            return why
        if kind is not None:
            fit[kind] = device
    if _without_memory(t):
        return "has no memory: its storage was freed, or is smaller than it"
    return None


def check_local(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its bytes can be copied; refused by name."""
    why = unfit(tensor)
    if why is not None:
        raise ValueError(f"{name} {why}")
    if not tensor.is_contiguous() and any(
            n > 1 and s == 0
            for n, s in zip(tensor.shape, tensor.stride())):
        raise ValueError(f"{name} is expanded: several of its elements share "
                         "memory, and cannot be restored apart; clone it")
    return tensor


@contextlib.contextmanager
def made_to_last() -> Iterator[None]:
    """Tensors that are made within may be written to outside as well, even
    where the caller evaluates in an inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def resolved(t: torch.Tensor) -> torch.Tensor:
    """Its values as its memory has them: views that conjugate or negate are
    computed into memory of their own."""
    return t.resolve_conj().resolve_neg()
