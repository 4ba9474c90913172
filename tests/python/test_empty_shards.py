# SPDX-License-Identifier: Apache-2.0
"""Dimensions smaller than the mesh: ranks that hold nothing of a tensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run
from models import Shard, local_part, sharded, whole, wrong
from older import needs_uneven
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)


def _model(dp: int, tp: int, inner: int, fill: bool) -> nn.Module:
    """A low rank between two linear layers, as adapters have it."""
    model = nn.Sequential(nn.Linear(6, inner, bias=False),
                          nn.Linear(inner, 3))
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(whole(n, tuple(p.shape)) if fill else torch.zeros(()))
    if dp * tp > 1:
        mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(),
                                               "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    return model


def _holds(t: torch.Tensor, want: torch.Tensor) -> bool:
    """full_tensor() hangs or lacks elements where shards are empty."""
    if not isinstance(t, DTensor):
        return torch.equal(t, want)
    part = local_part(want, t.device_mesh, t.placements)
    return t._local_tensor.numel() == part.numel() and (
        not part.numel() or torch.equal(t._local_tensor, part))


def _save(dp: int, tp: int, inner: int) -> None:
    model = _model(dp, tp, inner, True)
    optim = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
    for p in model.parameters():
        p.grad = p.detach().clone()
    optim.step()
    with Checkpointer(model, optim, job="thin", flush_every=1 << 30,
                      raising=True) as ck:
        assert ck.snapshot(1, wait=30)
        ck.wait()


def _load(dp: int, tp: int, inner: int) -> None:
    model = _model(dp, tp, inner, False)
    optim = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
    with Checkpointer(model, optim, job="thin", flush_every=1 << 30,
                      raising=True) as ck:
        assert ck.restore() == 1
    for n, p in model.named_parameters():
        assert _holds(p, whole(n, tuple(p.shape))), n
        assert _holds(optim.state[p]["momentum_buffer"],
                      whole(n, tuple(p.shape))), n


@needs_uneven
@pytest.mark.parametrize("dp, tp, inner", [
    (1, 4, 5), (1, 3, 4), (2, 2, 1)])
def test_features_that_do_not_reach_all_ranks(agent, dp, tp, inner):
    run(dp * tp, _save, dp, tp, inner)
    run(dp * tp, _load, dp, tp, inner)
    run(1, _load, 1, 1, inner)
    run(3, _load, 1, 3, inner)
    run(1, _save, 1, 1, inner)
    run(dp * tp, _load, dp, tp, inner)


def _distributed(dp: int, tp: int, inner: int, save: bool) -> None:
    model = _model(dp, tp, inner, save)
    state = model.state_dict()
    if save:
        dcp.save(state, storage_writer=ShardkeepWriter("thin/1"))
        return
    dcp.load(state, storage_reader=ShardkeepReader("thin/1"))
    for n, p in model.named_parameters():
        assert _holds(p, whole(n, tuple(p.shape))), n


@needs_uneven
@pytest.mark.parametrize("dp, tp, inner", [(1, 4, 5), (2, 2, 1)])
def test_distributed_checkpoint_of_them(agent, dp, tp, inner):
    run(dp * tp, _distributed, dp, tp, inner, True)
    run(dp * tp, _distributed, dp, tp, inner, False)
    run(1, _distributed, 1, 1, inner, False)


def _one_column(save: bool) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    value = whole("column", (3, 1))
    state = {"w": sharded(value, mesh, (Shard(0), Shard(1)), save)}
    if save:
        dcp.save(state, storage_writer=ShardkeepWriter("column/1"))
        return
    dcp.load(state, storage_reader=ShardkeepReader("column/1"))
    assert not wrong(state["w"], value)


def test_one_column_on_four_ranks(agent):
    run(4, _one_column, True)
    run(4, _one_column, False)


def _absent() -> None:
    """No elements where the placements say that there are some."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    t = sharded(whole("w", (4, 3)), mesh, (Shard(0),))
    if dist.get_rank() == 1:
        t._local_tensor = torch.empty(0, 3)
    model = nn.Module()
    model.register_buffer("w", t)
    with Checkpointer(model, job="absent", raising=True) as ck:
        if dist.get_rank() == 1:
            with pytest.raises(ValueError, match="model.w"):
                ck.snapshot(1)
        else:
            ck.snapshot(1)


def test_elements_that_should_be_there(agent):
    run(2, _absent)
