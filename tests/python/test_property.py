# SPDX-License-Identifier: Apache-2.0
"""Models and parallelisms at random: trained, killed, resumed on another
parallelism, each time compared with plain torch, bit by bit.

Gradients are a function of name and step, so that every way of sharding a
parameter must come to the same bits. More rounds:

    SHARDKEEP_ROUNDS=500 python -m pytest tests/python/test_property.py
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import start, wait
from models import local_part, whole
from older import needs_uneven
from shardkeep.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

warnings.filterwarnings("ignore")
ROUNDS = int(os.environ.get("SHARDKEEP_ROUNDS", "5"))
STEPS = 12

#: How many ranks each way of distributing a model may have.
WORLDS = {"plain": (1, 2, 3), "fsdp": (2, 3, 4), "hsdp": (4,), "tp": (2, 3),
          "fsdp-tp": (4,), "stages": (2, 3, 4), "zero": (2, 3)}


class Plan:
    """What is trained: the same for all ways of distributing it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"model {seed}")
        self.sizes = [rng.randrange(1, 9) for _ in range(rng.randrange(5, 8))]
        self.bias = [rng.random() < 0.7 for _ in self.sizes]
        self.adam = rng.random() < 0.7

    def build(self, layers: list[int] | None = None) -> nn.Module:
        model = nn.Module()
        for i in range(len(self.sizes) - 1) if layers is None else layers:
            layer = nn.Linear(self.sizes[i], self.sizes[i + 1],
                              bias=self.bias[i])
            layer.register_buffer("seen", torch.zeros(2))
            model.add_module(f"layer{i}", layer)
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(whole(n, tuple(p.shape)))
        return model

    def optimizer(self, model: nn.Module, kind: str) -> Any:
        """Rates by layer, no decay of biases."""
        groups: list[dict[str, Any]] = []
        for n, p in model.named_parameters():
            groups.append({"params": [p], "lr": 0.01 * (1 + int(n[5])),
                           "weight_decay": 0.1 * n.endswith("weight")})
        how = torch.optim.AdamW if self.adam else torch.optim.SGD
        if kind == "zero":
            optim: Any = ZeroRedundancyOptimizer(groups, how, lr=0.5)
        else:
            optim = how(groups, lr=0.5)
        if not self.adam:
            for g in optim.param_groups:
                g["momentum"] = 0.9
        return optim


def distribute(plan: Plan, kind: str) -> nn.Module:
    world = dist.get_world_size()
    n = len(plan.sizes) - 1
    if kind == "stages":
        rank = dist.get_rank()
        return plan.build(list(range(n * rank // world,
                                     n * (rank + 1) // world)))
    model = plan.build()
    if kind in ("tp", "fsdp-tp"):
        shape = (world,) if kind == "tp" else (2, world // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[
            2 - len(shape):])
        parallelize_module(model, mesh["tp"], {
            f"layer{i}": RowwiseParallel() if i % 2 else ColwiseParallel()
            for i in range(n)})
        if kind == "fsdp-tp":
            fully_shard(model, mesh=mesh["dp"])
    elif kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh(
            "cpu", (2, world // 2), mesh_dim_names=("copies", "shards")))
    return model


def _part(full: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it, as it holds the parameter."""
    if not isinstance(of, DTensor):
        return full
    part = local_part(full, of.device_mesh, of.placements)
    return part.reshape(of._local_tensor.shape).clone()


def _train(model: nn.Module, optim: Any, step: int) -> None:
    for n, p in model.named_parameters():
        g = _part(whole(f"{n}@{step}", tuple(p.shape)), p)
        p.grad = DTensor.from_local(
            g, p.device_mesh, p.placements, run_check=False, shape=p.shape,
            stride=p.stride()) if isinstance(p, DTensor) else g
    for m in model.modules():
        if hasattr(m, "seen"):
            m.seen += step
    optim.step()


def _local(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, DTensor) else t


def _check(plan: Plan, model: nn.Module, optim: Any, steps: int) -> None:
    """Equal to plain torch after so many steps, bit by bit."""
    want = plan.build()
    plain = plan.optimizer(want, "plain")
    sched = torch.optim.lr_scheduler.StepLR(plain, 3, 0.5)
    for step in range(steps):
        _train(want, plain, step)
        sched.step()
    theirs = dict(want.named_parameters())
    inner = getattr(optim, "optim", optim)
    rates = {n: g["lr"] for g in plain.param_groups for p in g["params"]
             for n, q in theirs.items() if p is q}
    for n, p in model.named_parameters():
        full = theirs[n].detach()
        assert torch.equal(_local(p), _part(full, p)), (n, steps)
        mine = inner.state.get(p)
        if steps and not isinstance(optim, ZeroRedundancyOptimizer):
            assert mine, (n, steps)
        for key, t in (mine or {}).items():
            s = plain.state[theirs[n]][key]
            assert torch.equal(_local(t), _part(s, p) if s.dim() else s), (
                n, key, steps)
    names = {id(p): n for n, p in model.named_parameters()}
    for g in optim.param_groups:
        for p in g["params"]:
            assert g["lr"] == rates[names[id(p)]], names[id(p)]
    for n, b in model.named_buffers():
        assert torch.equal(_local(b), dict(want.named_buffers())[n]), n


def _life(seed: int, kind: str, until: int, job: str) -> None:
    """Whoever is killed is not to blame; what is wrong is."""
    try:
        _lived(seed, kind, until, job)
    except AssertionError:
        traceback.print_exc()
        os._exit(7)


def _lived(seed: int, kind: str, until: int, job: str) -> None:
    """Resumes, is looked at, trains on, is looked at."""
    plan = Plan(seed)
    model = distribute(plan, kind)
    optim = plan.optimizer(model, kind)
    sched = torch.optim.lr_scheduler.StepLR(optim, 3, 0.5)
    with Checkpointer(model, optim, job=job, extra={"sched": sched},
                      flush_every=4, timeout=60) as ck:
        done = ck.restore()
        first = 0 if done is None else done + 1
        _check(plan, model, optim, first)
        assert sched.last_epoch == first
        for step in range(first, until):
            _train(model, optim, step)
            sched.step()
            ck.snapshot(step, wait=30)
        ck.fence()
        _check(plan, model, optim, max(first, until))


@needs_uneven
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_lives_of_a_job(agent, seed):
    rng = random.Random(seed)
    kinds = [rng.choice(sorted(WORLDS)) for _ in range(4)]
    for i, kind in enumerate(kinds):
        pids = start(rng.choice(WORLDS[kind]), _life, seed, kind,
                     STEPS * (i + 1) // len(kinds), f"life-{seed}")
        if i < len(kinds) - 1 and rng.random() < 0.6:
            time.sleep(rng.random() * 2)    # when they die is what is tried
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            codes = set(wait(pids))
            assert codes <= {-9, 0, 1}, (seed, kinds)
        else:
            assert set(wait(pids)) == {0}, (seed, kinds[:i + 1])
