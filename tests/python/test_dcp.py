# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoint with Shardkeep as its storage."""

from __future__ import annotations

import copy
import glob
import os
import pickle
import random
import re
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run, start, wait
from models import Replicate, Shard, _StridedShard, sharded, whole, wrong
from shardkeep import Client, snapshots
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter, parse_id
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner, DefaultSavePlanner)
from torch.distributed.checkpoint.state_dict import (get_state_dict,
                                                     set_state_dict)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def test_ids():
    assert parse_id("llama/100") == parse_id("llama/100/") == ("llama", 100)
    assert parse_id("shardkeep:llama-3.1/7") == ("llama-3.1", 7)
    job, step = parse_id("/scratch/run 1/step_000250")
    assert step == 250 and job.startswith("dcp-")
    assert parse_id("/scratch//run 1/step_000251/") == (job, 251)
    assert parse_id("/scratch/run-1/step_000250")[0] != job
    assert parse_id("/a")[1] == 0


def test_no_two_paths_are_one_snapshot():
    paths = ["/a", "/a0", "/a00", "/a/0", "/a-0", "/a_0", "/a1", "/a01",
             "/a-1", "/a--1", "/a/1", "/a./1", "/a.1", "/a.01", "/a.001",
             "/lr0.1", "/lr0.01", "/lr0_1", "/lr0_01", "/1e-4", "/1e4", "a",
             "b/a-1", "/" + "9" * 15, "/" + "9" * 16, "/9" + "0" * 15,
             "/a/\n/1", "/a//\udcff/1", "/a/-/1", "a/1", "a/01", "a/001", "a/0",
             "a/00", f"a/{2**63 - 1}", f"a/{2**63}", f"a/{2**64 + 1}",
             "a/20260102030405678901", "a/\u0661", "a/" + "1" * 5000]
    found = {parse_id(p): p for p in paths}
    assert len(found) == len(paths)
    assert all(re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", job)
               and 0 <= step < 2**63 for job, step in found)
    assert parse_id(f"a/{2**63 - 1}") == ("a", 2**63 - 1)
    assert parse_id("/a/./1") == parse_id("/b/../a//1/") == parse_id("/a/1")
    # The steps of a run are of one job.
    for step in ("/r/step-{}", "/r/{}/", "/r/step_{:08}", "/r{}"):
        told = [parse_id(step.format(n)) for n in (1, 20, 300)]
        assert [x[1] for x in told] == [1, 20, 300]
        assert len({x[0] for x in told}) == 1


# ---- one rank ----

def _state():
    return {"m": {"w": whole("w", (5, 6)),
                  "half": whole("half", (3,), torch.bfloat16),
                  "scalar": torch.tensor(4.0), "empty": torch.empty(0, 3),
                  "strided": whole("strided", (6, 4)).t()},
            "step": 7, "config": {"x": [1, (2, 3)], "s": {"a"}}, "n": None}


def _blank(x):
    if isinstance(x, torch.Tensor):
        return torch.zeros_like(x)
    if isinstance(x, dict):
        return {k: _blank(v) for k, v in x.items()}
    return 0 if isinstance(x, int) else None


def _same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return a == b


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_one_rank(agent):
    saved = _state()
    dcp.save(saved, storage_writer=ShardkeepWriter("one/5"), no_dist=True)
    loaded = _blank(saved)
    dcp.load(loaded, storage_reader=ShardkeepReader("one/5"), no_dist=True)
    assert _same(saved, loaded)
    part = {"m": {"w": torch.zeros(5, 6)}}
    dcp.load(part, storage_reader=ShardkeepReader(job="one"), no_dist=True)
    assert torch.equal(part["m"]["w"], saved["m"]["w"])
    other = {"m": {"w": torch.zeros(5, 6, dtype=torch.float64)}}
    dcp.load(other, storage_reader=ShardkeepReader(job="one"), no_dist=True)
    assert torch.equal(other["m"]["w"].float(), saved["m"]["w"])
    # The same step once more replaces it.
    saved["m"]["w"] += 1
    dcp.save(saved, storage_writer=ShardkeepWriter("one/5"), no_dist=True)
    dcp.load(part, storage_reader=ShardkeepReader("one/5"), no_dist=True)
    assert torch.equal(part["m"]["w"], saved["m"]["w"])
    with pytest.raises(CheckpointException, match="config"):
        dcp.save({"config": object()}, no_dist=True,
                 storage_writer=ShardkeepWriter("one/6"))
    with pytest.raises(CheckpointException):
        dcp.load(part, storage_reader=ShardkeepReader("one/99"),
                 no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_saves_at_once_by_one_writer(agent):
    """Each goes where it was told to, whichever began last."""
    begun, other = threading.Event(), threading.Event()

    class Waiting(DefaultSavePlanner):
        def create_local_plan(self):
            begun.set()
            assert other.wait(60)
            return super().create_local_plan()

    writer = ShardkeepWriter()
    first = dcp.async_save({"w": torch.full((4,), 1.)}, no_dist=True,
                           checkpoint_id="first/1", storage_writer=writer,
                           planner=Waiting())
    assert begun.wait(60)
    dcp.async_save({"w": torch.full((4,), 2.)}, no_dist=True,
                   checkpoint_id="second/2", storage_writer=writer).result()
    other.set()
    first.result()
    assert writer.checkpoint_id == "second/2"
    for name, value in ("first/1", 1.), ("second/2", 2.):
        found = {"w": torch.zeros(4)}
        dcp.load(found, storage_reader=ShardkeepReader(name), no_dist=True)
        assert (found["w"] == value).all(), name


def _save_of(value: float, name: str) -> None:
    dcp.save({"w": torch.full((4,), value), "n": value}, no_dist=True,
             storage_writer=ShardkeepWriter(name))


@pytest.mark.filterwarnings("ignore:torch.distributed")
@pytest.mark.parametrize("named", [True, False])
def test_loads_at_once_by_one_reader_each_have_their_own(agent, named):
    """By an id of its own, or what was the newest when it began."""
    begun, other = threading.Event(), threading.Event()
    failed = []

    class Waiting(DefaultLoadPlanner):
        def create_local_plan(self):
            begun.set()
            assert other.wait(60)
            return super().create_local_plan()

    reader = ShardkeepReader(job="both")
    first = {"w": torch.zeros(4), "n": 0.}

    def load() -> None:
        try:
            dcp.load(first, storage_reader=reader, no_dist=True,
                     checkpoint_id="first/1" if named else None,
                     planner=Waiting())
        except BaseException as e:
            failed.append(e)

    _save_of(1., "first/1" if named else "both/1")
    thread = threading.Thread(target=load)
    thread.start()
    assert begun.wait(60)
    _save_of(2., "second/2" if named else "both/2")
    second = {"w": torch.zeros(4), "n": 0.}
    dcp.load(second, storage_reader=reader, no_dist=True,
             checkpoint_id="second/2" if named else None)
    other.set()
    thread.join()
    assert not failed, failed
    for found, value in (first, 1.), (second, 2.):
        assert (found["w"] == value).all() and found["n"] == value
    assert reader.checkpoint_id == ("second/2" if named else "both")


@pytest.mark.filterwarnings("ignore:torch.distributed")
@pytest.mark.parametrize("make", [
    copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"])
def test_copies_of_readers_and_writers_are_others(agent, make):
    writer, reader = ShardkeepWriter("a/1"), ShardkeepReader("a/1")
    for _ in range(2):      # before they were used, and after
        other_writer, other_reader = make(writer), make(reader)
        dcp.save({"w": torch.full((4,), 1.)}, storage_writer=writer,
                 no_dist=True)
        dcp.save({"w": torch.full((4,), 2.)}, storage_writer=other_writer,
                 checkpoint_id="b/1", no_dist=True)
        dcp.save({"w": torch.full((4,), 3.)}, storage_writer=writer,
                 no_dist=True)
        found = {"w": torch.zeros(4)}
        for r, name, value in ((reader, None, 3.), (other_reader, "b/1", 2.),
                               (reader, None, 3.), (other_reader, None, 2.)):
            dcp.load(found, storage_reader=r, checkpoint_id=name,
                     no_dist=True)
            assert (found["w"] == value).all()


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_saves_reuse_their_slots(agent):
    saved = {"w": whole("w", (100, 100))}
    for step in range(4):
        saved["w"] = saved["w"] + 1     # another address each time
        dcp.save(saved, storage_writer=ShardkeepWriter(
            job="again", step=step, flush=False), no_dist=True)
    client = Client()
    runs = {s["run"] for s in snapshots(client, "again")}
    client.close()
    assert len(runs) == 1
    loaded = {"w": torch.zeros(100, 100)}
    dcp.load(loaded, storage_reader=ShardkeepReader(job="again"),
             no_dist=True)
    assert torch.equal(loaded["w"], saved["w"])


# ---- several ----

class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(
            *[torch.nn.Linear(n, n + 1) for n in (2, 3, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def _model():
    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.ones(2, 2)).sum().backward()
    optim.step()
    return model, optim


def _save_model(path, asynchronous) -> None:
    model, optim = _model()
    m, o = get_state_dict(model, optim)
    writer = ShardkeepWriter("fsdp/3", wait="durable")
    if asynchronous:
        dcp.async_save({"m": m, "o": o, "step": 3},
                       storage_writer=writer).result()
    else:
        dcp.save({"m": m, "o": o, "step": 3}, storage_writer=writer)
    full = {k: v.full_tensor() for k, v in m.items()}
    if dist.get_rank() == 0:
        torch.save(full, path)


def _load_model(path) -> None:
    model, optim = _model()
    with torch.no_grad():
        for p in model.parameters():
            p._local_tensor.zero_()
    m, o = get_state_dict(model, optim)
    state = {"m": m, "o": o, "step": 0}
    dcp.load(state, storage_reader=ShardkeepReader("fsdp/3"))
    set_state_dict(model, optim, model_state_dict=state["m"],
                   optim_state_dict=state["o"])
    assert state["step"] == 3
    want = torch.load(path)
    for name, t in model.state_dict().items():
        assert torch.equal(t.full_tensor(), want[name]), name


def _load_without_us(path, directory) -> None:
    model, _ = _model()
    state = {"m": {k: torch.zeros_like(v)
                   for k, v in model.state_dict().items()}}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(directory))
    want = torch.load(path)
    for name, t in state["m"].items():
        assert torch.equal(t.full_tensor(), want[name]), name


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fsdp2(agent, asynchronous):
    path = f"{agent}/full.pt"
    run(4, _save_model, path, asynchronous)
    run(4, _load_model, path)
    run(3, _load_model, path)
    directory, = glob.glob(f"{agent}/store/fsdp/step-*")
    if hasattr(dcp, "HuggingFaceStorageReader"):
        run(2, _load_without_us, path, directory)


def _random(seeds, save) -> None:
    world = dist.get_world_size()
    for seed in seeds:
        rng = random.Random(seed * 1000 + world)
        state, full = {}, {}
        for i in range(8):
            shape = tuple(random.Random(f"{seed}.{i}").randrange(0, 12)
                          for _ in range(2))
            ranks = rng.sample(range(world), rng.randrange(1, world + 1))
            placements = [rng.choice((Replicate(), Shard(0), Shard(1)))]
            mesh = torch.tensor(ranks)
            if len(ranks) == 4:
                mesh = mesh.reshape(2, 2)
                placements.append(rng.choice((Replicate(), Shard(0),
                                              Shard(1))))
            name = f"w{i}"
            full[name] = whole(f"{seed}{name}", shape)
            state[name] = sharded(full[name], DeviceMesh("cpu", mesh),
                                  tuple(placements), save)
        if save:
            dcp.save(state, storage_writer=ShardkeepWriter(f"r{seed}/1"))
        else:
            dcp.load(state, storage_reader=ShardkeepReader(f"r{seed}/1"))
            for name, t in state.items():
                assert not wrong(t, full[name]), (seed, name)


def test_random_meshes(agent):
    run(4, _random, range(5), True)
    run(3, _random, range(5), False)
    run(4, _random, range(5), False)


def _experts(save) -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    name = f"expert{rank % 2}"
    full = whole(name, (7, 3))
    state = {name: sharded(full, mesh["dp"], (Shard(0),), save)}
    if save:
        dcp.save(state, storage_writer=ShardkeepWriter("ep/1"))
        return
    dcp.load(state, storage_reader=ShardkeepReader("ep/1"))
    assert not wrong(state[name], full)


def test_keys_on_some_ranks(agent):
    run(4, _experts, True)
    run(4, _experts, False)


# ---- what must be refused ----

def _upstream_is_wrong(dp, tp, n) -> None:
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    state = {"w": sharded(whole("w", (n, 3)), mesh,
                          (_StridedShard(0, split_factor=tp), Shard(0)))}
    try:
        dcp.save(state, storage_writer=ShardkeepWriter("wrong/1"))
    except CheckpointException:
        pass
    else:       # 2.9's is right
        got = torch.zeros(n, 3)
        dcp.load({"w": got}, storage_reader=ShardkeepReader("wrong/1"))
        assert torch.equal(got, whole("w", (n, 3)))
        return
    if dist.get_rank() == 0:
        client = Client()
        assert not any(s["complete"] for s in snapshots(client, "wrong"))
        client.close()


@pytest.mark.parametrize("dp, tp, n", [(4, 2, 9), (4, 2, 17), (3, 2, 7)])
def test_metadata_that_disagrees_is_refused(agent, dp, tp, n):
    run(dp * tp, _upstream_is_wrong, dp, tp, n)


# ---- storage that fails on chosen ranks ----

STEPS = ("set_up_storage_writer", "prepare_local_plan",
         "prepare_global_plan", "write_data", "finish")


def _fail_in(base, step, ranks):
    class Faulty(base):
        pass

    def fail(self, *args, **kwargs):
        if dist.get_rank() in ranks:
            raise OSError(5, f"{step} fails here")
        return getattr(base, step)(self, *args, **kwargs)

    setattr(Faulty, step, fail)
    return Faulty


def _faults() -> None:
    state = {"w": sharded(whole("w", (8, 3)), init_device_mesh(
        "cpu", (dist.get_world_size(),)), (Shard(0),))}
    for i, step in enumerate(STEPS):
        ranks = (0,) if step in ("prepare_global_plan", "finish") else (1, 2)
        writer = _fail_in(ShardkeepWriter, step, ranks)(f"faulty/{i}")
        with pytest.raises(CheckpointException) as e:
            dcp.save(state, storage_writer=writer)
        assert set(e.value.failures) == set(ranks), step
    for step in ("set_up_storage_reader", "prepare_local_plan",
                 "prepare_global_plan", "read_data", "read_metadata"):
        dcp.save(state, storage_writer=ShardkeepWriter("fine/1"))
        ranks = (0,) if step == "prepare_global_plan" else (1, 3)
        reader = _fail_in(ShardkeepReader, step, ranks)("fine/1")
        with pytest.raises(CheckpointException):
            dcp.load(state, storage_reader=reader)
    # And the next save is as good as any.
    dcp.save(state, storage_writer=ShardkeepWriter("faulty/9"))
    dist.barrier()
    if dist.get_rank() == 0:
        client = Client()
        found = {s["step"]: s["complete"]
                 for s in snapshots(client, "faulty")}
        client.close()
        assert found[9] and not found.get(3), found


def test_storage_errors(agent):
    run(4, _faults)


def _die(where) -> None:
    state = {"w": sharded(whole("w", (8, 3)), init_device_mesh(
        "cpu", (dist.get_world_size(),)), (Shard(0),))}
    dcp.save(state, storage_writer=ShardkeepWriter("die/1"))

    class Mortal(ShardkeepWriter if where == "write_data"
                 else ShardkeepReader):
        pass

    def die(self, *args):
        if dist.get_rank() == 2:
            os._exit(9)
        return getattr(super(Mortal, self), where)(*args)

    setattr(Mortal, where, die)
    # Whoever lives is told, and does not hang.
    with pytest.raises(Exception):
        if where == "write_data":
            dcp.save(state, storage_writer=Mortal("die/2"))
        else:
            dcp.load(state, storage_reader=Mortal("die/1"))
    os._exit(0)


@pytest.mark.parametrize("where", ["write_data", "read_data"])
def test_a_rank_dies(agent, where):
    assert wait(start(4, _die, where)) == [0, 0, 9, 0]
