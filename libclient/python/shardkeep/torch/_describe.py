# SPDX-License-Identifier: Apache-2.0
"""Tensors as the C library wants them described.

A DTensor brings its mesh and placements; the shape of its local part is given
along, so that the library refuses what does not agree with its arithmetic
before anything is written. Anything else is whole on every rank that has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from .. import Mesh, _core
from . import _device
from ._common import TO_DTYPE, bytes_of, check_local, dtype_of, fit
from ._flat import FlatPart
from ._versions import EXCHANGE, KINDS, STRIDED

Description = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _Placed:
    """What all DTensors of one mesh and one list of placements share."""

    device_mesh: Any        # kept, so that its id means nothing else
    mesh: Mesh
    placements: tuple[tuple[int, int, int], ...]
    outside: bool           # whether this rank is not in the mesh


class Meshes:
    """Meshes by what they are: one object for each."""

    def __init__(self) -> None:
        self._made: dict[Any, Mesh] = {}
        self._placed: dict[Any, _Placed] = {}

    def get(self, shape: tuple[int, ...], ranks: tuple[int, ...],
            names: tuple[str, ...] | None = None) -> Mesh:
        key = (shape, ranks, names)
        if key not in self._made:
            self._made[key] = Mesh(shape, ranks, names)
        return self._made[key]

    def of(self, mesh: Any) -> Mesh:
        """The mesh of a DeviceMesh, as this rank sees it."""
        ranks = mesh.mesh
        names = mesh.mesh_dim_names
        return self.get(tuple(ranks.shape),
                        tuple(int(r) for r in ranks.flatten().tolist()),
                        tuple(names) if names else None)

    def placed(self, name: str, t: DTensor) -> _Placed:
        """Mesh and placements of a DTensor; refused by name."""
        spec = t._spec
        key = (id(spec.mesh), spec.placements)
        found = self._placed.get(key)
        if found is None:
            found = _Placed(
                spec.mesh, self.of(spec.mesh),
                tuple(_placement(name, p) for p in spec.placements),
                spec.mesh.get_coordinate() is None)
            self._placed[key] = found
        return found


def _placement(name: str, p: Any) -> tuple[int, int, int]:
    if isinstance(p, Replicate):
        return (_core.REPLICATE, 0, 0)
    split = getattr(p, "split_factor", None)
    if split is not None and hasattr(p, "dim"):
        return (_core.STRIDED_SHARD, p.dim, split)
    if isinstance(p, Shard):
        return (_core.SHARD, p.dim, 0)
    raise ValueError(f"{name} is placed as {p}: a pending reduction has no "
                     "value that could be stored; redistribute it first")


def locals_of(tensor: Any) -> list[torch.Tensor]:
    """The memory that this rank holds of a tensor."""
    if isinstance(tensor, FlatPart):
        return [tensor.base]
    if isinstance(tensor, DTensor):
        return [tensor._local_tensor]
    if hasattr(tensor, "local_shards"):
        return [shard.tensor for shard in tensor.local_shards()]
    return [tensor]


def parts_of(tensor: Any) -> list[torch.Tensor]:
    """What has values of a tensor, and who writes to it writes to."""
    return locals_of(tensor) + ([tensor] if isinstance(tensor, DTensor) else
                                [])


def _pointer(t: torch.Tensor) -> int:
    return t.data_ptr() if t.numel() else 0


def _from_dtensor(name: str, t: DTensor, meshes: Meshes) -> Description:
    placed = meshes.placed(name, t)
    local = check_local(name, t._local_tensor)
    shape = tuple(t._spec.shape)
    # What is empty here may have any shape: what cuts it says which dimension
    # it ends with. Elements that should be there have no memory: refused.
    some = local.numel()
    return (name, dtype_of(name, local), shape, placed.mesh,
            placed.placements, local.data_ptr() if some else 0,
            local.stride() if some else None,
            tuple(local.shape) if some and not placed.outside else None, None,
            _device.ordinal(local) if some else None)


def _from_sharded(name: str, t: Any) -> Description:
    parts, held = [], []
    for shard in t.local_shards():
        local = check_local(name, shard.tensor)
        if not local.numel():
            continue
        held.append(local)
        parts.append((tuple(shard.metadata.shard_offsets),
                      tuple(shard.metadata.shard_sizes), local.data_ptr(),
                      local.stride()))
    return (name, dtype_of(name, t), tuple(t.size()), None, (), 0, None, None,
            tuple(parts), _device.ordinal_of(name, held))


def says_its_shards(t: Any) -> bool:
    """Whether it is a local tensor that says which boxes of a global one it
    holds: the CheckpointableTensor protocol of distributed checkpoint."""
    return isinstance(t, torch.Tensor) and all(
        hasattr(t, a) for a in ("global_shape", "global_offsets",
                                "local_offsets", "local_sizes"))


def _from_shards(name: str, t: Any) -> Description:
    local = check_local(name, t)
    parts = []
    for offset, at, size in zip(t.global_offsets, t.local_offsets,
                                t.local_sizes, strict=True):
        if len(size) != len(t.global_shape):
            raise ValueError(f"{name} has shards of {len(size)} dimensions "
                             f"and is {tuple(t.global_shape)} as a whole")
        part = local[tuple(slice(a, a + n) for a, n in zip(at, size))] \
            if at else local
        if part.numel():
            parts.append((tuple(offset), tuple(size), part.data_ptr(),
                          part.stride()))
    return (name, dtype_of(name, t), tuple(t.global_shape), None, (), 0,
            None, None, tuple(parts), _device.ordinal(local))


def describe(name: str, t: Any, meshes: Meshes,
             holders: tuple[int, ...] | None = None,
             owner: Any = None) -> Description:
    """The tuple of ``State.tensors``.

    Of a tensor which is whole, ``holders`` are the ranks that have it, None
    all of them; what belongs to a DTensor, its ``owner``, is on the ranks of
    its mesh.
    """
    if isinstance(t, DTensor):
        return _from_dtensor(name, t, meshes)
    if isinstance(t, FlatPart):
        return (name, dtype_of(name, t.base), t.shape, None, (), 0, None,
                None, t.parts(name), _device.ordinal(t.base))
    if hasattr(t, "local_shards"):
        return _from_sharded(name, t)
    if says_its_shards(t):
        return _from_shards(name, t)
    check_local(name, t)
    mesh, dims = None, 0
    if isinstance(owner, DTensor):
        placed = meshes.placed(name, owner)
        mesh, dims = placed.mesh, len(placed.placements)
    elif holders:
        mesh, dims = meshes.get((len(holders),), holders), 1
    return (name, dtype_of(name, t), tuple(t.shape), mesh,
            ((_core.REPLICATE, 0, 0),) * dims, _pointer(t),
            t.stride() if t.numel() else None, tuple(t.shape), None,
            _device.ordinal(t) if t.numel() else None)


def in_memory(described: Description, local: torch.Tensor | None
              ) -> Description:
    """The same, of a tensor of the same form that lies elsewhere."""
    if local is None:
        return described
    return (*described[:5], local.data_ptr(), local.stride(), *described[7:])


#: Whose data the framework's functions for C show as it is.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_PLACEMENTS = tuple(
    (kind, number) for kind, number in (
        (Replicate, _core.REPLICATE), (Shard, _core.SHARD),
        (STRIDED, _core.STRIDED_SHARD)) if kind is not None)


def usual(meshes: Meshes, sharded: type = DTensor) -> _core.Usual | None:
    """How the library reads what most tensors are, as :func:`describe` would;
    None where the framework does not show them to it."""
    if EXCHANGE is None or KINDS is None:
        return None
    plain = tuple(x for x in _PLAIN if not hasattr(x, "local_shards")
                  and not hasattr(x, "global_shape"))
    return _core.Usual(EXCHANGE, KINDS, fit, plain, sharded, _PLACEMENTS,
                       meshes.placed, TO_DTYPE, _samples())


_Sample = tuple[Any, int, int, int, int, int]
_made: list[_Sample] = []


@contextlib.contextmanager
def _out_of_modes() -> Iterator[None]:
    """Whatever the caller is in, tensors are what they are without it."""
    from torch._functorch.pyfunctorch import (
        temporarily_clear_interpreter_stack)
    from torch.utils._python_dispatch import _disable_current_modes
    with (torch.inference_mode(False), torch._C.DisableTorchFunction(),
          temporarily_clear_interpreter_stack(), _disable_current_modes()):
        yield


def _samples() -> tuple[_Sample, ...]:
    """Tensors of which no two answer alike, and what they do: by those the
    library finds where it stands. None where one cannot be asked."""
    if not _made:
        with contextlib.suppress(Exception), _out_of_modes():
            _made.extend([_sample(t) for t in _different()])
    return tuple(_made)


def _different() -> Iterator[torch.Tensor]:
    yield torch.zeros(7, device="cpu")[3:]
    yield torch.nn.Parameter(torch.zeros(2, 3, device="cpu"))
    yield torch.zeros(5, dtype=torch.complex64, device="cpu")[1:].conj()
    yield torch._neg_view(torch.zeros(11, device="cpu")[2:])
    yield torch.empty(13, device="meta")


def _sample(t: Any) -> _Sample:
    storage = t.untyped_storage()
    return (t, t._cdata, storage._cdata, KINDS(t).raw_repr() if KINDS else 0,
            t.storage_offset(), storage.nbytes())


def some_values(t: torch.Tensor) -> bytes:
    """A few of a tensor's first ones, b"" where there are none to be had."""
    try:
        row = t.detach()
        while row.dim() > 1:
            row = row[0]
        return bytes_of(row.reshape(-1)[:16].cpu().contiguous())
    except Exception:   # it is refused by its name, or has no memory yet
        return b""


def is_whole(t: Any) -> bool:
    """Whether nothing says how the tensor is sharded."""
    return not (isinstance(t, (DTensor, FlatPart)) or
                hasattr(t, "local_shards") or says_its_shards(t))
