# SPDX-License-Identifier: Apache-2.0
"""Optimizer state that not all ranks of a whole model have: said aloud where
no snapshot becomes complete by it, or none is ever whole on disk."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from harness import Logged, run
from shardkeep import Error, Mismatch, NotFound
from shardkeep.torch import Checkpointer
from shardkeep.torch._blobs import are_apart, unheld_in
from torch import nn

STATE = r"optim\.state\.a\.weight\.exp_avg(_sq)?"


def _training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.ModuleDict({"a": nn.Linear(50, 60), "b": nn.Linear(60, 70)})
    return model, torch.optim.AdamW(model.parameters())


def _step(model: nn.Module, optim: torch.optim.Optimizer, lacks: bool
          ) -> None:
    """The first rank may lack gradients of one layer."""
    for name, p in model.named_parameters():
        p.grad = None if lacks and name.startswith("a.") and \
            dist.get_rank() == 0 else torch.ones_like(p)
    optim.step()


def _kept_once(raising: bool) -> None:
    said = Logged()
    logging.getLogger("shardkeep").addHandler(said)
    model, optim = _training()
    ck = Checkpointer(model, optim, job="once", replicas=False,
                      raising=raising)
    assert ck.restore() is None
    for step in 1, 2, 3:
        _step(model, optim, True)
        if raising and step > 1:
            with pytest.raises(Mismatch, match=STATE + r".*replicas=True"):
                ck.snapshot(step, wait=30)
            break
        assert ck.snapshot(step, wait=30)
        ck.wait(step, until="sealed")
        dist.barrier()
    with pytest.raises(NotFound, match=STATE):
        ck.wait()
    # Once, and nothing of objects, which are all there.
    assert len(said.found) == (not raising), said.found
    assert raising or "step 1 of job once is not complete" in said.found[0]
    dist.barrier()
    _step(model, optim, False)
    for step in 4, 5:
        assert ck.snapshot(step, wait=30)
        ck.wait()
    assert len(said.found) == (not raising), said.found
    ck.close()


@pytest.mark.parametrize("raising", [False, True])
def test_what_is_kept_once_and_one_rank_lacks(agent: str, raising: bool
                                              ) -> None:
    run(2, _kept_once, raising)


def _kept_by_each() -> None:
    model, optim = _training()
    with Checkpointer(model, optim, job="each", raising=True) as ck:
        assert ck.restore() is None
        _step(model, optim, True)
        assert ck.snapshot(1, flush=True)
        ck.wait(1)
        with pytest.raises(Error, match=rf"replicas only.*{STATE}.*rank 0"):
            ck.wait(1, until="durable")
        dist.barrier()
        _step(model, optim, False)
        assert ck.snapshot(2, flush=True, wait=30)
        ck.wait(2, until="durable")


def test_what_never_gets_to_the_disk(agent: str) -> None:
    run(2, _kept_by_each)


@pytest.mark.parametrize("note, names, rows", [
    ("missing: model.b.weight [0:70, 0:60] of rank 0, optim.state.a [0:60] "
     "(rank 0 does not describe it), python:optim:all [0:1, 0:1024] of rank "
     "0, ...", {"optim.state.a"}, False),
    ("missing: python:optim:all [1:2, 0:1024] (rank 1 does not describe it), "
     "a, b [] (described by no rank)", {"python:optim:all", "b"}, True),
    ("missing: a b [0:2] (rank 10 does not describe it)", {"a b"}, False),
    ("ranks 0 and 1 disagree on the dtype or shape of \"python:optim:all\"",
     set(), True),
    ("ranks 0 and 1 disagree on the dtype or shape of \"model.table\"",
     set(), False),
    ("missing: w [0:2] (held by no rank), v [0:3, 0:1] (no rank describes all "
     "of it), ...", {"w", "v"}, False),
    ("rank 1 of 2 has not sealed it yet", set(), False)])
def test_what_an_agent_says_is_missing(note: str, names: set[str], rows: bool
                                       ) -> None:
    assert unheld_in(note) == names
    assert are_apart(note) == rows
