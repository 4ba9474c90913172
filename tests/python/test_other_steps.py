# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers that a Checkpointer was not given: made anew since, or
of a model that was given alone. They write to what is being copied."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from shardkeep.torch import Checkpointer
from shardkeep.torch._steps import STEPS
from shardkeep.torch.full import load_tensors
from torch import nn

OPTIONS: dict[str, Any] = {"job": "others", "rng": False, "raising": True}


def _model(n: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.ParameterList([nn.Parameter(torch.zeros(n, n))
                              for _ in range(4)])
    for p in model:
        p.grad = torch.full_like(p, -1)
    return model, torch.optim.SGD(model.parameters(), lr=1)


@pytest.mark.parametrize("given", [False, True], ids=["alone", "anew"])
def test_no_snapshot_is_torn(agent, given):
    model, first = _model(2048)
    with Checkpointer(model, first if given else None, **OPTIONS) as ck:
        optim = torch.optim.SGD(model.parameters(), lr=1)
        for step in range(4):
            assert ck.snapshot(step, wait=30)
            optim.step()
            ck.wait()
            found = load_tensors("others")
            assert len(found) == 4
            assert all((t == step).all() for t in found.values())


def test_each_step_of_any_is_fenced(agent, monkeypatch):
    model, first = _model()
    fences = []
    monkeypatch.setattr(Checkpointer, "_let_go",
                        lambda *_: fences.append(None))
    with Checkpointer(model, first, **OPTIONS):
        first.step()
        assert len(fences) == 1, "by its own hook, once"
        _model()[1].step()
        assert len(fences) == 2
    first.step()
    with Checkpointer(model, first, fence_hook=False, **OPTIONS):
        _model()[1].step()
        first.step()
    assert len(fences) == 2


def test_who_is_gone_is_told_no_more(agent):
    model, first = _model()
    ck = Checkpointer(model, first, **OPTIONS)
    told = STEPS._told
    assert told[-1]() is not None
    del ck
    gc.collect()
    assert told[-1]() is None
    first.step()
    with Checkpointer(model, first, **OPTIONS):
        assert all(x() is not None for x in STEPS._told)
    assert not any(x() is not None for x in STEPS._told)


def test_a_child_steps_what_is_its_own(agent):
    model, first = _model()
    with Checkpointer(model, **OPTIONS) as ck:
        assert ck.snapshot(0)
        pid = os.fork()
        if not pid:
            try:
                first.step()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_an_optimizer_that_was_not_given_is_named(agent, caplog):
    model, first = _model()
    with Checkpointer(model, first, **OPTIONS):
        for _ in range(2):
            first.step()
            _model()[1].step()      # of another model
        assert not caplog.text
        anew = torch.optim.SGD(model.parameters(), lr=1)
        for _ in range(2):
            anew.step()
        assert caplog.text.count("SGD steps 0, and was not given") == 1
    with Checkpointer(model, [], **OPTIONS):    # the model alone
        anew.step()
    assert caplog.text.count("not given") == 1
    with Checkpointer(model, **OPTIONS):
        for _ in range(2):
            anew.step()
    assert caplog.text.count("give it, or optim=[] where") == 1
