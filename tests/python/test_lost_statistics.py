# SPDX-License-Identifier: Apache-2.0
"""Running statistics are each rank's own, under a name that all have: wherever
ranks come back they have theirs again, and where those are lost with a node,
others' are not taken for them unasked."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
import torch
import torch.distributed as dist
from harness import Nodes, run, start, wait
from shardkeep import NotFound
from shardkeep.torch import Checkpointer
from torch import nn

OF = [0, 0, 1, 1]


def _model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))


def _checkpointer(nodes: Nodes, model: nn.Module, of: list[int] = OF
                  ) -> Checkpointer:
    return Checkpointer(model, job="bn", raising=True, timeout=60, rng=False,
                        socket=nodes[of[dist.get_rank()]])


def _save(nodes: Nodes, directory: str) -> None:
    """Each rank has seen batches of its own."""
    model = _model()
    ck = _checkpointer(nodes, model)
    assert ck.restore() is None
    with torch.no_grad():
        model(torch.randn(4, 8) + dist.get_rank())
    ck.snapshot(1, wait=60, flush=False)
    ck.wait(1, until="complete")
    torch.save([model[1].running_mean, model[1].running_var],
               f"{directory}/saved-{dist.get_rank()}")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _is_as(model: nn.Module, saved: list[torch.Tensor]) -> bool:
    """All of one rank's."""
    return torch.equal(model[1].running_mean, saved[0]) and \
        torch.equal(model[1].running_var, saved[1])


def _moved(nodes: Nodes, directory: str, of: list[int]) -> None:
    model, rank = _model(), dist.get_rank()
    saved = torch.load(f"{directory}/saved-{rank if rank < 4 else 0}")
    with _checkpointer(nodes, model, of) as ck:
        assert ck.restore() == 1
        assert _is_as(model, saved)


@pytest.mark.parametrize("of", [[0, 1, 0, 1], [1, 1, 0, 0],
                                [1, 0, 0, 1, 1, 0]])
def test_ranks_that_change_nodes_have_theirs(
        nodes: Nodes, tmp_path: pathlib.Path, of: list[int]) -> None:
    """And those that are new have rank 0's."""
    wait(start(4, _save, nodes, str(tmp_path)))
    run(len(of), _moved, nodes, str(tmp_path), of)


def _load(nodes: Nodes, directory: str, lost: int) -> None:
    model, rank = _model(), dist.get_rank()
    saved = [torch.load(f"{directory}/saved-{i}") for i in range(4)]
    with _checkpointer(nodes, model) as ck:
        with pytest.raises(NotFound, match=r"lost_ok=True"):
            ck.restore()
        assert ck.restore(lost_ok=True) == 1
        left = [rank] if OF[rank] != lost else \
            [i for i in range(4) if OF[i] != lost]
        assert any(_is_as(model, saved[i]) for i in left)


@pytest.mark.parametrize("lost", [0, 1])
def test_statistics_of_others_are_not_taken_unasked(
        nodes: Nodes, tmp_path: pathlib.Path, lost: int) -> None:
    wait(start(4, _save, nodes, str(tmp_path)))
    nodes.restart(lost, signal.SIGKILL, disk=False)
    run(4, _load, nodes, str(tmp_path), lost)


def _later(second: bool) -> nn.Module:
    """Stages of a pipeline; the second has the statistics."""
    torch.manual_seed(6)
    return nn.ModuleDict({"b": nn.BatchNorm1d(5)} if second else
                         {"a": nn.Linear(2, 2)})


def _save_stages(nodes: Nodes) -> None:
    rank = dist.get_rank()
    model = _later(rank > 0)
    ck = _checkpointer(nodes, model)
    assert ck.restore() is None
    if rank:
        model["b"].running_mean.fill_(rank)
        model["b"].running_var.fill_(rank)
    ck.snapshot(1, wait=60, flush=False)
    ck.wait(1, until="complete")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _more_of_a_stage(nodes: Nodes) -> None:
    rank = dist.get_rank()
    model = _later(rank > 0)
    with _checkpointer(nodes, model, [0, 0, 1, 1, 0, 1]) as ck:
        assert ck.restore() == 1
        if rank:
            whose = rank if rank < 4 else 1
            assert (model["b"].running_mean == whose).all()
            assert (model["b"].running_var == whose).all()


def test_new_ranks_of_a_stage_have_those_of_its_first(nodes: Nodes) -> None:
    wait(start(4, _save_stages, nodes))
    run(6, _more_of_a_stage, nodes)
