# SPDX-License-Identifier: Apache-2.0
"""Optimizers, whatever wraps them: which object has the groups, which the
state, and what of both is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# Where wrappers have what they wrap: accelerate's, torch.distributed's.
_INNER = ("optimizer", "_optimizer", "optim")


@dataclasses.dataclass(frozen=True)
class Stepped:
    """An optimizer that steps parameters."""

    given: Any      # as the caller has it
    outer: Any      # has the groups that schedulers change
    inner: Any      # has the state of the tensors, and is stepped
    apart: bool     # the state of a parameter is on one rank alone
    of: Any = None  # has it among its optimizers

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.outer.param_groups

    def before_steps(self, hook: Callable[..., None]) -> Any:
        """Has it called before each step; what takes it out again."""
        try:
            return self.inner.register_step_pre_hook(hook)
        except AttributeError:
            raise TypeError(
                f"{_name(self.inner)} is no torch.optim.Optimizer: nothing "
                "can fence before its steps; give fence_hook=False, and call "
                "fence() before each of them") from None

    def own(self) -> set[int]:
        """The ids of the parameters whose state this rank has."""
        return {id(p) for g in self.inner.param_groups for p in g["params"]}

    def params(self) -> Iterator[torch.Tensor]:
        for group in self.groups:
            yield from group["params"]

    def on_device(self, p: torch.Tensor) -> bool:
        """Whether a number that it keeps of a parameter lies where that
        does, so that a step needs no host."""
        return any(g.get("capturable") or g.get("fused")
                   for g in self.inner.param_groups
                   if any(x is p for x in g["params"]))

    def without(self, p: torch.Tensor, key: str) -> Callable[[], None]:
        """What takes that of a parameter out of the state, and leaves it as
        it is now."""
        known = p in self.state
        was = {k: x for k, x in self.state[p].items() if k == key} \
            if known else {}

        def take_out() -> None:
            self.state[p].pop(key, None)
            self.state[p].update(was)
            if not known and not self.state[p]:
                del self.state[p]

        return take_out

    def others(self) -> dict[str, Any]:
        """State that belongs to no tensor: ``optim.state["name"]``."""
        found = {}
        for key, value in self.state.items():
            if isinstance(key, torch.Tensor):
                continue
            if not isinstance(key, str):
                raise TypeError(f"{_name(self.given)} has state under "
                                f"{key!r}, which is neither a parameter nor "
                                "a string")
            found[key] = value
        return found

    def unsaved(self) -> list[str]:
        """What its state holds, and no snapshot."""
        known = {id(p) for p in self.params()}
        lost = sum(isinstance(k, torch.Tensor) and id(k) not in known
                   for k in self.state)
        found = [f"the state of {lost} tensors that are in no group of "
                 f"{_name(self.given)}"] if lost else []
        if isinstance(self.of, Optimizer) and self.of.state and \
                self.of.state is not self.state:
            found.append(f"the state that {_name(self.of)} has beside its "
                         "optimizers'")
        return found + self._of_its_own()

    def _of_its_own(self) -> list[str]:
        o = self.given
        plain = getattr(type(o), "state_dict", None) is Optimizer.state_dict
        if self.apart or plain and not getattr(
                o, "_optimizer_state_dict_post_hooks", None):
            return []
        try:
            keys = set(o.state_dict()) - {"state", "param_groups"}
        except Exception as e:
            return [f"what state_dict() of {_name(o)} would hold: {e}"]
        return [f'"{k}" of {_name(o)}' for k in sorted(map(str, keys))]


def _name(o: Any) -> str:
    return type(o).__qualname__


def _is_zero(o: Any) -> bool:
    return any(c.__name__ == "ZeroRedundancyOptimizer"
               for c in type(o).__mro__)


def _open(given: Any) -> Stepped:
    o = given
    while True:
        if _is_zero(o):
            if getattr(o, "_overlap_with_ddp", False):
                raise TypeError(
                    "ZeroRedundancyOptimizer with overlap_with_ddp makes its "
                    "optimizer in the third step: what it holds cannot be "
                    "named before; leave overlap_with_ddp out")
            return Stepped(given, o, o.optim, True)
        inner = next((x for x in (getattr(o, a, None) for a in _INNER)
                      if isinstance(x, Optimizer)), None)
        if inner is None:
            break
        if isinstance(o, LRScheduler):
            raise TypeError(f"{_name(o)} is no optimizer: give the one that "
                            'it is of, and it as extra={"sched": it}')
        if getattr(o, "state", inner.state) is not inner.state or \
                getattr(o, "param_groups", None) is not inner.param_groups:
            raise TypeError(
                f"{_name(o)} wraps {_name(inner)} and has state or groups of "
                "its own, which Shardkeep does not know; give the inner one "
                "if nothing else must come back")
        o = inner
    if not hasattr(o, "state") or not hasattr(o, "param_groups"):
        raise TypeError(f"{_name(given)} is no optimizer: it has no state "
                        "and no param_groups")
    return Stepped(given, o, o, False)


def _within(o: Any) -> list[Optimizer]:
    """The optimizers that one has, each with state of its own, as SAM and
    Lookahead have the one that they step."""
    nested = [x for value in vars(o).values() for x in (
        value.values() if isinstance(value, dict) else
        value if isinstance(value, (list, tuple, set)) else (value,))]
    return [x for x in nested if isinstance(x, Optimizer) and x is not o]


def _with_all(s: Stepped, seen: set[int]) -> list[Stepped]:
    """An optimizer behind those that it has: what they keep of a parameter is
    called as it would be without it."""
    if id(s.inner) in seen:
        return []
    seen.add(id(s.inner))
    found = [] if s.apart else [y for x in _within(s.inner)
                                for y in _with_all(_open(x), seen)]
    for i, x in enumerate(found):
        if x.state is s.state and x.groups is s.groups:     # it has none
            found[i] = dataclasses.replace(x, given=s.given)
            return found
    return [*found, s]


def opened(optims: list[Any]) -> list[Stepped]:
    """Each optimizer once, out of its wrappers and containers."""
    found: dict[int, Stepped] = {}
    seen: set[int] = set()
    for o in optims:
        several = getattr(o, "optimizers", None)
        for s in [dataclasses.replace(s, of=o) for s in opened(list(several))
                  ] if isinstance(several, (list, tuple)) else \
                _with_all(_open(o), seen):
            found.setdefault(id(s.inner), s)
    return list(found.values())


# ---- groups ----

#: Of a group: not its settings, but who is in it.
_MEMBERS = ("params", "param_names")


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    """Tensors stay the objects they are: a compiled step has them."""
    old = group.get(key)
    if isinstance(old, torch.Tensor):
        with torch.no_grad():
            old.copy_(value) if isinstance(value, torch.Tensor) else \
                old.fill_(value)
    else:
        group[key] = value


def _same(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The keys in which two groups differ."""
    return sorted(k for k in a.keys() | b.keys()
                  if k not in _MEMBERS and repr(a.get(k)) != repr(b.get(k)))


#: Settings that versions of torch have given to what had none of them.
_ADDED = ("foreach", "fused", "maximize", "capturable", "differentiable",
          "decoupled_weight_decay")


def of_another_kind(stepped: Stepped, group: dict[str, Any],
                    saved: dict[str, Any]) -> str:
    """What tells that another kind of optimizer had the settings that are
    saved, which its kind alone can use as its state; "": nothing does."""
    ours = set(getattr(stepped.inner, "defaults", ()))
    lacking = sorted(ours - saved.keys() - set(_ADDED))
    beyond = sorted(saved.keys() - ours - group.keys() - {
        *_MEMBERS, *_ADDED, "initial_lr"})
    if not lacking or not beyond:
        return ""
    return (f"the snapshot's optimizer has {', '.join(beyond)} and no "
            f"{', '.join(lacking)}, so it is none of kind "
            f"{_name(stepped.inner)}, which has all of its settings and its "
            "state now; where that is not meant, restore the model alone, "
            "optim=None and strict=False")


def load_group(group: dict[str, Any], labels: list[str],
               saved: dict[str, dict[str, Any]]) -> list[str]:
    """Gives a group the settings that its parameters had; what they differed
    in, where several groups became one: the first parameter's are taken."""
    theirs = [saved[x] for x in labels if x in saved]
    if not theirs:
        return []
    for key, value in theirs[0].items():
        if key not in _MEMBERS:
            _set(group, key, value)
    differ: set[str] = set()
    for other in {id(s): s for s in theirs}.values():
        differ.update(_same(theirs[0], other))
    return sorted(differ)


def refresh_schedulers(objects: list[Any], optims: list[Stepped]) -> None:
    """Schedulers list rates by group; where ranks have other groups than the
    list was made for, the groups themselves know theirs."""
    ours = {id(o) for s in optims for o in (s.given, s.outer, s.inner)}
    nested = list(objects)
    while nested:
        x = nested.pop()
        nested += getattr(x, "_schedulers", None) or []
        if hasattr(x, "scheduler"):     # accelerate's
            nested.append(x.scheduler)
        optim = getattr(x, "optimizer", None)
        if id(optim) not in ours or not hasattr(x, "base_lrs"):
            continue
        groups = optim.param_groups
        if all("initial_lr" in g for g in groups):
            x.base_lrs = [g["initial_lr"] for g in groups]
        if hasattr(x, "_last_lr"):
            x._last_lr = [g["lr"] for g in groups]
