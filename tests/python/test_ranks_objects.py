# SPDX-License-Identifier: Apache-2.0
"""Objects of ranks, when other ranks come back."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from harness import run
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader
from shardkeep.torch.full import load_tensors
from torch import nn

OPTIONS: dict[str, Any] = {"flush_every": 1 << 30, "raising": True}


def _save() -> None:
    rank = dist.get_rank()
    local = {"loader": {"at": 10 + rank}}
    if rank == 2:       # what only one rank has
        local["writer"] = {"lines": 7}
    with Checkpointer(nn.Linear(2, 2), job="objects", local=local, extra={
            "same": {"n": 1}, "own": {"n": rank, "text": "x" * 3000 * rank}},
            **OPTIONS) as ck:
        assert ck.snapshot(1)
        ck.wait()


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _load() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    said = _Said()
    logging.getLogger("shardkeep").addHandler(said)
    extra: dict[str, Any] = {"same": {}, "own": {}}
    loader = {"at": 0}
    with Checkpointer(nn.Linear(2, 2), job="objects", extra=extra,
                      local={"loader": loader}, **OPTIONS) as ck:
        assert ck.restore() == 1
        assert extra["same"] == {"n": 1}
        assert extra["own"]["n"] == (rank if rank < 3 else 0)
        assert loader["at"] == (10 + rank if rank < 3 else 0)
        warned = [s for s in said.said if "not the same" in s]
        assert bool(warned) == (world != 3 and rank == 0), said.said
        assert all("extra.own" in s and "rank 0; rank 1; rank 2" in s
                   for s in warned)
        # What was read for others does not stay in the next snapshot.
        assert ck.snapshot(2, wait=30)
        ck.wait()
        assert not [n for n, r in ck._blobs._shared if r != rank]


def test_the_same_ranks_and_others(agent):
    for world in (3, 1, 2, 5):
        run(3, _save)
        run(world, _load)


def test_objects_are_no_tensors_of_the_model(agent):
    run(3, _save)
    assert set(load_tensors("objects")) == {"model.weight", "model.bias"}
    found = ShardkeepReader(job="objects").read_metadata()
    assert set(found.state_dict_metadata) == {"model.weight", "model.bias"}


def test_schedulers_within_others(agent):
    def made(groups: int) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        params = list(model.parameters())
        optim = torch.optim.SGD(
            [{"params": [p], "lr": 1.0 + i} for i, p in enumerate(params)]
            if groups == 2 else params, lr=5)
        lr = torch.optim.lr_scheduler
        return model, optim, lr.SequentialLR(
            optim, [lr.ConstantLR(optim, 0.5, 2), lr.ExponentialLR(
                optim, 0.9)], [3])

    def save() -> None:
        model, optim, sched = made(2)
        with Checkpointer(model, optim, job="nested", extra={"s": sched},
                          **OPTIONS) as ck:
            ck.snapshot(1)
            ck.wait()

    def load() -> None:
        model, optim, sched = made(1)
        with Checkpointer(model, optim, job="nested", extra={"s": sched},
                          **OPTIONS) as ck:
            assert ck.restore() == 1
        assert optim.param_groups[0]["lr"] == 0.5
        assert [s.base_lrs for s in sched._schedulers] == [[1.0], [1.0]]
        sched.step()

    run(1, save)
    run(2, load)
