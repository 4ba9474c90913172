# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: every parallelism, saved by one set of ranks, restored by
another, compared element by element."""

from __future__ import annotations

import copy
import enum
import functools
import gc
import json
import logging
import os
import random
import signal
import subprocess
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from harness import Logged, run, start, wait
from models import (Holder, Replicate, Shard, _StridedShard, everything,
                    sharded, whole, wrong)
from shardkeep import LATEST, Error, Invalid, Mismatch, NotFound, TensorChanged
from shardkeep._tools import path as program
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from shardkeep.torch.full import full_state_dict, load_tensors
from test_core import _discarded
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

FLUSHLESS = {"flush_every": 1 << 30}


class Net(torch.nn.Module):
    """Dimensions 2 to 5: on four ranks some have nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(n, n + 1) for n in (2, 3, 4)])
        self.norm = torch.nn.LayerNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.norm(x)


def _train(model, optim, ck, steps) -> None:
    for step in steps:
        torch.manual_seed(step)
        optim.zero_grad()
        model(torch.randn(6, 2)).square().sum().backward()
        optim.step()
        assert ck.snapshot(step, wait=30)
        ck.wait()


def _memory_used() -> int:
    said = subprocess.run([program("cachectl"), "stats", "--json"],
                          capture_output=True, check=True).stdout
    return next(int(s["value"]) for s in json.loads(said)["stats"]
                if s["name"] == "shardkeep_memory_used_bytes")


def _room_is_made_early(asked: bool) -> None:
    model = Net()
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="early", **FLUSHLESS) as ck:
        if asked:
            assert ck.restore() is None
        for step in range(3):
            model(torch.randn(6, 2)).square().sum().backward()
            dist.barrier()
            assert step == 2 or not _memory_used()
            dist.barrier()
            optim.step()
        dist.barrier()
        used = _memory_used()
        assert bool(used) == asked
        dist.barrier()
        assert ck.snapshot(3, wait=30)
        ck.wait()
        assert not asked or _memory_used() == used
        dist.barrier()      # whoever leaves gives its memory back


@pytest.mark.parametrize("asked", (True, False))
def test_room_is_made_before_the_first_snapshot(agent, asked) -> None:
    """From the second step on, if restore() has asked who has what."""
    run(2, _room_is_made_early, asked)


def _trains_without_room() -> None:
    model = torch.nn.Linear(2048, 2048)     # 3 GiB in 64 slots
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="large", slots=64,
                      **FLUSHLESS) as ck:
        for _ in range(3):
            model(torch.randn(6, 2048)).square().sum().backward()
            optim.step()
        assert not ck.snapshot(3)
        assert not _memory_used()


def test_training_goes_on_without_room(agent) -> None:
    run(1, _trains_without_room)


def _mesh(kind: str) -> DeviceMesh:
    world = dist.get_world_size()
    if kind == "hsdp":
        return init_device_mesh("cpu", (2, world // 2),
                                mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cpu", (world,))


def _fsdp2_save(kind, path) -> None:
    model = Net()
    fully_shard(model, mesh=_mesh(kind))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    with Checkpointer(model, optim, job="fsdp2", extra={"sched": sched},
                      **FLUSHLESS) as ck:
        assert ck.restore() is None
        for step in range(4):
            _train(model, optim, ck, [step])
            sched.step()
        ck.snapshot(4, wait=30)
        ck.wait()
        want = everything(model, optim)
        # Later training does not change what was taken.
        ck.fence()
        with torch.no_grad():
            for p in model.parameters():
                getattr(p, "_local_tensor", p).zero_()
        if dist.get_rank() == 0:
            torch.save(want, path)


def _fsdp2_load(kind, path) -> None:
    model = Net()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    fully_shard(model, mesh=_mesh(kind))
    pointers = [p._local_tensor.data_ptr() for p in model.parameters()]
    optim = torch.optim.AdamW(model.parameters(), lr=9)
    sched = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    with Checkpointer(model, optim, job="fsdp2", extra={"sched": sched},
                      **FLUSHLESS) as ck:
        assert ck.restore() == 4
        assert ck.report["bytes_memory"] > 0
        assert pointers == [p._local_tensor.data_ptr()
                            for p in model.parameters()], "in place"
        want = torch.load(path)
        have = everything(model, optim)
        assert have.keys() == want.keys()
        for name, t in want.items():
            assert torch.equal(have[name], t), name
        assert sched.last_epoch == 4
        assert optim.param_groups[0]["lr"] == pytest.approx(0.0025)
        _train(model, optim, ck, [5])   # and it goes on


@pytest.mark.parametrize("kind, to", [
    ("fsdp", ("fsdp", 4)), ("fsdp", ("fsdp", 3)), ("fsdp", ("fsdp", 2)),
    ("hsdp", ("hsdp", 4)), ("hsdp", ("fsdp", 4)),
])
def test_fsdp2(agent, kind, to):
    path = f"{agent}/everything.pt"
    run(4, _fsdp2_save, kind, path)
    run(to[1], _fsdp2_load, to[0], path)


# ---- meshes and placements at random ----

def _specs(seed: int, world: int):
    rng = random.Random(seed)
    for i in range(8):
        ndim = rng.choice((1, 2, 2, 3))
        shape = tuple(rng.randrange(0, 14) for _ in range(ndim))
        dtype = rng.choice((torch.float32, torch.bfloat16, torch.float64))
        n = rng.randrange(1, world + 1)
        ranks = rng.sample(range(world), n)
        if n == world and n % 2 == 0 and rng.random() < 0.5:
            mesh = torch.tensor(ranks).reshape(2, n // 2)
        else:
            mesh = torch.tensor(ranks)
        placements = tuple(
            Replicate() if rng.random() < 0.3 else Shard(rng.randrange(ndim))
            for _ in range(mesh.ndim))
        if mesh.ndim == 2 and rng.random() < 0.5:
            d = rng.randrange(ndim)
            placements = (_StridedShard(d, split_factor=mesh.shape[1]),
                          Shard(d))
        yield f"w{i}", shape, dtype, mesh, placements


def _tensors(seed: int, fill: bool):
    world = dist.get_world_size()
    found, full = {}, {}
    for name, shape, dtype, mesh, placements in _specs(seed * 31 + world,
                                                       world):
        device_mesh = DeviceMesh("cpu", mesh)
        # The value is the same on every world; names carry the shape.
        full[name] = whole(f"{seed}{name}", *_fixed(seed, name))
        found[name] = sharded(full[name], device_mesh, placements, fill)
    return found, full


def _fixed(seed: int, name: str):
    rng = random.Random(f"{seed}{name}")
    shape = tuple(rng.randrange(0, 14) for _ in range(3))
    return shape, rng.choice((torch.float32, torch.bfloat16, torch.float64))


def _random_save(seeds) -> None:
    for seed in seeds:
        found, _ = _tensors(seed, True)
        with Checkpointer(Holder(found), job=f"random-{seed}",
                          **FLUSHLESS) as ck:
            assert ck.snapshot(1)
            ck.wait()
            dist.barrier()


def _random_load(seeds) -> None:
    for seed in seeds:
        found, full = _tensors(seed, False)
        with Checkpointer(Holder(found), job=f"random-{seed}",
                          **FLUSHLESS) as ck:
            assert ck.restore() == 1
            for name, t in found.items():
                assert not wrong(t, full[name]), (seed, name)


@pytest.mark.parametrize("worlds", [(4, 3), (2, 4), (4, 4)])
def test_random_meshes(agent, worlds):
    seeds = list(range(6))
    run(worlds[0], _random_save, seeds)
    run(worlds[1], _random_load, seeds)


# ---- sizes on which DTensor's own metadata is wrong ----

def _uneven(dp, tp, sizes, save) -> None:
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    how = (_StridedShard(0, split_factor=tp), Shard(0))
    full = {f"n{n}": whole(f"n{n}", (n, 3)) for n in sizes}
    found = {k: sharded(t, mesh, how, save) for k, t in full.items()}
    with Checkpointer(Holder(found), job=f"uneven-{dp}-{tp}",
                      **FLUSHLESS) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
        else:
            assert ck.restore() == 1
            assert not any(wrong(t, full[k]) for k, t in found.items())


def _uneven_whole(job, sizes) -> None:
    full = {f"n{n}": whole(f"n{n}", (n, 3)) for n in sizes}
    blank = Holder({k: torch.zeros_like(t) for k, t in full.items()})
    with Checkpointer(blank, job=job, **FLUSHLESS) as ck:
        assert ck.restore() == 1
        for k, t in full.items():
            assert torch.equal(getattr(blank, k), t), k


@pytest.mark.parametrize("dp, tp, sizes", [
    (4, 2, (9, 17, 8, 5)), (3, 2, (7, 13, 6)), (2, 2, (2, 3, 4, 5)),
])
def test_sharded_over_tensor_parallel(agent, dp, tp, sizes):
    run(dp * tp, _uneven, dp, tp, sizes, True)
    run(dp * tp, _uneven, dp, tp, sizes, False)
    run(2, _uneven_whole, f"uneven-{dp}-{tp}", sizes)


# ---- keys that only some ranks have ----

def _experts(save) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2),
                            mesh_dim_names=("dp", "ep"))
    mine = rank % (world // 2)
    full = {"shared": whole("shared", (10, 4))}
    found = {"shared": sharded(full["shared"], init_device_mesh(
        "cpu", (world,)), (Shard(0),), save)}
    name = f"expert{mine}"
    full[name] = whole(name, (7, 3))
    found[name] = sharded(full[name], mesh["dp"], (Shard(0),), save)
    # Whole, and on these ranks alone, as a pipeline's stages are.
    full[f"stage{mine}"] = whole(f"stage{mine}", (5,))
    found[f"stage{mine}"] = (full[f"stage{mine}"].clone() if save
                             else torch.zeros(5))
    with Checkpointer(Holder(found), job="experts", **FLUSHLESS) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
            return
        assert ck.restore() == 1
    for key, t in found.items():
        assert (not wrong(t, full[key]) if isinstance(t, DTensor)
                else torch.equal(t, full[key])), key


def test_experts_on_some_ranks(agent):
    run(8, _experts, True)
    run(8, _experts, False)


def _shards_of_its_own(save) -> None:
    """One padded buffer with two boxes of a tensor: the protocol of
    distributed checkpoint."""
    rank = dist.get_rank()
    full = whole("own", (8, 3))
    t = torch.full((6, 3), -1.0)
    t.global_shape = (8, 3)
    t.global_offsets = ((2 * rank, 0), (4 + 2 * rank, 0))
    t.local_offsets = ((0, 0), (3, 0))
    t.local_sizes = ((2, 3), (2, 3))
    if save:
        t[0:2] = full[2 * rank:2 * rank + 2]
        t[3:5] = full[4 + 2 * rank:6 + 2 * rank]
    model = torch.nn.Module()
    model.register_buffer("own", t)
    with Checkpointer(model, job="own", **FLUSHLESS) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
            return
        assert ck.restore() == 1
    assert torch.equal(t[0:2], full[2 * rank:2 * rank + 2])
    assert torch.equal(t[3:5], full[4 + 2 * rank:6 + 2 * rank])
    assert (t[2] == -1).all() and (t[5] == -1).all(), "padding is left alone"


def _own_whole() -> None:
    model = torch.nn.Module()
    model.register_buffer("own", torch.zeros(8, 3))
    with Checkpointer(model, job="own", **FLUSHLESS) as ck:
        assert ck.restore() == 1
    assert torch.equal(model.own, whole("own", (8, 3)))


def test_tensors_that_say_their_shards(agent):
    run(2, _shards_of_its_own, True)
    run(2, _shards_of_its_own, False)
    run(1, _own_whole)


def _late(save) -> None:
    """Optimizer state that one rank has a step before the other."""
    rank = dist.get_rank()
    p = torch.nn.Parameter(torch.full((4,), float(rank)))
    mesh = DeviceMesh("cpu", torch.arange(2))
    d = torch.nn.Parameter(sharded(torch.zeros(5, 2), mesh, (Shard(0),)))
    model = torch.nn.Module()
    model.register_parameter(f"stage{rank}", p)
    model.register_parameter("both", d)
    optim = torch.optim.Adam([p, d], lr=1)
    with Checkpointer(model, optim, job="late", **FLUSHLESS) as ck:
        if not save:
            assert ck.restore() == 1
            assert optim.state[p]["step"] == 2 - rank
            assert optim.state[d]["step"] == 2
            return
        for step in range(2):
            p.grad = torch.ones(4) if step >= rank else None
            d.grad = torch.zeros_like(d)
            optim.step()
            assert ck.snapshot(step, wait=10)
            ck.wait()


def test_optimizer_state_that_comes_later(agent):
    run(2, _late, True)
    run(2, _late, False)


# ---- deaths ----

def _train_and_die(at) -> None:
    model = Net()
    fully_shard(model, mesh=_mesh("fsdp"))
    optim = torch.optim.AdamW(model.parameters())
    ck = Checkpointer(model, optim, job="death", **FLUSHLESS)
    ck.restore()
    _train(model, optim, ck, range(at))
    dist.barrier()
    ck.snapshot(at)
    os.kill(os.getpid(), signal.SIGKILL)


def _after_death(at) -> None:
    model = Net()
    fully_shard(model, mesh=_mesh("fsdp"))
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="death", **FLUSHLESS) as ck:
        step = ck.restore()
        # The last one may have been sealed in time on all ranks.
        assert step in (at - 1, at)
        assert ck.report["bytes_disk"] == 0
        _train(model, optim, ck, range(step + 1, step + 3))


def test_all_ranks_killed(agent):
    assert wait(start(4, _train_and_die, 3)) == [-9] * 4
    run(3, _after_death, 3)


# ---- steps that are taken back ----

def _fresh() -> tuple[Any, Any]:
    model = Net()
    fully_shard(model, mesh=_mesh("fsdp"))
    return model, torch.optim.AdamW(model.parameters())


def _take_back(path, again) -> None:
    model, optim = _fresh()
    with Checkpointer(model, optim, job="back", raising=True,
                      **FLUSHLESS) as ck:
        assert ck.restore() is None
        _train(model, optim, ck, range(3))
        ck.flush(0)
        ck.wait(0, until="durable")
        for _ in range(again):
            assert ck.restore(0) == 0
            _train(model, optim, ck, range(11, 12) if again == 1 else
                   range(1, 2))
        want = everything(model, optim)
        run = ck.status()["run"]
        if dist.get_rank() == 0:
            torch.save((want, run), path)


def _after_back(path, step) -> None:
    want, run = torch.load(path)
    model, optim = _fresh()
    with Checkpointer(model, optim, job="back", **FLUSHLESS) as ck:
        assert ck.restore() == step
        assert ck.report.run == run > 1
        have = everything(model, optim)
        assert all(torch.equal(have[name], t) for name, t in want.items())


@pytest.mark.parametrize("again, step", [(1, 11), (2, 1)])
def test_steps_that_are_taken_back(agent, again, step):
    """What follows an older step is what a crash comes back to."""
    path = f"{agent}/back.pt"
    run(2, _take_back, path, again)
    run(2, _after_back, path, step)


def test_steps_of_a_run_with_a_number_are_not_taken_back(agent, caplog):
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="given", run=7, **FLUSHLESS) as ck:
        for step in (1, 2):
            assert ck.snapshot(step, wait=30)
            ck.wait()
        assert ck.restore(1) == 1
        assert "no snapshots until training is past step 2" in caplog.text
        assert not ck.snapshot(2)
        assert ck.snapshot(3, wait=30)


# ---- one rank ----

def test_steps_that_count_anew_are_told(agent, caplog):
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="anew", slots=4, **FLUSHLESS) as ck:
        for step in (7, 8, 3, 4):
            assert ck.snapshot(step, wait=10)
        assert caplog.text.count("step 3 came after step 8, and") == 1
        assert "step 4" not in caplog.text
        ck.wait()
        assert ck.restore() == 8


def test_pointers_are_looked_at_every_time(agent):
    model = torch.nn.Linear(4, 4)
    with Checkpointer(model, job="stale", rng=False, **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.fence()
        model.weight.data = torch.full((4, 4), 5.0)      # reallocated
        model.bias = torch.nn.Parameter(torch.full((4,), 6.0))  # replaced
        ck.snapshot(2)
        ck.fence()
        model.register_buffer("grown", torch.full((3,), 7.0))   # added
        ck.snapshot(3, wait=10)
        ck.wait()
        with torch.no_grad():
            for t in (model.weight, model.bias, model.grown):
                t.zero_()
        assert ck.restore() == 3
        assert (model.weight == 5).all() and (model.bias == 6).all()
        assert (model.grown == 7).all()
        model.weight = torch.nn.Parameter(torch.zeros(5, 4))    # resized
        with pytest.raises(Invalid, match=r"weight\" is F32 \[4, 4\] in the .*"
                           r"F32 \[5, 4\] here; restore it as it was"):
            ck.restore()
        assert ck.snapshot(4, wait=10)


def test_what_holds_the_tensors_is_looked_at_every_time(agent):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optim = torch.optim.AdamW(model[0].parameters())
    model(torch.ones(2)).sum().backward()
    optim.step()
    weight = model[0].weight
    with Checkpointer(model, optim, job="holders", rng=False,
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.fence()
        optim.state[weight] = {k: t.clone() for k, t in
                               optim.state[weight].items()}
        model[1] = torch.nn.Linear(2, 2)
        for t in (optim.state[weight]["exp_avg"], model[1].weight.data):
            t.fill_(5)
        ck.snapshot(2, wait=10)
        ck.fence()
        del model[1].bias       # as many names as before, and others
        model[1].slope = torch.nn.Parameter(torch.full((2,), 6.0))
        ck.snapshot(3, wait=10)
        ck.wait()
        with torch.no_grad():
            for t in (optim.state[weight]["exp_avg"], model[1].weight,
                      model[1].slope):
                t.zero_()
        assert ck.restore() == 3
        assert (optim.state[weight]["exp_avg"] == 5).all()
        assert (model[1].weight == 5).all() and (model[1].slope == 6).all()


def test_objects_and_what_is_refused(agent):
    kept = {"a": (1, 2.5, float("inf")), "s": {3}, 7: b"x", "n": None,
            "t": torch.arange(3, dtype=torch.int16), "d": torch.bfloat16,
            "o": deque([1], 3), "big": 1 << 80}
    model = torch.nn.Linear(2, 2)
    other = dict(kept)
    with Checkpointer(model, job="objects", extra={"k": other},
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
        drawn = torch.rand(4)
        other.clear()
        assert ck.restore() == 1
        assert torch.equal(torch.rand(4), drawn), "the generator as well"
        tensor = other.pop("t"), kept.pop("t")
        assert torch.equal(*tensor) and tensor[0].dtype == torch.int16
        assert other == kept
        other["bad"] = {"deep": [object()]}
        with pytest.raises(TypeError, match=r"extra\.k.*deep\[0\]"):
            ck.snapshot(2)
        other.pop("bad")
        assert ck.snapshot(3, wait=10)


def test_a_dict_of_objects_may_be_filled_later(agent):
    model = torch.nn.Linear(2, 2)
    extra: dict[str, Any] = {}
    local: dict[str, Any] = {}
    with Checkpointer(model, job="filled", extra=extra, local=local,
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        extra["epoch"], local["at"] = 3, 4
        ck.snapshot(2, wait=10)
        ck.wait()
        extra["epoch"] = local["at"] = 0
        assert ck.restore() == 2
    assert (extra, local) == ({"epoch": 3}, {"at": 4})


def test_objects_with_values_of_their_own_stay_the_objects(agent):
    kept: dict[str, Any] = {
        "list": [1, [2]], "set": {1}, "deque": deque([1], 2),
        "bytes": bytearray(b"x"), "tensor": torch.tensor([1.5, 2]),
        "dict": {"a": 1}, "longer": deque([1], 3),
        "grown": torch.zeros(2), "other": [1]}
    saved = copy.deepcopy(kept)
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="own", extra=kept, **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
    kept = {"list": [], "set": {2, 3}, "deque": deque([], 2),
            "bytes": bytearray(b"longer"), "tensor": torch.zeros(2),
            "dict": {"b": 2}, "longer": deque([], 2),
            "grown": torch.zeros(3), "other": None}
    had = dict(kept)
    with Checkpointer(model, job="own", extra=kept, **FLUSHLESS) as ck:
        assert ck.restore() == 1
    for name, x in saved.items():
        assert type(kept[name]) is type(x)
        assert torch.equal(kept[name], x) if name in ("tensor", "grown") \
            else kept[name] == x
        others = ("longer", "grown", "other")     # no place for what they had
        assert (kept[name] is had[name]) == (name not in others), name


def test_objects_that_nobody_asks_for_are_told(agent, caplog):
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="more", extra={"a": 1, "b": 2},
                      local={"c": 3}, **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
    said = "step 1 has extra.b, local.c of rank 0, which this Checkpointer was"
    with Checkpointer(model, job="more", extra={"a": 1}) as ck:
        assert ck.restore(strict=False) == 1
        assert said not in caplog.text
        assert ck.restore() == 1
        assert said in caplog.text


def _others_objects() -> None:
    rank = dist.get_rank()
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="others", extra={"all": 1, f"of{rank}": 2},
                      **FLUSHLESS) as ck:
        assert ck.restore() is None
        ck.snapshot(1)
        ck.wait()
    for extra, told in (({"all": 0, f"of{rank}": 0}, ""),
                        ({"all": 0}, f"of{rank}"),
                        ({f"of{rank}": 0}, "all" if rank == 0 else "")):
        logged = Logged()
        logging.getLogger("shardkeep").addHandler(logged)
        with Checkpointer(model, job="others", extra=extra) as ck:
            assert ck.restore() == 1
        logging.getLogger("shardkeep").removeHandler(logged)
        assert [x for x in logged.found if f"extra.{told} of rank {rank}" in x
                ] == logged.found, logged.found
        assert len(logged.found) == bool(told)


def test_objects_of_other_ranks_are_theirs_to_ask_for(agent):
    run(2, _others_objects)


@pytest.mark.parametrize("extra, told", [
    ({}, True), ({"epoch": 1}, True), ({"mine": {"last_epoch": 1}}, False),
    ({"scaler": torch.amp.GradScaler("cpu")}, True), (None, False)])
def test_a_scheduler_that_was_not_given_is_told(agent, caplog, extra, told):
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.StepLR(optim, 1)
    with Checkpointer(model, optim, job="sched", **FLUSHLESS,
                      extra={"sched": sched} if extra is None else extra
                      ) as ck:
        for step in range(2):
            ck.snapshot(step, wait=10)
    assert ("the state of the scheduler that SGD has" in caplog.text) == told
    assert caplog.text.count("scheduler") <= 1


def test_a_scheduler_is_no_optimizer(agent):
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.StepLR(optim, 1)
    with pytest.raises(TypeError, match="StepLR is no optimizer.*extra="):
        Checkpointer(model, sched, job="sched")


class _SaysAlone:
    def state_dict(self) -> dict[str, Any]:
        return {"n": 1}


@pytest.mark.parametrize("where", ["extra", "local"])
def test_objects_that_could_not_take_it_back_are_refused(agent, where):
    given: Any = {where: {"k": _SaysAlone()}}
    with Checkpointer(torch.nn.Linear(2, 2), job="alone", **given,
                      **FLUSHLESS) as ck:
        with pytest.raises(TypeError, match=rf"{where}\.k is a _SaysAlone, "
                           "which has state_dict.* no load_state_dict"):
            ck.snapshot(1)


def test_objects_that_a_snapshot_lacks_are_all_named(agent):
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="lacks", extra={"a": {"n": 1}},
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
    mine = {"a": {"n": 0}, "b": {}, "c": 3}
    with torch.no_grad():
        model.weight.fill_(7)
    with Checkpointer(model, job="lacks", extra=mine) as ck:
        with pytest.raises(Mismatch, match="no object b, c .*strict=False"):
            ck.restore()
        assert mine["a"] == {"n": 0}, "none of them is given"
        assert (model.weight == 7).all(), "nor is any tensor"
        assert ck.restore(strict=False) == 1
        assert not (model.weight == 7).any()
    assert mine == {"a": {"n": 1}, "b": {}, "c": 3}


def test_one_that_nobody_has_any_more_lets_go_of_its_job(agent):
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(model.parameters())

    def cell() -> Checkpointer:
        return Checkpointer(model, optim, job="cell", **FLUSHLESS)

    gc.disable()
    try:
        ck = cell()
        assert ck.restore() is None
        assert ck.snapshot(1)
        ck = cell()         # with the same optimizer, which has a hook of it
        assert ck.restore() == 1
        optim.step()
        assert ck.snapshot(2)
        ck.close()
    finally:
        gc.enable()


def test_a_step_that_none_can_be_is_not_looked_for(agent):
    model = torch.nn.Linear(2, 2)
    with Checkpointer(model, job="which", **FLUSHLESS) as ck:
        ck.snapshot(4)
        ck.wait()
        assert ck.restore(LATEST) == 4, "as everywhere"
        with pytest.raises(ValueError, match="step -2 is negative"):
            ck.restore(-2)


def _made_too_early() -> None:
    meeting, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    dist.barrier()      # the other one may still be coming
    dist.destroy_process_group()
    with Checkpointer(torch.nn.Linear(2, 2), job="early", **FLUSHLESS) as ck:
        dist.init_process_group("gloo", store=dist.PrefixStore("2", meeting),
                                rank=rank, world_size=2)
        for call in (ck.restore, lambda: ck.snapshot(1)):
            with pytest.raises(RuntimeError, match="before torch.distributed"):
                call()


def test_one_rank_that_became_several(agent):
    run(2, _made_too_early)


class _Text(bytes):
    """Bytes of a type of their own."""


class _Few(set[int]):
    """A set."""


class _List(list[int]):
    """A list."""


class _Phase(str, enum.Enum):
    """A text that is compared by what it is."""

    WARM = "warm"


class _Level(enum.IntEnum):
    """A number."""

    HIGH = 3


class _Pair(NamedTuple):
    """A tuple."""

    a: int


def _as_it_was(x: Any, y: Any) -> bool:
    """Of the same type, all the way down."""
    if type(x) is not type(y) or x != y:
        return False
    if isinstance(x, dict):
        return list(x) == list(y) and all(
            _as_it_was(*p) for p in zip((*x, *x.values()),
                                        (*y, *y.values())))
    return not isinstance(x, (list, tuple)) or all(map(_as_it_was, x, y))


def test_objects_come_back_as_the_type_that_they_were(agent):
    kept = {"ordered": OrderedDict([("b", 1), ("a", (None, [2]))]),
            "default": defaultdict(list, {"x": [1], 3: ()}),
            "deep": defaultdict(OrderedDict, {1: OrderedDict()}),
            "empty": defaultdict(None, {(1, 2): b"3"}),
            "counter": Counter("aab"), "size": torch.Size((2, 3)),
            "version": torch.__version__, "array": bytearray(b"x"),
            "frozen": frozenset((1,)), "queue": deque([(1,)], 2),
            "big": -(1 << 200), "lone": "\ud800"}
    mine = {"k": dict(kept)}
    with Checkpointer(torch.nn.Linear(2, 2), job="types", extra=mine,
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
        mine["k"].clear()
        assert ck.restore() == 1
    assert _as_it_was(mine["k"], kept)
    assert mine["k"]["default"]["new"] == []
    assert mine["k"]["empty"].default_factory is None


def _itself() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


@pytest.mark.parametrize("odd, kind", [
    (_Text(b"y"), "_Text"), (_Few((1, 2)), "_Few"), (_List([1]), "_List"),
    (_Phase.WARM, "_Phase"), (_Level.HIGH, "_Level"), (_Pair(1), "_Pair"),
    ({_Phase.WARM: 1}, "_Phase"), (Path("x"), "PosixPath"),
    (defaultdict(lambda: 3), "defaultdict of .*lambda"),
    (_itself(), "contains itself"), ([10 ** 5000], "digits")])
def test_objects_of_derived_types_are_refused(agent, odd, kind):
    """None comes back as the one that it derives from."""
    with Checkpointer(torch.nn.Linear(2, 2), job="odd", extra={"k": [odd]},
                      **FLUSHLESS) as ck:
        with pytest.raises(TypeError, match=rf"extra\.k.*{kind}"):
            ck.snapshot(1)


def test_objects_of_numpy(agent):
    """They come back with the values that they had, or not at all."""
    import numpy as np
    fields = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8", 1)])
    arrays = {"fields": fields, "row": fields[1], "bytes": np.bytes_(b"x"),
              "none": np.bytes_(b""), "empty": np.zeros((2, 0)),
              "complex": np.complex128(1j), "text": np.array(["a", "bc"]),
              "big": np.arange(3, dtype=">i4"), "flag": np.bool_(True)}
    arrays["name"] = np.str_("a")
    model, other = torch.nn.Linear(2, 2), dict(arrays)
    with Checkpointer(model, job="derived", extra={"k": other},
                      **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
        other.clear()
        assert ck.restore() == 1
    assert other.keys() == arrays.keys()
    for name, x in arrays.items():
        assert type(other[name]) is type(x) and other[name].dtype == x.dtype
        assert np.array_equal(other[name], x)


def test_arrays_stay_the_objects(agent):
    import numpy as np
    model, kept = torch.nn.Linear(2, 2), {"a": np.arange(3), "b": np.ones(2)}
    with Checkpointer(model, job="arrays", extra=kept, **FLUSHLESS) as ck:
        ck.snapshot(1)
        ck.wait()
    mine = {"a": np.zeros(3, int), "b": np.ones(3)}
    had = dict(mine)
    with Checkpointer(model, job="arrays", extra=mine, **FLUSHLESS) as ck:
        assert ck.restore() == 1
    assert mine["a"] is had["a"] and mine["b"] is not had["b"]
    assert mine["a"].tolist() == [0, 1, 2] and mine["b"].tolist() == [1, 1]


@pytest.mark.parametrize("wrong, error", [
    ({"flush_every": -1}, "flush_every is -1"),
    ({"copies": "slow"}, "copies='slow': \"fast\" or \"overlap\""),
    ({"keep_last": 2**32 + 1}, "keep_last is 4294967297"),
    ({"timeout": 0}, "timeout=0: seconds, more than 0"),
    ({"timeout": float("nan")}, "timeout=nan"),
    ({"timeout": "9"}, "timeout='9': a number of seconds"),
    ({"extra": [1]}, "extra is of type list"),
    ({"local": {1: 2}}, "local has an object under 1"),
    ({"model": None}, "the model is None"),
    ({"job": 3}, "job is 3: a name is needed"),
    ({"model": {"w": torch.ones(2)}}, "dict is no model"),
])
def test_what_makes_no_sense_is_refused_at_once(agent, wrong, error):
    with pytest.raises((ValueError, TypeError), match=error):
        Checkpointer(**{"model": Net(), "job": "no-sense", **wrong})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("make", [
    torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(3, 4))])
def test_a_module_of_torchscript_says_what_to_give(agent, make, within):
    plain = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(plain)
    made = make(plain)
    with pytest.raises(TypeError, match=r"^(0|the model) is a module of "
                       r"TorchScript \(\w+\); give .* made it of"):
        Checkpointer(torch.nn.Sequential(made) if within else made,
                     job="script", **FLUSHLESS)
    # As it says there; one is the other.
    with Checkpointer(model, job="script", **FLUSHLESS) as ck:
        made(torch.randn(3, 4))
        assert ck.snapshot(1)
        ck.wait()
        saved = made.running_mean.clone()
        made(torch.randn(3, 4))
        assert ck.restore() == 1
        assert torch.equal(made.running_mean, saved)
        ck.fence()
        model[0] = made
        with pytest.raises(TypeError, match="0 is a module of TorchScript"):
            ck.snapshot(2)


@pytest.mark.parametrize("call, error", [
    (lambda ck: ck.restore("3"), "step='3': a whole number"),
    (lambda ck: ck.restore(1.5), "step=1.5: a whole number"),
    (lambda ck: ck.restore(2**70), "step=1180591620717411303424: a whole"),
    (lambda ck: ck.snapshot("3"), "step='3': a whole number"),
    (lambda ck: ck.snapshot(None), "step=None: a whole number"),
    (lambda ck: ck.snapshot(4, wait="complete"), "wait='complete': a number"),
    (lambda ck: ck.wait("3"), "step='3': a whole number"),
    (lambda ck: ck.wait(3, timeout=None), "timeout=None: a number"),
    (lambda ck: ck.flush("3"), "step='3': a whole number"),
    (lambda ck: ck.fence("cpu"), "stream='cpu': a torch.cuda.Stream"),
    (lambda ck: ck.snapshot(4, stream=7), "stream=7: a torch.cuda.Stream"),
    (lambda ck: load_tensors(ck.job, "3"), "step='3': a whole number"),
    (lambda ck: full_state_dict(ck.job, 3.0), "step=3.0: a whole number"),
    (lambda ck: ShardkeepReader(job=ck.job, step="3"), "step='3': a whole"),
    (lambda ck: ShardkeepWriter(job=ck.job, step="3"), "step='3': a whole"),
])
def test_a_step_is_a_number_and_not_what_looks_like_one(agent, call, error):
    with Checkpointer(Net(), job="a-step", raising=True) as ck:
        assert ck.snapshot(3)
        ck.wait(3)
        with pytest.raises((TypeError, ValueError), match=error):
            call(ck)
        assert ck.restore(torch.tensor(3)) == 3     # which is one


def test_a_wait_is_as_long_as_it_says(agent):
    ck = Checkpointer(Net(), job="waits", timeout=float("inf"))
    with ck:
        for bad in -1, float("nan"):
            with pytest.raises(ValueError, match="wait=.*0 or more"):
                ck.snapshot(1, wait=bad)
            with pytest.raises(ValueError, match="timeout=.*0 or more"):
                ck.prepare(bad)
        assert ck.snapshot(1, wait=float("inf"))
        with pytest.raises(ValueError, match="timeout=-2"):
            ck.wait(timeout=-2)
        ck.wait(timeout=float("inf"))
        assert ck.restore() == 1
    for call in (ck.restore, ck.prepare, ck.fence, ck.wait, ck.flush,
                 ck.status, functools.partial(ck.snapshot, 2)):
        with pytest.raises(ValueError, match="Checkpointer of job waits is "
                           "closed; make another"):
            call()


@pytest.mark.parametrize("said", ["2", "1", "", "two", None])
def test_a_rank_that_is_alone_among_several_is_told(agent, caplog,
                                                    monkeypatch, said):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if said is not None:
        monkeypatch.setenv("WORLD_SIZE", said)
    with Checkpointer(torch.nn.Linear(3, 3), job="alone", **FLUSHLESS) as ck:
        assert ck.world == 1
    assert ("after init_process_group" in caplog.text) == (said == "2")


def test_a_wait_says_what_keeps_it_from_the_disk(agent):
    """Whether it was tried meanwhile, or before."""
    Path(f"{agent}/store").mkdir(exist_ok=True)
    Path(f"{agent}/store/no-folder").touch()
    with Checkpointer(Net(), job="no-folder", raising=True) as ck:
        assert ck.snapshot(1)
        for timeout in 20, 0, 0:
            with pytest.raises(Error, match=r"no-folder.*Not a directory"):
                ck.wait(until="durable", timeout=timeout)
        ck.wait()


def test_failures_do_not_end_training(agent, caplog):
    model = torch.nn.Linear(3, 3)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Checkpointer(model, optim, job="busy", **FLUSHLESS) as ck:
        assert ck.snapshot(1)
        ck.wait()
        assert not ck.snapshot(1), "the step is there already"
        assert "step 1" in caplog.text
        model(torch.ones(1, 3)).sum().backward()
        optim.step()
        assert ck.snapshot(2)
        ck.wait()
        # A fresh optimizer gets its state without a step.
        fresh = torch.optim.SGD(model.parameters(), lr=5, momentum=0)
    with Checkpointer(model, fresh, job="busy", **FLUSHLESS) as ck:
        assert ck.restore() == 2
        assert fresh.param_groups[0]["momentum"] == 0.9
        for p in model.parameters():
            assert torch.equal(fresh.state[p]["momentum_buffer"],
                               optim.state[p]["momentum_buffer"])


class _Interrupted:
    """A state whose user presses Ctrl-C when it has asked for a slot."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def ask(self, *args: Any) -> None:
        self._state.ask(*args)
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_slot_asked_for(agent):
    with Checkpointer(torch.nn.Linear(3, 3), job="stops", **FLUSHLESS) as ck:
        for step in (1, 2):
            assert ck.snapshot(step, wait=30)
            ck.wait()
        state, before = ck._state, _discarded()
        ck._state = _Interrupted(state)
        with pytest.raises(KeyboardInterrupt):
            ck.snapshot(3, wait=30)
        assert _discarded() == before + 1, "given back at once"
        ck._state = state
        assert ck.snapshot(3, wait=30)
        ck.wait()


@pytest.mark.parametrize("raising", [False, True])
def test_a_failed_snapshot_is_told_once(agent, caplog, raising):
    model = torch.nn.Linear(3, 3)
    with Checkpointer(model, job="told", verify=True, raising=raising,
                      **FLUSHLESS) as ck:
        for step in (1, 4):
            assert ck.snapshot(step, wait=30)
            ck.wait()
            assert ck.snapshot(step + 1, wait=30)
            with torch.no_grad():
                model.weight += 1
            if raising:
                with pytest.raises(TensorChanged, match="weight"):
                    ck.fence()
            ck.fence()
            ck.wait(step)
            assert ck.snapshot(step + 2, wait=30)
            ck.wait()
            with pytest.raises(NotFound):
                ck.wait(step + 1)
        assert caplog.text.count("failed") == (0 if raising else 2)


def test_what_cannot_be_stored_is_named(agent):
    model = torch.nn.Linear(3, 3)
    model.register_buffer("wide", torch.zeros(1).expand(4))
    with Checkpointer(model, job="named", **FLUSHLESS) as ck:
        with pytest.raises(ValueError, match="model.wide is expanded"):
            ck.snapshot(1)
        model.wide = torch.zeros(4, device="meta")
        with pytest.raises(ValueError, match="model.wide.*meta"):
            ck.snapshot(1)
        model.wide = torch.zeros(4, dtype=torch.complex128)
        with pytest.raises(TypeError, match="model.wide.*view_as_real"):
            ck.snapshot(1)
        model.wide = torch.zeros(4)
        assert ck.snapshot(1)
    with pytest.raises(ValueError, match=r"two .* model\.weight; .*ModuleDict"):
        Checkpointer([model, torch.nn.Linear(3, 3)], job="named")
