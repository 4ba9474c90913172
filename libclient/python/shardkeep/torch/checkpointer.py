# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a model and its optimizer, and back on any mesh."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import random
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from .. import (Client, Damaged, Error, NotFound, State, _core,
                inspect, snapshots)
from . import _objects
from ._common import FROM_NAME, allgather_of
from ._describe import Meshes, describe, is_whole, local_of
from ._tensors import LiveTensors, Watch, as_list

log = logging.getLogger("shardkeep")

_UNTIL = {"sealed": _core.SEALED, "complete": _core.COMPLETE,
          "durable": _core.DURABLE}
_OBJECT = "python."
_OPTIM = "optim.state."
_ROOM = 1024        # least bytes of an object: it may grow without a new layout


def _rng_state() -> dict[str, Any]:
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    import sys
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
    return state


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy
        numpy.random.set_state(state["numpy"])


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector, which would look at all of the trainer's objects
    again and again while thousands of descriptions are made."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Checkpointer:
    """Keeps a training job's state in the agent's memory.

    Parameters, persistent buffers and optimizer state are described once, by
    their meshes and placements if they are DTensors, as whole otherwise; a
    snapshot then costs one call into C. ``param_groups`` and whatever
    ``extra`` names (objects with ``state_dict()`` and ``load_state_dict()``:
    schedulers, data loaders; or plain values) go along as JSON.

    Args:
        model: plain, DDP, FSDP1, FSDP2, tensor parallel, or any mix; a list
            of the stages of a pipeline that this rank has.
        optim: its optimizer, several, or None.
        job: the name that snapshots are kept under.
        extra: global objects by name, the same on every rank.
        local: objects of this rank alone by name, such as data loaders.
        group: the ranks of the job; None: all of torch.distributed, or one.
        rng: whether the generators' states go along, for each rank.
        flush_every: which steps go to disk: multiples of it; 0: every step.
        verify: refuse snapshots whose tensors changed before the fence.
        fence_hook: fence before every step of the optimizer by itself; at its
            second step, when its state is there, the agent is told to make
            room, so that the first snapshot finds its memory warm.
        raising: whether a failed snapshot is an exception, not a log line.

    Tensors of host memory only: CUDA tensors are refused with a sentence.
    Methods of one object must be called by one thread at a time, in the same
    order on all ranks; :meth:`fence` may be called by any.
    """

    def __init__(self, model: torch.nn.Module | list[torch.nn.Module],
                 optim: torch.optim.Optimizer |
                 list[torch.optim.Optimizer] | None = None, *, job: str,
                 extra: dict[str, Any] | None = None,
                 local: dict[str, Any] | None = None,
                 group: dist.ProcessGroup | None = None, rng: bool = True,
                 run: int = 0, slots: int = 0, flush_every: int = 0,
                 verify: bool = False, fence_hook: bool = True,
                 raising: bool = False, socket: str | None = None) -> None:
        up = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if up else 0
        self.world = dist.get_world_size(group) if up else 1
        self.job = job
        self.raising = raising
        self._extra, self._local, self._rng = extra or {}, local or {}, rng
        self._allgather = allgather_of(group) if up else None
        self._tensors = LiveTensors(as_list(model), as_list(optim))
        self._meshes = Meshes()
        self._watch: Watch | None = None
        self._scalars = False
        self._whole: list[tuple[Any, ...]] | None = None
        self._holders: dict[str, tuple[int, ...] | None] = {}
        self._blobs: dict[str, bytearray] = {}
        self._names: set[str] = set()
        self.last_step: int | None = None
        self._client = Client(socket)
        self._state = State(
            self._client, job, self.rank, self.world, run=run, slots=slots,
            flush_every=flush_every,
            flags=_core.JOB_VERIFY if verify else 0)
        self._stepped: set[int] = set()     # ids of optimizers
        self._early = True
        self._hooks = [o.register_step_pre_hook(self._before_step)
                       for o in as_list(optim) if fence_hook]

    # ---- describing ----

    def _share(self, mine: bytes) -> list[bytes]:
        """What every rank gives, of any length, in rank order."""
        if self._allgather is None:
            return [mine]
        sizes = self._allgather(len(mine).to_bytes(8, "little"), 0)
        n = [int.from_bytes(sizes[i:i + 8], "little")
             for i in range(0, len(sizes), 8)]
        most = max(n)
        every = self._allgather(mine.ljust(most, b"\0"), 0) if most else b""
        return [every[i * most:i * most + n[i]] for i in range(self.world)]

    @staticmethod
    def _whole_of(items: list[tuple[str, Any]]) -> list[str]:
        return sorted(name for name, t in items
                      if name.startswith("model.") and is_whole(t))

    def _find_holders(self, items: list[tuple[str, Any]]) -> None:
        """Who has which whole tensor; a collective where that changed.

        Of the model alone, whose modules change on all ranks at once: an
        optimizer makes its state when gradients come, which a rank's experts
        may get later than another's. It belongs to its parameter.
        """
        whole = self._whole_of(items)
        if whole == self._whole:
            return
        lists = [json.loads(x) for x in
                 self._share(json.dumps(whole).encode())]
        self._whole = whole
        if all(x == whole for x in lists):
            self._holders = dict.fromkeys(whole)
            return
        ranks: dict[str, list[int]] = {}
        for r, names in enumerate(lists):
            for name in names:
                ranks.setdefault(name, []).append(r)
        self._holders = {name: tuple(ranks[name])
                         if len(ranks[name]) < self.world else None
                         for name in whole}

    def _describe_all(self) -> None:
        """Describes the tensors anew where anything about them changed."""
        if self._watch is None or not self._watch.holds():
            with _uncollected():
                self._describe(self._tensors.items())
                self._watch = self._tensors.watch()
                self._scalars = bool(self._tensors.scalars())

    def _describe(self, items: list[tuple[str, Any]]) -> None:
        self._watch = None
        self._find_holders(items)
        for gone in self._names - {name for name, _ in items}:
            self._state.remove(gone)
            self._names.discard(gone)
        model = dict(items)
        described = []
        for name, t in items:
            owner = name
            if name.startswith(_OPTIM):
                owner = "model." + name[len(_OPTIM):].rpartition(".")[0]
            described.append(describe(name, t, self._meshes,
                                      self._holders.get(owner),
                                      model.get(owner)))
        self._state.tensors(described, [local_of(t) for _, t in items])
        self._names = {name for name, _ in items}

    def _objects(self) -> dict[str, tuple[bytes, bool]]:
        """Python objects by name: their bytes, whether this rank's alone."""
        found: dict[str, tuple[bytes, bool]] = {}

        def add(name: str, x: Any, local: bool) -> None:
            if hasattr(x, "state_dict"):
                x = x.state_dict()
            found[_OBJECT + name] = (_objects.dumps(x, name), local)

        if self._tensors.optims:
            add("optim.param_groups", self._tensors.groups(), False)
            if self._scalars:
                add(f"optim.scalars.{self.rank}", self._tensors.scalars(),
                    True)
        for name, x in self._extra.items():
            add("extra." + name, x, False)
        for name, x in self._local.items():
            add("local." + name, x, True)
        if self._rng:
            add("rng", _rng_state(), True)
        return found

    def _put_blob(self, name: str, raw: bytes, local: bool) -> None:
        room = self._blobs.get(name)
        if room is None or len(room) < len(raw):
            size = max(_ROOM, 1 << (2 * len(raw) - 1).bit_length())
            room = bytearray(size)
            self._state.blob(name, room, local)
            self._blobs[name] = room
        room[:] = raw.ljust(len(room), b" ")

    def _put_objects(self) -> None:
        objects = self._objects()
        self._drop_blobs(self._blobs.keys() - objects.keys())
        for name, (raw, local) in objects.items():
            self._put_blob(name, raw, local)

    def _drop_blobs(self, names: set[str]) -> None:
        for name in names:
            self._state.remove(name)
            del self._blobs[name]

    def _take_blobs(self, held: dict[str, Any]) -> None:
        """Room for the objects of a snapshot, of their sizes there. It stays
        for the snapshots to come: the same layout needs no new memory."""
        theirs = {t["name"]: t for t in held["tensors"]
                  if t["kind"] != "tensor" and t["name"].startswith(_OBJECT)
                  and t["rank"] in (-1, self.rank)}
        self._drop_blobs({name for name, room in self._blobs.items()
                          if name not in theirs or
                          len(room) != theirs[name]["shape"][0]})
        for name, t in theirs.items():
            if name not in self._blobs:
                room = bytearray(t["shape"][0])
                self._state.blob(name, room, t["kind"] == "local")
                self._blobs[name] = room

    # ---- snapshots ----

    def prepare(self, timeout: float = 60) -> None:
        """Waits until the memory for snapshots is warm.

        Optional: without it the second step of an optimizer tells the agent
        to make room, or the first snapshot. Call it when the optimizer has
        its state. With a ``timeout`` of 0 it waits for nothing.
        """
        self._early = False
        self.fence()            # before its blobs are written again
        self._describe_all()
        self._put_objects()
        self._state.prepare(int(timeout * 1000))

    def _before_step(self, optim: torch.optim.Optimizer, *_: Any) -> None:
        self.fence()
        if self._early and id(optim) in self._stepped:
            self._make_room()
        elif self._early:
            self._stepped.add(id(optim))

    def _make_room(self) -> None:
        """Registers early, unless other ranks would have to be asked who has
        which tensors: nobody knows whether they step as well. restore() has
        asked. What is wrong, the snapshot will tell."""
        self._early = False
        try:
            if self.world == 1 or \
                    self._whole == self._whole_of(self._tensors.items()):
                self.prepare(0)
        except Exception as e:
            log.debug("no room is made yet: %s", e)

    def snapshot(self, step: int, *, flush: bool | None = None,
                 wait: float = 0, stream: Any = None) -> bool:
        """Starts a snapshot and returns at once.

        The tensors may be read, but not written before :meth:`fence`, which
        the optimizer's step calls by itself. ``flush`` sends it to disk, or
        not, whatever ``flush_every`` says; ``wait`` is how many seconds to
        wait for a free slot; ``stream`` the ``torch.cuda.Stream`` that wrote
        the tensors last, which has no meaning for host memory.

        Returns whether one was started. A failure is logged and counted, and
        training goes on, unless ``raising``; what cannot be stored at all is
        always an exception, before anything is written.
        """
        flags = 0 if flush is None else (
            _core.SNAPSHOT_FLUSH if flush else _core.SNAPSHOT_NO_FLUSH)
        self._early = False
        try:
            self._state.fence()     # before its blobs are written again
            self._describe_all()
            self._put_objects()
            self._state.snapshot(step, flags, int(wait * 1000),
                                 stream=getattr(stream, "cuda_stream", 0))
        except Error as e:
            if self.raising:
                raise
            log.warning("no snapshot of step %d: %s", step, e)
            return False
        self.last_step = step
        return True

    def fence(self) -> None:
        """Returns when the last snapshot has let go of the tensors."""
        try:
            self._state.fence()
        except Error as e:
            if self.raising:
                raise
            log.warning("the snapshot of step %s failed: %s",
                        self.last_step, e)

    def wait(self, step: int | None = None, until: str = "complete",
             timeout: float = 60) -> None:
        """Waits until a snapshot is "sealed", "complete" or "durable"."""
        if step is None:
            step = self.last_step
        if step is None:
            raise ValueError("there is no snapshot to wait for")
        self._state.wait(step, _UNTIL[until], int(timeout * 1000))

    def flush(self, step: int | None = None) -> None:
        """Has the agent write a snapshot to disk now."""
        step = self.last_step if step is None else step
        if step is None:
            raise ValueError("there is no snapshot to flush")
        self._state.flush(step)

    def status(self) -> dict[str, int]:
        """The last snapshot's times in nanoseconds, and counts."""
        return self._state.status()

    # ---- restoring ----

    def restore(self, step: int | None = None, *, strict: bool = True,
                source: str | None = None) -> int | None:
        """Brings everything back, in place, on whatever mesh it lies now.

        The newest complete snapshot, or that of ``step``, from the node's
        memory, else from disk (``source``: "memory" or "disk" alone). Every
        rank must call it. Optimizer state that a fresh optimizer lacks is
        made first, and tensors on the meta device get their memory.
        ``strict=False`` leaves alone what the snapshot lacks and ignores what
        nobody asks for.

        Returns the step, None on a first run. ``report`` has the details.
        """
        flags = 0 if strict else (_core.RESTORE_MISSING_OK |
                                  _core.RESTORE_EXTRA_OK)
        flags |= {None: 0, "memory": _core.RESTORE_MEMORY_ONLY,
                  "disk": _core.RESTORE_DISK_ONLY}[source]
        failed: Error | None = None
        for found in self._candidates(step):
            try:
                with _uncollected():
                    return self._restore(found, flags, strict)
            except (Damaged, NotFound) as e:
                log.warning("step %d cannot be restored: %s", found["step"],
                            e)
                failed = failed or e
        if failed is not None:
            raise failed
        self._find_holders(self._tensors.items())
        if step is not None:
            raise NotFound(2, f"job {self.job} has no snapshot of step "
                              f"{step}")
        return None

    def _candidates(self, step: int | None) -> list[dict[str, Any]]:
        """Complete snapshots, newest first; all ranks take the first's."""
        mine = [{"run": s["run"], "step": s["step"]}
                for s in snapshots(self._client, self.job)
                if s["complete"] and step in (None, s["step"])]
        return json.loads(self._share(json.dumps(mine).encode())[0])

    def _restore(self, found: dict[str, Any], flags: int,
                 strict: bool) -> int:
        held = inspect(self._client, self.job, found["step"], found["run"],
                       brief=True)
        self._tensors.materialize({t["name"] for t in held["tensors"]})
        self._make_missing(held)
        items = self._tensors.items()
        if not strict:      # what is not there needs no memory yet
            items = [(n, t) for n, t in items if t.device.type != "meta"]
        self._describe(items)
        self._take_blobs(held)
        try:
            self.report = self._state.restore(
                found["step"], flags, run=found["run"],
                allgather=self._allgather, world=self.world)
        except Error:
            self._drop_blobs(set(self._blobs))
            raise
        self._load_objects(strict)
        if strict:      # described as it will be for the next snapshot
            self._watch = self._tensors.watch()
            self._scalars = bool(self._tensors.scalars())
        return found["step"]

    def _make_missing(self, held: dict[str, Any]) -> None:
        """State that a fresh optimizer does not have yet."""
        known = {f"{_OPTIM}{fqn}": (fqn, p, optim)
                 for fqn, p, optim in self._tensors.parameters()}
        for t in held["tensors"]:
            if t["kind"] != "tensor" or not t["name"].startswith(_OPTIM):
                continue
            prefix, _, key = t["name"].rpartition(".")
            if prefix not in known:
                continue
            fqn, p, optim = known[prefix]
            if key not in optim.state.get(p, ()):
                self._tensors.make_state(fqn, p, optim, key,
                                         tuple(t["shape"]),
                                         FROM_NAME[t["dtype"]])

    def _load_objects(self, strict: bool) -> None:
        absent = object()

        def take(name: str) -> Any:
            room = self._blobs.get(_OBJECT + name)
            if room is None or not any(room[:64]):
                return absent
            return _objects.loads(room)

        if self._tensors.optims:
            groups = take("optim.param_groups")
            if groups is not absent:
                self._load_groups(groups)
            scalars = take(f"optim.scalars.{self.rank}")
            for fqn, p, optim in self._tensors.parameters():
                if scalars is not absent and fqn in scalars:
                    optim.state[p].update(scalars[fqn])
        for prefix, objects in (("extra.", self._extra),
                                ("local.", self._local)):
            for name, x in objects.items():
                value = take(prefix + name)
                if value is absent:
                    if strict and prefix == "extra.":
                        raise KeyError(f"the snapshot has no object {name}")
                elif hasattr(x, "load_state_dict"):
                    x.load_state_dict(value)
                elif isinstance(x, dict):
                    x.clear()
                    x.update(value)
                else:
                    objects[name] = value
        state = take("rng") if self._rng else absent
        if state is not absent:
            _set_rng_state(state)

    def _load_groups(self, saved: list[dict[str, Any]]) -> None:
        """Hyper-parameters, found by the parameters that have them."""
        for group in self._tensors.param_groups():
            mine = {n for p in group["params"]
                    for n in self._tensors.names_of(p)}
            for s in saved:
                if mine & set(s["params"]):
                    group.update({k: v for k, v in s.items()
                                  if k != "params"})
                    break

    # ---- the end ----

    def close(self) -> None:
        """Waits for the last seal and lets go; the images stay."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._state.close()
        self._client.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
