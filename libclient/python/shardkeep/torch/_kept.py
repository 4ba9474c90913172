# SPDX-License-Identifier: Apache-2.0
"""The Python objects of a rank: what goes along with its tensors."""

from __future__ import annotations

import collections
import errno
import hashlib
import logging
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from .. import Mismatch, _core
from . import _objects
from ._blobs import Blobs, own_in, rows_of
from ._common import unfit
from ._generators import Generators, set_rng_state
from ._optimizers import refresh_schedulers
from ._tensors import LiveTensors
from ._versions import is_scheduled

log = logging.getLogger("shardkeep")

_ABSENT = object()


def _written(name: str, x: Any) -> bytes:
    if hasattr(x, "state_dict"):
        if not hasattr(x, "load_state_dict"):
            raise TypeError(f"{name} is a {type(x).__qualname__}, which has "
                            "state_dict() and no load_state_dict(): it could "
                            "not have it back; give its state as plain values")
        x = x.state_dict()
    return _objects.dumps(x, name)


#: What begins a group of settings in a list of them.
_GROUP = object()
#: What is the same while it is that very object, as it is written.
_FIXED = frozenset((type(None), bool, int, float, str, object))


def _is_fixed(x: Any) -> bool:
    return type(x) in _FIXED or type(x) is tuple and all(map(_is_fixed, x))


class _Settings:
    """The groups of optimizers as they are written. They are written again
    where any has another object under any key, and always where one has what
    may change in itself."""

    def __init__(self) -> None:
        self._of: list[Any] = []
        self._raw = b""

    @staticmethod
    def _all_of(told: list[list[dict[str, Any]]]) -> list[Any]:
        found: list[Any] = []
        for groups in told:
            found.append(len(groups))
            for g in groups:
                found.append(_GROUP)
                for key, value in g.items():
                    found += key, value
        return found

    def written(self, tensors: LiveTensors, more: bool) -> bytes:
        # Looked at once: another thread may change them meanwhile, and back.
        told = tensors.optimizers(more)
        now = [] if more else self._all_of(told["groups"])
        if now and len(now) == len(self._of) and \
                all(map(operator.is_, now, self._of)):
            return self._raw
        self._raw = _written("optim", told)
        self._of = now if all(map(_is_fixed, now)) else []
        return self._raw


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _optimizers_of(objects: dict[str, str], labels: Any = None
                   ) -> dict[str, Any]:
    """What one rank's optimizers told, each group with its parameters, which
    ``labels`` are where they are known."""
    told: dict[str, Any] = _objects.loads(objects["optim"].encode())
    labels = labels or _objects.loads(objects["params"].encode())
    for groups, names in zip(told["groups"], labels):
        for group, params in zip(groups, names):
            group["params"] = params
    return told


class Kept:
    """Objects of a rank, into blobs and back.

    Each rank keeps its own. Where another set of ranks reads them, or ranks
    hold other parts than they saved, all hear what all had saved.
    """

    def __init__(self, tensors: LiveTensors, blobs: Blobs, rank: int,
                 extra: dict[str, Any] | None, local: dict[str, Any] | None,
                 rng: bool) -> None:
        self._tensors, self._blobs, self._rank = tensors, blobs, rank
        # The dicts themselves: what is put into them later goes along.
        self._extra = {} if extra is None else extra
        self._local = {} if local is None else local
        self._rng = rng
        self._generators, self._settings = Generators(), _Settings()
        #: The parameters' labels, and how they were written last.
        self._params: tuple[Any, bytes] = (None, b"")

    # ---- saving ----

    def put(self, more: bool) -> bool:
        """The objects as they are now, into the state's blobs; whether the
        rows of all ranks are others than before."""
        return self._put(dict(self._shared(more)))

    def _put(self, shared: dict[str, bytes]) -> bool:
        found = {name: (raw, False) for name, raw in shared.items()}
        for name, x in self._local.items():
            found["local." + name] = (_written("local." + name, x), True)
        if self._rng:
            found["rng"] = (self._generators.written(), True)
        return self._blobs.put(found)

    def _shared(self, more: bool) -> Iterator[tuple[str, bytes]]:
        """Those that another rank may need."""
        if self._tensors.optims:
            yield "optim", self._settings.written(self._tensors, more)
            yield "params", self._labels()
        if self._tensors.extra_names():
            yield "model", _written("model", self._tensors.extra_state())
        for name, x in self._extra.items():
            yield "extra." + name, _written("extra." + name, x)

    def names(self) -> set[str]:
        """Of those that another rank may need."""
        return {*(("optim", "params") if self._tensors.optims else ()),
                *(("model",) if self._tensors.extra_names() else ()),
                *("extra." + name for name in self._extra)}

    def unsaved(self) -> list[str]:
        """What changes as these optimizers do, and no object can be."""
        if any(map(_may_be_of_a_scheduler, (*self._extra.values(),
                                            *self._local.values()))):
            return []
        return [f"the state of the scheduler that {type(x.inner).__qualname__}"
                ' has: it would begin anew; give it as extra={"sched": it}'
                for x in self._tensors.optims if is_scheduled(x.inner)]

    def sizes(self) -> dict[str, int] | None:
        """Their bytes, for ranks that agree on rows; None where one has no
        form, which the snapshot will say: others need not wait for it."""
        try:
            return {name: len(raw) for name, raw in self._shared(True)}
        except Exception as e:
            log.debug("no rows for objects: %s", e)
            return None

    def describe_as_now(self, world: int) -> bool:
        """Makes room as for a snapshot that is taken now, if all ranks have
        objects of this one's sizes. False, and some rooms may be there: that
        could not be told, or not without asking what may change by it: a data
        loader that tells its state may begin to load."""
        objects = [*self._extra.values(), *self._local.values()]
        if self._tensors.extra_names() or any(
                hasattr(x, "state_dict") and not isinstance(x, LRScheduler)
                for x in objects):
            return False
        try:
            shared = dict(self._shared(True))
            self._blobs.agree(rows_of(
                [{name: len(raw) for name, raw in shared.items()}] * world))
            self._put(shared)
        except Exception as e:      # the snapshot will say it
            log.debug("not described as now: %s", e)
            return False
        return True

    def _labels(self) -> bytes:
        """Which parameters each group has: thousands of names, written only
        when they changed."""
        labels = self._tensors.labels()
        if self._params[0] is not labels:
            self._params = (labels, _objects.dumps(labels, "params"))
        return self._params[1]

    # ---- restoring ----

    def insist(self, there: set[str]) -> None:
        """Refuses a snapshot that has not all objects which are to come back,
        before anything is written; ``there`` are those of all its ranks."""
        if "model" not in there:
            self._insist_on_modules({})
        _refuse(x for x in self._extra if "extra." + x not in there)

    def _insist_on_modules(self, found: dict[str, Any]) -> None:
        lacking = sorted(self._tensors.extra_names() - found.keys())
        if lacking:
            raise Mismatch(errno.ENOKEY, "the snapshot has no model."
                           f"{', model.'.join(lacking)}")

    def unasked(self, beyond: list[_core.Beyond]) -> list[str]:
        """Objects of a snapshot that this rank's number gave by name, and is
        not given now."""
        ours = {*("extra." + x for x in self._extra),
                *("local." + x for x in self._local)}
        return sorted(x for x in own_in(beyond, self._rank) - ours
                      if x.startswith(("extra.", "local.")))

    def suffices(self) -> bool:
        """Whether what this rank's number had saved is all that it needs."""
        mine = {name: raw.decode() for name, raw in
                self._blobs.shared().get(self._rank, {}).items()}
        if self._tensors.optims and not self._covers_optimizers(mine):
            return False
        if self._tensors.extra_names() and (
                "model" not in mine or self._tensors.extra_names() -
                _objects.loads(mine["model"].encode()).keys()):
            return False
        return all("extra." + name in mine for name in self._extra)

    def _covers_optimizers(self, objects: dict[str, str]) -> bool:
        """Mostly they are the very parameters in the very groups, which their
        text tells without being read."""
        if "optim" not in objects:
            return False
        return self._same_labels(objects) or self._tensors.covered_by(
            _optimizers_of(objects))

    def _same_labels(self, objects: dict[str, str]) -> bool:
        return objects["params"].encode() == self._labels()

    def told(self, first: int) -> dict[str, Any]:
        """What this rank read of saved ranks, for the others. Of objects
        that should be the same everywhere those of rank ``first``, and
        digests."""
        told: dict[str, Any] = {}
        for rank, objects in self._blobs.shared().items():
            told[str(rank)] = {
                name: raw.decode() if rank == first or
                not name.startswith("extra.") else {"digest": _digest(raw)}
                for name, raw in objects.items()}
        return told

    def load(self, strict: bool, told: list[dict[str, Any]] | None,
             first: int) -> None:
        """Gives the objects what they had; ``told`` by all ranks, or None
        where this rank's own suffice; ``first`` is the lowest of which there
        is anything."""
        saved: dict[int, dict[str, Any]] = {
            rank: {name: raw.decode() for name, raw in objects.items()}
            for rank, objects in self._blobs.shared().items()
            if rank == self._rank}
        for some in told or ():
            for number, objects in some.items():
                saved.setdefault(int(number), objects)
        if told is not None:
            self._compare(told)
        order = sorted(saved, key=lambda r: (r != self._rank, r))
        self._load_optimizers([saved[r] for r in order])
        self._load_modules([saved[r] for r in order], strict)
        self._load_objects(saved, strict, first)
        if told is not None:
            refresh_schedulers(list(self._extra.values()),
                               self._tensors.optims)

    def _load_optimizers(self, saved: list[dict[str, Any]]) -> None:
        if not self._tensors.optims:
            return
        found = [_optimizers_of(s, self._tensors.labels()
                                if self._same_labels(s) else None)
                 for s in saved if "optim" in s]
        if found:
            for sentence in self._tensors.load_optimizers(found):
                log.warning("%s", sentence)

    def _load_modules(self, saved: list[dict[str, Any]],
                      strict: bool) -> None:
        found: dict[str, Any] = {}
        for s in reversed(saved):
            found.update(_objects.loads(s["model"].encode())
                         if "model" in s else {})
        if strict:
            self._insist_on_modules(found)
        self._tensors.load_extra_state(found)

    def _compare(self, told: list[dict[str, Any]]) -> None:
        """Says which objects were not the same on all ranks: another set of
        ranks cannot know whose they are."""
        digests: dict[str, dict[str, list[str]]] = {}
        for some in told:
            for rank, objects in some.items():
                for name, x in objects.items():
                    if name.startswith("extra."):
                        d = _digest(x.encode()) if isinstance(x, str) else \
                            x["digest"]
                        digests.setdefault(name, {}).setdefault(
                            d, []).append(rank)
        for name, by in sorted(digests.items()):
            if len(by) > 1 and self._rank == 0:
                log.warning(
                    "%s was not the same on all ranks (%s), and this job has "
                    "other ranks: each number has its own again, new ones "
                    "have rank 0's", name, "; ".join(
                        f"rank {', '.join(map(str, ranks[:8]))}"
                        for ranks in sorted(sorted(map(int, r))
                                            for r in by.values())))

    def _load_objects(self, saved: dict[int, dict[str, Any]],
                      strict: bool, first: int) -> None:
        found = {name: self._extra_of(saved, name, first)
                 for name in self._extra}
        if strict:
            _refuse(k for k, v in found.items() if v is _ABSENT)
        for name, value in found.items():
            _give(self._extra, name, self._extra[name], value)
        for name, x in self._local.items():
            _give(self._local, name, x, self._own("local." + name))
        state = self._own("rng") if self._rng else _ABSENT
        if state is not _ABSENT:
            set_rng_state(state)

    def _extra_of(self, saved: dict[int, dict[str, Any]], name: str,
                  first: int) -> Any:
        for rank in (self._rank, first):
            raw = saved.get(rank, {}).get("extra." + name)
            if isinstance(raw, str):
                return _objects.loads(raw.encode())
        return _ABSENT

    def _own(self, name: str) -> Any:
        raw = self._blobs.local(name)
        return _ABSENT if raw is None else _objects.loads(raw)


def _may_be_of_a_scheduler(x: Any) -> bool:
    """Whether its state may be that of one; scalers have none of it."""
    return isinstance(x, dict) or hasattr(x, "state_dict") and not isinstance(
        x, torch.amp.GradScaler)


def _refuse(lacking: Iterable[str]) -> None:
    names = ", ".join(sorted(lacking))
    if names:
        raise Mismatch(errno.ENOKEY, f"the snapshot has no object {names} "
                       "(strict=False restores what there is)")


def _give(where: dict[str, Any], name: str, x: Any, value: Any) -> None:
    if value is _ABSENT:
        return
    if hasattr(x, "load_state_dict"):
        x.load_state_dict(value)
    elif not _refill(x, value):
        where[name] = value


def _refill(x: Any, value: Any) -> bool:
    """Whether what has values of its own has these now: whoever gave it goes
    on with that very object."""
    if isinstance(x, torch.Tensor) and isinstance(value, torch.Tensor):
        return _refill_tensor(x, value)
    if _is_array(x) and _is_array(value):
        return _refill_array(x, value)
    if isinstance(x, dict) and isinstance(value, dict) or \
            type(x) is type(value) is set:
        x.clear()
        x.update(value)
    elif type(x) is type(value) and isinstance(x, (list, bytearray)):
        x[:] = value
    elif type(x) is type(value) is collections.deque and \
            x.maxlen == value.maxlen:
        x.clear()
        x.extend(value)
    else:
        return False
    return True


def _is_array(x: Any) -> bool:
    kind = type(x)
    return kind.__module__ == "numpy" and kind.__qualname__ == "ndarray"


def _refill_array(x: Any, value: Any) -> bool:
    if x.shape != value.shape or x.dtype != value.dtype or \
            not x.flags.writeable:
        return False
    x[...] = value
    return True


def _refill_tensor(x: torch.Tensor, value: torch.Tensor) -> bool:
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or \
            x.shape != value.shape or x.dtype != value.dtype or \
            x.is_inference() or unfit(x) is not None or \
            not x.is_contiguous():
        return False
    with torch.no_grad():
        x.copy_(value)
    return True
