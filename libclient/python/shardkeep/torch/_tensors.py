# SPDX-License-Identifier: Apache-2.0
"""The live tensors of a model and its optimizer, by FQN."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .. import _core
from . import _device
from ._beside import Beside
from ._common import made_to_last
from ._flat import FlatPart, Piece, flattened_ids, pieces_of
from ._naming import (
    STATISTICS, is_state, namer, split_label, state_name, unwrapped)
from ._optimizers import Stepped, opened
from ._unsaved import unsaved_of
from ._versions import OF_BATCHES
from ._watch import Watch
from ._wrapped import (
    has_part, has_parts, kept_beside, parts_of, places_of, step_once,
    wrapped_in)

#: A parameter's label, itself, its optimizer; a key of its state, shape, dtype.
Missing = tuple[str, torch.nn.Parameter, Stepped, str, tuple[int, ...], int]

#: What takes back what a restore did before its bytes came, the last first.
Undo = list[Callable[[], None]]

#: Where a module has its parts.
_OWNED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")

#: State of torch.optim's that is a number, also of a parameter that is one: by
#: its shape it cannot be told from what is placed as the parameter is.
_NUMBERS = frozenset(("step", "mu_product", "eta", "mu"))


def as_list(x: Any) -> list[Any]:
    """One, several or none, as a list."""
    if x is None:
        return []
    return list(x) if isinstance(x, (list, tuple)) else [x]


class LiveTensors(Beside):
    """The live tensors of models and optimizers, by name.

    The modules are walked once. Afterwards each tensor is looked up in the
    dict that holds it, so that one that was replaced is seen; a module that
    was added or lost changes a size, and they are walked again.
    """

    def __init__(self, models: list[torch.nn.Module],
                 optims: list[Any]) -> None:
        for m in models:
            if not isinstance(m, torch.nn.Module):
                raise TypeError(f"{type(m).__qualname__} is no model: a "
                                "torch.nn.Module, or a list of them")
        self.models, self.optims = models, opened(optims)
        self._labels = None
        self._found: list[tuple[str, Any, Stepped]] | None = None
        #: Whether any state of a parameter had more than tensors in it when
        #: they were looked at last.
        self.mixed = True
        #: How many there were when they were looked at last, where none had
        #: its values in others.
        self._simple: int | None = None
        self._walk()

    def _walk(self) -> None:
        """Wholly or not at all: after an error or an interrupt half of the
        modules would pass for all of them."""
        new = copy.copy(self)
        new._walk_anew()
        self.__dict__.update(new.__dict__)

    def _walk_anew(self) -> None:
        #: Those of the modules, with their names and modules in them then.
        self._dicts: list[tuple[Any, tuple[str, ...]]] = []
        self._modules: list[tuple[Any, tuple[Any, ...]]] = []
        #: Modules, and what they have those in: another may take the place
        #: of each.
        self._owned: list[tuple[torch.nn.Module, dict[str, Any],
                                tuple[str, ...], list[Any]]] = []
        self._places: list[tuple[Any, str, str]] = []
        #: Where a name had which parameter, None, or one that is tied.
        self._were: list[tuple[Any, str, Any]] = []
        self._tied: list[tuple[Any, str]] = []
        #: Which names of buffers are not persistent, and whether others are.
        self._passing: list[tuple[Any, frozenset[str], bool]] = []
        self._names: dict[int, list[str]] = {}  # of parameters, by id
        self.pieces: dict[str, Piece] = {}      # of flat parameters, by FQN
        self._taken: set[str] = set()
        self.buffers: set[str] = set()
        #: Buffers that each rank has its own values of, from its own batches.
        self.statistics: set[str] = set()
        self._fsdp2: list[Any] = []
        self._extra = {}
        seen: set[int] = set()
        for model in self.models:
            self._walk_one(unwrapped(model), seen)

    def _walk_one(self, model: torch.nn.Module, seen: set[int]) -> None:
        fqn_of = namer(model)
        for piece, p in pieces_of(model):
            piece = dataclasses.replace(piece, fqn=fqn_of(piece.fqn))
            self._once("model." + piece.fqn)
            self.pieces[piece.fqn] = piece
            self._names.setdefault(id(p), []).append(piece.fqn)
        flattened = flattened_ids(model)
        seen |= flattened
        self._fsdp2 += [m for m in model.modules()
                        if isinstance(m, FSDPModule)]
        for prefix, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise TypeError(_scripted(fqn_of(prefix), module))
            for d in (module._parameters, module._buffers, module._modules):
                self._dicts.append((d, tuple(d)))
            self._modules.append((module._modules,
                                  tuple(module._modules.values())))
            dot = f"{prefix}." if prefix else ""
            if type(module).get_extra_state is not \
                    torch.nn.Module.get_extra_state:
                self._extra[fqn_of(dot + "_extra_state")] = module
            for key, t in module._parameters.items():
                if id(t) in flattened:
                    continue
                fqn = fqn_of(dot + key)
                if t is not None and id(t) not in seen:
                    self._names[id(t)] = [fqn]
                self._place(module._parameters, key, t, fqn, seen)
            has = _OWNED[:4 if module._buffers else 3]
            self._owned.append((module, vars(module), has,
                                list(map(vars(module).get, has))))
            passing = module._non_persistent_buffers_set
            if module._buffers:
                self._passing.append((passing, frozenset(passing), 0 < len(
                    passing) < len(module._buffers)))
            for key, t in module._buffers.items():
                if key not in passing:
                    fqn = fqn_of(dot + key)
                    self._place(module._buffers, key, t, fqn, seen)
                    self.buffers.add("model." + fqn)
                    if isinstance(module, OF_BATCHES) and \
                            not isinstance(module, torch.nn.SyncBatchNorm) \
                            and key in STATISTICS:
                        self.statistics.add("model." + fqn)

    def _rebuilt(self) -> bool:
        """Whether modules have other modules, names or parameters than when
        they were walked: what was tied may not be now, and the other way."""
        return any(tuple(d) != names for d, names in self._dicts) or any(
            not all(map(operator.is_, d.values(), were))
            for d, were in self._modules) or any(
            vars(m) is not d or
            not all(map(operator.is_, map(d.get, names), were))
            for m, d, names, were in self._owned) or any(
            d.get(key) is not were for d, key, were in self._were) or any(
            now != were for now, were, _ in self._passing)

    def _with_none(self) -> list[Any]:
        """The dicts of tensors in which a name has none."""
        return list({id(d): d for d, key, _ in (*self._were, *self._places)
                     if d.get(key) is None}.values())

    def _place(self, where: Any, key: str, t: Any, fqn: str,
               seen: set[int]) -> None:
        tied = t is not None and id(t) in seen
        if t is None or tied or isinstance(t, torch.nn.Parameter):
            self._were.append((where, key, t))
        if tied:
            self._tied.append((where, key))
        if t is None or tied:   # kept once
            return
        seen.add(id(t))
        name = "model." + fqn
        self._once(name)
        self._places.append((where, key, name))

    def _once(self, name: str) -> None:
        if name in self._taken:
            raise ValueError(
                f"two tensors are called {name}; give models that have names "
                'in common as one: torch.nn.ModuleDict({"a": ..., "b": ...})')
        self._taken.add(name)

    def names_of(self, p: torch.nn.Parameter) -> list[str]:
        """The FQNs of a parameter: several of a flat one, [""] of one that
        is not the model's."""
        return self._names.get(id(p), [""])

    def are_of(self, optim: Any) -> bool:
        """Whether an optimizer wraps one of these, and keeps nothing else."""
        return any(optim in (x.outer, x.given, x.of) or
                   getattr(optim, "state", None) is x.inner.state
                   for x in self.optims)

    def first_of(self, optim: Any) -> str:
        """The FQN of the first of the model's parameters that an optimizer
        steps; "" if it steps none."""
        return next((fqn for group in optim.param_groups
                     for p in group["params"]
                     for fqn in self.names_of(p) if fqn), "")

    def parameters(self) -> list[tuple[str, torch.nn.Parameter, Stepped]]:
        """Those that the optimizers step, by the label of their state: the
        FQN; of one that several optimizers step, ``1:FQN`` for the second. As
        they were when :meth:`items` looked last."""
        if self._found is None:
            self._found = list(self._find_parameters())
        return self._found

    def _find_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter,
                                                 Stepped]]:
        times: dict[str, int] = {}
        for stepped in self.optims:
            for p in stepped.params():
                if id(p) not in self._names:
                    self._walk()
                for fqn in self.names_of(p):
                    nth = times.get(fqn, 0)
                    times[fqn] = nth + 1
                    yield f"{nth}:{fqn}" if nth and fqn else fqn, p, stepped

    def items(self) -> list[tuple[str, Any, str]]:
        """All tensors as they are now, each with the one it belongs to."""
        self._labels = self._found = None
        for module in self._fsdp2:
            module.reshard()    # what a forward pass may have left whole
        if self._rebuilt():
            self._walk()
        found = [(name, where[key], name) for where, key, name in self._places
                 if where[key] is not None]
        parted = any(has_parts(t) for _, t, _ in found)
        simple = not parted and not self.pieces
        if parted:
            found = [(part, x, part) for name, t, _ in found
                     for part, x in parts_of(name, t)]
        found += [("model." + fqn, piece.parameter(), "model." + fqn)
                  for fqn, piece in self.pieces.items()]
        others = False          # beside tensors, in a state
        for label, p, stepped in self.parameters():
            mine = stepped.state.get(p)
            if not mine:
                continue
            if not label:
                raise ValueError(_stranger(p, stepped))
            fqn = split_label(label)[1]
            owner, first = "model." + fqn, state_name(label, "")
            apart = stepped.apart or fqn in self.pieces
            for key, t in mine.items():
                if not isinstance(t, torch.Tensor):
                    others = True
                    continue
                name = first + key if type(key) is str else \
                    state_name(label, key)
                if apart:
                    simple = False
                    found.append((name, self._placed(fqn, t, stepped), owner))
                elif has_parts(t):
                    simple = False
                    found += [(part, x, owner) for part, x in
                              parts_of(name, t)]
                else:
                    found.append((name, t, owner))
        self.mixed = others
        self._simple = len(found) if simple else None
        return found

    def _placed(self, fqn: str, t: torch.Tensor, stepped: Stepped) -> Any:
        """State as a piece of what was flattened, or as one rank's alone."""
        piece = self.pieces.get(fqn)
        if piece is not None:
            return piece.state(t)
        return FlatPart(t, None, 0) if stepped.apart else t

    def missing(self, beyond: list[_core.Beyond]) -> list[Missing]:
        """State tensors of a snapshot that the optimizers do not have, of
        what it has beyond these tensors; dtypes are the library's. In an
        order that is the same on all ranks, and not that of the images: who
        gathers state goes by the order in which it was made."""
        found = list(self._find_missing(beyond))
        nth = {label: i for i, (label, _, _) in enumerate(
            self.parameters())} if found else {}
        return sorted(found, key=lambda x: (nth[x[0]], x[3] != "step", x[3]))

    def _find_missing(self, beyond: list[_core.Beyond]) -> Iterator[Missing]:
        held = [x for x in beyond if x[1] == "tensor" and is_state(x[0])]
        if not held:
            return
        own = {id(x): x.own() for x in self.optims}
        known = {state_name(label, ""): (label, p, stepped)
                 for label, p, stepped in self.parameters()
                 if label and id(p) in own[id(stepped)]}
        for name, _, _, dtype, shape in held:
            at = len(name)
            while (at := name.rfind(".", 0, at)) > 0:
                if name[:at + 1] not in known:
                    continue
                label, p, stepped = known[name[:at + 1]]
                if not has_part(stepped.state.get(p, {}), name[at + 1:]):
                    yield label, p, stepped, name[at + 1:], shape, dtype
                break

    def step_fresh(self, beyond: list[_core.Beyond], undo: Undo) -> bool:
        """Has optimizers without state make it by a step, where a snapshot
        has parts of tensors that they alone can make; whether one did."""
        fresh = {id(stepped.inner): stepped.inner
                 for _, _, stepped, key, _, _ in self.missing(beyond)
                 if "." in key and not stepped.inner.state}
        for optim in fresh.values():
            undo.append(optim.state.clear)
            step_once(optim)
        return bool(fresh)

    def watch(self, usual: _core.Usual | None = None) -> Watch:
        """What tells whether all is as :meth:`items` just found it."""
        live = [(where, key) for where, key, _ in self._places
                if where.get(key) is not None]
        sizes: list[tuple[Any, int]] = [(d, len(names))
                                        for d, names in self._dicts]
        sizes += [(now, len(were)) for now, were, _ in self._passing]
        held: list[tuple[Any, type | tuple[str, ...]]] = [
            (d, object) for d, _ in self._modules]
        held += [(d, names) for _, d, names, _ in self._owned]
        held += [(d, type(None)) for d in self._with_none()]
        held += [(g["params"], object) for g in self.param_groups()]
        states, more = [], False
        for stepped in self.optims:
            states.append((stepped, stepped.state, stepped.groups))
            held += [(stepped.state, dict), (stepped.groups, object)]
            sizes.append((stepped.state, len(stepped.state)))
            for p, mine in stepped.state.items():
                if not isinstance(mine, dict):
                    continue
                sizes.append((mine, len(mine)))
                found = [(mine, key) for key, t in mine.items()
                         if isinstance(t, torch.Tensor)]
                if len(found) < len(mine):      # that may become a tensor
                    more = True
                    held.append((mine, torch.Tensor))
                live += found
        self.mixed = more
        simple = len(live) == self._simple
        live += [(where, key) for where, key in self._tied
                 if where.get(key) is not None]
        owners: list[Any] = [m for m, *_ in self._owned]
        if not simple:
            owners += [x for d, key in live for x in wrapped_in(d[key])]
            live = _places_of_all(live, held)
        return Watch(
            sizes, held, owners, states, live,
            [(g, g["params"]) for g in self.param_groups()],
            list({id(x.flat): x for x in self.pieces.values()}.values()),
            [(now, were) for now, were, both in self._passing if both], usual)

    @made_to_last()
    def materialize(self, names: set[str], undo: Undo) -> bool:
        """Gives memory to the model's tensors that are on the meta device
        and are called so; the objects stay, so optimizers keep them. Whether
        there was one."""
        made = False
        if self._taken.isdisjoint(names):
            return made
        for where, key, name in self._places:
            t = where[key]
            if t is None or name not in names or not t.is_meta:
                continue
            undo.append(functools.partial(_move_to, t, t.device))
            _move_to(t, _place_for(t))
            made = True
        return made

    @made_to_last()
    def make_state(self, label: str, p: torch.nn.Parameter, stepped: Stepped,
                   key: str, shape: tuple[int, ...],
                   dtype: torch.dtype) -> None:
        """State that a fresh optimizer does not have yet, full of zeros."""
        piece = self.pieces.get(split_label(label)[1])
        where = "cpu" if not shape and not stepped.on_device(p) else p.device
        if piece is not None:
            mine = piece.state_numel()
            if not mine:
                return      # nothing of it is here, nor was its state
            stepped.state[p][key] = (
                torch.zeros(shape, dtype=dtype, device=where)
                if shape != piece.shape else
                torch.zeros(p.shape if piece.whole else mine, dtype=dtype,
                            device=p.device))
        elif shape == tuple(p.shape) and (shape or key not in _NUMBERS):
            stepped.state[p][key] = torch.zeros_like(
                p, dtype=dtype, requires_grad=False)
        else:
            stepped.state[p][key] = torch.zeros(shape, dtype=dtype,
                                                device=where)

    def drop(self, saved: set[str], undo: Undo) -> None:
        """Lets go of what optimizers keep of parameters and a snapshot has
        not, as if they were fresh: it was taken before their first step, or
        while others were trained. ``saved`` are its names."""
        mine: dict[tuple[int, int], tuple[Stepped, Any, list[str]]] = {}
        for label, p, stepped in self.parameters():
            if label and stepped.state.get(p):
                mine.setdefault((id(stepped), id(p)), (stepped, p, []))[
                    2].append(label)
        for stepped, p, labels in mine.values():
            has = stepped.state[p]
            tensors = [k for k, t in has.items()
                       if isinstance(t, torch.Tensor)]
            gone = [k for k in tensors if not any(
                part in saved for x in labels
                for part, _ in parts_of(state_name(x, k), has[k]))]
            if not gone:
                continue
            undo.append(functools.partial(stepped.state.__setitem__, p, has))
            stepped.state.pop(p)
            if len(gone) < len(tensors):
                stepped.state[p] = {k: v for k, v in has.items()
                                    if k not in gone}

    def unsaved(self) -> list[str]:
        """What state dicts hold and snapshots do not."""
        names = {name.removeprefix("model.") for _, _, name in self._places}
        names |= set(self.pieces) | set(self._extra)
        live = {id(where[key]) for where, key, _ in self._places}
        found = [x for model in self.models
                 for x in unsaved_of(unwrapped(model), names, live)]
        found += [f"{', '.join(beside)} of {name}, which is a "
                  f"{type(where[key]).__qualname__}"
                  for where, key, name in self._places
                  if (beside := kept_beside(where[key]))]
        return found + list(dict.fromkeys(
            x for stepped in self.optims for x in stepped.unsaved()))


def _places_of_all(live: list[tuple[Any, str]],
                   held: list[tuple[Any, type | tuple[str, ...]]]
                   ) -> list[tuple[Any, str]]:
    """Where the values are; ``held`` gets the objects that have theirs in
    others, each of which is to stay the one it is."""
    held += [(d, type(d[key])) for d, key in live if has_parts(d[key])]
    places = [place for d, key in live for place in places_of(d, key)]
    if any(d is None for d, _ in places):
        held.append((None, object))     # looked at each time
    return [place for place in places if place[0] is not None]


@made_to_last()
def _move_to(t: torch.Tensor, device: torch.device) -> None:
    """Gives a tensor other memory, of no values; it stays the object."""
    new = torch.empty_like(t, device=device)
    if isinstance(t, torch.nn.Parameter):
        new = torch.nn.Parameter(new, t.requires_grad)
    torch.utils.swap_tensors(t, new)


def _place_for(t: torch.Tensor) -> torch.device:
    """Where one that has no memory yet belongs."""
    if isinstance(t, DTensor):
        return _device.current(t.device_mesh.device_type)
    return _device.default()


def _stranger(p: torch.Tensor, stepped: Stepped) -> str:
    """Why the state of a parameter cannot be kept; it has no name."""
    at = next((f"parameter {i} of group {g}"
               for g, group in enumerate(stepped.groups)
               for i, x in enumerate(group["params"]) if x is p),
              "a parameter")
    return (f"the optimizer steps {at}, of shape {list(p.shape)}, that is not "
            "the model's: was it replaced since? The optimizer is to be made "
            "of what the model has")


def _scripted(name: str, module: torch.jit.ScriptModule) -> str:
    """Its tensors are in no dicts of Python's, which could be watched."""
    return (f"{name or 'the model'} is a module of TorchScript "
            f"({type(module).__qualname__}); give the Checkpointer a model "
            "with the module that torch.jit made it of, whose parameters and "
            "buffers are the same")


