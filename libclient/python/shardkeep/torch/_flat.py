# SPDX-License-Identifier: Apache-2.0
"""FSDP1's flat parameters as parts of the tensors that were flattened.

A rank of FSDP1 holds an interval of the concatenation of several parameters.
Of each parameter that is an interval of its elements in row-major order,
which is a few boxes: the end of a row, whole rows, the beginning of a row, in
every dimension. With the boxes an image says what it holds of which tensor,
by FQN, and any other mesh can read it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from ._common import check_local
from ._versions import fsdp1

#: Offset and size of a box, and where in the interval its elements begin.
Box = tuple[tuple[int, ...], tuple[int, ...], int]


def boxes_of(shape: tuple[int, ...], start: int, end: int,
             at: int = 0) -> list[Box]:
    """Elements ``start`` to ``end`` of a row-major tensor, as boxes."""
    if end <= start:
        return []
    if len(shape) == 1:
        return [((start,), (end - start,), at)]
    row = math.prod(shape[1:])
    first, last = -(-start // row), end // row
    found: list[Box] = []

    def part_of_row(i: int, a: int, b: int) -> None:
        for o, s, place in boxes_of(shape[1:], a - i * row, b - i * row,
                                    at + a - start):
            found.append(((i, *o), (1, *s), place))

    if first > last:        # all within one row
        part_of_row(last, start, end)
        return found
    if start < first * row:
        part_of_row(first - 1, start, first * row)
    if first < last:
        found.append(((first, *(0,) * (len(shape) - 1)),
                      (last - first, *shape[1:]), at + first * row - start))
    if last * row < end:
        part_of_row(last, last * row, end)
    return found


@dataclasses.dataclass(frozen=True)
class Piece:
    """What this rank holds of one parameter that was flattened."""

    fqn: str
    shape: tuple[int, ...]      # of the whole tensor
    boxes: tuple[Box, ...]
    begin: int                  # where they begin in the flat shard
    numel: int                  # of this rank's part
    flat: Any                   # the FlatParameter
    shared: bool                # whether the optimizer steps the flat one
    whole: bool                 # every rank has all of it: nothing is sharded

    def shard(self) -> torch.Tensor:
        """This rank's part of the flat parameter, as it is now."""
        local = getattr(self.flat, "_local_shard", None)
        return (self.flat.data if local is None else local).detach()

    def state_numel(self) -> int:
        """Elements of optimizer state that goes element by element."""
        return self.shard().numel() if self.shared else self.numel

    def _part(self, t: torch.Tensor, begin: int) -> torch.Tensor | FlatPart:
        if self.whole:
            return t.view(-1)[begin:begin + self.numel].view(self.shape)
        return FlatPart(t, self, begin)

    def parameter(self) -> torch.Tensor | FlatPart:
        return self._part(self.shard(), self.begin)

    def state(self, t: torch.Tensor) -> torch.Tensor | FlatPart:
        """Optimizer state: like the parameter, or one number for all."""
        if t.dim() == 0 or t.numel() != self.state_numel():
            # A rank without elements of it steps nothing: what number stands
            # there is nobody's.
            return t if self.whole else FlatPart(t, None, 0,
                                                 self.state_numel() > 0)
        return self._part(t, self.begin if self.shared else 0)


@dataclasses.dataclass(frozen=True)
class FlatPart:
    """A tensor whose elements from ``begin`` on are a piece of another's;
    with no piece, a tensor that some ranks hold whole, if this one does."""

    base: torch.Tensor
    piece: Piece | None
    begin: int
    held: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.piece.shape if self.piece else tuple(self.base.shape)

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def is_meta(self) -> bool:
        return self.base.is_meta

    def parts(self, name: str) -> tuple[Any, ...]:
        """The boxes with their memory, for ``State.tensors``."""
        base = check_local(name, self.base)
        if self.piece is None:
            if not base.numel() or not self.held:
                return ()
            return (((0,) * base.dim(), tuple(base.shape), base.data_ptr(),
                     base.stride()),)
        if not base.is_contiguous():
            raise ValueError(f"{name}: the flat tensor it is a part of is "
                             "not contiguous")
        step = base.element_size()
        return tuple((offset, size, base.data_ptr() + (self.begin + at) * step,
                      None) for offset, size, at in self.piece.boxes)


def _moved(boxes: list[Box], by: tuple[int, ...]) -> Iterator[Box]:
    for offset, size, at in boxes:
        yield tuple(a + b for a, b in zip(offset, by)), size, at


def _whole_of(fqn: str, shape: tuple[int, ...], spec: Any
              ) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the tensor, and where the part that was flattened lies:
    under tensor parallelism that was a DTensor's local part."""
    if spec is None:
        return shape, (0,) * len(shape)
    if not hasattr(spec, "placements"):
        raise ValueError(f"{fqn} was flattened by an extension that "
                         "Shardkeep does not know")
    from torch.distributed.tensor._utils import (
        compute_local_shape_and_global_offset)
    local, offset = compute_local_shape_and_global_offset(
        spec.shape, spec.mesh, spec.placements)
    if tuple(local) != shape:
        raise ValueError(f"{fqn} has the local shape {shape}, its placements "
                         f"say {tuple(local)}")
    return tuple(spec.shape), tuple(offset)


def _pieces_of(handle: Any, prefix: str) -> Iterator[tuple[Piece, Any]]:
    flat = handle.flat_param
    own = flat._params or [flat] * flat._num_params
    for i, fqn in enumerate(flat._fqns):
        name = prefix + fqn
        if not flat._contiguities[i]:
            raise ValueError(f"{name} is not contiguous, and FSDP1 flattened "
                             "it in its own order; make it contiguous, or "
                             "use fully_shard")
        info = flat._shard_param_infos[i]
        shape, at = _whole_of(name, tuple(flat._shapes[i]),
                              flat._param_extensions[i])
        boxes: list[Box] = []
        if info.in_shard:
            boxes = boxes_of(tuple(flat._shapes[i]),
                             info.intra_param_start_idx,
                             info.intra_param_end_idx + 1)
        yield Piece(name, shape, tuple(_moved(boxes, at)),
                    info.offset_in_shard or 0, info.numel_in_shard or 0,
                    flat, flat._params is None,
                    not handle.uses_sharded_strategy and
                    math.prod(shape) == flat._numels[i]), own[i]


def _wrapping(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Its modules that have flattened something, by name."""
    kind = fsdp1() or ()
    for name, module in model.named_modules():
        if isinstance(module, kind) and module._handle:
            yield name, module._handle


def pieces_of(model: torch.nn.Module) -> Iterator[tuple[Piece, Any]]:
    """Each flattened parameter of a model, with the parameter that the
    optimizer steps for it: itself, or the flat one."""
    for prefix, handle in _wrapping(model):
        yield from _pieces_of(handle, f"{prefix}." if prefix else "")


def flattened_ids(model: torch.nn.Module) -> set[int]:
    """The ids of what a walk over the modules must pass over: the flat
    parameters, and the views of them."""
    found: set[int] = set()
    for _, handle in _wrapping(model):
        flat = handle.flat_param
        found.update(map(id, [flat, *(flat._params or ()),
                              *(flat._shared_params or ()),
                              *(flat._tensors or ())]))
    return found
