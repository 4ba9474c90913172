# SPDX-License-Identifier: Apache-2.0
"""Ranks of several nodes: agents of their own, and bytes by links."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from typing import Any

import gpu
import pytest
import torch
import torch.distributed as dist
from harness import Logged, Nodes, run, start, wait
from models import Holder, Shard, local_part, sharded, whole
from shardkeep import NotFound, Timeout
from shardkeep._tools import path as program
from shardkeep.torch import Checkpointer, _comm, _links, _restore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

NAMES = {"a": (9, 4), "b": (64, 30), "odd": (5,)}


def _on(nodes: Nodes, of: list[int]) -> str:
    """Where this rank is."""
    return nodes[of[dist.get_rank()]]


def _job(fill: bool, host: bool = True) -> tuple[torch.nn.Module, object]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Holder({k: sharded(whole(k, shape), mesh, (Shard(0),), fill)
                    for k, shape in NAMES.items()})
    for p in model.parameters():
        p.requires_grad_(True)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _train(model: torch.nn.Module, optim: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = p.detach() * 2
    optim.step()


def _wrong(model: torch.nn.Module, optim: torch.optim.Optimizer
           ) -> list[str]:
    """Against what the same steps make of whole tensors."""
    full = Holder({k: whole(k, shape) for k, shape in NAMES.items()})
    for p in full.parameters():
        p.requires_grad_(True)
    other = torch.optim.AdamW(full.parameters(), lr=0.01)
    _train(full, other)
    found = []
    for (name, p), q in zip(model.named_parameters(), full.parameters()):
        pairs = [(p, q)] + [(optim.state[p][k], other.state[q][k])
                            for k in ("exp_avg", "exp_avg_sq")]
        for got, want in pairs:
            if not torch.equal(got._local_tensor, local_part(
                    want.detach(), p.device_mesh, p.placements)):
                found.append(name)
    return found


def _save(nodes: Nodes, of: list[int], **words: object) -> None:
    model, optim = _job(True)
    ck = Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, of), timeout=60,
                      local={"mine": {"rank": dist.get_rank()}}, **words)
    assert ck.restore() is None
    _train(model, optim)
    ck.snapshot(1)
    ck.wait()
    runs = [None] * dist.get_world_size()
    dist.all_gather_object(runs, ck.status()["run"])
    assert len(set(runs)) == 1, "a run of all nodes"
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    ck.close()


def _load(nodes: Nodes, of: list[int], remote: bool,
          disk: bool = False) -> None:
    model, optim = _job(False)
    mine = {"rank": -1}
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, of), timeout=60,
                      local={"mine": mine}) as ck:
        assert ck.restore() == 1
        assert not _wrong(model, optim)
        assert mine["rank"] == (dist.get_rank() if dist.get_rank() < 4
                                else -1)
        total = torch.tensor([ck.report.bytes_remote, ck.report.bytes_disk])
        dist.all_reduce(total)
        assert [bool(n) for n in total.tolist()] == [remote, disk]
        ck.snapshot(2)
        ck.wait()


def _saved(nodes: Nodes, **words: object) -> None:
    pids = start(4, _save, nodes, [0, 0, 1, 1])
    assert wait(pids)[0] == -signal.SIGKILL


def _wait_for_all(nodes: Nodes, of: list[int]) -> None:
    """No agent knows of the others' ranks: the ranks ask each other."""
    model, optim = _job(True)
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, of), timeout=60) as ck:
        assert ck.restore() is None
        _train(model, optim)
        ck.snapshot(1, flush=False)
        ck.wait(until="complete")
        ck.snapshot(2)
        ck.wait(until="durable")
        # One that has no part of it is known to all.
        if dist.get_rank() != 2:
            ck.snapshot(3)
        for until in ("complete", "durable"):
            with pytest.raises((NotFound, Timeout)) as e:
                ck.wait(3, until=until, timeout=2)
            # Its neighbour's own part is held up by it, too.
            assert dist.get_rank() > 1 or "rank 2" in str(e.value)


def test_waits_are_for_all_nodes(nodes):
    run(4, _wait_for_all, nodes, [0, 0, 1, 1])
    for node in range(2):       # with what they had in memory
        nodes.restart(node, signal.SIGKILL)
    run(4, _load_from_disk, nodes, [1, 0, 1, 0])


def _load_from_disk(nodes: Nodes, of: list[int]) -> None:
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, of), timeout=60) as ck:
        assert ck.restore(source="disk") == 2
        assert not _wrong(model, optim)


@pytest.mark.parametrize("of, remote", [
    ([0, 0, 1, 1], False), ([1, 1, 0, 0], True), ([0, 1, 1], True),
    ([1, 0, 1, 0, 1], True)])
def test_killed_and_back_over_two_nodes(nodes, way, of, remote):
    _saved(nodes)
    run(len(of), _load, nodes, of, remote)


def test_a_node_that_lost_its_memory(nodes):
    _saved(nodes)
    nodes.restart(1, signal.SIGTERM)        # it has written what it had
    run(4, _load, nodes, [0, 1, 0, 1], True, True)


def _back(nodes: Nodes, of: list[int], first: bool) -> None:
    """Nodes may have had other numbers of runs."""
    model, optim = _job(first)
    with Checkpointer(model, optim, job="far", raising=True, timeout=60,
                      slots=3, socket=_on(nodes, of)) as ck:
        if not first:
            assert ck.restore() == 2 and not _wrong(model, optim)
            return
        assert ck.restore() is None
        for step in (1, 3):
            _train(model, optim)
            ck.snapshot(step, wait=30)
            ck.wait()
        assert ck.restore(1) == 1 and not _wrong(model, optim)
        ck.snapshot(2, wait=30)
        ck.wait()


def test_steps_that_are_taken_back_on_all_nodes(nodes):
    for node, runs in enumerate((1, 3)):
        for _ in range(runs):
            run(1, _alone, nodes[node])
    run(4, _back, nodes, [0, 0, 1, 1], True)
    run(4, _back, nodes, [1, 0, 1, 0], False)


def _end_apart(nodes: Nodes, goes_on: bool) -> None:
    """Rank 0 is a step ahead. All are killed, or go on."""
    model, optim = _job(True)
    ck = Checkpointer(model, optim, job="far", raising=True, timeout=60,
                      socket=_on(nodes, [0, 1]))
    assert ck.restore() is None
    _train(model, optim)
    for step in (1, 2)[:2 - dist.get_rank()]:
        ck.snapshot(step, wait=30, flush=False)
        ck.wait(until="sealed")
    dist.barrier()
    if not goes_on:
        os.kill(os.getpid(), signal.SIGKILL)
    assert ck.restore() == 1 and not _wrong(model, optim)
    ck.prepare()
    _only_the_step_of_all_stays(nodes)
    ck.close()


def _go_on_apart(nodes: Nodes) -> None:
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", raising=True, timeout=60,
                      socket=_on(nodes, [0, 1])) as ck:
        assert ck.restore() == 1 and not _wrong(model, optim)
        _only_the_step_of_all_stays(nodes)


def _only_the_step_of_all_stays(nodes: Nodes) -> None:
    def evict(step: int) -> str:
        return subprocess.run(
            [program("cachectl"), "--socket", nodes[0], "evict",
             f"far/{step}"], stderr=subprocess.PIPE, text=True).stderr

    end = time.monotonic() + 60
    while dist.get_rank() == 0 and (why := evict(2)):
        assert time.monotonic() < end, why      # it is being flushed
        time.sleep(0.05)
    if dist.get_rank() == 0:
        assert "the newest complete" in evict(1)
    dist.barrier()


def test_the_step_that_all_nodes_had_stays(nodes):
    wait(start(2, _end_apart, nodes, False))
    run(2, _go_on_apart, nodes)
    run(2, _go_on_apart_again, nodes)


def _go_on_apart_again(nodes: Nodes) -> None:
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", raising=True, timeout=60,
                      socket=_on(nodes, [0, 1])) as ck:
        assert ck.restore(source="memory") == 1


def test_the_step_that_all_nodes_had_stays_where_they_go_back(nodes):
    run(2, _end_apart, nodes, True)


def _alone(socket: str) -> None:
    with Checkpointer(Holder({}), job="far", socket=socket) as ck:
        ck.prepare()


def _nothing(nodes: Nodes) -> None:
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", socket=_on(nodes, [0, 0, 1]),
                      timeout=60) as ck, pytest.raises(NotFound):
        ck.restore()


def test_what_is_nowhere_whole_is_found_by_no_rank(nodes):
    _saved(nodes, flush_every=1 << 30)
    nodes.restart(1, signal.SIGKILL, disk=False)
    run(3, _nothing, nodes)


# ---- which links ----

def _load_by(nodes: Nodes, kinds: list[str], words: dict[str, str] | None,
             said: list[str]) -> None:
    """``words``: what a rank of these has in its environment."""
    rank = dist.get_rank()
    os.environ.update((words or {}) if rank == 1 else {})
    logged = Logged()
    logging.getLogger("shardkeep").addHandler(logged)
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, [1, 0, 1, 0]), timeout=60,
                      local={"mine": {}}) as ck:
        for kind in kinds:
            assert ck.restore() == 1
            assert not _wrong(model, optim)
            assert type(ck._comm._links).__name__ == kind
            ck._comm._links.abort()
    assert [any(re.search(s, m) for m in logged.found) for s in said] == [
        rank == 0] * len(said), logged.found
    assert rank == 0 or not logged.found, logged.found


def test_restores_go_by_sockets(nodes):
    """And by new ones where they broke."""
    _saved(nodes)
    run(4, _load_by, nodes, ["Sockets"] * 2, None, [])


def test_one_rank_that_is_to_take_gloo_is_followed(nodes):
    _saved(nodes)
    run(4, _load_by, nodes, ["Gloo"] * 2, {"SHARDKEEP_LINKS": "gloo"}, [])


def _load_elsewhere(nodes: Nodes) -> None:
    model, optim = _job(False)
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, [1, 0, 1, 0]), timeout=60) as ck:
        with torch.device("meta"):      # the trainer's default
            assert ck.restore(strict=False) == 1
        assert not _wrong(model, optim)


def test_links_whatever_the_default_device(nodes, way):
    _saved(nodes)
    run(4, _load_elsewhere, nodes)


def test_an_interface_that_no_others_can_come_to(nodes, monkeypatch):
    """Gloo would not begin with it, either: it is told another one."""
    class Meeting(_links.Meeting):
        def _lead(self) -> _links.Sockets:
            os.environ["GLOO_SOCKET_IFNAME"] = "none0"
            try:
                return super()._lead()
            finally:
                del os.environ["GLOO_SOCKET_IFNAME"]

    monkeypatch.setattr(_comm, "Meeting", Meeting)
    _saved(nodes)
    run(4, _load_by, nodes, ["Gloo"] * 2, None,
        ["go by gloo, as the ranks could not connect to each other: rank 0: "
         "this node has no address of interface \"none0\""])


def test_a_rank_that_cannot_be_met(nodes, monkeypatch):
    """It is told another secret, and rank 0 takes it for a stranger."""
    class Meeting(_links.Meeting):
        def _told(self, began: float) -> str:
            told = super()._told(began)
            return told if self._rank != 2 else "other " + told

    monkeypatch.setattr(_links, "_TO_MEET", 3.0)
    monkeypatch.setattr(_comm, "Meeting", Meeting)
    _saved(nodes)
    run(4, _load_by, nodes, ["Gloo"], None,
        ["rank 0: rank ([12] did not come|. left before rank [12] had come)"])


# ---- what goes wrong on the way ----

def _by_python() -> type[_links.Links]:
    """Has the calls of a restore pass through Python, whichever links it
    takes: methods of what is returned."""
    if _links.without_sockets():
        return _links.Gloo

    def one(name: str) -> Any:
        def call(self: _links.Sockets, *args: Any) -> Any:
            return getattr(self._core, name)(*args)
        return call

    def way(self: Any) -> dict[str, Any]:
        return {"allgather": self.allgather, "exchange": self.exchange,
                "abort": self.abort, "world": dist.get_world_size()}

    _links.Sockets.allgather = one("allgather")
    _links.Sockets.exchange = one("exchange")
    _links.Sockets.way = way
    return _links.Sockets


@pytest.fixture(params=["sockets", "gloo"])
def way(request, monkeypatch):
    """What restores go by."""
    monkeypatch.setenv("SHARDKEEP_LINKS", request.param)
    return request.param


def _break(nodes: Nodes, call: str, how: str) -> None:
    """Rank 1 fails in its first one; all end alike, within the bound."""
    of = [1, 0, 1, 0]
    model, optim = _job(False)
    ck = Checkpointer(model, optim, job="far", raising=True, timeout=8,
                      socket=_on(nodes, of), local={"mine": {}})
    pids: list[int] = [0] * 4
    dist.all_gather_object(pids, os.getpid())
    kind = _by_python() if dist.get_rank() == 1 else _links.Links
    whole_call = getattr(kind, call, None)

    def fail(self: _links.Links, *args: object) -> None:
        setattr(kind, call, whole_call)
        if how == "dies":
            os._exit(3)
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        self.abort()
        raise Timeout(110, "as if a link had broken")

    if dist.get_rank() == 1:
        setattr(kind, call, fail)
    began = time.monotonic()
    with pytest.raises(Timeout):
        ck.restore()
    assert time.monotonic() - began < 60, "several meetings of 8 s"
    if how == "breaks":
        ck._comm.timeout = 60
        assert ck.restore() == 1
        assert not _wrong(model, optim)
        return
    if dist.get_rank() == 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[1], signal.SIGKILL)
    os._exit(0)


@pytest.mark.parametrize("call", ["exchange", "allgather"])
@pytest.mark.parametrize("how, code", [
    ("breaks", 0), ("dies", 3), ("stops", -signal.SIGKILL)])
def test_a_rank_that_fails_in_an_exchange(nodes, way, call, how, code):
    _saved(nodes)
    assert wait(start(4, _break, nodes, call, how)) == [0, code, 0, 0]


def _fail_to_meet(nodes: Nodes, how: str) -> None:
    """Rank 1 does, when the others are at it."""
    class Meeting(_links.Meeting):
        def attend(self) -> _links.Sockets:
            if how == "dies":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGSTOP)
            return super().attend()

    model, optim = _job(False)
    ck = Checkpointer(model, optim, job="far", raising=True, timeout=8,
                      socket=_on(nodes, [1, 0, 1, 0]), local={"mine": {}})
    pids: list[int] = [0] * 4
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 1:
        _comm.Meeting = Meeting
    with pytest.raises(Timeout, match="rank 1 did not come to"):
        ck.restore()
    if dist.get_rank() == 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[1], signal.SIGKILL)
    os._exit(0)


@pytest.mark.parametrize("how, code", [("dies", 3),
                                       ("stops", -signal.SIGKILL)])
def test_a_rank_that_fails_to_meet(nodes, how, code):
    _saved(nodes)
    assert wait(start(4, _fail_to_meet, nodes, how)) == [0, code, 0, 0]


def _unready(nodes: Nodes) -> None:
    """Rank 1 cannot begin, when the others may have begun."""
    model, optim = _job(False)
    if dist.get_rank() == 1:
        def fail(devices: object) -> None:
            raise RuntimeError("as if a device had failed")

        _restore._device.settle = fail
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, [1, 0, 1, 0]), timeout=600) as ck:
        with pytest.raises((RuntimeError, Timeout)) as e:
            ck.restore()
        assert dist.get_rank() != 1 or "a device had failed" in str(e.value)


def test_a_rank_that_cannot_begin_keeps_nobody_waiting(nodes, way):
    _saved(nodes)
    run(4, _unready, nodes)


def _count_meetings(nodes: Nodes) -> None:
    """Each is a word of every rank to one store: few for a restore, however
    many words its plan takes."""
    model, optim = _job(False)
    kind = _by_python()
    meet, words = _comm.Comm.meet, kind.allgather
    counts = {"meetings": 0, "words": 0}

    def counting(call: Any, what: str) -> Any:
        def one(*args: Any) -> Any:
            counts[what] += 1
            return call(*args)
        return one

    _comm.Comm.meet = counting(meet, "meetings")
    kind.allgather = counting(words, "words")
    with Checkpointer(model, optim, job="far", raising=True,
                      socket=_on(nodes, [1, 1, 0, 0]), timeout=60) as ck:
        assert ck.restore() == 1
        assert not _wrong(model, optim)
    assert counts["words"] > 10, "by links"
    assert counts["meetings"] < 12, counts


def test_words_of_a_restore_need_no_meetings(nodes, way):
    _saved(nodes)
    run(4, _count_meetings, nodes)


# ---- from device to device ----

def _on_devices(nodes: Nodes, of: list[int], lacking: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if lacking and rank == 1:
        os.environ["SHARDKEEP_LIBNCCL"] = "/nonexistent"
    gpu.begin(rank)
    mesh = DeviceMesh(gpu.KIND, list(range(world)))
    full = whole("w", (64, 30))
    model = Holder({"w": sharded(full, mesh, (Shard(0),))})
    assert model.w._local_tensor.device.index == gpu.index(rank)
    with Checkpointer(model, job="devices", raising=True, timeout=60,
                      socket=_on(nodes, of)) as ck:
        if ck.restore() is None:
            ck.snapshot(1)
            ck.wait()
            return
        assert torch.equal(model.w._local_tensor.cpu(), local_part(
            full, mesh, (Shard(0),)))
        assert bool(ck.report.without_nccl) == lacking
        assert (ck.report.bytes_device > 0) != lacking
        assert ck.report.bytes_remote > 0


@gpu.needed
@pytest.mark.parametrize("lacking", [False, True])
def test_devices_of_other_nodes_by_nccl(nodes, way, monkeypatch, lacking):
    gpu.find(monkeypatch, devices=2)
    run(2, _on_devices, nodes, [0, 1], lacking)
    run(2, _on_devices, nodes, [1, 0], lacking)
