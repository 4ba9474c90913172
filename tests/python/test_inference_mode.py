# SPDX-License-Identifier: Apache-2.0
"""Who evaluates in an inference mode may call anything there: what is made
meanwhile is written to in training, where tensors of that mode may not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepWriter
from test_wrapped import Momentum8
from torch import nn


def _model(device: str = "cpu") -> nn.Module:
    with torch.device(device):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))


def _step(model: nn.Module, optim: torch.optim.Optimizer) -> None:
    optim.zero_grad()
    model(torch.ones(6, 4)).sum().backward()
    optim.step()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


@pytest.mark.parametrize("evaluates", [0, 1])
def test_snapshots(agent: str, evaluates: int) -> None:
    model = _model()
    optim = _adam(model)
    with Checkpointer(model, optim, job="mode", raising=True) as ck:
        for step in range(3):
            _step(model, optim)
            with torch.inference_mode(step == evaluates):
                assert ck.snapshot(step, wait=60)
        ck.wait()
        want = model[1].num_batches_tracked.clone()
        _step(model, optim)
        with torch.inference_mode():
            assert ck.restore() == 2
        assert torch.equal(model[1].num_batches_tracked, want)
        _step(model, optim)
        assert ck.snapshot(3, wait=60)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make", [_adam, lambda m: Momentum8(m.parameters())])
def test_a_restore(agent: str, make: Callable[..., Any], device: str) -> None:
    model = _model()
    optim = make(model)
    _step(model, optim)
    extra = {"mean": torch.ones(3), "none": torch.ones(0)}
    with Checkpointer(model, optim, job="mode", extra=extra,
                      raising=True) as ck:
        assert ck.snapshot(0)
        ck.wait()
    model = _model(device)
    optim = make(model)
    with Checkpointer(model, optim, job="mode", extra=extra,
                      raising=True) as ck:
        with torch.inference_mode():
            assert ck.restore() == 0
        for x in extra.values():
            x.add_(1)
        for step in range(1, 3):
            _step(model, optim)
            assert ck.snapshot(step, wait=60)


def test_memory_that_is_staged_into_again(agent: str) -> None:
    writer = ShardkeepWriter("mode/1", cache_staged_state_dict=True)
    for step in range(1, 3):
        writer.reset(f"mode/{step}")
        with torch.inference_mode(step == 1):
            dcp.async_save({"w": torch.full((3,), float(step))}, no_dist=True,
                           storage_writer=writer).result()
