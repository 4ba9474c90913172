# SPDX-License-Identifier: Apache-2.0
"""Loads beside a trainer whose snapshots go as newer ones come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run
from shardkeep import Error, NotFound
from shardkeep.torch import _reading, _together
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from shardkeep.torch.full import full_state_dict, load_tensors
from torch.distributed.checkpoint import CheckpointException

#: More than there are slots: no older one is in memory after as many.
SLOTS = 4


class _Trainer:
    """Its tensor is full of the step's number."""

    def __init__(self, job: str) -> None:
        self.job, self.step = job, 0
        self.go_on()

    def go_on(self) -> None:
        for _ in range(SLOTS):
            self.step += 1
            dcp.save({"w": torch.full((3000,), float(self.step))},
                     storage_writer=ShardkeepWriter(
                         f"{self.job}/{self.step}", flush=False),
                     no_dist=True)


@pytest.fixture
def trainer(agent, request):
    return _Trainer(request.node.name.partition("[")[0])


def _goes_on_when_looked_at(monkeypatch: Any, trainer: _Trainer,
                            times: int) -> None:
    look, left = _reading.Alone.look, [times]

    def look_and_go_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = look(self, *args, **kwargs)
        if left[0]:
            left[0] -= 1
            trainer.go_on()
        return held

    monkeypatch.setattr(_reading.Alone, "look", look_and_go_on)


def _load(job: str, **options: Any) -> torch.Tensor:
    state = {"w": torch.zeros(3000)}
    dcp.load(state, storage_reader=ShardkeepReader(job=job), no_dist=True,
             **options)
    return state["w"]


@pytest.mark.parametrize("load", [
    _load, lambda job: load_tensors(job)["w"]])
def test_the_newest_is_the_one_that_is_there(trainer, monkeypatch, load):
    _goes_on_when_looked_at(monkeypatch, trainer, 2)
    found = load(trainer.job)
    assert torch.equal(found, torch.full((3000,), float(trainer.step)))
    assert trainer.step == 3 * SLOTS


def test_a_step_that_goes_is_named_with_a_way_out(trainer, monkeypatch):
    _goes_on_when_looked_at(monkeypatch, trainer, 1)
    with pytest.raises(NotFound, match=f"step {trainer.step} .*it was there "
                       r"when the load began.*pinned \(cachectl pin\)"):
        load_tensors(trainer.job, trainer.step)


@pytest.mark.parametrize("load", [_load, load_tensors])
def test_it_does_not_run_after_them_forever(trainer, monkeypatch, load):
    _goes_on_when_looked_at(monkeypatch, trainer, 1000)
    with pytest.raises((Error, CheckpointException),
                       match="went each of 8 times"):
        load(trainer.job)


def test_what_goes_while_the_load_is_planned(trainer):
    class Planner(dcp.DefaultLoadPlanner):
        def create_local_plan(self) -> Any:
            trainer.go_on()
            return super().create_local_plan()

    with pytest.raises(CheckpointException,
                       match="Load a step that is on disk"):
        _load(trainer.job, planner=Planner())


def test_ranks_hear_of_it_as_of_what_is_not_there():
    word = _together._word(_reading.Gone(2, "it went"))
    assert isinstance(_together._of_another(1, word), NotFound)


# ---- several ranks, which train and load here ----

class _Ranks:
    """Each has a tensor of its own, full of the step's number."""

    def __init__(self, sockets: list[str]) -> None:
        self.socket, self.step = sockets[dist.get_rank()], 0
        self.more: dict[str, torch.Tensor] = {}
        self.go_on()

    def go_on(self, steps: int = SLOTS) -> None:
        for _ in range(steps):
            self.step += 1
            dcp.save({f"w{dist.get_rank()}": torch.full((300,),
                                                        float(self.step)),
                      **self.more},
                     storage_writer=ShardkeepWriter(
                         job="ranks", step=self.step, socket=self.socket,
                         timeout=60, flush=False))

    def load(self, group: Any, planner: Any = None, **words: Any) -> None:
        """All that all ranks had."""
        state = {f"w{i}": torch.zeros(300) for i in range(2)}
        dcp.load(state, planner=planner, storage_reader=ShardkeepReader(
            job="ranks", socket=self.socket, process_group=group, timeout=60,
            **words))
        self._check(state)

    def gather(self) -> None:
        state = full_state_dict("ranks", prefix="", socket=self.socket,
                                timeout=60)
        self._check({k: v for k, v in state.items() if k.startswith("w")},
                    2 if dist.get_rank() == 0 else 0)

    def _check(self, found: dict[str, torch.Tensor], n: int = 2) -> None:
        assert len(found) == n
        for t in found.values():
            assert torch.equal(t, torch.full((300,), float(self.step)))


def _goes_on_when_chosen(monkeypatch: Any, ranks: _Ranks, times: int) -> None:
    choose, left = _reading.Question.choose, [times]

    def choose_and_go_on(self: Any, *args: Any) -> Any:
        found = choose(self, *args)
        if left[0]:
            left[0] -= 1
            ranks.go_on()
        return found

    monkeypatch.setattr(_reading.Question, "choose", choose_and_go_on)


def _load_what_goes(sockets: list[str]) -> None:
    ranks = _Ranks(sockets)
    loads = [ranks.gather]
    if sockets[0] == sockets[1]:        # else the plan lies between
        loads.append(lambda: ranks.load(dist.group.WORLD))
    for load in loads:
        with pytest.MonkeyPatch.context() as m:
            _goes_on_when_chosen(m, ranks, 2)
            load()
        with pytest.MonkeyPatch.context() as m:
            _goes_on_when_chosen(m, ranks, 1000)
            with pytest.raises((Error, CheckpointException),
                               match="went each of 8 times"):
                load()


@pytest.mark.parametrize("of", [[0, 0], [0, 1]])
def test_what_ranks_have_chosen_goes(nodes, of):
    run(2, _load_what_goes, [nodes[i] for i in of])


def _look_in_turn(monkeypatch: Any, ranks: _Ranks) -> None:
    """Rank 1 after a newer step came, the first time that each looks."""
    look, left = _reading.Alone.look, [1]

    def look_in_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not left:
            return look(self, *args, **kwargs)
        left.clear()
        held = look(self, *args, **kwargs) if dist.get_rank() == 0 else None
        ranks.go_on(1)
        return held or look(self, *args, **kwargs)

    monkeypatch.setattr(_reading.Alone, "look", look_in_turn)


class _Anew(dcp.DefaultLoadPlanner):
    """Makes a plan of its own of what comes back, with the items alone."""

    def finish_plan(self, central_plan: dcp.LoadPlan) -> dcp.LoadPlan:
        return dcp.LoadPlan(central_plan.items)


def _load_each_its_own(sockets: list[str]) -> None:
    ranks = _Ranks(sockets)
    ranks.load(None)
    for planner in (None, _Anew()):
        with pytest.MonkeyPatch.context() as m:
            _look_in_turn(m, ranks)
            ranks.load(None, planner)
    ranks.load(None, step=ranks.step)


def test_ranks_load_the_newest_that_one_has_found(nodes):
    run(2, _load_each_its_own, [nodes[0]] * 2)


def _another_form(sockets: list[str]) -> None:
    ranks = _Ranks(sockets)
    with pytest.MonkeyPatch.context() as m:
        _look_in_turn(m, ranks)
        ranks.more = {f"more{dist.get_rank()}": torch.ones(3)}
        with pytest.raises(CheckpointException, match="step 5 of run 1 came "
                           "as ranks looked.*other tensors than step 4 of .*"
                           "Give the reader the process_group"):
            ranks.load(None)
    ranks.load(None)


def test_ranks_do_not_go_over_to_a_step_of_other_tensors(nodes):
    run(2, _another_form, [nodes[0]] * 2)


def _of_two_agents(sockets: list[str]) -> None:
    """Each agent has all of it, at steps of its own."""
    rank = dist.get_rank()
    for step in range(1, 3 + rank):
        dcp.save({"w": torch.full((3,), float(step))}, no_dist=True,
                 storage_writer=ShardkeepWriter(
                     job="each", step=step, socket=sockets[rank]))
    state = {"w": torch.zeros(3)}
    with pytest.raises(CheckpointException, match="step 2 of run 1 for "
                       "rank 0, and step 3 of run 1 for rank 1.*Give the "
                       "reader the process_group"):
        dcp.load(state, storage_reader=ShardkeepReader(
            job="each", socket=sockets[rank]))
    dcp.load(state, storage_reader=ShardkeepReader(
        job="each", step=2, socket=sockets[rank]))
    assert state["w"].tolist() == [2, 2, 2]


def test_ranks_of_several_agents_do_not_load_steps_of_their_own(nodes):
    run(2, _of_two_agents, list(nodes))
