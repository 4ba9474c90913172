# SPDX-License-Identifier: Apache-2.0
"""Parts of DTensors that have their values in other tensors, as optimizers of
few bits keep them under FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run
from shardkeep import Mismatch
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter, parts
from shardkeep.torch.full import load_tensors
from test_wrapped import OPTIONS, Coded
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard


class Sharded8(torch.optim.Optimizer):
    """Its momentum is of 8 bits; each rank makes and reads its own shard."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                mine = self.state[p]
                if not mine:
                    mine["step"] = torch.zeros(())
                    mine["momentum"] = DTensor.from_local(
                        Coded.zeros(p.to_local().shape), p.device_mesh,
                        p.placements, run_check=False, shape=p.shape,
                        stride=p.stride())
                mine["step"] += 1
                m = mine["momentum"]._local_tensor
                if not m.codes.numel():
                    continue
                x = m.value() * 0.9 + p.grad.to_local()
                m.put(x)
                p.to_local().sub_(x, alpha=g["lr"])


def _net(seed: int, shape: tuple[int, ...], names: tuple[str, ...]
         ) -> tuple[nn.Module, Sharded8]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    fully_shard(net, mesh=init_device_mesh("cpu", shape,
                                           mesh_dim_names=names))
    return net, Sharded8(net.parameters())


def _train(net: nn.Module, optim: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        x = torch.linspace(-1, 1, 8).reshape(2, 4) + i + dist.get_rank()
        optim.zero_grad()
        net(x).square().mean().backward()
        optim.step()


def _local(t: Any) -> Any:
    return t._local_tensor


def _same(a: tuple[nn.Module, Any], b: tuple[nn.Module, Any]) -> None:
    for p, q in zip(a[0].parameters(), b[0].parameters()):
        assert torch.equal(_local(p), _local(q))
        m, n = (_local(o.state[x]["momentum"])
                for o, x in ((a[1], p), (b[1], q)))
        assert torch.equal(m.codes, n.codes) and torch.equal(m.scale, n.scale)


def _comes_back(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Some ranks have no row of what has five or three."""
    whole = _net(0, shape, names)
    _train(*whole, 0, 5)
    one = _net(0, shape, names)
    with Checkpointer(*one, job="shards", **OPTIONS) as ck:
        for i in range(3):
            _train(*one, i, i + 1)
            ck.snapshot(i, wait=30)
        ck.wait()
        _train(*one, 7, 9)
        assert ck.restore() == 2        # with state that is there
    again = _net(5, shape, names)
    with Checkpointer(*again, job="shards", **OPTIONS) as ck:
        assert ck.restore() == 2        # with a fresh optimizer
        for x, mine in again[1].state.items():
            assert set(mine) == {"step", "momentum"}
        _train(*again, 3, 5)
        ck.snapshot(4)
        ck.wait()
    _same(again, whole)


@pytest.mark.parametrize("shape, names", [
    ((4,), ("dp",)), ((2, 2), ("again", "dp"))])
def test_shards_of_few_bits(agent, shape, names):
    run(4, _comes_back, shape, names)


def _told_by_name() -> None:
    mine = _net(0, (2,), ("dp",))
    _train(*mine, 0, 1)
    with Checkpointer(*mine, job="told", **OPTIONS) as ck:
        ck.snapshot(0)
        ck.wait()
        found = load_tensors("told")
    for rank in range(2):
        assert f"optim.state.0.weight.momentum.dim0-{rank}of2.codes" in found
    m = _local(mine[1].state[mine[0][0].weight]["momentum"])
    assert torch.equal(found["optim.state.0.weight.momentum."
                             f"dim0-{dist.get_rank()}of2.codes"], m.codes)


def _on_another_mesh() -> None:
    other = _net(1, (3,), ("dp",))
    with Checkpointer(*other, job="told", **OPTIONS) as ck:
        with pytest.raises(Mismatch, match=r"momentum\.dim0-.of"):
            ck.restore()
        assert ck.restore(strict=False) == 0
    for mine in other[1].state.values():
        assert set(mine) == {"step", "momentum"}


def test_each_shard_has_its_name_and_other_cuts_are_refused(agent):
    run(2, _told_by_name)
    run(3, _on_another_mesh)


def _replaced() -> None:
    net, optim = _net(0, (2,), ("dp",))
    _train(net, optim, 0, 1)
    p = next(net.parameters())
    with Checkpointer(net, optim, job="replaced", **OPTIONS) as ck:
        ck.snapshot(0, wait=30)
        m = _local(optim.state[p]["momentum"])
        m.codes = torch.full_like(m.codes, 9)
        assert ck.snapshot(1, wait=30)
        ck.wait()
        m.codes.zero_()
        assert ck.restore() == 1
    assert (m.codes == 9).all()


def test_one_within_a_shard_that_was_replaced_is_described_anew(agent):
    run(2, _replaced)


def _by_dcp(world: int) -> None:
    mine = _net(0, (world,), ("dp",))
    _train(*mine, 0, 2)
    p = next(mine[0].parameters())
    state = {"m": mine[1].state[p]["momentum"], "more": [{"n": 7}]}
    dcp.save(parts(state), storage_writer=ShardkeepWriter("few/1"))
    m = _local(state["m"])
    codes, scale = m.codes.clone(), m.scale.clone()
    m.codes.zero_()
    m.scale.zero_()
    back = parts(state)
    dcp.load(back, storage_reader=ShardkeepReader("few/1"))
    assert torch.equal(m.codes, codes) and torch.equal(m.scale, scale)
    assert back["more"] == [{"n": 7}]


def test_parts_of_a_state_dict(agent):
    run(2, _by_dcp, 2)


def test_parts_of_what_is_no_dtensor(agent):
    w = Coded(torch.arange(3, dtype=torch.int8), torch.tensor(2.))
    dcp.save(parts({"w": w}), no_dist=True,
             storage_writer=ShardkeepWriter("whole/1"))
    w.codes.zero_()
    dcp.load(parts({"w": w}), no_dist=True,
             storage_reader=ShardkeepReader("whole/1"))
    assert w.codes.tolist() == [0, 1, 2] and w.scale == 2


def _turned(fill: int) -> nn.Module:
    """A weight whose codes lie column by column."""
    codes = torch.arange(12, dtype=torch.int8).reshape(4, 3) + dist.get_rank()
    model = nn.Module()
    model.w = nn.Parameter(DTensor.from_local(
        Coded((codes * fill).t(), torch.full((), 2. * fill)),
        init_device_mesh("cpu", (2,)), (Shard(0),), run_check=False,
        shape=torch.Size((6, 4)), stride=(4, 1)), requires_grad=False)
    return model


def _by_columns() -> None:
    with Checkpointer(_turned(1), job="turned", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    model = _turned(0)
    with Checkpointer(model, job="turned", **OPTIONS) as ck:
        assert ck.restore() == 1
    mine, want = _local(model.w), _local(_turned(1).w)
    assert torch.equal(mine.codes, want.codes) and mine.scale == want.scale


def test_shards_in_another_order_of_memory(agent):
    run(2, _by_columns)
