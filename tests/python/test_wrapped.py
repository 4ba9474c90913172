# SPDX-License-Identifier: Apache-2.0
"""Tensors that have their values in others, and modules within wrappers."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import Logged, run
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepWriter
from shardkeep.torch.full import load_tensors
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper)
from torch.distributed.checkpoint import CheckpointException
from torch.nn.parallel import DistributedDataParallel

OPTIONS: dict[str, Any] = {"raising": True, "flush_every": 1000}


class Coded(torch.Tensor):
    """A tensor of 8 bits with a scale for all of it."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Coded:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape,
                                                   dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default,
                    torch.ops.aten.view.default):   # of its own shape
            return cls(args[0].codes, args[0].scale)
        if func is torch.ops.aten.is_pinned.default:
            return False
        raise NotImplementedError(func)

    def put(self, x: torch.Tensor) -> None:
        self.scale.copy_(x.abs().max() / 127 + 1e-12)
        self.codes.copy_((x / self.scale).round())

    def value(self) -> torch.Tensor:
        return self.codes * self.scale

    @classmethod
    def zeros(cls, shape: torch.Size) -> Coded:
        return cls(torch.zeros(shape, dtype=torch.int8), torch.zeros(()))


class Hidden(Coded):
    """Shows its codes by a property."""

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self._codes, self.scale = codes, scale

    @property
    def codes(self) -> torch.Tensor:    # type: ignore[override]
        return self._codes


class Momentum8(torch.optim.Optimizer):
    """Its momentum is of 8 bits, and it alone knows how to make one."""

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
                    mine["momentum"] = Coded.zeros(p.shape)
                mine["step"] += 1
                m = mine["momentum"].value() * 0.9 + p.grad
                mine["momentum"].put(m)
                p.sub_(m, alpha=g["lr"])


def _train(net: nn.Module, optim: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        x = torch.linspace(-1, 1, 8).reshape(2, 4) + i
        optim.zero_grad()
        net(x).square().mean().backward()
        optim.step()


def _net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.parameters(), b.parameters()))


def test_an_optimizer_of_few_bits(agent):
    whole = _net()
    _train(whole, Momentum8(whole.parameters()), 0, 6)
    net = _net()
    optim = Momentum8(net.parameters())
    with Checkpointer(net, optim, job="bits", **OPTIONS) as ck:
        for i in range(3):
            _train(net, optim, i, i + 1)
            ck.snapshot(i, wait=30)
        ck.wait()
        # In the living process, with state that is there.
        _train(net, optim, 7, 9)
        assert ck.restore() == 2
        codes = optim.state[net[0].weight]["momentum"].codes
        assert torch.equal(load_tensors("bits")[
            "optim.state.0.weight.momentum.codes"], codes)
    again = _net(5)
    fresh = Momentum8(again.parameters())
    with Checkpointer(again, fresh, job="bits", **OPTIONS) as ck:
        assert ck.restore() == 2
    assert set(fresh.state[again[0].weight]) == {"step", "momentum"}
    assert fresh.param_groups[0]["lr"] == 0.1
    assert all(p.grad is None for p in again.parameters())
    _train(again, fresh, 3, 6)
    assert _same(again, whole)


def test_one_that_was_replaced_is_described_anew(agent):
    net = _net()
    net.register_buffer("table", Coded.zeros((3,)))
    optim = Momentum8(net.parameters())
    _train(net, optim, 0, 1)
    mine = optim.state[net[0].weight]
    with Checkpointer(net, optim, job="anew", **OPTIONS) as ck:
        ck.snapshot(1)
        for step, where, key in ((2, mine, "momentum"),
                                 (3, net._buffers, "table")):
            old = where[key]
            where[key] = Coded(old.codes.clone().fill_(step),
                               old.scale.clone())
            assert ck.snapshot(step, wait=30)
        mine["momentum"].scale = torch.tensor(7.)
        assert ck.snapshot(4, wait=30)
        other = Coded(net.table.codes.clone().fill_(5), torch.tensor(1.))
        net.table.__dict__ = vars(other)
        assert ck.snapshot(5, wait=30)
        ck.wait()
    found = load_tensors("anew")
    assert found["optim.state.0.weight.momentum.codes"].unique() == 2
    assert found["optim.state.0.weight.momentum.scale"] == 7
    assert found["model.table.codes"].unique() == 5


def test_what_is_behind_a_property_is_looked_at_each_time(agent):
    model = nn.Module()
    model.register_buffer("odd", Hidden.zeros((3,)))
    with Checkpointer(model, job="hidden", **OPTIONS) as ck:
        ck.snapshot(1)
        model.odd._codes = torch.full((3,), 9, dtype=torch.int8)
        assert ck.snapshot(2, wait=30)
        ck.wait()
        model.odd._codes.zero_()
        assert ck.restore() == 2
    assert model.odd.codes.tolist() == [9, 9, 9]


def test_state_that_came_after_is_let_go(agent):
    net = _net()
    optim = Momentum8(net.parameters())
    with Checkpointer(net, optim, job="after", **OPTIONS) as ck:
        ck.snapshot(0)
        ck.wait()
        _train(net, optim, 0, 2)
        assert ck.restore() == 0
    assert not optim.state[net[0].weight]


def test_others_are_refused_with_the_names_of_their_parts(agent):
    with pytest.raises(CheckpointException,
                       match=r"w is a Coded.*\(codes, scale\)"):
        dcp.save({"w": Coded.zeros((3,))}, no_dist=True,
                 storage_writer=ShardkeepWriter("refused/1"))


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None,
                    reason="torchao is not installed")
def test_weights_and_optimizers_of_torchao(agent):
    from torchao.optim import AdamW8bit
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    def make(seed: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        quantize_(net[0], Int8WeightOnlyConfig())
        net[0].requires_grad_(False)
        return net, AdamW8bit(net[1].parameters(), block_size=64)

    # As they are, not compiled for a quarter of a minute.
    @torch.compiler.set_stance("force_eager")
    def train(net: nn.Module, optim: Any, steps: int) -> None:
        for i in range(steps):
            optim.zero_grad()
            net(torch.ones(2, 64) * (i + 1)).square().mean().backward()
            optim.step()

    net, optim = make(1)
    train(net, optim, 2)
    with Checkpointer(net, optim, job="ao", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    again, fresh = make(2)
    with Checkpointer(again, fresh, job="ao", **OPTIONS) as ck, \
            torch.compiler.set_stance("force_eager"):
        assert ck.restore() == 1
    for x, o in ((net, optim), (again, fresh)):
        train(x, o, 2)
    assert torch.equal(net[0].weight.qdata, again[0].weight.qdata)
    assert torch.equal(net[1].weight, again[1].weight)


# ---- modules ----

def _saved_and_restored(job: str, wrapped: nn.Module, plain: nn.Module
                        ) -> None:
    """One way and the other."""
    for step, (a, b) in enumerate(((wrapped, plain), (plain, wrapped))):
        oa, ob = (torch.optim.AdamW(x.parameters(), lr=0.1) for x in (a, b))
        for p in a.parameters():
            p.grad = torch.full_like(p, 1. + step)
        oa.step()
        with Checkpointer(a, oa, job=job, **OPTIONS) as ck:
            ck.snapshot(step)
            ck.wait()
        with Checkpointer(b, ob, job=job, **OPTIONS) as ck:
            assert ck.restore() == step
        assert _same(a, b)
        assert len(ob.state) == len(oa.state)


@pytest.mark.parametrize("wrap", [
    lambda m: nn.ModuleDict({"a": nn.DataParallel(m["a"]), "b": m["b"]}),
    lambda m: nn.DataParallel(m),
    lambda m: torch.compile(nn.ModuleDict({
        "a": torch.compile(m["a"], backend="eager"),
        "b": checkpoint_wrapper(m["b"])}), backend="eager"),
    lambda m: nn.ModuleDict({"a": torch.compile(nn.DataParallel(nn.Sequential(
        checkpoint_wrapper(m["a"][0]), *m["a"][1:])), backend="eager"),
        "b": nn.DataParallel(m["b"])}),
])
def test_wrappers_leave_names_as_they_are(agent, wrap):
    def both(seed: int) -> nn.ModuleDict:
        return nn.ModuleDict({"a": _net(seed), "b": _net(seed + 1)})

    _saved_and_restored("names", wrap(both(1)), both(3))


def _two_of_ddp() -> None:
    nets = nn.ModuleList([_net(1), _net(2)])
    _saved_and_restored("ddp", nn.ModuleList(
        [DistributedDataParallel(x) for x in nets]),
        nn.ModuleList([_net(3), _net(4)]))
    with Checkpointer(nets, job="ddp", **OPTIONS) as ck:
        assert ck.restore(strict=False) == 1
    dist.barrier()


def test_ddp_within_a_list(agent):
    run(2, _two_of_ddp)


class _Scaled(torch.Tensor):
    """Has memory of its own, and a scale that it keeps beside it."""


def test_what_a_tensor_keeps_beside_its_values_is_told(agent):
    model = nn.Module()
    model.register_buffer("odd", torch.ones(3).as_subclass(_Scaled))
    model.odd.scale = torch.ones(())
    said = Logged()
    logging.getLogger("shardkeep").addHandler(said)
    try:
        with Checkpointer(model, job="beside", **OPTIONS) as ck:
            assert ck.snapshot(1)
    finally:
        logging.getLogger("shardkeep").removeHandler(said)
    assert any("scale of model.odd" in x and "_Scaled" in x
               for x in said.found), said.found


class _Adapter(nn.Module):
    """Which asks what it wraps for whatever it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(3))
        self.inner = torch.compile(nn.Linear(2, 2), backend="eager")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "inner":
                raise
            return getattr(self.inner, name)


class _Called(nn.Module):
    """Whose parts are called as what wrappers wrap, and are not."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod, self.module = nn.Linear(2, 2), nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("make, names", [
    (_Adapter, {"prompt", "inner.weight", "inner.bias"}),
    (_Called, set(_Called().state_dict())),
    (lambda: nn.ModuleDict({"a": _Called()}),
     {f"a.{name}" for name in _Called().state_dict()})])
def test_names_as_wrappers_have_them(agent, make, names):
    """A wrapper is known by its type: nothing of another module is lost."""
    with Checkpointer(make(), job="called", raising=True) as ck:
        assert ck.snapshot(1)
        ck.wait()
        assert set(load_tensors("called", prefix="model.")) == names
