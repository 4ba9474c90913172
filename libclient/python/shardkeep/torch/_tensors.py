# SPDX-License-Identifier: Apache-2.0
"""The live tensors of a model and its optimizer, by FQN."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ._flat import Piece, flattened_ids, pieces_of

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.",
             "_fsdp_wrapped_module.")


def clean_name(name: str) -> str:
    """An FQN without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def as_list(x: Any) -> list[Any]:
    """One, several or none, as a list."""
    if x is None:
        return []
    return list(x) if isinstance(x, (list, tuple)) else [x]


class Watch:
    """Whether tensors, and what holds them, are as they were.

    Every snapshot looks at every tensor's address, shape and strides: this is
    the loop that does it, as short as it can be. A tensor that was replaced,
    reallocated, resized, added or lost is seen.
    """

    def __init__(self, sizes: list[tuple[Any, int]],
                 states: list[tuple[Any, Any]],
                 places: list[tuple[Any, str]],
                 params: list[tuple[Any, Any, tuple[Any, ...]]],
                 pieces: list[Piece]) -> None:
        self._sizes, self._states, self._params = sizes, states, params
        self._flats = [(x, x.shard().data_ptr(), x.shard().numel())
                       for x in pieces]
        self._tensors: list[tuple[Any, ...]] = []
        self._locals: list[tuple[DTensor, torch.Tensor]] = []
        #: False where tensors say themselves what they hold.
        self.exact = True
        for where, key in places:
            t = local = where[key]
            if isinstance(t, DTensor):
                local = t._local_tensor
                self._locals.append((t, local))
            elif hasattr(t, "local_shards") or hasattr(t, "global_offsets"):
                self.exact = False
                return
            self._tensors.append((where, key, t, local, local.data_ptr(),
                                  local.shape, local.stride(), local.dtype))

    def holds(self) -> bool:
        """Whether nothing changed since."""
        if not self.exact:
            return False
        for d, n in self._sizes:
            if len(d) != n:
                return False
        for optim, state in self._states:
            if optim.state is not state:
                return False
        for group, params, was in self._params:
            if group["params"] is not params or not all(
                    map(operator.is_, params, was)):
                return False
        for piece, at, numel in self._flats:
            now = piece.shard()
            if now.data_ptr() != at or now.numel() != numel:
                return False
        for dt, local in self._locals:
            if dt._local_tensor is not local:
                return False
        for where, key, t, local, at, shape, stride, dtype in self._tensors:
            if (where.get(key) is not t or local.data_ptr() != at or
                    local.shape != shape or local.stride() != stride or
                    local.dtype is not dtype):
                return False
        return True


class LiveTensors:
    """The live tensors of models and optimizers, by name.

    The modules are walked once. Afterwards each tensor is looked up in the
    dict that holds it, so that one that was replaced is seen; a module that
    was added or lost changes a size, and they are walked again.
    """

    def __init__(self, models: list[torch.nn.Module],
                 optims: list[torch.optim.Optimizer]) -> None:
        self.models, self.optims = models, optims
        self._walk()

    def _walk(self) -> None:
        self._dicts: list[tuple[Any, int]] = []
        self._places: list[tuple[Any, str, str]] = []
        self._names: dict[int, list[str]] = {}  # of parameters, by id
        self.pieces: dict[str, Piece] = {}      # of flat parameters, by FQN
        self._taken: set[str] = set()
        self._fsdp2: list[Any] = []
        seen: set[int] = set()
        for model in self.models:
            model = getattr(model, "_orig_mod", model)
            if isinstance(model, torch.nn.parallel.DistributedDataParallel):
                model = model.module
            self._walk_one(model, seen)

    def _walk_one(self, model: torch.nn.Module, seen: set[int]) -> None:
        for piece, p in pieces_of(model):
            piece = dataclasses.replace(piece, fqn=clean_name(piece.fqn))
            self._once("model." + piece.fqn)
            self.pieces[piece.fqn] = piece
            self._names.setdefault(id(p), []).append(piece.fqn)
        seen |= flattened_ids(model)
        self._fsdp2 += [m for m in model.modules()
                        if isinstance(m, FSDPModule)]
        for prefix, module in model.named_modules():
            for d in (module._parameters, module._buffers, module._modules):
                self._dicts.append((d, len(d)))
            dot = f"{prefix}." if prefix else ""
            for key, t in module._parameters.items():
                if t is not None and id(t) not in seen:
                    self._names[id(t)] = [clean_name(dot + key)]
                self._place(module._parameters, key, t, dot, seen)
            for key, t in module._buffers.items():
                if key not in module._non_persistent_buffers_set:
                    self._place(module._buffers, key, t, dot, seen)

    def _place(self, where: Any, key: str, t: Any, dot: str,
               seen: set[int]) -> None:
        if t is None or id(t) in seen:     # tied: kept once
            return
        seen.add(id(t))
        name = "model." + clean_name(dot + key)
        self._once(name)
        self._places.append((where, key, name))

    def _once(self, name: str) -> None:
        if name in self._taken:
            raise ValueError(f"two tensors are called {name}")
        self._taken.add(name)

    def names_of(self, p: torch.nn.Parameter) -> list[str]:
        """The FQNs of a parameter: several of a flat one, [""] of one that
        is not the model's."""
        return self._names.get(id(p), [""])

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter,
                                           torch.optim.Optimizer]]:
        """Those that the optimizers step, with their names."""
        for optim in self.optims:
            for group in optim.param_groups:
                for p in group["params"]:
                    if id(p) not in self._names:
                        self._walk()
                    for name in self.names_of(p):
                        yield name, p, optim

    def items(self) -> list[tuple[str, Any]]:
        """All tensors as they are now."""
        for module in self._fsdp2:
            module.reshard()    # what a forward pass may have left whole
        if any(len(d) != n for d, n in self._dicts):
            self._walk()
        found = [(name, where[key]) for where, key, name in self._places
                 if where[key] is not None]
        found += [("model." + fqn, piece.parameter())
                  for fqn, piece in self.pieces.items()]
        for fqn, p, optim in self.parameters():
            mine = optim.state.get(p)
            if not mine:
                continue
            if not fqn:
                raise ValueError("the optimizer steps a parameter that is "
                                 "not the model's")
            piece = self.pieces.get(fqn)
            found += [(f"optim.state.{fqn}.{key}",
                       piece.state(t) if piece else t)
                      for key, t in mine.items()
                      if isinstance(t, torch.Tensor)]
        return found

    def watch(self) -> Watch:
        """What tells whether all is as :meth:`items` just found it."""
        places = [(where, key) for where, key, _ in self._places
                  if where[key] is not None]
        sizes: list[tuple[Any, int]] = list(self._dicts)
        states = []
        for optim in self.optims:
            states.append((optim, optim.state))
            sizes += [(optim.state, len(optim.state)),
                      (optim.param_groups, len(optim.param_groups))]
        for group in self.param_groups():
            sizes.append((group["params"], len(group["params"])))
        for optim in self.optims:
            for p, mine in optim.state.items():
                sizes.append((mine, len(mine)))
                places += [(mine, key) for key, t in mine.items()
                           if isinstance(t, torch.Tensor)]
        return Watch(
            sizes, states, places,
            [(g, g["params"], tuple(g["params"]))
             for g in self.param_groups()],
            list({id(x.flat): x for x in self.pieces.values()}.values()))

    def materialize(self, names: set[str]) -> None:
        """Gives memory to the model's tensors that are on the meta device
        and are called so; the objects stay, so optimizers keep them."""
        for where, key, name in self._places:
            t = where[key]
            if t is None or name not in names or t.device.type != "meta":
                continue
            new = torch.empty_like(t, device="cpu")
            if isinstance(t, torch.nn.Parameter):
                new = torch.nn.Parameter(new, t.requires_grad)
            torch.utils.swap_tensors(t, new)

    def make_state(self, fqn: str, p: torch.nn.Parameter,
                   optim: torch.optim.Optimizer, key: str,
                   shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """State that a fresh optimizer does not have yet, full of zeros."""
        piece = self.pieces.get(fqn)
        if piece is not None:
            mine = piece.state_numel()
            if not mine:
                return      # nothing of it is here, nor was its state
            optim.state[p][key] = (
                torch.zeros(shape, dtype=dtype) if shape != piece.shape else
                torch.zeros(p.shape if piece.whole else mine, dtype=dtype))
        elif shape == tuple(p.shape):
            optim.state[p][key] = torch.zeros_like(
                p, dtype=dtype, requires_grad=False)
        else:
            optim.state[p][key] = torch.zeros(shape, dtype=dtype)

    def scalars(self) -> dict[str, dict[str, Any]]:
        """What the optimizer keeps that is no tensor."""
        kept = {}
        for fqn, p, optim in self.parameters():
            mine = {k: v for k, v in optim.state.get(p, {}).items()
                    if not isinstance(v, torch.Tensor)}
            if mine:
                kept[fqn] = mine
        return kept

    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all optimizers, themselves."""
        return [g for optim in self.optims for g in optim.param_groups]

    def groups(self) -> list[dict[str, Any]]:
        """param_groups with FQNs for parameters."""
        return [{**{k: v for k, v in g.items() if k != "params"},
                 "params": [n for p in g["params"] for n in self.names_of(p)]}
                for g in self.param_groups()]
