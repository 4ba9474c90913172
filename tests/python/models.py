# SPDX-License-Identifier: Apache-2.0
"""Tensors whose whole value every rank can compute, sharded in many ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard


def whole(name: str, shape: tuple[int, ...],
          dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The value of a tensor of that name."""
    g = torch.Generator().manual_seed(sum(name.encode()) * 7919 + len(shape))
    return torch.randn(shape, generator=g).to(dtype)


def local_part(full: torch.Tensor, mesh: DeviceMesh,
               placements: tuple) -> torch.Tensor:
    """What this rank really holds: strided shards are cut last."""
    at = mesh.get_coordinate()
    part = full
    strided = []
    for d, p in enumerate(placements):
        if isinstance(p, _StridedShard):
            strided.append((d, p))
        elif isinstance(p, Shard):
            part = _chunk(part, p.dim, mesh.size(d), at[d])
    for d, p in strided:
        part = _chunk(part, p.dim, mesh.size(d), at[d])
    return part


def _chunk(t: torch.Tensor, dim: int, n: int, i: int) -> torch.Tensor:
    pieces = t.chunk(n, dim) if t.shape[dim] else ()
    return pieces[i] if i < len(pieces) else t.narrow(dim, 0, 0)


def sharded(full: torch.Tensor, mesh: DeviceMesh, placements: tuple,
            fill: bool = True) -> DTensor:
    """A DTensor with its part of the value, or with rubbish."""
    if mesh.get_coordinate() is None:
        part = torch.empty(0, dtype=full.dtype)
    else:
        part = local_part(full, mesh, placements).contiguous().clone()
    if not fill:
        part.fill_(-7)
    return DTensor.from_local(part, mesh, placements, run_check=False,
                              shape=full.shape, stride=full.stride())


def wrong(t: DTensor, full: torch.Tensor) -> bool:
    """Whether the local part is not what it should be."""
    if t.device_mesh.get_coordinate() is None:
        return False
    return not torch.equal(t._local_tensor, local_part(
        full, t.device_mesh, t.placements))


class Holder(torch.nn.Module):
    """A module with the tensors given as parameters."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, t in tensors.items():
            self.register_parameter(
                name, torch.nn.Parameter(t, requires_grad=False))


__all__ = ["Holder", "Replicate", "Shard", "_StridedShard", "local_part",
           "sharded", "whole", "wrong"]


def full(t: torch.Tensor) -> torch.Tensor:
    if not isinstance(t, DTensor):
        return t.detach()
    if any(isinstance(p, _StridedShard) for p in t.placements):
        return _gathered(t)
    return t.full_tensor()


def _gathered(t: DTensor) -> torch.Tensor:
    """What all ranks hold, each at its place: torch 2.9 puts the rows of
    uneven strided shards elsewhere."""
    places = local_part(torch.arange(t.numel()).reshape(t.shape),
                        t.device_mesh, t.placements)
    held = [(places.reshape(-1), t._local_tensor.detach().reshape(-1))]
    for dim in range(t.device_mesh.ndim):
        told: list[Any] = [None] * t.device_mesh.size(dim)
        dist.all_gather_object(told, held, t.device_mesh.get_group(dim))
        held = [x for each in told for x in each]
    found = torch.empty(t.shape, dtype=t.dtype).reshape(-1)
    for at, values in held:
        found[at] = values
    return found.reshape(t.shape)


def everything(model: torch.nn.Module, optim: Any) -> dict[str, torch.Tensor]:
    """Gathered; on the ranks of each tensor's mesh."""
    found = {n: full(p).clone() for n, p in model.named_parameters()}
    names = {id(p): n for n, p in model.named_parameters()}
    for p, state in optim.state.items():
        for key, t in state.items():
            found[f"{names[id(p)]}.{key}"] = full(t).clone()
    return found
