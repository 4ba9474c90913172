# SPDX-License-Identifier: Apache-2.0
"""Code written for FileSystemWriter and FileSystemReader, with ours instead.

What PyTorch's own checkpoint tests do on GPUs, on CPU with gloo: the classes
are swapped where the framework looks them up, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from harness import private_agent, run
from older import (
    AsyncCheckpointerType, needs_no_collectives, needs_plan_caching,
    needs_processes)
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import (
    ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, _patch_model_state_dict, _patch_optimizer_state_dict,
    get_model_state_dict, get_optimizer_state_dict, get_state_dict,
    set_model_state_dict, set_state_dict)
from torch.distributed.checkpoint.state_dict_loader import (
    _load_state_dict_from_keys)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.tensor import (
    DTensor, Replicate, Shard, distribute_tensor, zeros)
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

warnings.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    with private_agent() as directory:
        yield directory


@contextlib.contextmanager
def swapped() -> Iterator[None]:
    """The storage classes are ours wherever the framework finds them."""
    utils = "torch.distributed.checkpoint._storage_utils"
    with patch(f"{utils}.FileSystemWriter", ShardkeepWriter), \
            patch(f"{utils}.FileSystemReader", ShardkeepReader), \
            patch.object(dcp, "FileSystemWriter", ShardkeepWriter), \
            patch.object(dcp, "FileSystemReader", ShardkeepReader):
        yield


class Small(nn.Module):
    def __init__(self, uneven: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = (8, 10, 15, 30, 8) if uneven else (8, 16, 32, 64, 8)
        self.nets = nn.ModuleList(nn.Linear(a, b)
                                  for a, b in zip(sizes, sizes[1:]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for net in self.nets:
            x = torch.relu(net(x))
        return x


def train(model: nn.Module, optim: torch.optim.Optimizer, n: int) -> float:
    torch.manual_seed(1)
    for _ in range(n):
        loss = model(torch.rand(8, 8)).sum()
        loss.backward()
        optim.step()
        optim.zero_grad()
    return loss.item()


# ---- sharded tensors ----

SPECS_2D = (
    ChunkShardingSpec(dim=0, placements=["rank:0", "rank:1"]),
    ChunkShardingSpec(dim=0, placements=["rank:0", "rank:1", "rank:1",
                                         "rank:0"]),
    ChunkShardingSpec(dim=1, placements=["rank:1", "rank:0"]),
    EnumerableShardingSpec([
        ShardMetadata([0, 0], [2, 20], placement="rank:0"),
        ShardMetadata([2, 0], [1, 20], placement="rank:1"),
        ShardMetadata([3, 0], [3, 20], placement="rank:0"),
        ShardMetadata([6, 0], [3, 20], placement="rank:1"),
        ShardMetadata([9, 0], [1, 20], placement="rank:0")]),
    EnumerableShardingSpec([
        ShardMetadata([0, 0], [8, 20], placement="rank:1"),
        ShardMetadata([8, 0], [2, 20], placement="rank:0")]))


def _gathered(t: Any) -> torch.Tensor | None:
    out = torch.zeros(t.size()) if dist.get_rank() == 0 else None
    t.gather(out=out)
    return out


def _every_spec_to_every_spec() -> None:
    for i, a in enumerate(SPECS_2D):
        for b in SPECS_2D:
            saved = {"st": sharded_tensor.rand(a, 10, 20)}
            dcp.save(saved, storage_writer=ShardkeepWriter(
                path="/tmp/specs", thread_count=2))
            into = {"st": sharded_tensor.zeros(b, 10, 20)}
            dcp.load(into, storage_reader=ShardkeepReader(path="/tmp/specs"))
            before, after = _gathered(saved["st"]), _gathered(into["st"])
            assert before is None or torch.equal(before, after), (i, b)


def test_sharded_tensors_of_any_spec() -> None:
    run(2, _every_spec_to_every_spec)


def _sharded_and_whole() -> None:
    specs = [
        ChunkShardingSpec(dim=0, placements=["rank:0", "rank:1"]),
        EnumerableShardingSpec([
            ShardMetadata([0], [10], placement="rank:1"),
            ShardMetadata([10], [22], placement="rank:0")])]
    for a in specs:
        for b in specs:
            saved = {"sharded": sharded_tensor.rand(a, 32),
                     "replicated": torch.rand(32)}
            dist.broadcast(saved["replicated"], src=0)
            dcp.save(saved, checkpoint_id="switch")
            into = {"sharded": torch.zeros(32),
                    "replicated": sharded_tensor.zeros(b, 32)}
            dcp.load(into, checkpoint_id="switch")
            before = _gathered(saved["sharded"])
            after = _gathered(into["replicated"])
            if dist.get_rank() == 0:
                assert torch.equal(before, into["sharded"])
                assert torch.equal(after, saved["replicated"])


def test_sharded_becomes_whole_and_whole_sharded() -> None:
    with swapped():
        run(2, _sharded_and_whole)


# ---- DTensors ----

def _placements_change() -> None:
    n = dist.get_world_size()
    whole = torch.arange(36.).view(6, 6)
    meshes = {1: init_device_mesh("cpu", (n,)),
              2: init_device_mesh("cpu", (2, n // 2))}
    ways = [(1, (Shard(0),)), (1, (Replicate(),)), (1, (Shard(1),)),
            (2, (Replicate(), Replicate())), (2, (Replicate(), Shard(0))),
            (2, (Shard(0), Replicate())), (2, (Shard(0), Shard(0))),
            (2, (Shard(1), Shard(0)))]
    for i, (m, p) in enumerate(ways):
        dcp.save({"t": distribute_tensor(whole, meshes[m], p)},
                 checkpoint_id=f"change/{i + 1}")
        for m2, p2 in ways:
            into = {"t": zeros((6, 6), device_mesh=meshes[m2],
                               placements=p2)}
            dcp.load(into, checkpoint_id=f"change/{i + 1}")
            assert torch.equal(into["t"].full_tensor(), whole), (p, p2)


def test_dtensors_change_mesh_and_placements() -> None:
    with swapped():
        run(4, _placements_change)


class _Extra(nn.Module):
    """A module with extra state: an int and a tensor."""

    def __init__(self, value: float) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.sdt = nn.Parameter(distribute_tensor(
            torch.arange(4.) * value, mesh, [Shard(0)]))
        self.rdt = nn.Parameter(distribute_tensor(
            torch.arange(4., 8.) * value, mesh, [Replicate()]))
        self.extra = {"extra_state": int(value),
                      "extra_state_tensor": torch.full((1,), value)}

    def get_extra_state(self) -> dict[str, Any]:
        return self.extra

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.extra = state


def _extra_state() -> None:
    first, second = _Extra(1), _Extra(10)
    dcp.save(first.state_dict(), checkpoint_id="extra",
             planner=dcp.DefaultSavePlanner())
    state = second.state_dict()
    dcp.load(state, checkpoint_id="extra", planner=dcp.DefaultLoadPlanner())
    assert torch.equal(state["sdt"].to_local(), first.sdt.to_local())
    assert torch.equal(state["rdt"].to_local(), first.rdt.to_local())
    assert state["_extra_state"]["extra_state"] == 1
    assert state["_extra_state"]["extra_state_tensor"].item() == 1


def test_extra_state() -> None:
    with swapped():
        run(4, _extra_state)


# ---- wrapped models ----

def _made(kind: str, uneven: bool = False
          ) -> tuple[nn.Module, torch.optim.Optimizer]:
    n = dist.get_world_size()
    model: nn.Module = Small(uneven)
    if kind == "fsdp":
        model = FSDP(model, device_mesh=init_device_mesh("cpu", (n,)),
                     use_orig_params=True, device_id=torch.device("cpu"))
    elif kind == "hsdp":
        model = FSDP(model, device_mesh=init_device_mesh(
            "cpu", (2, n // 2)), use_orig_params=True,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_id=torch.device("cpu"))
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


class _TrainState:
    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        losses = io.BytesIO()
        torch.save(self.losses, losses)
        return {"step": torch.tensor(len(self.losses)), "losses": losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state["losses"].seek(0)
        self.losses = torch.load(state["losses"])
        assert state["step"].item() == len(self.losses)


def _patched(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optim = _made(kind)
    if kind != "none":
        _patch_model_state_dict(model)
        _patch_optimizer_state_dict(model, optimizers=optim)
    return model, optim


def _whole_job(kind: str, how: str) -> None:
    plain, plain_optim = _made("none")
    train(plain, plain_optim, 2)
    model, optim = _patched(kind)
    train(model, optim, 2)
    progress = _TrainState()
    progress.losses = [1.5, float("inf")]
    state = {"model": model, "optimizer": optim, "train": progress}
    if how == "save":
        dcp.save(state, checkpoint_id="job/2")
    else:
        future = dcp.async_save(
            state, storage_writer=dcp.FileSystemWriter(
                "job/2", cache_staged_state_dict=how == "cached"),
            process_group=dist.new_group(),
            **{"async_checkpointer_type": AsyncCheckpointerType.PROCESS}
            if how == "process" else {})
        getattr(future, "upload_completion", future).result()
    model, optim = _patched(kind)
    again = _TrainState()
    dcp.load({"model": model, "optimizer": optim, "train": again},
             checkpoint_id="job/2")
    assert again.losses == progress.losses
    assert abs(train(plain, plain_optim, 1) - train(model, optim, 1)) < 1e-3


@pytest.mark.parametrize("kind", ["none", "fsdp", "hsdp", "ddp"])
def test_models_and_optimizers(kind: str) -> None:
    with swapped():
        run(4, _whole_job, kind, "save")


@pytest.mark.parametrize("how", ["thread", "cached", pytest.param(
    "process", marks=needs_processes)])
def test_async_save(how: str) -> None:
    with swapped():
        run(2, _whole_job, "fsdp", how)


def _hsdp_to_fsdp(uneven: bool) -> None:
    from torch.distributed.checkpoint.default_planner import (
        DefaultLoadPlanner, DefaultSavePlanner)
    hsdp, _ = _made("hsdp", uneven)
    with torch.no_grad():
        for p in hsdp.parameters():
            p.add_(1)
    fsdp, _ = _made("fsdp", uneven)
    for m in (hsdp, fsdp):
        FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT)
    saved = {"model": hsdp.state_dict()}
    dcp.save(saved, storage_writer=dcp.FileSystemWriter("conversion"),
             planner=DefaultSavePlanner())
    into = {"model": fsdp.state_dict()}
    dcp.load(into, storage_reader=dcp.FileSystemReader("conversion"),
             planner=DefaultLoadPlanner())
    for key, t in saved["model"].items():
        assert torch.equal(t.full_tensor(),
                           into["model"][key].full_tensor()), key
    # And back where it came from, over other values.
    again = {"model": copy.deepcopy(saved["model"])}
    for t in again["model"].values():
        t.to_local().zero_()
    dcp.load(again, storage_reader=dcp.FileSystemReader("conversion"))
    for key, t in saved["model"].items():
        assert torch.equal(t.to_local(), again["model"][key].to_local())


@pytest.mark.parametrize("uneven", [False, True])
def test_hsdp_to_fsdp_and_back(uneven: bool) -> None:
    with swapped():
        run(4, _hsdp_to_fsdp, uneven)


def _fsdp_to_tp() -> None:
    class Mlp(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.net1, self.net2 = nn.Linear(10, 16), nn.Linear(16, 10)

    fsdp = FSDP(Mlp(3), use_orig_params=True, device_id=torch.device("cpu"))
    FSDP.set_state_dict_type(fsdp, StateDictType.SHARDED_STATE_DICT)
    dcp.save(fsdp.state_dict(), checkpoint_id="to-tp")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tp = parallelize_module(Mlp(4), mesh, {"net1": ColwiseParallel(),
                                           "net2": RowwiseParallel()})
    state = tp.state_dict()
    dcp.load(state, checkpoint_id="to-tp")
    for key, t in Mlp(3).state_dict().items():
        mine = state[key]
        mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
        assert torch.equal(mine, t), key


def test_fsdp_without_a_mesh_to_tensor_parallel() -> None:
    with swapped():
        run(2, _fsdp_to_tp)


def _optimizer_state_later() -> None:
    from torch.distributed.checkpoint.optimizer import (
        load_sharded_optimizer_state_dict)

    def made() -> tuple[FSDP, torch.optim.Optimizer]:
        m = FSDP(Small(), device_id=torch.device("cpu"))
        FSDP.set_state_dict_type(m, StateDictType.SHARDED_STATE_DICT)
        return m, torch.optim.Adam(m.parameters(), lr=0.1)

    model, optim = made()
    train(model, optim, 1)
    before = FSDP.optim_state_dict(model, optim)
    dcp.save({"model": model.state_dict(), "optim": before},
             storage_writer=dcp.FileSystemWriter("later"))
    second, optim2 = made()
    state = {"model": second.state_dict()}
    dcp.load(state, storage_reader=dcp.FileSystemReader("later"))
    second.load_state_dict(state["model"])
    found = load_sharded_optimizer_state_dict(
        model_state_dict=state["model"], optimizer_key="optim",
        storage_reader=dcp.FileSystemReader("later"))
    optim2.load_state_dict(FSDP.optim_state_dict_to_load(
        second, optim2, found["optim"]))
    after = FSDP.optim_state_dict(second, optim2)
    assert before["state"].keys() == after["state"].keys()
    for fqn, state in before["state"].items():
        for key, t in state.items():
            u = after["state"][fqn][key]
            if hasattr(t, "local_shards"):
                assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(
                    t.local_shards(), u.local_shards(), strict=True))
            else:
                assert torch.equal(t, u)


def test_sharded_optimizer_state_is_loaded_by_itself() -> None:
    with swapped():
        run(2, _optimizer_state_later)


def _fine_tuning() -> None:
    """Frozen layers come from one checkpoint, the others from another."""
    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pretrain = Small()
            self.head = nn.Linear(8, 8)
            for p in self.pretrain.parameters():
                p.requires_grad = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.pretrain(x))

    base, base_optim = _made("fsdp")
    train(base, base_optim, 2)
    m, o = get_state_dict(base, base_optim)
    dcp.save({"model": m, "optim": o}, checkpoint_id="pretrained")
    tuned = FSDP(Tuned(), use_orig_params=True,
                 device_mesh=init_device_mesh("cpu", (2,)),
                 device_id=torch.device("cpu"))
    optim = torch.optim.Adam([p for p in tuned.parameters()
                              if p.requires_grad])
    for i in range(2):
        state = get_model_state_dict(
            tuned, submodules={tuned.pretrain},
            options=StateDictOptions(keep_submodule_prefixes=False))
        dcp.load({"model": state}, checkpoint_id="pretrained")
        set_model_state_dict(tuned, {tuned.pretrain: state},
                             options=StateDictOptions(strict=False))
        own = StateDictOptions(ignore_frozen_params=True)
        m, o = get_state_dict(tuned, optim, options=own)
        if i:
            dcp.load({"model": m, "optim": o}, checkpoint_id="tuned")
            set_state_dict(tuned, optim, model_state_dict=m,
                           optim_state_dict=o,
                           options=StateDictOptions(strict=False))
        train(tuned, optim, 1)
        m, o = get_state_dict(tuned, optim, options=own)
        dcp.save({"model": m, "optim": o}, checkpoint_id="tuned")
    with FSDP.summon_full_params(base), FSDP.summon_full_params(tuned):
        for a, b in zip(base.parameters(), tuned.pretrain.parameters()):
            assert torch.equal(a, b)


def test_fine_tuning() -> None:
    with swapped():
        run(2, _fine_tuning)


# ---- one process ----

def test_objects_and_bytes() -> None:
    with swapped():
        state = {"list": [1], "text": "string", "raw": b"Some\0Blob",
                 "stream": io.BytesIO(b"Epoch:4")}
        dcp.save(dict(state), checkpoint_id="objects", no_dist=True)
        into: dict[str, Any] = {"list": [2], "text": "", "raw": b"",
                                "stream": io.BytesIO()}
        dcp.load(into, checkpoint_id="objects", no_dist=True)
    assert into["stream"].getvalue() == b"Epoch:4"
    assert {k: into[k] for k in ("list", "text", "raw")} == \
        {k: state[k] for k in ("list", "text", "raw")}


def test_nothing_at_all() -> None:
    with swapped():
        dcp.save({}, checkpoint_id="nothing")
        dcp.load({}, checkpoint_id="nothing")


def test_what_is_loaded_in_place_and_what_replaced() -> None:
    class Watched(dict):
        written = False

        def __setitem__(self, key: str, value: Any) -> None:
            self.written = True
            super().__setitem__(key, value)

    class Stateful:
        loaded = False

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loaded = True

    with swapped():
        foo = Stateful()
        sd = Watched()
        sd["foo"] = foo
        sd.written = False
        dcp.save(sd, checkpoint_id="stateful")
        dcp.load(sd, checkpoint_id="stateful")
        assert foo.loaded and not sd.written
        sd = Watched()
        sd["foo"] = {"replicated": torch.rand(10, 10), "bytes": [1, 2, 3]}
        sd.written = False
        dcp.save(sd, checkpoint_id="stateful")
        dcp.load(sd, checkpoint_id="stateful")
        assert sd.written


def test_a_checkpoint_is_overwritten_only_where_it_may_be() -> None:
    a, b = torch.randn(10), torch.randn(10)
    dcp.save({"random": a},
             storage_writer=ShardkeepWriter("again", overwrite=False))
    dcp.save({"random": b},
             storage_writer=ShardkeepWriter("again", overwrite=True))
    into = {"random": torch.zeros(10)}
    dcp.load(into, storage_reader=ShardkeepReader("again"))
    assert torch.equal(into["random"], b)
    with pytest.raises(dcp.CheckpointException,
                       match="Checkpoint already exists"):
        dcp.save({"random": a},
                 storage_writer=ShardkeepWriter("again", overwrite=False))
    # Another content altogether under the same name.
    dcp.save({"other": torch.ones(3, 3)},
             storage_writer=ShardkeepWriter("again"))
    assert set(ShardkeepReader("again").read_metadata()
               .state_dict_metadata) == {"other"}


def test_metadata_says_where_it_is_from() -> None:
    writer = ShardkeepWriter("about/7")
    dcp.save({"a": torch.zeros(4, 4)}, storage_writer=writer)
    reader = ShardkeepReader("about/7")
    meta = reader.read_metadata().storage_meta
    assert meta is not None
    assert str(meta.checkpoint_id) == "about/7"
    assert meta.save_id == writer.save_id
    assert meta.load_id == reader.load_id
    first = reader.load_id
    reader.reset("about/7")
    assert reader.load_id != first


def test_dtypes_that_differ() -> None:
    with swapped():
        dcp.save({"w": torch.tensor([[1.5, -2.25]])}, checkpoint_id="types")
        narrow = {"w": torch.zeros(1, 2, dtype=torch.bfloat16)}
        dcp.load(narrow, checkpoint_id="types")
        assert narrow["w"].tolist() == [[1.5, -2.25]]
        wide = {"w": torch.zeros(1, 2, dtype=torch.float64)}
        dcp.load(wide, checkpoint_id="types")
        assert wide["w"].tolist() == [[1.5, -2.25]]


def test_parts_of_a_checkpoint_by_key() -> None:
    model = Small()
    optim = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optim, 1)
    with swapped():
        dcp.save({"model": get_model_state_dict(model),
                  "optimizer": get_optimizer_state_dict(model, optim)},
                 checkpoint_id="keys")
        found = _load_state_dict_from_keys("model", checkpoint_id="keys")
        for key, t in model.state_dict().items():
            assert torch.equal(found["model"][key], t)
        state = _load_state_dict_from_keys(
            "optimizer.state", checkpoint_id="keys")["optimizer"]["state"]
        assert "param_groups" not in state
        for key, p in model.named_parameters():
            for what in ("exp_avg", "exp_avg_sq", "step"):
                assert torch.equal(state[key][what], optim.state[p][what])


def test_a_state_dict_is_filled_where_it_lies() -> None:
    model = Small()
    optim = torch.optim.Adam(model.parameters(), lr=0.1)
    with swapped():
        dcp.save({"model": get_model_state_dict(model),
                  "optimizer": get_optimizer_state_dict(model, optim)},
                 checkpoint_id="init")
        second = Small()
        optim2 = torch.optim.Adam(second.parameters(), lr=0.2)
        m = get_model_state_dict(second)
        o = get_optimizer_state_dict(second, optim2)
        into = {"model": m, "optimizer": o}
        dcp.load(into, checkpoint_id="init")
        assert into["model"] is m and into["optimizer"] is o
        set_state_dict(second, optim2, model_state_dict=m,
                       optim_state_dict=o)
    assert optim2.param_groups[0]["lr"] == 0.1


def test_other_storages_addresses_are_not_ours() -> None:
    with swapped():
        with pytest.raises(RuntimeError, match="Cannot detect"):
            dcp.save({"a": torch.ones(1)}, checkpoint_id="abc://abc.abc")
        with pytest.raises(RuntimeError, match="Cannot detect"):
            dcp.load({"a": torch.ones(1)}, checkpoint_id="abc://abc.abc")
    with pytest.raises(ValueError, match="another storage"):
        ShardkeepWriter("s3://bucket/ckpt")


def test_options_that_would_change_the_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="keeps the bytes"):
        ShardkeepWriter("x/1", _extensions=[object()])
    with pytest.raises(TypeError, match="knows no thread_cuont"):
        ShardkeepWriter("x/1", thread_cuont=2)
    with pytest.raises(TypeError, match="give one"):
        ShardkeepWriter("x/1", path="x/1")


# ---- ranks that do not meet ----

def _order_and_groups() -> None:
    class Meets:
        def __init__(self, sum_: bool) -> None:
            self.sum = sum_

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            t = torch.ones(2)
            if self.sum:
                dist.all_reduce(t)
            else:
                dist.all_gather([torch.empty(2)
                                 for _ in range(dist.get_world_size())], t)

    keys = ["a", "b"] if dist.get_rank() == 0 else ["b", "a"]
    state = {k: Meets(k == "a") for k in keys}
    dcp.save(state, checkpoint_id="order")
    dcp.load(state, checkpoint_id="order")


def test_the_order_of_keys_does_not_matter() -> None:
    with swapped():
        run(4, _order_and_groups)


def _without_collectives() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(30.).view(10, 3)
    dcp.save({"t": distribute_tensor(whole, mesh, [Shard(0)]),
              "same": torch.full((3,), 4.)},
             checkpoint_id="alone/3", use_collectives=False)
    dist.barrier()
    into = {"t": zeros((10, 3), device_mesh=mesh, placements=[Replicate()]),
            "same": torch.zeros(3)}
    dcp.load(into, checkpoint_id="alone/3")
    assert torch.equal(into["t"].to_local(), whole)
    assert into["same"].tolist() == [4, 4, 4]


@needs_no_collectives
def test_saves_without_collectives() -> None:
    with swapped():
        run(3, _without_collectives)


def _planner_with_mapping() -> None:
    """A load planner that finds tensors under the names they had before."""
    from torch.distributed.checkpoint.default_planner import (
        DefaultLoadPlanner, DefaultSavePlanner)

    class Renamed(DefaultLoadPlanner):
        def set_up_planner(self, state_dict: Any, metadata: Any = None,
                           is_coordinator: bool = False) -> None:
            super().set_up_planner(state_dict, metadata, is_coordinator)
            self.state_dict = {"old." + k: v
                               for k, v in self.state_dict.items()}

        def create_local_plan(self) -> Any:
            self.original_state_dict = self.state_dict
            return super().create_local_plan()

    class Prefixed(DefaultSavePlanner):
        def set_up_planner(self, state_dict: Any, *args: Any,
                           **kwargs: Any) -> None:
            super().set_up_planner(
                {"old." + k: v for k, v in state_dict.items()}, *args,
                **kwargs)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(14.).view(7, 2)
    dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])},
             checkpoint_id="mapped/1", planner=Prefixed())
    held = dcp.FileSystemReader("mapped/1").read_metadata()
    assert set(held.state_dict_metadata) == {"old.w"}
    into = {"w": zeros((7, 2), device_mesh=mesh, placements=[Shard(1)])}
    dcp.load(into, checkpoint_id="mapped/1", planner=Renamed())
    assert torch.equal(into["w"].full_tensor(), whole)


def test_planners_that_map_keys() -> None:
    with swapped():
        run(2, _planner_with_mapping)


def _cached_plans() -> None:
    """Plans kept from save to save: other values, the same shapes."""
    from torch.distributed.checkpoint.default_planner import (
        DefaultSavePlanner)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    planner = DefaultSavePlanner(enable_plan_caching=True)
    t = distribute_tensor(torch.zeros(9, 2), mesh, [Shard(0)])
    for step in range(1, 5):
        with torch.no_grad():
            t.to_local().fill_(step)
        dcp.save({"t": t, "step": step}, checkpoint_id=f"cached/{step}",
                 planner=planner)
        into = {"t": torch.zeros(9, 2), "step": 0}
        dcp.load(into, checkpoint_id=f"cached/{step}")
        assert (into["t"] == step).all() and into["step"] == step


@needs_plan_caching
def test_cached_plans() -> None:
    with swapped():
        run(2, _cached_plans)


def test_steps_may_go_back() -> None:
    """A job that restarts from an older step writes smaller ones."""
    with swapped():
        for step in (5, 9, 7, 7, 3):
            dcp.save({"t": torch.full((3,), float(step))},
                     checkpoint_id=f"back/{step}")
            into = {"t": torch.zeros(3)}
            dcp.load(into, checkpoint_id=f"back/{step}")
            assert into["t"].tolist() == [step] * 3


def test_paths_of_directories(tmp_path: Any) -> None:
    with swapped():
        for name in ("step-10", "step-20", "final"):
            dcp.save({"t": torch.ones(2)}, checkpoint_id=tmp_path / name)
        into = {"t": torch.zeros(2)}
        dcp.load(into, checkpoint_id=os.fspath(tmp_path / "step-10"))
        assert into["t"].tolist() == [1, 1]
    assert not list(tmp_path.iterdir())
