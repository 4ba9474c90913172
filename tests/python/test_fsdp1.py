# SPDX-License-Identifier: Apache-2.0
"""FSDP1: flat parameters, as parts of the tensors that were flattened."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import shardkeep
import torch
import torch.distributed as dist
import torch.nn as nn
from harness import private_agent, run
from shardkeep.torch import Checkpointer
from shardkeep.torch._flat import boxes_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

warnings.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    with private_agent() as directory:
        yield directory


def test_intervals_are_the_boxes_they_say() -> None:
    rng = random.Random(1)
    for _ in range(400):
        shape = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 4)))
        n = torch.Size(shape).numel()
        a, b = sorted((rng.randint(0, n), rng.randint(0, n)))
        values = torch.arange(n).view(shape)
        found = torch.full((b - a,), -1)
        boxes = boxes_of(shape, a, b)
        for offset, size, at in boxes:
            part = values[tuple(slice(o, o + s)
                                for o, s in zip(offset, size))]
            assert (found[at:at + part.numel()] == -1).all()
            found[at:at + part.numel()] = part.flatten()
        assert found.tolist() == list(range(a, b)), (shape, a, b)
        assert len(boxes) <= 2 * len(shape)


class Net(nn.Module):
    """Odd sizes, four dimensions, buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(1, 3, (2, 3))
        self.norm = nn.BatchNorm1d(7)
        self.up = nn.Linear(7, 13)
        self.down = nn.Linear(13, 7, bias=False)
        self.out = nn.Linear(7, 13, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.view(-1, 1, 4, 7)).mean((1, 2))
        x = nn.functional.pad(x, (1, 1))
        return self.out(self.down(torch.relu(self.up(self.norm(x)))))


WRAPS: dict[str, dict[str, Any]] = {
    "orig": {"use_orig_params": True},
    "flat": {"use_orig_params": False},
    "nested": {"use_orig_params": True,
               "auto_wrap_policy": ModuleWrapPolicy({nn.Linear})},
    "nested-flat": {"use_orig_params": False,
                    "auto_wrap_policy": ModuleWrapPolicy({nn.Linear})},
    "grad-op": {"use_orig_params": True,
                "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "no-shard": {"use_orig_params": True,
                 "sharding_strategy": ShardingStrategy.NO_SHARD},
    "no-shard-flat": {"use_orig_params": False,
                      "sharding_strategy": ShardingStrategy.NO_SHARD},
    "hybrid": {"use_orig_params": True,
               "sharding_strategy": ShardingStrategy.HYBRID_SHARD},
}


def made(wrap: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = Net()
    if wrap == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu",
                                                 (dist.get_world_size(),)))
    elif wrap != "plain":
        more = dict(WRAPS[wrap])
        if wrap == "hybrid":
            more["device_mesh"] = init_device_mesh(
                "cpu", (2, dist.get_world_size() // 2))
        model = FSDP(model, device_id=torch.device("cpu"), **more)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model: nn.Module, optim: torch.optim.Optimizer, first: int,
          n: int) -> list[float]:
    losses = []
    for step in range(first, first + n):
        x = torch.randn(6, 28, generator=torch.Generator()
                        .manual_seed(step))
        loss = model(x).square().mean()
        loss.backward()
        optim.step()
        optim.zero_grad()
        losses.append(loss.item())
    return losses


def _reference() -> list[float]:
    model, optim = made("plain")
    return train(model, optim, 0, 6)


def _save(wrap: str) -> None:
    model, optim = made(wrap)
    with Checkpointer(model, optim, job="f1", flush_every=shardkeep.FLUSH_NEVER,
                      raising=True) as ck:
        train(model, optim, 0, 2)
        assert ck.snapshot(2)
        train(model, optim, 2, 1)       # what comes after is not in it
        ck.wait()
        assert ck.snapshot(3, wait=30)
        ck.wait()


def _resume(wrap: str) -> None:
    expected = _reference()
    model, optim = made(wrap)
    with Checkpointer(model, optim, job="f1", raising=True) as ck:
        assert ck.restore(2) == 2
        losses = train(model, optim, 2, 4)
    torch.testing.assert_close(losses, expected[2:], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("wrap", WRAPS)
def test_from_flat_parameters_to_everything(wrap: str) -> None:
    run(4, _save, wrap)
    run(4, _resume, wrap)
    run(3, _resume, "orig" if wrap != "orig" else "flat")
    run(2, _resume, "fsdp2")
    run(1, _resume, "plain")


def test_from_everything_to_flat_parameters() -> None:
    run(3, _save, "fsdp2")
    for wrap in WRAPS:
        run(4, _resume, wrap)


def _counting(wrap: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """An optimizer that makes its state in its constructor, of parameters of
    which a rank has no element, too."""
    model: nn.Module = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 3))
    if wrap == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu",
                                                 (dist.get_world_size(),)))
    elif wrap != "plain":
        model = FSDP(model, device_id=torch.device("cpu"), **WRAPS[wrap])
    return model, torch.optim.Adagrad(model.parameters(), lr=0.1,
                                      lr_decay=0.5)


def _count(wrap: str, save: bool) -> None:
    model, optim = _counting(wrap)
    with Checkpointer(model, optim, job="count", raising=True) as ck:
        if save:
            for _ in range(4):
                model(torch.ones(2, 7)).square().mean().backward()
                optim.step()
                optim.zero_grad()
            counts = {int(optim.state[p]["step"]) for p in model.parameters()
                      if not p.numel()}
            assert counts <= {0}, counts
            assert ck.snapshot(1)
            ck.wait()
            return
        ck.restore()
    for name, p in model.named_parameters():
        if p.numel():
            assert int(optim.state[p]["step"]) == 4, name


def test_numbers_of_ranks_without_elements() -> None:
    run(2, _count, "orig", True)
    for world, wrap in (2, "orig"), (3, "orig"), (2, "fsdp2"), (1, "plain"):
        run(world, _count, wrap, False)


def _tensor_parallel(save: bool) -> None:
    """FSDP1 over tensor parallelism: flat parts of local parts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(8 if save else 9)
    inner = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 5))
    inner = parallelize_module(inner, mesh["tp"], {
        "0": ColwiseParallel(), "1": RowwiseParallel()})
    model = FSDP(inner, device_mesh=mesh["dp"], use_orig_params=True,
                 device_id=torch.device("cpu"))
    with Checkpointer(model, job="2d", raising=True) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
            return
        ck.restore()
    torch.manual_seed(8)
    whole = dict(nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 5))
                 .named_parameters())
    with FSDP.summon_full_params(model):
        for name, p in model.named_parameters():
            t = p.full_tensor() if isinstance(p, DTensor) else p
            name = name.replace("_fsdp_wrapped_module.", "")
            assert torch.equal(t, whole[name]), name


def test_over_tensor_parallel() -> None:
    run(4, _tensor_parallel, True)
    run(4, _tensor_parallel, False)


def _channels_last() -> None:
    net = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    model = FSDP(net, device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match="weight is not contiguous"):
        Checkpointer(model, job="order")


def test_another_order_of_elements_is_refused_by_name() -> None:
    run(2, _channels_last)
