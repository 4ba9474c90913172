# SPDX-License-Identifier: Apache-2.0
"""Tensors whose values are in other tensors, such as torchao's quantized
weights and the states of its optimizers of few bits.

What has ``__tensor_flatten__()`` says which tensors those are: they are the
bytes that are kept, each under the name of the whole and its own. They come
back in place, into an object of the same make, so no code is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter, DTensor)


def is_wrapped(t: Any) -> bool:
    """Whether its values are in tensors that it names."""
    return type(t) not in _PLAIN and isinstance(t, torch.Tensor) and \
        not isinstance(t, DTensor) and not t.is_nested and \
        is_traceable_wrapper_subclass(t)


def parts_of(name: str, t: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that have the values of one, by name: mostly itself."""
    if not is_wrapped(t):
        yield name, t
        return
    for inner in t.__tensor_flatten__()[0]:
        yield from parts_of(f"{name}.{inner}", getattr(t, inner))


def places_of(where: Any, key: str) -> Iterator[tuple[Any, str]]:
    """The dicts that those are in, and their keys there; None for the dict
    of one that only a property or a slot shows."""
    t = where[key]
    if not is_wrapped(t):
        yield where, key
        return
    mine = getattr(t, "__dict__", {})
    for inner in t.__tensor_flatten__()[0]:
        if isinstance(mine.get(inner), torch.Tensor):
            yield from places_of(mine, inner)
        else:
            yield None, inner


def kept_beside(t: Any) -> list[str]:
    """The tensors that one of a derived type has as attributes, beside the
    values at its address: without them those may mean nothing."""
    if type(t) in _PLAIN or not isinstance(t, torch.Tensor) or \
            isinstance(t, DTensor) or is_wrapped(t):
        return []
    return sorted(key for key, x in getattr(t, "__dict__", {}).items()
                  if isinstance(x, torch.Tensor))


def has_part(mine: dict[str, Any], key: str) -> bool:
    """Whether one of an optimizer's tensors, or a part of one, is called
    so."""
    return key in mine or "." in key and any(
        is_wrapped(t) and any(key == name for name, _ in parts_of(k, t))
        for k, t in mine.items()
        if isinstance(k, str) and key.startswith(k + "."))


@torch.no_grad()
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
