# SPDX-License-Identifier: Apache-2.0
"""What nodes with stores of their own agree on stays on all of them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import Nodes, end_agent, run, start_agent
from shardkeep.torch import Checkpointer, _agreed
from shardkeep.torch._agreed import Agreed

KEEP = 3


class Node:
    """What an agent does of SK_MSG_KEEP and of retention, said once more."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.disk: set[int] = set()
        self.kept = (-1, -1)

    def keep(self, step: int, next: int) -> tuple[int, int]:
        self.kept = (step, next)
        written = max(self.disk, default=-1)
        return written, (1 if next in self.disk else
                         -1 if written > next else 0)

    def write(self, step: int) -> None:
        self.disk.add(step)
        newest = sorted(self.disk)[-KEEP:]
        self.disk &= {*newest, *self.kept}


class Interleaved:
    """A store in which others speak between any two words of one."""

    def __init__(self, store: Any, between: Callable[[], None]) -> None:
        self._store, self._between = store, between

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def words(*args: Any) -> Any:
            self._between()
            found = call(*args)
            self._between()
            return found

        return words


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """No time passes between two looks."""
    monkeypatch.setattr(_agreed, "APART", 0)


class World:
    """Nodes that write at a pace of their own, and look when they like."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        n = self.rng.randint(2, 5)
        self.nodes = [Node(self.rng) for _ in range(n)]
        store = Interleaved(dist.HashStore(), self.between)
        self.agreed = [Agreed(store, list(range(n)), 1, i == 0)
                       for i in range(n)]
        self.looking: list[int] = []
        self.step = 0
        #: How often each node leaves a step out, and which cannot write.
        self.lax = [self.rng.choice((0, 0.1, 0.6)) for _ in range(n)]
        self.full: set[int] = set()
        self.moved = 0

    def between(self) -> None:
        if self.rng.random() < 0.15 and len(self.looking) < 6:
            self.act()
        self.check()

    def act(self) -> None:
        i = self.rng.randrange(len(self.nodes))
        if self.rng.random() < 0.5:
            self.step += 1
            self.write()
        elif i not in self.looking:
            self.look(i)

    def write(self) -> None:
        for i, node in enumerate(self.nodes):
            if i not in self.full and self.rng.random() >= self.lax[i]:
                node.write(self.step)

    def look(self, i: int) -> None:
        self.looking.append(i)
        before = self.agreed[i].step
        self.agreed[i].look_now(self.nodes[i])
        self.moved += self.agreed[i].step > before
        self.looking.remove(i)

    def check(self) -> None:
        """What one of them takes for agreed on all have, and keep."""
        newest = max(x.step for x in self.agreed)
        if newest < 0:
            return
        common = set.intersection(*[
            node.disk & set(node.kept) for node in self.nodes])
        assert common, [(x.step, x.next, n.kept, sorted(n.disk))
                        for x, n in zip(self.agreed, self.nodes)]


@pytest.mark.parametrize("part", range(4))
def test_whatever_nodes_do_something_is_on_all(part):
    """Which step it is may change between any two words of any of them."""
    moved = 0
    for seed in range(part * 20, part * 20 + 20):
        world = World(seed)
        for turn in range(200):
            if turn == 100:
                world.full = {world.rng.randrange(len(world.nodes))}
            world.act()
            world.check()
        moved += world.moved
    assert moved > 30


def test_it_moves_on():
    """Nodes that write the same steps agree on each new one within a few
    looks."""
    world = World(1)
    world.lax = [0] * len(world.nodes)
    world.rng.random = lambda: 1.0      # nobody comes between
    for step in range(1, 30):
        world.step = step
        world.write()
        for _ in range(3):
            for i in range(len(world.nodes)):
                world.look(i)
        assert [x.step for x in world.agreed] == [step] * len(world.nodes)
    assert all(len(n.disk) <= KEEP + 2 for n in world.nodes)


def test_a_store_that_is_gone_is_no_matter():
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the store is gone")

    node = Node(random.Random(0))
    agreed = Agreed(Gone(), [1, 2], 1, True)
    agreed.look_now(node)
    agreed.look(node)
    agreed.end()
    assert agreed.step == -1


# ---- two agents, one of which does not write ----

STEPS, STOPS = 24, 8


def _training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def _train_on(nodes: Nodes) -> None:
    rank = dist.get_rank()
    model, optim = _training()
    with Checkpointer(model, optim, job="apart", raising=True, keep_last=2,
                      flush_every=1, socket=nodes[rank], timeout=60) as ck:
        assert ck.restore() is None
        for step in range(1, STEPS):
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(step)
            here = rank == 0 or step < STOPS
            ck.snapshot(step, flush=here, wait=30)
            if here:
                ck._wait_alone(step, 4, 30)
            if step < STOPS:
                _settle(ck, step)
            if step == 2 * STOPS:
                ck.wait(step)
                assert ck.restore() == step, "out of memory"
        # Before the job's end, with which the newest would be written.
        dist.barrier()
        os.kill(nodes.agents[rank].pid, signal.SIGKILL)
        dist.barrier()


def _settle(ck: Checkpointer, step: int) -> None:
    """Looks until all agree on it; that may be one that was said before."""
    assert ck._agreed is not None
    end = time.monotonic() + 60
    while True:
        ck._agreed.end()
        ck._agreed.look_now(ck._state)
        at = torch.tensor([ck._agreed.step])
        dist.all_reduce(at, op=dist.ReduceOp.MIN)
        if at.item() >= step:
            return
        assert time.monotonic() < end


def _go_on(nodes: Nodes) -> None:
    model, optim = _training()
    with Checkpointer(model, optim, job="apart", raising=True,
                      socket=nodes[dist.get_rank()], timeout=60) as ck:
        assert ck.restore() == STOPS - 1
        for p in model.parameters():
            assert torch.all(p == STOPS - 1)


def test_what_all_had_stays_where_one_does_not_write(tmp_path):
    """Retention keeps two of the 16 that the other node writes since. Then
    memory is lost as well."""
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(str(tmp_path / name))
    nodes = Nodes(made)
    try:
        run(2, _train_on, nodes)
        # Killed, an agent leaves nothing in memory, as without power.
        for agent in nodes.agents:
            end_agent(agent)
        nodes.agents = [start_agent(d) for d in made]
        run(2, _go_on, nodes)
    finally:
        nodes.end()
        for d in made:
            shutil.rmtree(d, ignore_errors=True)
