# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch modules share: dtypes, tensors as memory, the comm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .. import DTYPES

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
#: The name in safetensors to torch.dtype.
FROM_NAME = {s: getattr(torch, t) for t, s in _NAMES.items()
             if hasattr(torch, t)}


def dtype_of(name: str, tensor: torch.Tensor) -> int:
    """The C library's number for the dtype of a tensor; refused by name."""
    try:
        return TO_DTYPE[tensor.dtype]
    except KeyError:
        raise TypeError(f"{name}: {tensor.dtype} has no place in a "
                        "safetensors image") from None


def check_local(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its bytes can be copied; refused by name."""
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on the meta device and has no bytes; "
                         "materialize it first")
    if tensor.device.type != "cpu":
        raise NotImplementedError(
            f"{name} is on {tensor.device}: this version of Shardkeep copies "
            "tensors of host memory only; offload it to the CPU")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} has the layout {tensor.layout}; only "
                        "strided tensors can be stored")
    if not tensor.is_contiguous() and any(
            n > 1 and s == 0
            for n, s in zip(tensor.shape, tensor.stride())):
        raise ValueError(f"{name} is expanded: several of its elements share "
                         "memory, and cannot be restored apart; clone it")
    return tensor


Allgather = Callable[[bytes, int], bytes]


def allgather_of(group: dist.ProcessGroup | None) -> Allgather | None:
    """The comm that :meth:`State.restore` takes, over a process group.

    None where torch.distributed is not initialized: one rank. The group must
    be able to carry CPU tensors, as gloo does.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return None

    def allgather(mine: bytes, timeout_ms: int) -> bytes:
        send = torch.frombuffer(bytearray(mine or b"\0"), dtype=torch.uint8)
        parts = [torch.empty_like(send)
                 for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, send, group=group)
        if not mine:
            return b""
        return b"".join(p.numpy().tobytes() for p in parts)

    return allgather
