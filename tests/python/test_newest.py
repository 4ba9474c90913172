# SPDX-License-Identifier: Apache-2.0
"""What has gone by the time that it is looked at went since newer ones came:
nothing older takes its place."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import shardkeep.torch._reading as reading
import shardkeep.torch._restore as restoring
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run
from shardkeep import Error
from shardkeep.torch import Checkpointer
from shardkeep.torch._nodes import LISTED_MOST, each
from shardkeep.torch.dcp import ShardkeepReader
from torch import nn
from torch.distributed.checkpoint import CheckpointException

OPTIONS: dict[str, Any] = {"job": "newest", "raising": True, "timeout": 60}

Offers = Callable[[dict[str, Any]], dict[str, Any]]


def _model(value: float) -> nn.Linear:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    return model


def _save(sockets: list[str]) -> None:
    model = _model(0)
    with Checkpointer(model, socket=sockets[dist.get_rank()],
                      **OPTIONS) as ck:
        ck.restore()
        for step in (3, 5):
            nn.init.constant_(model.weight, step)
            ck.snapshot(step, flush=True, wait=30)
            ck.wait(until="durable")


def _only_older(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, **{k: [x for x in told[k] if x[1] < 5]
                       for k in ("complete", "parts")}}


def _with(told: dict[str, Any], step: int) -> dict[str, Any]:
    return {**told, "complete": [[told["parts"][0][0], step],
                                 *told["complete"]]}


def _gone_meanwhile() -> Offers:
    """One that is listed, and goes when a newer one takes its place."""
    lists = itertools.count()
    return lambda told: told if next(lists) else _with(_only_older(told), 4)


def _ever_newer() -> Offers:
    steps = itertools.count(1000)
    return lambda told: _with(told, next(steps))


def _always_the_same() -> Offers:
    return lambda told: _with(told, 1000)


def _planted(m: pytest.MonkeyPatch, module: Any, plant: Offers) -> None:
    real = restoring.offers
    m.setattr(module, "offers", lambda *args: plant(real(*args)))


def _restores(sockets: list[str]) -> None:
    model = _model(0)
    with Checkpointer(model, socket=sockets[dist.get_rank()],
                      **OPTIONS) as ck:
        for plant, step in ((_gone_meanwhile, 5), (_always_the_same, 5)):
            with pytest.MonkeyPatch.context() as m:
                _planted(m, restoring, plant())
                assert ck.restore() == step
                assert model.weight[0, 0].item() == step
        with pytest.MonkeyPatch.context() as m:
            _planted(m, restoring, _ever_newer())
            with pytest.raises(Error, match="went each of") as e:
                ck.restore()
            assert e.value.errno == errno.EIO


@pytest.mark.parametrize("world", [1, 2])
def test_a_restore_takes_nothing_older(nodes, world):
    """Of one agent, or of one for each rank."""
    run(world, _save, [nodes[0]] * world)
    run(world, _restores, [nodes[0]] * world)
    if world > 1:
        run(world, _save, list(nodes))
        run(world, _restores, list(nodes))


def _loaded(socket: str) -> float:
    state = {"model.weight": torch.zeros(2, 2)}
    dcp.load(state, storage_reader=ShardkeepReader(
        job="newest", socket=socket, process_group=dist.group.WORLD))
    return state["model.weight"][0, 0].item()


def _loads(sockets: list[str]) -> None:
    socket = sockets[dist.get_rank()]
    for plant in (_gone_meanwhile, _always_the_same):
        with pytest.MonkeyPatch.context() as m:
            _planted(m, reading, plant())
            assert _loaded(socket) == 5
    with pytest.MonkeyPatch.context() as m:
        _planted(m, reading, _ever_newer())
        with pytest.raises(CheckpointException, match="went each of"):
            _loaded(socket)


def test_nor_does_a_reader_of_several_nodes(nodes):
    run(2, _save, list(nodes))
    run(2, _loads, list(nodes))


def _tried(lists: Iterator[list[int]]) -> list[int]:
    return [x[1] for x in each("newest", lambda: [
        (1, step) for step in next(lists)])]


def test_what_stands_is_tried_to_the_oldest():
    """However many are damaged, each once."""
    steps = list(range(3 * LISTED_MOST, 0, -1))
    assert _tried(itertools.repeat(steps)) == steps
    assert _tried(iter([[9, 2], [11, 2], [11, 2], [11, 2]])) == [9, 11, 2]
    assert _tried(iter([[], [1]])) == []
