# SPDX-License-Identifier: Apache-2.0
"""The state that a restore makes has the same order on all ranks: PyTorch
gathers it in the order in which it finds it, one collective after the other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from harness import run
from shardkeep.torch import Checkpointer
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_optimizer_state_dict)
from torch.distributed.fsdp import fully_shard


def _pair(seed: int) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    # Of some parts a rank of three holds nothing.
    model = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5), nn.Linear(5, 2))
    fully_shard(model[0])
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), amsgrad=True)


def _step(model: nn.Module, optim: Any) -> None:
    model(torch.ones(3, 7)).pow(2).sum().backward()
    optim.step()


def _gathered(model: nn.Module, optim: Any) -> dict[str, Any]:
    return get_optimizer_state_dict(model, optim, options=StateDictOptions(
        full_state_dict=True))["state"]


def _order(model: nn.Module, optim: Any) -> list[Any]:
    names = {id(p): n for n, p in model.named_parameters()}
    return [[names[id(p)], list(x)] for p, x in optim.state.items()]


def _life(path: str, step: int) -> None:
    """Restores, compares what PyTorch gathers, and saves the next step."""
    model, optim = _pair(step)
    with Checkpointer(model, optim, job="order", raising=True) as ck:
        assert ck.restore() == (step - 1 if step else None)
        if step:
            want, natural = torch.load(path)
            orders: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(orders, _order(model, optim))
            assert all(x == natural for x in orders), orders
            found = _gathered(model, optim)
            if dist.get_rank() == 0:
                assert found.keys() == want.keys()
                for name, state in want.items():
                    assert all(torch.equal(found[name][k], t)
                               for k, t in state.items()), name
        _step(model, optim)
        assert ck.snapshot(step, wait=60)
        ck.wait()
        want = _gathered(model, optim)
        if dist.get_rank() == 0:
            torch.save((want, _order(model, optim)), path)


def test_on_other_ranks_each_time(agent: str) -> None:
    for step, world in enumerate([3, 1, 2, 3, 1, 3]):
        run(world, _life, f"{agent}/want", step)


def test_each_optimizers_first_keys(agent: str) -> None:
    """As a step makes them, where that is known."""
    for kind in torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop:
        made = []
        for step in range(2):
            model = nn.Sequential(nn.Linear(7, 2), nn.Linear(2, 3))
            optim = kind(model.parameters())
            with Checkpointer(model, optim, job=kind.__name__,
                              raising=True) as ck:
                assert ck.restore() == (0 if step else None)
                if not step:
                    _step(model, optim)
                    assert ck.snapshot(0, wait=60)
                    ck.wait()
            made.append(_order(model, optim))
        assert [n for n, _ in made[0]] == [n for n, _ in made[1]]
        for (_, keys), (_, anew) in zip(*made):
            assert sorted(keys) == sorted(anew) and anew[0] == "step"
