# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline, data and tensor parallel at once: a mesh of three
dimensions, and back on other ones."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from harness import run
from models import everything
from older import needs_uneven
from shardkeep.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

LAYERS, WIDTH, INNER = 4, 6, 10     # INNER / tp is not even over dp


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


class _Stage(nn.Module):
    """Some layers, by their numbers in the whole model."""

    def __init__(self, numbers: range) -> None:
        super().__init__()
        torch.manual_seed(6)
        blocks = [_Block() for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(i): blocks[i] for i in numbers})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.layers.values():
            x = block(x)
        return x


def _stage(pp: int, dp: int, tp: int) -> tuple[nn.Module, Any]:
    mesh = init_device_mesh("cpu", (pp, dp, tp),
                            mesh_dim_names=("pp", "dp", "tp"))
    each = LAYERS // pp
    begin = mesh.get_local_rank("pp") * each
    stage = _Stage(range(begin, begin + each))
    for block in stage.layers.values():
        if tp > 1:
            parallelize_module(block, mesh["tp"], {
                "up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(stage, mesh=mesh["dp"])
    return stage, torch.optim.AdamW(stage.parameters(), lr=0.02)


def _train(stage: nn.Module, optim: Any, step: int) -> None:
    """Each stage by itself: how they pass activations is not our matter."""
    x = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH) * (step + 1)
    optim.zero_grad()
    stage(x).square().mean().backward()
    optim.step()


def _go_on(mesh: tuple[int, int, int], step: int, file: str) -> None:
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    stage, optim = _stage(*mesh)
    with Checkpointer(stage, optim, job="three", raising=True,
                      flush_every=1000) as ck:
        assert ck.restore() == (step - 1 if step else None)
        if step:
            want = torch.load(file)
            have = everything(stage, optim)
            assert have and all(torch.equal(t, want[k])
                                for k, t in have.items())
        dist.barrier()
        _train(stage, optim, step)
        ck.snapshot(step, wait=60)
        ck.wait()
    have = everything(stage, optim)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, have)
    if dist.get_rank() == 0:
        whole = {k: t for x in told for k, t in x.items()}
        assert len(whole) == LAYERS * 4 * 4, "values and three of state"
        torch.save(whole, file)


@needs_uneven
def test_there_and_back(agent):
    for step, mesh in enumerate(((2, 2, 2), (4, 1, 2), (1, 2, 1), (1, 1, 1),
                                 (2, 1, 2))):
        run(mesh[0] * mesh[1] * mesh[2], _go_on, mesh, step,
            agent + "/whole.pt")
