# SPDX-License-Identifier: Apache-2.0
"""A tensor, or a number, that comes between two snapshots is in the second
one, whatever was in its place before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run
from shardkeep import Mismatch
from shardkeep.torch import Checkpointer
from shardkeep.torch._tensors import LiveTensors
from torch import nn


class _Keeps(torch.optim.Optimizer):
    """State as the test makes it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


def _fresh() -> tuple[nn.Module, _Keeps]:
    model = nn.Linear(2, 2, bias=False)
    model.register_buffer("seen", torch.zeros(2))
    return model, _Keeps(model.parameters())


def _state_of(optim: _Keeps) -> dict[str, Any]:
    return {"own" if isinstance(k, torch.Tensor) else k: v
            for k, v in optim.state.items() if v != {}}


def _save(changes: list[Callable[[Any, Any], object]], job: str) -> Any:
    model, optim = _fresh()
    with Checkpointer(model, optim, job=job, raising=True) as ck:
        ck.restore()
        for step, change in enumerate(changes):
            change(model, optim.state[model.weight])
            assert ck.snapshot(step, wait=60)
            ck.wait(timeout=60)
    return repr((model.seen, _state_of(optim)))


def _in_next(changes: list[Callable[[Any, Any], object]]) -> None:
    want = _save(changes, "later")
    model, optim = _fresh()
    with Checkpointer(model, optim, job="later", raising=True) as ck:
        assert ck.restore() == len(changes) - 1
        assert repr((model.seen, _state_of(optim))) == want


def _set(**values: Any) -> Callable[[Any, Any], object]:
    return lambda model, mine: mine.update(values)


def _other_key(model: Any, mine: Any) -> None:
    del mine["x"]
    mine["y"] = torch.ones(3)


_M = torch.ones(2, 2)


@pytest.mark.parametrize("changes", [
    [_set(m=_M, x=None), _set(x=torch.ones(3))],
    [_set(m=_M, x=1), _set(x=torch.ones(3))],
    [_set(x=1), _set(x=torch.ones(3))],
    [_set(m=_M, x=torch.ones(3)), _set(x=1), _set(x=torch.ones(3))],
    [_set(m=_M, x=1), _other_key],
    [_set(m=_M), _set(x=1), _set(x=2.5)],
])
def test_in_the_state_of_a_parameter(agent: str, changes: Any) -> None:
    run(1, _in_next, changes)


def _in_next_of_no_parameter() -> None:
    for first, second in (({}, 5), ({"k": 4}, 5), ({}, {"a": 1}), ({}, None)):
        model, optim = _fresh()
        job = f"named{first}{second}".translate({ord(x): "-" for x in "{}': "})
        with Checkpointer(model, optim, job=job, raising=True) as ck:
            optim.state[model.weight]["m"] = torch.ones(2, 2)
            optim.state.update(first)
            for step in range(2):
                assert ck.snapshot(step, wait=60)
                ck.wait(timeout=60)
                optim.state["k"] = second
            assert ck.snapshot(2, wait=60)
            ck.wait(timeout=60)
        model, optim = _fresh()
        with Checkpointer(model, optim, job=job, raising=True) as ck:
            assert ck.restore() == 2
            assert optim.state["k"] == second


def test_in_the_state_of_no_parameter(agent: str) -> None:
    run(1, _in_next_of_no_parameter)


def _buffer(value: Any) -> Callable[[Any, Any], object]:
    return lambda model, mine: setattr(model, "seen", value)


@pytest.mark.parametrize("changes", [
    [_buffer(torch.ones(2)), _buffer(None), _buffer(torch.full((2,), 2.0))],
    [_buffer(None), _buffer(torch.ones(2))],
])
def test_in_the_place_of_a_buffer(agent: str, changes: Any) -> None:
    run(1, _in_next, changes)


def test_in_the_place_of_a_buffer_that_is_not_kept() -> None:
    """As many are as before."""
    model = _fresh()[0]
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    tensors = LiveTensors([model], [])
    assert "model.seen" in {name for name, _, _ in tensors.items()}
    holds = tensors.watch().holds
    assert holds()
    model.register_buffer("passing", model.passing)
    model.register_buffer("seen", model.seen, persistent=False)
    assert not holds()
    names = {name for name, _, _ in tensors.items()}
    assert "model.passing" in names and "model.seen" not in names
    assert tensors.watch().holds()


def _over_what_is_no_tensor() -> None:
    """An optimizer that makes its state when it is made, of None and 0."""
    _save([_set(x=torch.full((3,), 2.0), step=torch.tensor(5.0))], "over")
    for strict in (True, False):
        model, optim = _fresh()
        mine = optim.state[model.weight]
        mine.update(x=None, step=0)
        with Checkpointer(model, optim, job="over", raising=True) as ck:
            assert ck.restore(strict=strict) == 0
        assert repr(optim.state[model.weight]) == \
            "{'x': tensor([2., 2., 2.]), 'step': tensor(5.)}"


def test_over_what_is_no_tensor(agent: str) -> None:
    run(1, _over_what_is_no_tensor)


def _refused_over_what_is_no_tensor() -> None:
    _save([_set(x=torch.full((3,), 2.0))], "refused")
    model = nn.Linear(2, 2)     # it has a bias as well
    optim = _Keeps(model.parameters())
    optim.state[model.weight].update(x=7)
    with Checkpointer(model, optim, job="refused", raising=True) as ck:
        with pytest.raises(Mismatch):
            ck.restore()
    assert dict(optim.state[model.weight]) == {"x": 7}


def test_what_it_was_stays_where_a_restore_is_refused(agent: str) -> None:
    run(1, _refused_over_what_is_no_tensor)
