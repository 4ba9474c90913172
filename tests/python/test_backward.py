# SPDX-License-Identifier: Apache-2.0
"""Who goes backward through what was restored since is told, as PyTorch tells
whoever wrote to a tensor in place: the gradients would be those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from harness import run
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh

_TOLD = "modified by an inplace operation"


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def _refused(out: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=_TOLD):
        out.sum().backward()


def _by_checkpointer(model: nn.Module, job: str = "backward"
                     ) -> Callable[[], Any]:
    ck = Checkpointer(model, job=job, raising=True)
    ck.restore()
    assert ck.snapshot(1, wait=30)
    ck.wait()
    return ck.restore


def _by_dcp(model: nn.Module) -> Callable[[], Any]:
    state: Any = dict(model.named_parameters())
    dcp.save(state, storage_writer=ShardkeepWriter("backward-dcp/1"))
    return lambda: dcp.load(
        state, storage_reader=ShardkeepReader("backward-dcp/1"))


@pytest.mark.filterwarnings("ignore:torch.distributed")
@pytest.mark.parametrize("way", [_by_checkpointer, _by_dcp])
def test_plain(agent: str, way: Callable[..., Any]) -> None:
    model = _net()
    restore = way(model)
    before = model(torch.ones(5, 3))
    restore()
    _refused(before)
    model(torch.ones(5, 3)).sum().backward()


def _dtensors() -> None:
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Module()
    model.w = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh))
    restore = _by_checkpointer(model)
    x: Any = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    x.requires_grad_()
    before = x @ model.w
    restore()
    _refused(before)
    assert isinstance(before, DTensor)
    model = _net()
    fully_shard(model)
    restore = _by_checkpointer(model, "again")
    for _ in range(2):      # whose memory is gathered anew
        restore()
        model(torch.ones(5, 3)).sum().backward()


def test_in_shards(agent: str) -> None:
    run(2, _dtensors)
