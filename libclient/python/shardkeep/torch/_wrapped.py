# SPDX-License-Identifier: Apache-2.0
"""Tensors whose values are in other tensors, such as torchao's quantized
weights and the states of its optimizers of few bits.

What has ``__tensor_flatten__()`` says which tensors those are: they are the
bytes that are kept, each under the name of the whole and its own. They come
back in place, into an object of the same make, so no code is ever stored.

Where it is the local part of a DTensor, nothing says how those tensors are
cut: codes and the scales of blocks of them are what this shard was made into.
So each shard's have names of their own, which say what they are a shard of,
and come back into the same shard, on whichever rank that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ._common import made_to_last
from ._flat import FlatPart
from ._versions import Async, flattens

_WHOLE = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (*_WHOLE, DTensor)


def is_wrapped(t: Any) -> bool:
    """Whether its values are in tensors that it names; what a collective has
    yet to bring is none of its own."""
    return type(t) not in _PLAIN and isinstance(t, torch.Tensor) and \
        not isinstance(t, DTensor) and not isinstance(t, Async) and \
        not t.is_nested and flattens(t)


def has_parts(t: Any) -> bool:
    """Whether it, or what this rank holds of it, is one of those."""
    if type(t) in _WHOLE:       # each restore asks of all
        return False
    if isinstance(t, DTensor):
        t = t._local_tensor
    return type(t) not in _PLAIN and is_wrapped(t)


def _shard_of(t: DTensor) -> str:
    """Which shard of it this rank holds, of how many along which dimension:
    "dim0-1of4"; "" where nothing is cut."""
    mesh, told = t.device_mesh, []
    at = mesh.get_coordinate() or [0] * mesh.ndim
    for i, p in enumerate(t.placements):
        if p.is_replicate():
            continue
        split = getattr(p, "split_factor", None)
        told.append(f"dim{getattr(p, 'dim', '')}-{at[i]}of{mesh.size(i)}" +
                    (f"by{split}" if split is not None else ""))
    return "-".join(told)


def parts_of(name: str, t: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that have the values of one, by name: mostly itself."""
    if not has_parts(t):
        yield name, t
    elif isinstance(t, DTensor):
        shard = _shard_of(t)
        for part, x in parts_of(f"{name}.{shard}" if shard else name,
                                t._local_tensor):
            yield part, FlatPart(x, None, 0)    # the ranks that have it know
    else:
        for inner in t.__tensor_flatten__()[0]:
            yield from parts_of(f"{name}.{inner}", getattr(t, inner))


def places_of(where: Any, key: str) -> Iterator[tuple[Any, str]]:
    """The dicts that those are in, and their keys there; None for the dict
    of one that only a property or a slot shows."""
    t = where[key]
    if not has_parts(t):
        yield where, key
        return
    mine = getattr(t, "__dict__", {})
    inners = t.__tensor_flatten__()[0] if is_wrapped(t) else [key]
    for inner in inners:
        if isinstance(mine.get(inner), torch.Tensor):
            yield from places_of(mine, inner)
        else:
            yield None, inner


def wrapped_in(t: Any) -> Iterator[Any]:
    """It, if it is one of those, and those of them that it has values in."""
    if is_wrapped(t):
        yield t
        for inner in t.__tensor_flatten__()[0]:
            yield from wrapped_in(getattr(t, inner))


def parts(state: Any) -> Any:
    """A state dict with dicts of those in the place of each tensor that has
    its values in others, as ``dcp.save()`` and ``dcp.load()`` can take it:
    the same memory, so what is loaded comes back in place."""
    if isinstance(state, dict):
        return {key: parts(x) for key, x in state.items()}
    if type(state) in (list, tuple):
        return type(state)(parts(x) for x in state)
    if not has_parts(state):
        return state
    if isinstance(state, DTensor):
        shard, local = _shard_of(state), parts(state._local_tensor)
        return {shard: local} if shard else local
    return {inner: parts(getattr(state, inner))
            for inner in state.__tensor_flatten__()[0]}


def kept_beside(t: Any) -> list[str]:
    """The tensors that one of a derived type has as attributes, beside the
    values at its address: without them those may mean nothing."""
    if type(t) in _PLAIN or not isinstance(t, torch.Tensor) or \
            isinstance(t, DTensor) or is_wrapped(t):
        return []
    return sorted(key for key, x in getattr(t, "__dict__", {}).items()
                  if isinstance(x, torch.Tensor))


def has_part(mine: dict[str, Any], key: str) -> bool:
    """Whether one of an optimizer's tensors is called so, or has its values
    in what may be: of one in shards, another rank's are no part of ours."""
    return isinstance(mine.get(key), torch.Tensor) or "." in key and any(
        has_parts(t) and key.startswith(k + ".")
        for k, t in mine.items() if isinstance(k, str))


@made_to_last()
def step_once(optim: torch.optim.Optimizer) -> None:
    """Has a fresh optimizer make its state as only it knows how: by a step
    with gradients of zero, at a learning rate of zero."""
    params = [p for g in optim.param_groups for p in g["params"]
              if p.requires_grad and p.grad is None]
    rates = [g.get("lr") for g in optim.param_groups]
    for p in params:
        p.grad = torch.zeros_like(p)
    for g, rate in zip(optim.param_groups, rates):
        if rate is not None:
            g["lr"] = torch.zeros_like(rate) \
                if isinstance(rate, torch.Tensor) else 0.0
    try:
        optim.step()
    finally:
        for p in params:
            p.grad = None
        for g, rate in zip(optim.param_groups, rates):
            if rate is not None:
                g["lr"] = rate
