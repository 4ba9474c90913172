# SPDX-License-Identifier: Apache-2.0
"""Buffers are written by the forward pass, before any optimizer's step: what
a snapshot has of them is what they were when it was taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run
from shardkeep.torch import Checkpointer, _aside
from shardkeep.torch.full import load_tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


class Counted(torch.nn.Module):
    """What is large is copied first, while the next pass begins."""

    def __init__(self, numel: int = 50_000_000) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(numel))
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("lost", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.norm(x)


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: b.clone() for k, b in model.named_buffers() if k != "lost"}


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_pass_beside_the_copy_is_in_no_snapshot(agent) -> None:
    model = Counted()
    with Checkpointer(model, job="pass", flush_every=1 << 30) as ck:
        ck.prepare()
        for step in range(4):
            model(torch.randn(5, 3))
            before = _buffers(model)
            assert ck.snapshot(step, wait=30)
            model(torch.randn(5, 3))
            ck.wait()
            assert not _same(before, _buffers(model))
            assert ck.restore() == step
            assert _same(before, _buffers(model)), step
            model(torch.randn(5, 3))


def test_buffers_that_are_replaced(agent) -> None:
    model = Counted(10)
    with Checkpointer(model, job="replaced", flush_every=1 << 30) as ck:
        assert ck.snapshot(1, wait=30)
        ck.wait()
        model.norm.running_mean = torch.arange(3.)
        model.passes = torch.tensor(70)
        model.norm.running_var.data = torch.full((3,), 9.)
        assert ck.snapshot(2, wait=30)
        ck.wait()
        want = _buffers(model)
        for b in model.buffers():
            b.zero_()
        assert ck.restore() == 2
        assert _same(want, _buffers(model))
    fresh = Counted(10)
    with Checkpointer(fresh, job="replaced", flush_every=1 << 30) as ck:
        assert ck.restore() == 2
        assert _same(want, _buffers(fresh))
        assert ck.snapshot(3, wait=30)
        ck.wait()


def test_what_a_snapshot_lacks_stays(agent) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    with Checkpointer(model, job="partly", flush_every=1 << 30) as ck:
        model(torch.randn(5, 3))
        assert ck.snapshot(1, wait=30)
        ck.wait()
    want = _buffers(model)
    wider = torch.nn.Sequential(torch.nn.BatchNorm1d(3),
                                torch.nn.BatchNorm1d(3))
    wider(torch.randn(5, 3))
    mine = _buffers(wider)
    with Checkpointer(wider, job="partly", flush_every=1 << 30) as ck:
        assert ck.restore(strict=False) == 1
    got = _buffers(wider)
    assert _same({k: got[k] for k in want}, want)
    assert all(torch.equal(got[k], mine[k]) for k in mine if k[0] == "1")


def test_what_says_its_shards_goes_as_it_is(agent) -> None:
    model = Counted(10)
    t: Any = torch.arange(12.).reshape(6, 2)
    t.global_shape, t.global_offsets = (6, 2), ((0, 0), (2, 0), (4, 0))
    t.local_offsets = ((4, 0), (0, 0), (2, 0))
    t.local_sizes = ((2, 2), (2, 2), (2, 2))
    model.register_buffer("own", t)
    with Checkpointer(model, job="own", flush_every=1 << 30) as ck:
        want = _buffers(model)
        assert ck.snapshot(1, wait=30)
        ck.wait()
        for b in model.buffers():
            b.zero_()
        assert ck.restore() == 1
        assert _same(want, _buffers(model))


@pytest.mark.parametrize("most", [0, 12, 1000])
def test_however_many_are_copied_aside(agent, monkeypatch, most) -> None:
    """What is not is the trainer's to fence, and saved all the same."""
    monkeypatch.setattr(_aside, "MOST_BYTES", most)
    model = Counted(10)
    with Checkpointer(model, job="most", flush_every=1 << 30) as ck:
        model(torch.randn(5, 3))
        want = _buffers(model)
        assert ck.snapshot(1, wait=30)
        ck.fence()
        model(torch.randn(5, 3))
        ck.wait()
        assert ck.restore() == 1
        assert _same(want, _buffers(model))


# ---- of several ranks ----

class Spread(torch.nn.Module):
    """Buffers as distribute_module() makes them, and one that is sharded."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (2,))
        self.a = torch.nn.Parameter(torch.ones(30_000_000))
        for name, placement in (("passes", Replicate()), ("rows", Shard(0)),
                                ("ends", Shard(0))):
            numel = 1 if name == "ends" else 6      # none on rank 1
            self.register_buffer(name, distribute_tensor(
                torch.zeros(numel), mesh, [placement]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.buffers():
            b.add_(1)
        return x

    def locals(self) -> list[torch.Tensor]:
        return [b._local_tensor.clone() for b in self.buffers()]


def _pass_beside() -> None:
    model = Spread()
    with Checkpointer(model, job="spread", flush_every=1 << 30) as ck:
        ck.prepare()
        for step in range(3):
            model(torch.zeros(1))
            before = model.locals()
            assert ck.snapshot(step, wait=30)
            model(torch.zeros(1))
            ck.wait()
            dist.barrier()
            assert ck.restore() == step
            for got, want in zip(model.locals(), before, strict=True):
                assert torch.equal(got, want), step
            # In other memory.
            model.rows = distribute_tensor(
                torch.full((6,), 50.0 + step), model.rows.device_mesh,
                [Shard(0)])


def test_a_pass_beside_the_copy_of_distributed_buffers(agent) -> None:
    run(2, _pass_beside)


# ---- what ranks have values of their own of ----

class _Activated(torch.nn.BatchNorm1d):
    """As libraries derive them."""


def _normed() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(3, 40), torch.nn.BatchNorm1d(40), _Activated(40))


def _values(rank: int) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(b, 100 * rank + i)
            for i, (name, b) in enumerate(_normed().named_buffers())}


def _save_statistics() -> None:
    model = _normed()
    model.load_state_dict(_values(dist.get_rank()), strict=False)
    with Checkpointer(model, job="own", timeout=60) as ck:
        assert ck.restore() is None
        assert ck.snapshot(1, flush=True, wait=30)
        ck.wait(until="durable")


def _load_statistics(source: str) -> None:
    """Of two ranks that saved; the third has what rank 0 had."""
    model = _normed()
    with Checkpointer(model, job="own", timeout=60) as ck:
        assert ck.restore(source=source) == 1
    assert _same(_buffers(model), _values(dist.get_rank() % 2))


def test_statistics_of_each_ranks_batches(agent) -> None:
    """DDP broadcasts rank 0's, and a model has one rank's mean and
    variance."""
    run(2, _save_statistics)
    run(1, _load_statistics, "memory")
    run(2, _load_statistics, "disk")
    run(3, _load_statistics, "disk")
    want = _values(0)
    saved = load_tensors("own", prefix="model.", names=list(want))
    assert _same(saved, want)
