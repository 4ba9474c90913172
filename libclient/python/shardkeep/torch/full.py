# SPDX-License-Identifier: Apache-2.0
"""Whole tensors: a snapshot gathered to one rank, or spread from it.

The bytes come straight out of the node's memory, or from disk, by a reader
beside the living ranks: no collective moves them, and no other rank takes
part but to learn the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import LATEST, Client, State, _core, inspect
from ._common import FROM_NAME, OBJECTS, dtype_of, resolved


def load_tensors(job: str, step: int | None = None, *, prefix: str = "",
                 names: list[str] | None = None, run: int = 0,
                 socket: str | None = None) -> dict[str, torch.Tensor]:
    """Whole tensors of a snapshot, on the CPU of the caller.

    ``prefix`` takes those whose names begin with it, and leaves it out of
    the names: ``prefix="model."`` for the weights of a ``Checkpointer``.
    """
    client = Client(socket)
    state = None
    try:
        held = inspect(client, job, LATEST if step is None else step, run,
                       brief=True)
        found = {t["name"]: torch.empty(t["shape"],
                                        dtype=FROM_NAME[t["dtype"]])
                 for t in held["tensors"]
                 if t["kind"] == "tensor" and t["name"].startswith(prefix)
                 and not t["name"].startswith(OBJECTS)
                 and (names is None or t["name"][len(prefix):] in names)}
        missing = set(names or ()) - {n[len(prefix):] for n in found}
        if missing:
            raise KeyError(f"{job}, step {held['step']}, has no "
                           f"{', '.join(sorted(missing))}")
        state = State(client, job, 0, 1, flags=_core.JOB_READER)
        state.tensors([(name, dtype_of(name, t), tuple(t.shape), None, (),
                        t.data_ptr() if t.numel() else 0, None, None, None)
                       for name, t in found.items()], found)
        if found:
            state.restore(held["step"], run=held["run"], names=list(found))
    finally:
        if state is not None:
            state.close()
        client.close()
    return {name[len(prefix):]: t for name, t in found.items()}


def full_state_dict(job: str, step: int | None = None, *,
                    prefix: str = "model.",
                    group: dist.ProcessGroup | None = None,
                    **kwargs: Any) -> dict[str, torch.Tensor]:
    """The whole state dict on rank 0, an empty one on the others.

    Every rank must call it; where rank 0 fails, all raise.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return load_tensors(job, step, prefix=prefix, **kwargs)
    found: dict[str, torch.Tensor] = {}
    failure: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            found = load_tensors(job, step, prefix=prefix, **kwargs)
        except Exception as e:
            failure = e
    bad = torch.tensor([failure is not None], dtype=torch.uint8)
    dist.broadcast(bad, group_src=0, group=group)
    if failure is not None:
        raise failure
    if bad.item():
        raise RuntimeError("rank 0 could not gather the state; it says why")
    return found


def _in_order(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from sorted(tensors.items())


def broadcast_from_rank0(full: dict[str, torch.Tensor],
                         into: dict[str, Any],
                         group: dist.ProcessGroup | None = None) -> None:
    """Writes rank 0's whole tensors into everybody's ``into``, in place.

    ``into`` has plain tensors or DTensors; each takes its part. Tensors go
    one by one, so that no rank holds more than one whole tensor at a time.
    """
    from torch.distributed.tensor import DTensor

    from ._describe import Meshes, describe

    meshes = Meshes()
    rank0 = dist.get_rank(group) == 0
    for name, target in _in_order(into):
        local = target._local_tensor if isinstance(target, DTensor) else target
        whole = (resolved(full[name].detach().to("cpu", local.dtype)
                          ).contiguous()
                 if rank0
                 else torch.empty(target.shape, dtype=local.dtype))
        if tuple(whole.shape) != tuple(target.shape):
            raise ValueError(f"{name} is {tuple(whole.shape)} on rank 0 and "
                             f"{tuple(target.shape)} here")
        dist.broadcast(whole, group_src=0, group=group)
        if not isinstance(target, DTensor):
            target.detach().copy_(whole)
            continue
        describe(name, target, meshes)      # refuses what cannot be said
        if target.device_mesh.get_coordinate() is not None:
            _take_part(whole, target)


def _take_part(whole: torch.Tensor, target: Any) -> None:
    """What this rank holds: strided shards are cut last."""
    at = target.device_mesh.get_coordinate()
    order = sorted(range(len(target.placements)), key=lambda d: hasattr(
        target.placements[d], "split_factor"))
    for d in order:
        p = target.placements[d]
        if not hasattr(p, "dim"):
            continue
        n, k = whole.shape[p.dim], target.device_mesh.size(d)
        chunk = math.ceil(n / k) if n else 0
        start = min(n, at[d] * chunk)
        whole = whole.narrow(p.dim, start, min(n, start + chunk) - start)
    target._local_tensor.detach().copy_(whole)
