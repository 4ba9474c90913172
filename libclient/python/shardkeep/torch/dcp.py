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

import dataclasses
import io
import os
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta,
    TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (
    LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner)
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import LATEST, Client, _core, snapshots
from . import _dcp_nodes, _device, _objects
from ._common import (
    BYTES, FROM_NAME, PLAN, SHARED, check_local, dtype_of, lasting,
    made_to_last, milliseconds)
from ._dcp_names import Named, is_ours, of_this, one_id, parse_id
from ._dcp_plans import (
    check_boxes, describe_plan, meet, place_of, volume, whole_plans)
from ._dcp_states import STATES, key_of
from ._dcp_steps import form_of, moved_to, on_one, other_form
from ._reading import Alone, Question, described_bytes
from ._together import absent_are_logged
from ._versions import memory_for, staged, wrote_to
from ._wrapped import parts

__all__ = ["ShardkeepReader", "ShardkeepWriter", "is_ours", "parse_id",
           "parts"]

# What FileSystemWriter takes and memory has no use for.
_OF_FILES = {"single_file_per_rank", "sync_files", "thread_count",
             "per_thread_copy_ahead", "serialization_format"}
#: Of the metadata, as FileSystemWriter's.
_VERSION = "1.0.0"


class ShardkeepWriter(Named, StorageWriter, BlockingAsyncStager):
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
        checkpoint_id = one_id(checkpoint_id, path)
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

    @of_this
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        if self._job is None or self._step is None:
            raise ValueError("a ShardkeepWriter needs a checkpoint_id, or a "
                             "job and a step")
        self._coordinator = is_coordinator
        STATES.close_former()       # before any rank has all plans
        self._alone = None
        if not kwargs.get("use_collectives", True) and dist.is_initialized():
            self._alone = (kwargs["rank"], dist.get_world_size(), "")

    @of_this
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

    @of_this
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if self._alone is not None:
            return plans        # nobody sees what the others hold
        check_boxes(whole_plans(plans))
        if not self._overwrite and _dcp_nodes.is_there(plans):
            raise self._exists()
        channel = _dcp_nodes.announce(
            *self._which(), len(plans), self._timeout) \
            if _dcp_nodes.several(plans) else ""
        return [dataclasses.replace(p, storage_data=(i, len(plans), channel))
                for i, p in enumerate(plans)]

    @of_this
    def write_data(self, plan: SavePlan, planner: SavePlanner
                   ) -> Future[list[WriteResult]]:
        rank, world, channel = place_of(plan)
        job, step = self._which()
        self._nodes = _dcp_nodes.Nodes(channel, job, step, rank, world,
                                       self._timeout) if channel else None
        about = {"planner_data": plan.planner_data}
        if self._coordinator:
            about["save_id"] = self.save_id
        try:
            keep, described, results = describe_plan(plan, planner, rank,
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

    @of_this
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

    @of_this
    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self._id, save_id=self.save_id)


class ShardkeepReader(Named, StorageReader):
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
        checkpoint_id = one_id(checkpoint_id, path)
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

    @of_this
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool,
                              *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure
        if self._way is None:
            self._read_metadata({})

    @of_this
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

    @of_this
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
            if not volume(size):
                taken.append(w)
                continue
            mine = boxes.setdefault(fqn, [])
            if any(meet(box, size, p[0], p[1]) for p in mine):
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
