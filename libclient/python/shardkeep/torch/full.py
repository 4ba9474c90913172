# SPDX-License-Identifier: Apache-2.0
"""Whole tensors: a snapshot gathered to one rank, or spread from it.

The bytes come straight out of the node's memory, or from disk, by a reader
beside the living ranks. Where ranks are of several nodes, what the reader's
lacks comes from the others; else no other rank takes part but to learn the
outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import LATEST
from ._common import FROM_NAME, OBJECTS, dtype_of, resolved
from ._reading import Agent, Alone, Described, Question, Several, comm_of
from ._together import together


class _Wanted:
    """Which tensors of a snapshot, and their memory."""

    def __init__(self, job: str, step: int | None, run: int, prefix: str,
                 names: list[str] | None) -> None:
        self.question = Question(job, LATEST if step is None else step, run)
        self._prefix, self._names = prefix, names
        self._found: dict[str, torch.Tensor] = {}

    def _is_wanted(self, t: dict[str, Any]) -> bool:
        name = t["name"]
        return t["kind"] == "tensor" and name.startswith(self._prefix) and \
            not name.startswith(OBJECTS) and (
                self._names is None or
                name[len(self._prefix):] in self._names)

    def describe(self, held: dict[str, Any]) -> Described:
        """As ``State.tensors()`` takes them; memory is made for them."""
        self._found = {t["name"]: torch.empty(t["shape"],
                                              dtype=FROM_NAME[t["dtype"]])
                       for t in held["tensors"] if self._is_wanted(t)}
        missing = set(self._names or ()) - {
            n[len(self._prefix):] for n in self._found}
        if missing:
            raise KeyError(f"{held['job']}, step {held['step']}, has no "
                           f"{', '.join(sorted(missing))}")
        return [(name, dtype_of(name, t), tuple(t.shape), None, (),
                 t.data_ptr() if t.numel() else 0, None, None, None, None)
                for name, t in self._found.items()], self._found

    def found(self) -> dict[str, torch.Tensor]:
        return {name[len(self._prefix):]: t
                for name, t in self._found.items()}


def load_tensors(job: str, step: int | None = None, *, prefix: str = "",
                 names: list[str] | None = None, run: int = 0,
                 socket: str | None = None) -> dict[str, torch.Tensor]:
    """Whole tensors of a snapshot, on the CPU of the caller, as far as its
    own agent has them.

    ``prefix`` takes those whose names begin with it, and leaves it out of
    the names: ``prefix="model."`` for the weights of a ``Checkpointer``.
    """
    if isinstance(names, str):
        raise TypeError(f"names is {names!r}: a list of names is needed")
    wanted = _Wanted(job, step, run, prefix, names)
    _read_alone(Agent(socket), job, wanted)
    return wanted.found()


def _read_alone(agent: Agent, job: str, wanted: _Wanted,
                found: tuple[int, int] | None = None) -> None:
    way = Alone(agent, job)
    with way.in_step():
        run, step = found or (wanted.question.run, wanted.question.step)
        held = way.look(run, step, brief=True)
        way.bring(lambda: wanted.describe(held))


def full_state_dict(job: str, step: int | None = None, *,
                    prefix: str = "model.",
                    group: dist.ProcessGroup | None = None,
                    names: list[str] | None = None, run: int = 0,
                    socket: str | None = None, timeout: float = 300
                    ) -> dict[str, torch.Tensor]:
    """The whole state dict on rank 0, an empty one on the others.

    Every rank must call it; where rank 0 fails, all raise. Where the ranks
    have several agents, what rank 0's lacks comes from the others' memory.
    ``timeout`` is in seconds, for each thing that ranks wait for.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return load_tensors(job, step, prefix=prefix, names=names, run=run,
                            socket=socket)
    comm = comm_of(group or dist.group.WORLD, timeout)
    wanted = _Wanted(job, step, run, prefix, names)
    agent = Agent(socket)
    try:
        way, held, _ = wanted.question.choose(agent, comm)
        if isinstance(way, Several):
            way.bring(lambda: wanted.describe(held) if comm.rank == 0
                      else ([], None))
        else:
            together(comm, "full_state_dict()", lambda: _read_alone(
                agent, job, wanted, (way.run, way.step))
                if comm.rank == 0 else None)
    finally:
        agent.close()
    return wanted.found()


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
