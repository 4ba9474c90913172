# SPDX-License-Identifier: Apache-2.0
"""Ranks look at what they take for the newest before they have met for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
import shardkeep.torch._restore as restoring
import torch
import torch.distributed as dist
from harness import run
from shardkeep import NotFound
from shardkeep.torch import Checkpointer
from shardkeep.torch._comm import Comm
from shardkeep.torch._restore import Restore
from torch import nn

OPTIONS: dict[str, Any] = {"job": "ahead", "raising": True, "timeout": 60}
STEPS = (3, 5)

Plant = Callable[[pytest.MonkeyPatch], None]


def _made(device: str = "cpu") -> tuple[nn.Linear, torch.optim.Optimizer]:
    with torch.device(device):
        model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters())


def _save(sockets: list[str]) -> None:
    model, optim = _made()
    with Checkpointer(model, optim, socket=sockets[dist.get_rank()],
                      **OPTIONS) as ck:
        ck.restore()
        for step in STEPS:
            model(torch.ones(1, 3)).sum().backward()
            optim.step()
            with torch.no_grad():
                model.weight.fill_(step)
            optim.state[model.weight]["exp_avg"].fill_(step + 0.5)
            ck.snapshot(step, wait=30)
            ck.wait()


def _agree(m: pytest.MonkeyPatch) -> None:
    pass


def _one_lists_less(m: pytest.MonkeyPatch) -> None:
    real = restoring.offers

    def offers(*args: Any) -> dict[str, Any]:
        told = real(*args)
        if dist.get_rank() == 1:
            told["complete"] = [x for x in told["complete"] if x[1] < 5]
        return told

    m.setattr(restoring, "offers", offers)


def _one_lists_nothing(m: pytest.MonkeyPatch) -> None:
    real = restoring.offers
    m.setattr(restoring, "offers", lambda *args: {
        **real(*args), **({"complete": []} if dist.get_rank() else {})})


def _fails(m: pytest.MonkeyPatch, times: int,
           error: Exception = MemoryError("no room to look")) -> None:
    """On one rank, after it has made what there is to make."""
    real, left = Restore._describe, [times if dist.get_rank() == 1 else 0]

    def describe(*args: Any) -> Any:
        told = real(*args)
        if left[0]:
            left[0] -= 1
            raise error
        return told

    m.setattr(Restore, "_describe", describe)


def _one_cannot_look_and_lists_less(m: pytest.MonkeyPatch) -> None:
    _fails(m, 1)
    _one_lists_less(m)


def _others_are_elsewhere(m: pytest.MonkeyPatch) -> None:
    m.setenv("LOCAL_WORLD_SIZE", "1")


def _words(m: pytest.MonkeyPatch) -> list[str]:
    """Grows by each word that ranks tell each other in a restore."""
    real, told = Comm.share, []

    def share(self: Comm, mine: bytes, what: str, *args: Any, **words: Any
              ) -> list[bytes]:
        if what == "restore()" and "kind" not in words:
            told.append(what)
        return real(self, mine, what, *args, **words)

    m.setattr(Comm, "share", share)
    return told


def _restores(sockets: list[str], plant: Plant, most: int) -> None:
    for device in ("cpu", "meta"):
        model, optim = _made(device)
        with Checkpointer(model, optim, socket=sockets[dist.get_rank()],
                          **OPTIONS) as ck, pytest.MonkeyPatch.context() as m:
            told = _words(m)
            plant(m)
            assert ck.restore() == STEPS[-1]
            assert len(told) <= most, told
        assert (model.weight == STEPS[-1]).all()
        state = optim.state[model.weight]
        assert (state["exp_avg"] == STEPS[-1] + 0.5).all()
        assert state["step"] == len(STEPS)


@pytest.mark.parametrize(("plant", "most"), [
    (_agree, 3), (_one_lists_less, 4), (_one_lists_nothing, 4),
    (_one_cannot_look_and_lists_less, 4), (_others_are_elsewhere, 4)])
def test_a_restore(nodes, plant, most):
    """They tell each other as often as they have to, and no more."""
    run(2, _save, [nodes[0]] * 2)
    run(2, _restores, [nodes[0]] * 2, plant, most)


@pytest.mark.parametrize("plant", [_agree, _one_lists_less])
def test_ranks_of_an_agent_each(nodes, plant):
    """Their looks are of no use."""
    run(2, _save, list(nodes))
    run(2, _restores, list(nodes), plant, 10)


def _stay_as_they_were(socket: str) -> None:
    assert "LOCAL_WORLD_SIZE" not in os.environ
    for device in ("cpu", "meta"):
        model, optim = _made(device)
        before = [p.clone() for p in model.parameters()]
        with Checkpointer(model, optim, socket=socket, **OPTIONS) as ck, \
                pytest.MonkeyPatch.context() as m:
            _fails(m, 100)
            with pytest.raises((MemoryError, RuntimeError),
                               match="no room to look"):
                ck.restore()
            assert not optim.state
            assert all(p.is_meta == (device == "meta")
                       for p in model.parameters())
            assert device == "meta" or all(
                torch.equal(x, y) for x, y in
                zip(before, model.parameters(), strict=True))
            m.undo()
            assert ck.restore() == STEPS[-1]
        assert (model.weight == STEPS[-1]).all()


def test_what_cannot_be_looked_at_changes_nothing(nodes):
    run(2, _save, [nodes[0]] * 2)
    run(2, _stay_as_they_were, nodes[0])


def _fails_at(m: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The next call of it on one rank; of the newest, then."""
    real = getattr(owner, name)

    def call(*args: Any, **words: Any) -> Any:
        m.setattr(owner, name, real)
        raise NotFound(errno.ENOENT, "it went")

    if dist.get_rank() == 1:
        m.setattr(owner, name, call)


def _restores_an_older_one(socket: str, where: str) -> None:
    for device in ("cpu", "meta"):
        model, optim = _made(device)
        with Checkpointer(model, optim, socket=socket, **OPTIONS) as ck, \
                pytest.MonkeyPatch.context() as m:
            owner = {"_kept": type(ck._kept), "_tensors": type(ck._tensors)
                     }.get(where.split(".")[0], Restore)
            _fails_at(m, owner, where.split(".")[-1])
            assert ck.restore() == STEPS[0]
            assert (model.weight == STEPS[0]).all()
            state = optim.state[model.weight]
            assert (state["exp_avg"] == STEPS[0] + 0.5).all()
            assert state["step"] == 1
            assert ck.restore() == STEPS[1]
        assert (model.weight == STEPS[1]).all()
        assert state["step"] == len(STEPS)


@pytest.mark.parametrize("where", [
    "_tensors.items", "_tensors.materialize", "_beyond", "_make_missing",
    "_describe", "_make_ready", "_kept.suffices", "_kept.load"])
def test_what_is_passed_over_leaves_nothing_behind(nodes, where):
    """What was made for it is made again for the one before."""
    run(2, _save, [nodes[0]] * 2)
    run(2, _restores_an_older_one, nodes[0], where)
