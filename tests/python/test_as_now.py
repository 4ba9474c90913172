# SPDX-License-Identifier: Apache-2.0
"""A restore of just what a snapshot that is taken now would hold: nothing is
read to know that, and what is not so is found out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run
from shardkeep.torch import Checkpointer

OPTIONS: dict[str, Any] = {"flush_every": 1 << 30, "timeout": 60}


class Told:
    """What Checkpointers asked their states for, beyond what is described."""

    def __init__(self, ck: Checkpointer) -> None:
        self.asked: list[bool] = []
        self._state = ck._state
        ck._state = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def beyond(self, run: int, step: int, same: bool = False) -> Any:
        found = self._state.beyond(run, step, same)
        self.asked.append(found[2])
        return found


def _trained(width: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(width, 4)
    optim = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, width)).sum().backward()
    optim.step()
    return model, optim


def _save(extra: Any, rows: bool = True) -> list[float]:
    model, optim = _trained()
    with Checkpointer(model, optim, job="now", extra=extra,
                      **OPTIONS) as ck:
        if rows:
            assert ck.restore() is None
        with torch.no_grad():
            model.weight.fill_(7)
        assert ck.snapshot(5, wait=30)
        ck.wait()
    return [float(x) for x in optim.state[model.weight]["exp_avg"].flatten()]


def _restore(extra: Any, asked: list[bool], moments: list[float],
             step: int = 5) -> None:
    model, optim = _trained()
    with torch.no_grad():
        optim.state[model.weight]["exp_avg"].zero_()
    with Checkpointer(model, optim, job="now", extra=extra,
                      **OPTIONS) as ck:
        told = Told(ck)
        assert ck.restore() == step
        assert told.asked == asked
        assert (model.weight == 7).all()
        assert optim.state[model.weight]["exp_avg"].flatten().tolist() == \
            moments
        assert ck.snapshot(step + 1, wait=30)
        ck.wait()


def _same() -> None:
    extra = {"a": {"x": dist.get_rank() + 10}}
    moments = _save(extra)
    extra = {"a": {"x": 0}}
    _restore(extra, [True], moments)
    assert extra["a"] == {"x": dist.get_rank() + 10}
    _restore(extra, [True], moments, 6)     # what the restored one saved


def test_nothing_is_read_to_know_it(agent):
    run(2, _same)


def _objects_differ() -> None:
    moments = _save({"a": 1, "b": "x" * 9000})
    extra = {"a": 0, "b": ""}
    _restore(extra, [False, False], moments)
    assert extra == {"a": 1, "b": "x" * 9000}


def test_objects_of_other_sizes_come_back(agent):
    run(2, _objects_differ)


def _own_objects_differ(saved: int, now: int) -> None:
    model, optim = _trained()
    local = {"a": "x" * saved}
    with Checkpointer(model, optim, job="now", local=local,
                      **OPTIONS) as ck:
        assert ck.restore() is None
        assert ck.snapshot(5, wait=30)
        ck.wait()
    local = {"a": "y" * now}
    with Checkpointer(model, optim, job="now", local=local,
                      **OPTIONS) as ck:
        assert ck.restore() == 5
    assert local == {"a": "x" * saved}


@pytest.mark.parametrize("sizes", [(9000, 1), (1, 9000)])
@pytest.mark.parametrize("world", [1, 2])
def test_objects_of_ones_own_of_other_sizes_come_back(agent, world, sizes):
    run(world, _own_objects_differ, *sizes)


def _one_lacks_it() -> None:
    """Ranks need not find the same: each looks for itself."""
    moments = _save({"a": 1})
    mine = dist.get_rank() == 0
    extra = {"a": "" if mine else "y" * 9000}
    _restore(extra, [True] if mine else [False, False], moments)
    assert extra == {"a": 1}


def test_one_rank_may_have_to_read(agent):
    run(2, _one_lacks_it)


class Loader:
    """Begins to work when it is asked for its state, as data loaders do."""

    def __init__(self) -> None:
        self.at, self.asked = 0, 0

    def state_dict(self) -> dict[str, int]:
        self.asked += 1
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert not self.asked
        self.at = state["at"]


def _loaders() -> None:
    loader = Loader()
    loader.at = 3
    moments = _save({"loader": loader})
    loader = Loader()
    _restore({"loader": loader}, [False], moments)
    assert loader.at == 3


def test_who_may_change_by_telling_is_not_asked(agent):
    run(2, _loaders)


def _fresh() -> None:
    moments = _save({})
    model = torch.nn.Linear(3, 4)
    optim = torch.optim.AdamW(model.parameters())
    with Checkpointer(model, optim, job="now", **OPTIONS) as ck:
        told = Told(ck)
        assert ck.restore() == 5
        assert told.asked == [False]
        assert optim.state[model.weight]["exp_avg"].flatten().tolist() == \
            moments


def test_a_fresh_optimizer_is_told_what_it_lacks(agent):
    run(2, _fresh)


def _resized() -> None:
    _save({})
    model, optim = _trained(5)
    with Checkpointer(model, optim, job="now", **OPTIONS) as ck:
        with pytest.raises(Exception, match="model.weight"):
            ck.restore()


def test_a_tensor_of_another_size_is_refused_by_name(agent):
    run(2, _resized)
