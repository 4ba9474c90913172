# SPDX-License-Identifier: Apache-2.0
"""PyTorch's distributed checkpoint on Shardkeep.

>>> import torch.distributed.checkpoint as dcp
>>> from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
>>> metadata = dcp.save(state, storage_writer=ShardkeepWriter("llama/100"))
>>> dcp.load(state, storage_reader=ShardkeepReader("llama/100"))

What ``dcp.save`` and ``dcp.async_save`` write lies in the agent's memory and,
where the agent has a store, on disk as safetensors files that PyTorch's own
``HuggingFaceStorageReader`` loads as well. Objects that are no tensors are
stored as tagged JSON, never as pickles; what has no such form is refused by
its name before anything is written.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import io
import logging
import os
import posixpath
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta,
    TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (
    LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem,
    WriteItemType)
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import LATEST, Client, _core, snapshots
from . import _dcp_nodes, _device, _objects
from ._common import (
    BYTES, FROM_NAME, PLAN, SHARED, check_local, check_name, dtype_of,
    lasting, made_to_last, milliseconds, resolved, step_of)
from ._reading import Alone, Question, described_bytes
from ._dcp_states import STATES, key_of
from ._dcp_steps import form_of, moved_to, on_one, other_form
from ._together import absent_are_logged
from ._versions import memory_for, staged, wrote_to
from ._wrapped import parts

__all__ = ["ShardkeepReader", "ShardkeepWriter", "is_ours", "parse_id",
           "parts"]

log = logging.getLogger("shardkeep")

# What FileSystemWriter takes and memory has no use for.
_OF_FILES = {"single_file_per_rank", "sync_files", "thread_count",
             "per_thread_copy_ahead", "serialization_format"}
#: Of the metadata, as FileSystemWriter's.
_VERSION = "1.0.0"


def parse_id(checkpoint_id: str | os.PathLike[str]) -> tuple[str, int]:
    """The job and the step that a checkpoint id means.

    ``job/step`` and ``shardkeep:job/step`` are just that, with a slash at the
    end or without; of any other text, such as the path of a directory, the job
    is made, and a number at its end is the step; no two paths mean the same
    snapshot. Where numbers begin with zeros, those of as many digits are of
    one job. The address of another storage, ``s3://bucket``, is refused.
    """
    text = os.fspath(checkpoint_id).removeprefix("shardkeep:")
    if not is_ours(text):
        raise ValueError(f"{checkpoint_id} is the address of another storage")
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)/(\d+)/?", text)
    if match:
        return match[1], int(match[2])
    text = posixpath.normpath(text)
    match = re.fullmatch(r"(.*?)([0-9]{1,15})", text, re.DOTALL)
    before, number = match.groups() if match else (text, "")
    # So that no two texts are one snapshot: 0.1 and 0.01, x and x0.
    form = "none" if not number else \
        f"{len(number)}" if number.startswith("0") and number != "0" else ""
    digest = hashlib.sha256(f"{before}\0{form}".encode(
        errors="surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", before).strip("-_")[-80:]
    return f"dcp-{name}-{digest}" if name else f"dcp-{digest}", int(number or 0)


def is_ours(checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether it can name a snapshot: any text but another's address."""
    text = os.fspath(checkpoint_id)
    return bool(text) and not re.match(r"(?!shardkeep:)[a-z0-9+.-]+://", text)


def _one_id(checkpoint_id: str | os.PathLike[str] | None,
            path: str | os.PathLike[str] | None
            ) -> str | os.PathLike[str] | None:
    if checkpoint_id is not None and path is not None:
        raise TypeError("path is another word for checkpoint_id: give one")
    return path if checkpoint_id is None else checkpoint_id


class _Mine(threading.local):
    """What the save or the load on this thread is about: several may be under
    way by one object, each on a thread of its own."""

    it: Any = None
    #: Whether this thread has said of which checkpoint.
    told = False

    def __reduce__(self) -> Any:
        return _Mine, ()


def _of_this(phase: Callable[..., Any]) -> Any:
    """A method that the framework calls for what this thread has begun, or
    else another one last."""
    @functools.wraps(phase)
    def call(self: _Named, *args: Any, **kwargs: Any) -> Any:
        return phase(self._mine.it or self._last or self, *args, **kwargs)
    return call


class _Named:
    """Whose storage a checkpoint id names: a job's step."""

    def _name(self, job: str | None, step: int | None) -> None:
        self._mine = _Mine()
        self._last: Any = None
        self._id: str | os.PathLike[str] | None = None
        self._job = job
        self._step = None if step is None else step_of(step)

    def _rename(self, checkpoint_id: str | os.PathLike[str] | None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id
            self._job, self._step = parse_id(checkpoint_id)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies, which are in the midst of nothing."""
        return {**self.__dict__, "_mine": _Mine(), "_last": None}

    def _begin(self) -> Any:
        """Stands for it in what this thread begins."""
        mine = copy.copy(self)
        mine._mine = self._mine
        self._mine.it = mine
        return mine

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """What the framework's log calls the checkpoint."""
        if self._id is not None:
            return self._id
        return f"{self._job}" if self._step is None else \
            f"{self._job}/{self._step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]
                               ) -> bool:
        return is_ours(checkpoint_id)


class ShardkeepWriter(_Named, StorageWriter, BlockingAsyncStager):
    """A ``StorageWriter`` whose storage is the node's agent.

    It stages for ``dcp.async_save`` as well, as FileSystemWriter does.

    Args:
        checkpoint_id: what :func:`parse_id` understands; or ``job``, ``step``.
        flush: whether the snapshot goes to disk.
        wait: what ``dcp.save`` waits for: "complete" or "durable".
        timeout: seconds for that, and for a free slot.
        path: another word for ``checkpoint_id``, as FileSystemWriter has it.
        overwrite: False refuses a step that is there already.
        cache_staged_state_dict: whether ``dcp.async_save`` copies into the
            same memory each time; save with the same writer then.
        of_files: what else FileSystemWriter takes is accepted, so that one
            may stand for the other, and has no meaning here.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str] | None = None,
                 *, job: str | None = None, step: int | None = None,
                 flush: bool = True, wait: str = "complete",
                 timeout: float = 300, socket: str | None = None,
                 path: str | os.PathLike[str] | None = None,
                 overwrite: bool = True,
                 cache_staged_state_dict: bool = False,
                 **of_files: Any) -> None:
        BlockingAsyncStager.__init__(
            self, cache_staged_state_dict=cache_staged_state_dict)
        checkpoint_id = _one_id(checkpoint_id, path)
        if of_files.pop("_extensions", None):
            raise ValueError("extensions transform streams; Shardkeep keeps "
                             "the bytes of tensors as they are")
        unknown = set(of_files) - _OF_FILES
        if unknown:
            raise TypeError("ShardkeepWriter knows no "
                            f"{', '.join(sorted(unknown))}")
        if wait not in ("complete", "durable"):
            raise ValueError(f'wait="{wait}": "complete" or "durable"')
        self._name(job, step)
        self._flush, self._wait = flush, wait
        self._timeout = lasting("timeout", timeout, some=True)
        self._socket = socket
        self._overwrite = overwrite
        self._alone: tuple[int, int, str] | None = None
        self._nodes: _dcp_nodes.Nodes | None = None
        self._coordinator = True
        self.save_id = str(uuid.uuid4())
        self._rename(checkpoint_id)

    # What the framework calls, in its order.

    def stage(self, state_dict: Any) -> Any:
        """A copy of the state dict on the CPU."""
        with made_to_last():        # the memory is that of the next as well
            if not self.cache_staged_state_dict:
                copied = staged(state_dict, self.type_check)
                return super().stage(state_dict) if copied is None else copied
            if self.state_dict_cache is None and not _device.can_pin():
                # There is nothing to pin for.
                self.state_dict_cache = memory_for(state_dict)
            return super().stage(state_dict)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None
              ) -> None:
        mine = self._begin()
        mine._rename(checkpoint_id)
        mine.save_id = str(uuid.uuid4())
        # Whoever asks the writer hears of the last one.
        self._rename(checkpoint_id)
        self.save_id = mine.save_id

    @_of_this
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        if self._job is None or self._step is None:
            raise ValueError("a ShardkeepWriter needs a checkpoint_id, or a "
                             "job and a step")
        self._coordinator = is_coordinator
        self._alone = None
        if not kwargs.get("use_collectives", True) and dist.is_initialized():
            self._alone = (kwargs["rank"], dist.get_world_size(), "")

    @_of_this
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not self._overwrite and self._coordinator:
            self._refuse_existing()
        if self._alone is not None:
            return dataclasses.replace(plan, storage_data=self._alone)
        if _dcp_nodes.can_be():
            job, step = self._which()
            return dataclasses.replace(plan, storage_data=_dcp_nodes.tell(
                self._socket, job, step, not self._overwrite))
        return plan

    def _which(self) -> tuple[str, int]:
        assert self._job is not None and self._step is not None
        return self._job, self._step

    def _refuse_existing(self) -> None:
        client = Client(self._socket)
        try:
            there = [s for s in snapshots(client, self._job)
                     if s["step"] == self._step and s["complete"]]
        finally:
            client.close()
        if there:
            raise self._exists()

    def _exists(self) -> RuntimeError:
        return RuntimeError(
            f"Checkpoint already exists: job {self._job} has step "
            f"{self._step}, and overwrite=False")

    @_of_this
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if self._alone is not None:
            return plans        # nobody sees what the others hold
        _check_boxes(_whole_plans(plans))
        if not self._overwrite and _dcp_nodes.is_there(plans):
            raise self._exists()
        channel = _dcp_nodes.announce(
            *self._which(), len(plans), self._timeout) \
            if _dcp_nodes.several(plans) else ""
        return [dataclasses.replace(p, storage_data=(i, len(plans), channel))
                for i, p in enumerate(plans)]

    @_of_this
    def write_data(self, plan: SavePlan, planner: SavePlanner
                   ) -> Future[list[WriteResult]]:
        rank, world, channel = _place_of(plan)
        job, step = self._which()
        self._nodes = _dcp_nodes.Nodes(channel, job, step, rank, world,
                                       self._timeout) if channel else None
        about = {"planner_data": plan.planner_data}
        if self._coordinator:
            about["save_id"] = self.save_id
        try:
            keep, described, results = _describe_plan(plan, planner, rank,
                                                      about)
        except Exception:
            if self._nodes is not None:
                self._nodes.fail()
            raise
        self._key = key_of(self._socket, job, rank, world)
        flags = _core.SNAPSHOT_FLUSH if self._flush else \
            _core.SNAPSHOT_NO_FLUSH
        with absent_are_logged():
            STATES.save(self._key, step, flags, self._timeout, described,
                        keep, self._nodes)
        if self._nodes is not None and self._wait == "durable":
            self._wait_for(step, _core.WRITTEN)     # each its own part
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    @_of_this
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]
               ) -> None:
        metadata.version = _VERSION
        _, step = self._which()
        if self._nodes is not None:
            # All have written their parts, and no agent knows of all.
            self._nodes.end()
            return
        self._wait_for(step, _core.COMPLETE)
        if self._wait == "durable":
            self._wait_for(step, _core.DURABLE)

    def _wait_for(self, step: int, state: int) -> None:
        with STATES.use(self._key) as entry:
            entry.open().wait(step, state,
                              milliseconds("timeout", self._timeout))

    @_of_this
    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._id, save_id=self.save_id)


def _volume(sizes: Any) -> int:
    n = 1
    for s in sizes:
        n *= s
    return n


def _whole_plans(plans: list[SavePlan]) -> list[SavePlan]:
    """What ranks will write, where a planner that caches sends only what is
    new: of the others it has the plans, and none has changed if all lack."""
    if all(getattr(p, "usable", True) for p in plans):
        return plans
    for cached in getattr(SavePlanner, "_cached_global_plan", {}).values():
        if len(cached) == len(plans) and any(p.usable for p in plans) and all(
                p is c or not p.usable for p, c in zip(plans, cached)):
            return cached
    return []


def _place_of(plan: SavePlan) -> tuple[int, int, str]:
    """Rank and world of whoever writes a plan; where it meets the others, if
    they have several agents."""
    place = plan.storage_data
    if isinstance(place, tuple) and \
            [type(x) for x in place] == [int, int, str]:
        return place
    raise ValueError(
        f"the planner gives a plan that was made for another storage ({place!r}"
        "); where it caches plans, give it a key of its own for each storage")


def _check_boxes(plans: list[SavePlan]) -> None:
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
            if _volume(chunk.sizes):
                boxes.setdefault(item.index.fqn, []).append(
                    (tuple(chunk.offsets), tuple(chunk.sizes)))
    for fqn, size in sizes.items():
        mine = boxes.get(fqn, [])
        held = sum(_volume(s) for _, s in mine)
        if held != _volume(size):
            raise ValueError(
                f"{fqn}: the ranks hold {held} of {_volume(size)} elements; "
                "its metadata does not agree with its shards")
        _check_apart(fqn, mine)


def _meet(o: Any, s: Any, p: Any, t: Any) -> bool:
    """Whether the boxes at ``o`` and ``p`` share an element."""
    return all(a < b + n and b < a + m
               for a, m, b, n in zip(o, s, p, t))


def _check_apart(fqn: str, boxes: list[Any]) -> None:
    """Refuses boxes that overlap; sorted, so that few are compared."""
    open_: list[Any] = []
    for o, s in sorted(boxes):
        open_ = [(p, t) for p, t in open_ if not p or p[0] + t[0] > o[0]]
        for p, t in open_:
            if _meet(o, s, p, t):
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


def _describe_plan(plan: SavePlan, planner: SavePlanner, rank: int,
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
                    t.numel() or _volume(chunk.sizes)):
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


class ShardkeepReader(_Named, StorageReader):
    """A ``StorageReader`` whose storage is the node's agent.

    It reads what :class:`ShardkeepWriter` and ``Checkpointer`` saved, beside
    the living ranks of the job. Without a step it reads the newest one. It
    may load on several threads at once.

    Args:
        checkpoint_id: what :func:`parse_id` understands; or ``job``, ``step``.
        run: of this run; 0: the newest that has the step.
        path: another word for ``checkpoint_id``.
        process_group: the ranks that load, as ``dcp.load`` has it, where they
            are of several nodes: they agree on the snapshot, and take what
            their own node lacks out of the memory of the others. None: each
            reads what its own agent has, the newest that any of those which
            one agent serves has found. All of its ranks have to load.
        timeout: seconds for each thing that those ranks wait for.
    """

    def __init__(self, checkpoint_id: str | os.PathLike[str] | None = None,
                 *, job: str | None = None, step: int | None = None,
                 run: int = 0, socket: str | None = None,
                 path: str | os.PathLike[str] | None = None,
                 process_group: dist.ProcessGroup | None = None,
                 timeout: float = 300,
                 _extension_registry: Any = None) -> None:
        super().__init__()
        checkpoint_id = _one_id(checkpoint_id, path)
        self.load_id = str(uuid.uuid4())
        self._group = process_group
        self._timeout = lasting("timeout", timeout, some=True)
        self._failure: Exception | None = None
        self._way: Alone | None = None
        self._name(job, step)
        self._run, self._socket = run, socket
        self._rename(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None
              ) -> None:
        mine = self._begin_load()
        mine._rename(checkpoint_id)
        mine.load_id = str(uuid.uuid4())
        self._mine.told = True
        # Whoever asks the reader hears of the last one.
        self._rename(checkpoint_id)
        self.load_id = mine.load_id

    def _begin_load(self) -> ShardkeepReader:
        mine: ShardkeepReader = self._begin()
        mine._failure = mine._way = None
        self._last = mine
        return mine

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        mine = self._mine.it
        if mine is None or not self._mine.told and "rank" not in kwargs:
            mine = self._begin_load()
        found: Metadata = mine._read_metadata(kwargs)
        return found

    def _read_metadata(self, kwargs: dict[str, Any]) -> Metadata:
        if self._job is None:
            raise ValueError("a ShardkeepReader needs a checkpoint_id or a "
                             "job")
        if self._failure is not None and "rank" in kwargs:
            # Asked once more, for what a rank wrote by itself: there is no
            # such thing, and who waits for the others would wait again. Some
            # versions keep to themselves what is raised here: it is said in
            # set_up_storage_reader(), which they call next.
            return Metadata(state_dict_metadata={})
        self._failure = None
        try:
            with absent_are_logged():
                return self._look()
        except Exception as e:
            self._failure = e
            raise

    def _look(self) -> Metadata:
        assert self._job is not None
        self._way, held, plans = Question(
            self._job, LATEST if self._step is None else self._step,
            self._run).ask(self._socket, self._group, self._timeout)
        return self._take(held, plans)

    def _take(self, held: dict[str, Any], plans: list[Any]) -> Metadata:
        """Goes on with a snapshot that was looked at."""
        self._sizes = {t["name"]: t["shape"] for t in held["tensors"]}
        self._dtypes = {t["name"]: FROM_NAME[t["dtype"]]
                        for t in held["tensors"] if t["dtype"] in FROM_NAME}
        metadata = _metadata_of(held, plans)
        metadata.storage_meta = StorageMeta(
            checkpoint_id=self.checkpoint_id, load_id=self.load_id,
            save_id=next((p["save_id"] for p in plans if "save_id" in p),
                         None))
        self._form = form_of(held, metadata)
        return metadata

    @_of_this
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool,
                              *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure
        if self._way is None:
            self._read_metadata({})

    @_of_this
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        if self._way is None or self._step is not None:
            return plan
        return dataclasses.replace(plan, storage_data=self._way.which())

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return on_one(self._job, plans)

    def _follow(self, way: Alone, plan: LoadPlan) -> None:
        """Goes over to the snapshot that a plan is to read now."""
        moved = moved_to(plan)
        if moved is None:
            return
        which, found = moved
        form, held = self._form, way.look(which.run, which.step)
        self._take(held, way.plans(held))
        if self._form != form:
            raise other_form(self._job, which, found)

    @_of_this
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        way = self._way
        if way is None:
            raise RuntimeError("read_metadata() comes before read_data()")
        with absent_are_logged(), way.in_step():
            self._follow(way, plan)
            objects = self._objects_of(plan)
            waiting = self._targets_of(plan, planner)
            # Ranks that are done wait here for the word of the others.
            while way.whether(bool(objects or waiting)):
                waiting = self._pass(way, objects, waiting, planner)
                self._load_bytes(objects, plan, planner)
                objects = {}
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _objects_of(self, plan: LoadPlan) -> dict[str, bytearray]:
        """Memory for the objects that are asked for."""
        names = {BYTES + i.storage_index.fqn for i in plan.items
                 if i.type == LoadItemType.BYTE_IO}
        self._refuse_unknown(names, self._sizes)
        return {n: bytearray(self._sizes[n][0]) for n in names}

    @staticmethod
    def _load_bytes(objects: dict[str, bytearray], plan: LoadPlan,
                    planner: LoadPlanner) -> None:
        if not objects:
            return
        found = {name: _objects.loads(b) for name, b in objects.items()}
        for item in plan.items:
            if item.type != LoadItemType.BYTE_IO:
                continue
            # In memory alone: the planner wants what torch.save gives.
            data = io.BytesIO()
            torch.save(found[BYTES + item.storage_index.fqn], data)
            data.seek(0)
            planner.load_bytes(item, data)

    def _refuse_unknown(self, names: set[str], known: dict[str, Any]) -> None:
        lacking = sorted(n.removeprefix(BYTES) for n in names - known.keys())
        if lacking:
            raise KeyError(f"{self.checkpoint_id} has no "
                           f"{', '.join(lacking)}: the planner asks for what "
                           "the metadata does not list")

    def _targets_of(self, plan: LoadPlan, planner: LoadPlanner) -> list[Any]:
        """The boxes that are asked for, and memory for each."""
        waiting = []
        self._refuse_unknown({i.storage_index.fqn for i in plan.items
                              if i.type != LoadItemType.BYTE_IO},
                             self._dtypes)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                continue
            target = planner.resolve_tensor(item).detach()
            fqn = item.storage_index.fqn
            memory = target
            if target.dtype != self._dtypes[fqn] or target.is_conj() or \
                    target.is_neg() or any(
                    n > 1 and s == 0
                    for n, s in zip(target.shape, target.stride())):
                memory = torch.empty(target.shape, dtype=self._dtypes[fqn],
                                     device=target.device)
            check_local(fqn, memory)
            at = item.storage_index.offset or ()
            box = tuple(a + b for a, b in zip(at, item.storage_offsets))
            waiting.append((item, target, memory, fqn, box,
                            tuple(item.lengths)))
        return waiting

    def _pass(self, way: Alone, objects: dict[str, bytearray],
              waiting: list[Any], planner: LoadPlanner) -> list[Any]:
        """Reads objects, and the boxes that do not overlap; returns what is
        left."""
        boxes: dict[str, list[Any]] = {}
        held: dict[str, list[torch.Tensor]] = {}
        taken, left = [], []
        for w in waiting:
            _, _, memory, fqn, box, size = w
            if not _volume(size):
                taken.append(w)
                continue
            mine = boxes.setdefault(fqn, [])
            if any(_meet(box, size, p[0], p[1]) for p in mine):
                left.append(w)
                continue
            mine.append((box, size, memory.data_ptr(), memory.stride()))
            held.setdefault(fqn, []).append(memory)
            taken.append(w)
        way.bring(lambda: (
            described_bytes(objects) +
            [(fqn, dtype_of(fqn, held[fqn][0]), tuple(self._sizes[fqn]), None,
              (), 0, None, None, tuple(p), _device.ordinal_of(fqn, held[fqn]))
             for fqn, p in boxes.items() if p],
            [objects, *(w[2] for w in taken)]))
        wrote_to(t for _, t, memory, *_ in taken if memory is t)
        for item, target, memory, *_ in taken:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        return left


def _metadata_of(held: dict[str, Any], plans: list[Any]) -> Metadata:
    """The framework's metadata, from what the images say of themselves."""
    state: dict[str, Any] = {}
    for t in held["tensors"]:
        name = t["name"]
        if t["kind"] != "tensor" or name.startswith((PLAN, SHARED)):
            continue
        if name.startswith(BYTES):
            state[name.removeprefix(BYTES)] = BytesStorageMetadata()
            continue
        state[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=FROM_NAME[t["dtype"]]),
            size=torch.Size(t["shape"]),
            chunks=[ChunkStorageMetadata(offsets=torch.Size(b["offset"]),
                                         sizes=torch.Size(b["size"]))
                    for b in t["boxes"]])
    planner_data: dict[str, Any] = {}
    for plan in plans:
        planner_data.update(plan.get("planner_data") or {})
    metadata = Metadata(state_dict_metadata=state,
                        planner_data=planner_data or None, storage_data={})
    metadata.version = _VERSION     # no argument of an older one
    return metadata
