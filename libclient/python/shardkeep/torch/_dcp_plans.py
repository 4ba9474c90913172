# SPDX-License-Identifier: Apache-2.0
"""The framework's plans of what ranks write: whether they agree, and what the
agent is told of them."""

from __future__ import annotations

import io
import math
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import (
    SavePlan, SavePlanner, WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult

from .. import _core
from . import _device, _objects
from ._common import (
    BYTES, PLAN, check_local, check_name, dtype_of, resolved)


def volume(sizes: Any) -> int:
    """How many elements a box of these sizes has."""
    return math.prod(sizes)


def whole_plans(plans: list[SavePlan]) -> list[SavePlan]:
    """What ranks will write, where a planner that caches sends only what is
    new: of the others it has the plans, and none has changed if all lack."""
    if all(getattr(p, "usable", True) for p in plans):
        return plans
    for cached in getattr(SavePlanner, "_cached_global_plan", {}).values():
        if len(cached) == len(plans) and any(p.usable for p in plans) and all(
                p is c or not p.usable for p, c in zip(plans, cached)):
            return cached
    return []


def place_of(plan: SavePlan) -> tuple[int, int, str]:
    """Rank and world of whoever writes a plan; where it meets the others, if
    they have several agents."""
    place = plan.storage_data
    if isinstance(place, tuple) and \
            [type(x) for x in place] == [int, int, str]:
        return place
    raise ValueError(
        f"the planner gives a plan that was made for another storage ({place!r}"
        "); where it caches plans, give it a key of its own for each storage")


def check_boxes(plans: list[SavePlan]) -> None:
    """Every element once: where metadata disagrees with what ranks hold, a
    tensor would lack rows after it was restored, and nobody would know."""
    boxes: dict[str, list[Any]] = {}
    sizes: dict[str, Any] = {}
    for plan in plans:
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                continue
            assert item.tensor_data is not None
            chunk = item.tensor_data.chunk
            sizes[item.index.fqn] = item.tensor_data.size
            if volume(chunk.sizes):
                boxes.setdefault(item.index.fqn, []).append(
                    (tuple(chunk.offsets), tuple(chunk.sizes)))
    for fqn, size in sizes.items():
        mine = boxes.get(fqn, [])
        held = sum(volume(s) for _, s in mine)
        if held != volume(size):
            raise ValueError(
                f"{fqn}: the ranks hold {held} of {volume(size)} elements; "
                "its metadata does not agree with its shards")
        _check_apart(fqn, mine)


def meet(o: Any, s: Any, p: Any, t: Any) -> bool:
    """Whether the boxes at ``o`` and ``p`` share an element."""
    return all(a < b + n and b < a + m
               for a, m, b, n in zip(o, s, p, t))


def _check_apart(fqn: str, boxes: list[Any]) -> None:
    """Refuses boxes that overlap; sorted, so that few are compared."""
    open_: list[Any] = []
    for o, s in sorted(boxes):
        open_ = [(p, t) for p, t in open_ if not p or p[0] + t[0] > o[0]]
        for p, t in open_:
            if meet(o, s, p, t):
                raise ValueError(f"{fqn}: two shards overlap, at {p} and at "
                                 f"{o}")
        open_.append((o, s))


def _object_of(item: WriteItem, planner: SavePlanner) -> Any:
    if _only_looks_up(planner):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO)
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except Exception as e:
        raise TypeError(
            f"{item.index.fqn}: what {type(planner).__qualname__} makes of it "
            f"has no safe form: {e}") from e


def _only_looks_up(planner: SavePlanner) -> bool:
    """Whether an object is written as it is found: planners that convert what
    they write, or rename it, say so by methods of their own."""
    kind = type(planner)
    return all(getattr(kind, m, None) is getattr(DefaultSavePlanner, m)
               for m in ("resolve_data", "transform_object")) and \
        hasattr(planner, "lookup_object")


def describe_plan(plan: SavePlan, planner: SavePlanner, rank: int,
                  about: dict[str, Any]
                  ) -> tuple[list[Any], list[Any], list[WriteResult]]:
    """What to keep alive, the descriptions, the results."""
    keep: list[Any] = []
    boxes: dict[str, list[Any]] = {}
    heads: dict[str, tuple[Any, ...]] = {}
    held: dict[str, list[torch.Tensor]] = {}
    results = []

    def put_bytes(name: str, raw: bytearray) -> int:
        keep.append(raw)
        heads[name] = (name, _core.DTYPES["U8"], (len(raw),))
        boxes[name] = list(_objects.as_parts(raw))
        return len(raw)

    for item in plan.items:
        fqn = item.index.fqn
        check_name(fqn, item.type != WriteItemType.BYTE_IO)
        if item.type == WriteItemType.BYTE_IO:
            size = put_bytes(BYTES + fqn, bytearray(
                _objects.dumps(_object_of(item, planner), fqn)))
        else:
            t = planner.resolve_data(item)
            assert isinstance(t, torch.Tensor) and item.tensor_data
            t = check_local(fqn, resolved(t.detach()))
            chunk = item.tensor_data.chunk
            if tuple(t.shape) != tuple(chunk.sizes) and (
                    t.numel() or volume(chunk.sizes)):
                raise ValueError(
                    f"{fqn}: this rank holds {tuple(t.shape)}, the metadata "
                    f"says {tuple(chunk.sizes)} at {tuple(chunk.offsets)}")
            keep.append(t)
            if t.numel():
                held.setdefault(fqn, []).append(t)
            heads[fqn] = (fqn, dtype_of(fqn, t),
                          tuple(item.tensor_data.size))
            size = t.numel() * t.element_size()
            boxes.setdefault(fqn, []).append(
                (tuple(chunk.offsets), tuple(chunk.sizes),
                 t.data_ptr() if t.numel() else 0,
                 t.stride() if t.numel() else None))
        results.append(WriteResult(index=item.index, size_in_bytes=size,
                                   storage_data=rank))
    put_bytes(f"{PLAN}{rank}",
              bytearray(_objects.dumps(about, "the plan")))
    described = [(*head, None, (), 0, None, None, tuple(boxes[name]),
                  _device.ordinal_of(name, held.get(name, ())))
                 for name, head in heads.items()]
    return keep, described, results
