# SPDX-License-Identifier: Apache-2.0
"""A restore that is refused has done nothing: no state of zeros is left in a
fresh optimizer, which would train on with it as if it were its own."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run
from models import everything
from shardkeep import Error, Invalid, Mismatch, NotFound
from shardkeep.torch import Checkpointer
from test_wrapped import Momentum8
from torch import nn
from torch.distributed.fsdp import fully_shard

_KINDS: list[Callable[..., Any]] = [
    torch.optim.NAdam, torch.optim.Rprop, torch.optim.ASGD,
    torch.optim.AdamW, Momentum8]


def _net(width: int = 8, more: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.Linear(8, width)]
    if more:
        layers.append(nn.Linear(width, width))
    return nn.Sequential(*layers)


def _train(model: nn.Module, optim: Any, steps: int = 2) -> None:
    for i in range(steps):
        optim.zero_grad()
        model(torch.full((3, 4), 1.0 + i)).pow(2).mean().backward()
        optim.step()


def _state(optim: Any) -> dict[Any, Any]:
    return {p: dict(x) for p, x in optim.state.items()}


def _save(kind: Callable[..., Any]) -> nn.Module:
    model = _net()
    optim = kind(model.parameters())
    _train(model, optim)
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        assert ck.snapshot(1)
        ck.wait()
    return model


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("shape", [{"more": True}, {"width": 9}])
def test_a_fresh_optimizer_stays_fresh(agent: str, kind: Any,
                                       shape: dict[str, Any]) -> None:
    _save(kind)
    model, twin = _net(**shape), _net(**shape)
    optim, other = kind(model.parameters()), kind(twin.parameters())
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        for _ in range(2):
            with pytest.raises((Mismatch, Invalid), match=r"model\.[12]\."):
                ck.restore()
            assert not optim.state
        _train(model, optim)
        _train(twin, other)
        for a, b in zip(model.parameters(), twin.parameters()):
            assert torch.equal(a, b)
        assert ck.snapshot(2, wait=30)
        ck.wait()
        want = [p.detach().clone() for p in model.parameters()]
        _train(model, optim)
        assert ck.restore() == 2
        assert all(map(torch.equal, model.parameters(), want))


def test_some_state_stays_as_it_was(agent: str) -> None:
    _save(torch.optim.AdamW)
    model = _net(more=True)
    optim = torch.optim.AdamW(model.parameters())
    model[0].weight.grad = torch.ones(8, 4)
    optim.step()
    optim.state[model[0].weight].pop("exp_avg_sq")
    before = _state(optim)
    assert len(before) == 1
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        with pytest.raises(Mismatch):
            ck.restore()
        assert {p: {k: id(t) for k, t in x.items()}
                for p, x in _state(optim).items()} == {
            p: {k: id(t) for k, t in x.items()} for p, x in before.items()}


def test_what_has_no_memory_gets_none(agent: str) -> None:
    want = list(_save(torch.optim.AdamW).parameters())
    with torch.device("meta"):
        model = _net(more=True)
    params = list(model.parameters())
    with Checkpointer(model, job="refused", raising=True) as ck:
        with pytest.raises(ValueError, match=r"model\.2\."):
            ck.restore()
        assert all(p.is_meta for p in params)
        model.pop(2)
        assert ck.restore(strict=False) == 1
        assert all(map(torch.equal, params, want))


def _on_two_ranks() -> None:
    def make(more: bool) -> tuple[nn.Module, Any]:
        model = _net(more=more)
        fully_shard(model)
        return model, torch.optim.NAdam(model.parameters())

    model, optim = make(False)
    _train(model, optim)
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        ck.restore()
        assert ck.snapshot(1, wait=30)
        ck.wait()
    dist.barrier()
    model, optim = make(True)
    twin, other = make(True)
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        with pytest.raises(Mismatch):
            ck.restore()
    assert not optim.state
    _train(model, optim)
    _train(twin, other)
    mine, theirs = everything(model, optim), everything(twin, other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_in_shards(agent: str) -> None:
    run(2, _on_two_ranks)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_passed_over_is_no_part_of_an_older_one(
        agent: str, device: str, monkeypatch: Any) -> None:
    """State that came with the newest, and the older has not."""
    model = _net()
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="older", slots=3, raising=True) as ck:
        for step in range(2):
            assert ck.snapshot(step)
            ck.wait()
            _train(model, optim)
    with torch.device(device):
        model = _net(more=True)
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="older", raising=True) as ck:
        load = type(ck._kept).load

        def went(self: Any, *args: Any) -> None:
            monkeypatch.setattr(type(self), "load", load)
            raise NotFound(errno.ENOENT, "it went")

        monkeypatch.setattr(type(ck._kept), "load", went)
        assert ck.restore(strict=False) == 0
    assert not optim.state


def test_what_came_whole_stays(agent: str) -> None:
    """Who cannot take an object has the tensors, and their state."""
    class Odd:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: Any) -> None:
            raise RuntimeError("no")

    def opened() -> tuple[nn.Module, Any, Checkpointer]:
        model = _net()
        optim = torch.optim.NAdam(model.parameters())
        return model, optim, Checkpointer(
            model, optim, job="odd", extra={"odd": Odd()}, raising=True)

    model, optim, ck = opened()
    _train(model, optim)
    with ck:
        assert ck.snapshot(1)
        ck.wait()
    want = everything(model, optim)
    model, optim, ck = opened()
    with ck, pytest.raises((Error, RuntimeError), match="no"):
        ck.restore()
    found = everything(model, optim)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[k], want[k]) for k in want)
