# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoint by ranks of several nodes."""

from __future__ import annotations

import io
import logging
import os
import signal
import time

import gpu
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import Nodes, run, start, wait
from models import (Replicate, Shard, local_part, sharded, whole,
                    wrong)
from older import needs_alone, needs_plan_caching
from shardkeep import Client, NotFound, snapshots
from shardkeep.torch import Checkpointer, _comm, _dcp_states
from shardkeep.torch._reading import _merged
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import (DefaultLoadPlanner,
                                                          DefaultSavePlanner)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

#: Some ranks hold nothing of "odd" and "one".
SHAPES = {"a": (9, 4), "b": (64, 30), "odd": (3,), "one": (1, 5)}
HALVES = [0, 0, 1, 1]


def _socket(nodes: Nodes, of: list[int]) -> str:
    return nodes[of[dist.get_rank()]]


def _state(fill: bool, step: int = 0) -> dict[str, object]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, object] = {
        k: sharded(whole(k, shape) + step, mesh, (Shard(0),), fill)
        for k, shape in SHAPES.items()}
    state["all"] = sharded(whole("all", (6,)) + step, mesh, (Replicate(),),
                           fill)
    state["step"] = step if fill else -1
    state["nested"] = {"x": [step, (2, 3)] if fill else [0, (0, 0)]}
    return state


def _check(state: dict[str, object], step: int) -> None:
    for k, shape in {**SHAPES, "all": (6,)}.items():
        assert not wrong(state[k], whole(k, shape) + step), k
    assert state["step"] == step
    assert state["nested"] == {"x": [step, (2, 3)]}


def _save(nodes: Nodes, of: list[int], steps: list[int],
          planner: object = None, **words: object) -> None:
    for step in steps:
        dcp.save(_state(True, step), planner=planner,
                 storage_writer=ShardkeepWriter(
                     job="far", step=step, socket=_socket(nodes, of),
                     timeout=60, **words))


def _reader(nodes: Nodes, of: list[int], step: int | None = None,
            timeout: float = 60, job: str = "far") -> ShardkeepReader:
    return ShardkeepReader(job=job, step=step, socket=_socket(nodes, of),
                           process_group=dist.group.WORLD, timeout=timeout)


def _load(nodes: Nodes, of: list[int], want: int, step: int | None = None
          ) -> None:
    state = _state(False)
    dcp.load(state, storage_reader=_reader(nodes, of, step))
    _check(state, want)


def _killed(*args: object) -> None:
    _save(*args)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("of", [
    HALVES, [1, 0, 1, 0], [0, 1, 1], [1, 1, 0, 0, 1]])
def test_killed_and_back(nodes, of):
    assert set(wait(start(4, _killed, nodes, HALVES, [7, 8]))) == {
        -signal.SIGKILL}
    run(len(of), _load, nodes, of, 8)
    run(len(of), _load, nodes, of, 7, 7)


def test_one_agent_serves_all_after_all(nodes):
    """Ranks that are told to agree, and find that there is one agent."""
    run(4, _save, nodes, [0] * 4, [7, 8])
    run(3, _load, nodes, [0] * 3, 8)
    run(3, _load, nodes, [0] * 3, 7, 7)
    # Of ranks with two, one agent has all of it.
    run(3, _load, nodes, [0, 1, 0], 8)


def _runs(nodes: Nodes) -> list[set[tuple[int, int]]]:
    """Runs and steps that each agent has some of."""
    found = []
    for socket in nodes:
        client = Client(socket)
        found.append({(s["run"], s["step"])
                      for s in snapshots(client, "far")})
        client.close()
    return found


def test_saves_are_of_one_run(nodes):
    run(4, _save, nodes, HALVES, [1, 2, 3])
    a, b = _runs(nodes)
    assert a == b and len({r for r, _ in a}) == 1


def _many_saves(nodes: Nodes) -> None:
    """Every other one fails on a rank, before it is to meet others, or when
    it has."""
    store, most, rank = _comm.default_store(), 0, dist.get_rank()
    for step in range(24):
        where = (None, "save", None, "open")[step % 4]
        with pytest.MonkeyPatch.context() as m:
            if where and rank == 1:
                _dcp_states.STATES.close()
                m.setattr(_dcp_states.Entry, where, _cannot)
            if where:
                with pytest.raises(CheckpointException):
                    _save(nodes, HALVES, [step])
            else:
                _save(nodes, HALVES, [step])
        dist.barrier()
        keys = store.num_keys()
        dist.barrier()
        most = keys if step == 8 else most
        assert step % 4 or step <= 8 or keys <= most, (step, keys, most)


def _cannot(*_: object) -> None:
    raise ValueError("not here")


def test_saves_leave_nothing_in_the_store(nodes):
    run(3, _many_saves, nodes)


def _after_other_jobs(nodes: Nodes) -> None:
    _save(nodes, HALVES, [1])
    if dist.get_rank() == 1:
        for n in range(5):      # more than stay warm
            dcp.save({"x": n}, no_dist=True, storage_writer=ShardkeepWriter(
                job=f"alone-{n}", step=1, socket=_socket(nodes, HALVES)))
    dist.barrier()
    _save(nodes, HALVES, [2])
    _load(nodes, HALVES[::-1], 2)


@needs_alone
def test_a_rank_that_let_go_of_its_state(nodes):
    """It has no run any more, and the others have one."""
    run(4, _after_other_jobs, nodes)


def test_a_step_that_is_there_is_written_anew(nodes):
    run(4, _again, nodes)
    run(3, _load, nodes, [0, 1, 0], 9, 1)


def _again(nodes: Nodes) -> None:
    _save(nodes, HALVES, [1])
    for _ in range(2):
        dcp.save(_state(True, 9), storage_writer=ShardkeepWriter(
            job="far", step=1, socket=_socket(nodes, HALVES), timeout=60))


def test_a_job_that_comes_back_goes_on(nodes):
    run(4, _save, nodes, HALVES, [1])
    run(3, _save, nodes, [1, 0, 1], [2])
    run(2, _load, nodes, [0, 1], 2)
    run(2, _load, nodes, [0, 1], 1, 1)


def _with_cached_plans(nodes: Nodes) -> None:
    for step in range(3):
        _save(nodes, HALVES, [step],
              DefaultSavePlanner(enable_plan_caching=True))
        _load(nodes, HALVES[::-1], step)


@needs_plan_caching
def test_plans_that_are_cached(nodes):
    run(4, _with_cached_plans, nodes)


def _in_background(nodes: Nodes) -> None:
    group = dist.new_group(backend="gloo")
    for step in range(3):
        dcp.async_save(_state(True, step), process_group=group,
                       storage_writer=ShardkeepWriter(
                           job="far", step=step, timeout=60,
                           socket=_socket(nodes, HALVES))).result()
    _load(nodes, HALVES[::-1], 2)


def test_async_save(nodes):
    run(4, _in_background, nodes)


class _Slow(DefaultSavePlanner):
    """Comes to the others after they have waited for it."""

    def resolve_data(self, write_item):
        if dist.get_rank() == 2:
            time.sleep(0.2)
        return super().resolve_data(write_item)


def _two_at_once(nodes: Nodes) -> None:
    """Each in a thread, which ranks begin in another order."""
    groups = [dist.new_group(backend="gloo") for _ in range(2)]
    keys = []
    for step in (0, 2, 4):
        order = (0, 1) if dist.get_rank() != 1 else (1, 0)
        for save in [dcp.async_save(
                _state(True, step + i), process_group=groups[i],
                planner=_Slow(), storage_writer=ShardkeepWriter(
                    job="far", step=step + i, timeout=20,
                    socket=_socket(nodes, HALVES))) for i in order]:
            save.result()
        dist.barrier()
        keys.append(_comm.default_store().num_keys())
        dist.barrier()
    assert keys[1] == keys[2], keys
    for step in (4, 5):
        _load(nodes, HALVES[::-1], step, step)


def test_two_async_saves_at_once(nodes):
    run(4, _two_at_once, nodes)


def _save_large(nodes: Nodes) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    large = torch.ones(8192, 8192)      # a disk needs a moment for it
    dcp.save({"w": sharded(large, mesh, (Shard(0),), True)},
             storage_writer=ShardkeepWriter(job="far", step=4, timeout=60,
                                            socket=_socket(nodes, HALVES),
                                            wait="durable"))
    client = Client(_socket(nodes, HALVES))
    here, = snapshots(client, "far")
    client.close()
    assert here["disk_bytes"] >= here["memory_bytes"] > 100 << 20


def test_durable_when_it_returns(nodes):
    run(4, _save_large, nodes)


def test_durable_on_all_nodes(nodes):
    run(4, _save_durable, nodes)
    for node in range(2):       # with what they had in memory
        nodes.restart(node, signal.SIGKILL)
    run(3, _load, nodes, [1, 0, 1], 4)


def _save_durable(nodes: Nodes) -> None:
    _save(nodes, HALVES, [4], wait="durable")


def test_a_node_that_is_lost(nodes):
    """The newest is nowhere whole; the one before is on disk."""
    run(4, _save_durable, nodes)
    run(4, _save_and_lose, nodes, nodes.agents[1].pid)
    nodes.restart(1, signal.SIGKILL)
    run(4, _load, nodes, [1, 0, 1, 0], 4)
    run(4, _lacks, nodes, 5)
    run(4, _save_whole, nodes, [5])     # parts of it are there, and no more
    run(4, _load, nodes, [1, 0, 1, 0], 5)


def _save_whole(nodes: Nodes, steps: list[int]) -> None:
    _save(nodes, HALVES, steps, overwrite=False)


def _save_and_lose(nodes: Nodes, agent: int) -> None:
    _save(nodes, HALVES, [5], flush=False)
    # While ranks live: when the last one goes, the newest is written.
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(agent, signal.SIGKILL)
    dist.barrier()


def _lacks(nodes: Nodes, step: int) -> None:
    with pytest.raises(CheckpointException, match="step 5"):
        _load(nodes, HALVES, step, step)


def _cannot_join(nodes: Nodes) -> None:
    """Rank 1's agent goes when the ranks have said that they need a run."""
    opened = _dcp_states.Entry.open

    def open_once(self: _dcp_states.Entry) -> object:
        if self.state is not None:
            raise ConnectionError("as if its agent had gone")
        return opened(self)

    if dist.get_rank() == 1:
        _dcp_states.Entry.open = open_once
    with pytest.raises(CheckpointException, match="its agent had gone"):
        dcp.save(_state(True, 4), storage_writer=ShardkeepWriter(
            job="far", step=4, socket=_socket(nodes, HALVES), timeout=600))
    _dcp_states.Entry.open = opened
    _save(nodes, HALVES, [5])


def test_a_rank_that_cannot_join_keeps_nobody_waiting(nodes):
    run(4, _cannot_join, nodes)
    run(4, _load, nodes, HALVES, 5)


# ---- overwrite=False ----

def _refused(nodes: Nodes) -> None:
    with pytest.raises(CheckpointException, match="already exists"):
        _save(nodes, HALVES, [3], overwrite=False)


class _Refuses(DefaultSavePlanner):
    """Fails on one rank when its data are asked for."""

    def resolve_data(self, write_item):
        if dist.get_rank() == 2:
            raise ValueError("as if a hook had failed")
        return super().resolve_data(write_item)


def _overwrite(nodes: Nodes) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointException, match="a hook had failed"):
        _save(nodes, HALVES, [3], _Refuses())
    assert time.monotonic() - began < 30, "others waited for it"
    # What has parts alone is nothing.
    _save(nodes, HALVES, [3], overwrite=False)
    _refused(nodes)


def test_what_exists_is_refused_where_it_is_whole(nodes):
    run(4, _overwrite, nodes)
    run(4, _refused, nodes)
    run(3, _load, nodes, [1, 0, 1], 3, 3)


# ---- what else lies there ----

def test_what_a_checkpointer_saved(nodes):
    run(4, _checkpointer, nodes)
    run(3, _load_model, nodes)


class _Model(torch.nn.Module):
    def __init__(self, fill: bool) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.w = torch.nn.Parameter(sharded(whole("w", (10, 3)), mesh,
                                            (Shard(0),), fill))


def _checkpointer(nodes: Nodes) -> None:
    with Checkpointer(_Model(True), job="far", raising=True, timeout=60,
                      socket=_socket(nodes, HALVES)) as ck:
        assert ck.restore() is None
        ck.snapshot(6)
        ck.wait(until="complete")


def _load_model(nodes: Nodes) -> None:
    state = {"model.w": _Model(False).w.data}
    dcp.load(state, storage_reader=_reader(nodes, [1, 0, 1]))
    assert not wrong(state["model.w"], whole("w", (10, 3)))


# ---- devices ----

def _on_devices(nodes: Nodes, of: list[int]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gpu.begin(rank)
    mesh = DeviceMesh(gpu.KIND, list(range(world)))
    full = whole("w", (64, 30))
    fill = of == [0, 1]
    state = {"w": sharded(full, mesh, (Shard(0),), fill), "n": 5 * fill}
    assert state["w"]._local_tensor.device.index == gpu.index(rank)
    if fill:
        dcp.save(state, storage_writer=ShardkeepWriter(
            job="far", step=1, socket=_socket(nodes, of), timeout=60))
        return
    reader = _reader(nodes, of)
    dcp.load(state, storage_reader=reader)
    assert reader._last._way.reports[-1]["bytes_device"] > 0, "by NCCL"
    assert torch.equal(state["w"]._local_tensor.cpu(),
                       local_part(full, mesh, (Shard(0),)))
    assert state["n"] == 5


@gpu.needed
def test_devices_of_other_nodes(nodes, monkeypatch):
    gpu.find(monkeypatch, devices=2)
    run(2, _on_devices, nodes, [0, 1])
    run(2, _on_devices, nodes, [1, 0])


# ---- what several agents say of one snapshot ----

def test_a_box_that_two_agents_have_is_read_once():
    """As where both list what is on a disk of theirs."""
    w = {"kind": "tensor", "name": "w", "rank": -1, "boxes": [
        {"rank": 0, "offset": [0], "size": [2]}]}
    other = {**w, "boxes": [{"rank": 1, "offset": [2], "size": [2]}]}
    found = _merged([{"run": 1, "tensors": [w]},
                     {"run": 1, "tensors": [w, {**w, "name": "v"}]},
                     {"run": 1, "tensors": [other]}])
    assert [t["name"] for t in found["tensors"]] == ["w", "v"]
    assert found["tensors"][0]["boxes"] == w["boxes"] + other["boxes"]


# ---- what goes wrong ----

def _without_group(nodes: Nodes) -> None:
    with pytest.raises(CheckpointException, match="process_group"):
        dcp.load(_state(False), storage_reader=ShardkeepReader(
            job="far", step=1, socket=_socket(nodes, HALVES)))


def test_a_reader_without_a_group_says_what_it_needs(nodes):
    run(4, _save, nodes, HALVES, [1])
    run(4, _without_group, nodes)


def _nothing(nodes: Nodes) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointException, match="no complete snapshot"):
        dcp.load(_state(False), storage_reader=_reader(
            nodes, HALVES, job="none"))
    assert time.monotonic() - began < 30
    with pytest.raises(CheckpointException, match="no complete snapshot"):
        dcp.load(_state(False), storage_reader=_reader(
            nodes, HALVES, 99))


def test_what_no_agent_has(nodes):
    run(4, _save, nodes, HALVES, [1])
    run(4, _nothing, nodes)


class _Fails(DefaultLoadPlanner):
    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def _fail(self, where: str) -> None:
        if where == self._where and dist.get_rank() == 1:
            raise ValueError("as if a hook had failed")

    def load_bytes(self, read_item, value):
        self._fail("object")
        return super().load_bytes(read_item, value)

    def resolve_tensor(self, read_item):
        self._fail("before")
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item, tensor):
        self._fail("after")
        return super().commit_tensor(read_item, tensor)


def _one_fails(nodes: Nodes) -> None:
    of = HALVES[::-1]
    for where in ("object", "before", "after"):
        began = time.monotonic()
        with pytest.raises(CheckpointException, match="a hook had failed"):
            dcp.load(_state(False), planner=_Fails(where),
                     storage_reader=_reader(nodes, of))
        assert time.monotonic() - began < 30, "others waited for it"
        _load(nodes, of, 1)


def test_a_rank_that_fails_in_a_load(nodes):
    run(4, _save, nodes, HALVES, [1])
    run(4, _one_fails, nodes)


class _Dies(DefaultLoadPlanner):
    def resolve_tensor(self, read_item):
        if dist.get_rank() == 1:
            os._exit(3)
        return super().resolve_tensor(read_item)


class _DiesToo(DefaultSavePlanner):
    def resolve_data(self, write_item):
        if dist.get_rank() == 1:
            os._exit(3)
        return super().resolve_data(write_item)


def _one_dies(nodes: Nodes, in_load: bool) -> None:
    log = io.StringIO()
    logging.getLogger("shardkeep").addHandler(logging.StreamHandler(log))
    began = time.monotonic()
    # The framework's own exchange fails as well, and its error is raised.
    with pytest.raises(Exception):  # noqa: B017
        if in_load:
            dcp.load(_state(False), planner=_Dies(), storage_reader=_reader(
                nodes, HALVES[::-1], timeout=8))
        else:
            dcp.save(_state(True, 5), planner=_DiesToo(),
                     storage_writer=ShardkeepWriter(
                         job="far", step=5, timeout=8,
                         socket=_socket(nodes, HALVES)))
    assert time.monotonic() - began < 60
    assert "rank 1 did not come" in log.getvalue(), "who it was"
    os._exit(0)


@pytest.mark.parametrize("in_load", [True, False])
def test_a_rank_that_dies_in_it(nodes, in_load):
    run(4, _save, nodes, HALVES, [1])
    assert wait(start(4, _one_dies, nodes, in_load)) == [0, 3, 0, 0]
    run(3, _load, nodes, [1, 0, 1], 1)
    run(4, _save, nodes, HALVES, [5])
    run(3, _load, nodes, [1, 0, 1], 5)


def _one_is_late(nodes: Nodes) -> None:
    if dist.get_rank() != 2:
        with pytest.raises(CheckpointException, match="rank 2 did not come"):
            dcp.load(_state(False), no_dist=True, storage_reader=_reader(
                nodes, HALVES, timeout=6))
    dist.barrier()
    # In step again: the one that was not there reads that the others gave up.
    if dist.get_rank() == 2:
        with pytest.raises(CheckpointException, match="did not come"):
            dcp.load(_state(False), no_dist=True,
                     storage_reader=_reader(nodes, HALVES))
    _load(nodes, HALVES, 1)


@needs_alone
def test_a_load_that_not_all_come_to(nodes):
    run(4, _save, nodes, HALVES, [1])
    run(4, _one_is_late, nodes)


def _load_what_is_left(nodes: Nodes, of: list[int], grouped: bool) -> None:
    reader = _reader(nodes, of) if grouped else ShardkeepReader(
        job="far", socket=_socket(nodes, of))
    with pytest.raises(CheckpointException) as e:
        dcp.load(_state(False), storage_reader=reader)
    for failure, _ in e.value.failures.values():
        assert isinstance(failure, NotFound)
        assert "step 8 of run" in str(failure), failure
        assert "2 of 4 ranks have no image" in str(failure), failure


@pytest.mark.parametrize("grouped", [True, False])
def test_what_is_left_of_a_node_is_named(nodes, grouped):
    """Who takes NotFound for a first run is to see that it is none."""
    run(4, _save, nodes, HALVES, [7, 8])
    nodes.restart(1, signal.SIGKILL, disk=False)
    run(2, _load_what_is_left, nodes, [0, 0], grouped)
    if grouped:         # an agent that has nothing knows of none
        run(2, _load_what_is_left, nodes, [0, 1], grouped)
