# SPDX-License-Identifier: Apache-2.0
"""Whole tensors: a snapshot gathered to one rank, or spread from it.

The bytes come straight out of the node's memory, or from disk, by a reader
beside the living ranks. Where ranks are of several nodes, what the reader's
lacks comes from the others; else no other rank takes part but to learn the
outcome.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import LATEST
from ._comm import Comm
from ._common import FROM_NAME, OBJECTS, dtype_of, step_of
from ._reading import Agent, Alone, Described, Question, Several, comm_of
from ._together import together

_SPREAD = "broadcast_from_rank0()"


class _Wanted:
    """Which tensors of a snapshot, and their memory."""

    def __init__(self, job: str, step: int | None, run: int, prefix: str,
                 names: list[str] | None) -> None:
        self.question = Question(
            job, LATEST if step is None else step_of(step), run)
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
        self._found = {t["name"]: torch.empty(
            t["shape"], dtype=FROM_NAME[t["dtype"]], device="cpu")
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
    wanted.question.read(lambda: _read_alone(Agent(socket), job, wanted))
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

    def read(way: Alone, held: dict[str, Any], _: Any) -> None:
        if isinstance(way, Several):
            way.bring(lambda: wanted.describe(held) if comm.rank == 0
                      else ([], None))
        else:
            together(comm, "full_state_dict()", lambda: _read_alone(
                agent, job, wanted, (way.run, way.step))
                if comm.rank == 0 else None)

    try:
        wanted.question.read_together(agent, comm, read)
    finally:
        agent.close()
    return wanted.found()


def _in_order(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from sorted(tensors.items())


def _term(name: str, target: Any,
          full: dict[str, torch.Tensor] | None) -> list[Any]:
    """What one is, which all ranks have to have alike; ``full`` is rank 0's
    alone."""
    if full is not None and name not in full:
        raise KeyError(f"rank 0 has no {name} to tell")
    if full is not None and full[name].shape != target.shape:
        raise ValueError(f"{name} is {tuple(full[name].shape)} on rank 0, and "
                         f"is to be {tuple(target.shape)}")
    return [name, list(target.shape), str(target.dtype)]


def _agree(comm: Comm, full: dict[str, torch.Tensor] | None,
           into: dict[str, Any]) -> None:
    """Nobody waits for a tensor that another rank does not tell, or expect."""
    terms: list[list[Any]] = []

    def look() -> str:
        terms[:] = [_term(name, t, full) for name, t in _in_order(into)]
        return hashlib.sha256(json.dumps(terms).encode()).hexdigest()

    with comm.one_call():
        if len(set(together(comm, _SPREAD, look))) == 1:
            return
        first, *others = ({json.dumps(x) for x in ranks} for ranks in together(
            comm, _SPREAD, lambda: terms))
    rank, odd = next((r, sorted(first ^ x)) for r, x in enumerate(others, 1)
                     if x != first)
    raise ValueError(f"ranks 0 and {rank} mean other tensors: one of them "
                     f"alone has {odd[0]}")


def broadcast_from_rank0(full: dict[str, torch.Tensor],
                         into: dict[str, Any],
                         group: dist.ProcessGroup | None = None,
                         timeout: float = 300) -> None:
    """Writes rank 0's whole tensors into everybody's ``into``, in place.

    ``into`` has plain tensors or DTensors, of the same names and shapes on all
    ranks; each takes its part. Where one has others, or rank 0 lacks any, all
    raise, and nothing is written. Tensors go one by one, so that no rank holds
    more than one whole tensor at a time. ``timeout`` is in seconds, for what
    ranks tell each other before.
    """
    from torch.distributed.tensor import DTensor

    from ._describe import Meshes, describe

    meshes = Meshes()
    comm = comm_of(group or dist.group.WORLD, timeout)
    _agree(comm, full if comm.rank == 0 else None, into)
    spread = comm.spreading()
    for name, target in _in_order(into):
        local = target._local_tensor if isinstance(target, DTensor) else target
        whole = _spread(spread, full[name] if comm.rank == 0 else None,
                        target.shape, local.dtype)
        if not isinstance(target, DTensor):
            target.detach().copy_(whole)
            continue
        describe(name, target, meshes)      # refuses what cannot be said
        if target.device_mesh.get_coordinate() is not None:
            _take_part(whole, target)


def _spread(spread: Callable[[bytearray], None],
            full: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype
            ) -> torch.Tensor:
    """What rank 0 has, which ``full`` is there, on every rank's host. As
    bytes: gloo knows few dtypes."""
    if not shape.numel():
        return torch.empty(shape, dtype=dtype, device="cpu")
    data = bytearray(shape.numel() * dtype.itemsize)
    whole = torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
    if full is not None:
        whole.copy_(full.detach())
    spread(data)
    return whole


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
