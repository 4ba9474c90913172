# SPDX-License-Identifier: Apache-2.0
"""A store that serves all lives of a job, as torchrun's does: what stands in
it of ranks that are gone is nothing to those that came after them."""

from __future__ import annotations

import os
import signal
from typing import Any

import linear
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import run, start, wait
from shardkeep import Timeout
from shardkeep.torch import Checkpointer, _comm, _meeting
from shardkeep.torch._comm import Comm
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch import nn


def _outliving(path: str) -> None:
    """The store of all lives takes what is ours; torch's own groups, which
    would find each other's addresses of before, have one for each."""
    store = dist.FileStore(path, -1)
    _comm.default_store = lambda: store


def _ends(path: str, where: str) -> None:
    """The last rank is killed: before it says anything, when it has made what
    it meets by, or after some meetings; or all others end before it."""
    _outliving(path)
    rank, world = dist.get_rank(), dist.get_world_size()
    ends = rank == world - 1
    if ends and where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    comms = [Comm(None, "lives", 1), Comm(None, "lives", 1)]
    if where != "before":
        dist.barrier()
    if ends and where == "made":
        os.kill(os.getpid(), signal.SIGKILL)
    if where == "alone" and not ends:
        os._exit(0)
    with pytest.raises(Timeout, match="did not come"):
        for n in range(20):
            if ends and where == "meetings" and n == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            comms[n % 2].meet("a life that ends")
    os._exit(0)     # nobody is there for a last barrier


def _meets(path: str) -> None:
    _outliving(path)
    rank, world = dist.get_rank(), dist.get_world_size()
    comms = [Comm(None, "lives", 60), Comm(None, "lives", 60)]
    for n in range(20):
        assert comms[n % 2].share(b"%d" % rank, f"number {n}") == [
            b"%d" % r for r in range(world)]
    assert comms[0].whether(rank == 1, "any")
    assert not comms[1].whether(False, "none")


@pytest.mark.parametrize("few", [1, 16])
def test_ranks_that_ended_are_nothing_to_those_after(tmp_path, few,
                                                     monkeypatch):
    monkeypatch.setattr(_meeting, "_FEW", few)
    path = str(tmp_path / "store")
    for world, where in ((3, "before"), (3, "made"), (2, "meetings"),
                         (3, "alone"), (2, "made"), (3, "meetings")):
        codes = wait(start(world, _ends, path, where))
        assert codes == [0] * (world - 1) + [
            0 if where == "alone" else -signal.SIGKILL]
        run(world, _meets, path)


def _made_anew(path: str, store: str) -> None:
    """A process that goes on makes another group, as one does that comes in
    the place of one that is gone."""
    _outliving(path)
    rank = dist.get_rank()
    if rank == 0:       # has been in the group before
        for _ in range(3):
            Comm(None, "lives", 60)
    for life in range(3):
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{store}-{life}",
                                rank=rank, world_size=2)
        _meets(path)


def test_groups_that_are_made_anew_in_one_process(tmp_path):
    run(2, _made_anew, str(tmp_path / "store"), str(tmp_path / "group"))


def _late(path: str) -> None:
    """Of a rank that makes what it meets by when the first has given up, and
    of the first when the others have: all are in step again."""
    _outliving(path)
    rank = dist.get_rank()
    for late in (2, 0):
        comm: Any = None
        if rank != late:
            comm = Comm(None, "late", 1)
            with pytest.raises(Timeout, match=f"rank {late} did not come to "
                                              "early within 1 s"):
                comm.meet("early")
        dist.barrier()
        if rank == late:
            comm = Comm(None, "late", 1)
            with pytest.raises(Timeout):
                comm.meet("early")
        dist.barrier()
        comm.timeout = 60
        for n in range(10):
            assert comm.share(b"%d" % rank, f"later {n}") == [
                b"0", b"1", b"2"]


def test_a_rank_that_comes_late(tmp_path):
    run(3, _late, str(tmp_path / "store"))


def _train(model: nn.Module, optim: torch.optim.Optimizer, of: list[str],
           life: int) -> None:
    """A job's life within a process: by a Checkpointer, and by dcp."""
    where = of[dist.get_rank() * 2 // dist.get_world_size()]
    with Checkpointer(model, optim, job="anew", raising=True, timeout=60,
                      socket=where) as ck:
        assert ck.restore() == (life - 1 if life else None)
        linear.step(model, optim)
        ck.snapshot(life)
        ck.wait()
    if life:
        state = {"a": torch.zeros(3), "life": -1}
        dcp.load(state, storage_reader=ShardkeepReader(
            job="anew.dcp", process_group=dist.group.WORLD, timeout=60,
            socket=where))
        assert state["a"].tolist() == [life] * 3
        assert state["life"] == life - 1
    dcp.save({"a": torch.full((3,), life + 1.0), "life": life},
             storage_writer=ShardkeepWriter(job="anew.dcp", step=life,
                                            socket=where, timeout=60))


def _trains_anew(path: str, of: list[str]) -> None:
    """A process goes on, each time in another group, of other ranks."""
    me = dist.get_rank()
    for life, ranks in enumerate(([0, 1], [1, 0], [0, 1])):
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{path}-{life}",
                                rank=ranks.index(me), world_size=2)
        model, optim = linear.training()
        _train(model, optim, of, life)
        other, its = linear.training()
        for _ in range(life + 1):
            linear.step(other, its)
        for has, had in zip(linear.values(model, optim),
                            linear.values(other, its), strict=True):
            assert torch.equal(has, had)


@pytest.mark.parametrize("apart", [False, True])
def test_a_job_in_groups_that_are_made_anew(nodes, tmp_path, apart):
    run(2, _trains_anew, str(tmp_path / "group"), [nodes[0], nodes[apart]])
