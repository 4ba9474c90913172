# SPDX-License-Identifier: Apache-2.0
"""Ranks that agree: whatever fails on one of them, none hangs, and all
restore the same snapshot or none."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import pytest
import shardkeep.torch._restore as restoring
import torch
import torch.distributed as dist
from harness import run, start, wait
from shardkeep import Damaged, Error, Invalid, NotFound, Timeout
from shardkeep.torch import Checkpointer, _comm, _meeting
from shardkeep.torch._comm import Comm
from shardkeep.torch._together import together
from shardkeep.torch.full import full_state_dict
from torch import nn

OPTIONS: dict[str, Any] = {"flush_every": 1 << 30, "raising": True}


def _fail_once(owner: Any, name: str, what: Exception) -> None:
    """The next call of it on rank 1 fails."""
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, real)
        raise what

    if dist.get_rank() == 1:
        setattr(owner, name, call)


def _walk(where: str, kind: str) -> None:
    model = nn.Linear(3, 3)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Checkpointer(model, optim, job="walk", timeout=60, slots=3,
                      **OPTIONS) as ck:
        for step in (1, 2):
            with torch.no_grad():
                model.weight.fill_(step)
            assert ck.snapshot(step, wait=30)
            ck.wait()
        dist.barrier()
        what = {"damaged": Damaged(74, "a bit flipped"),
                "gone": NotFound(2, "it was evicted"),
                "other": ValueError("of another kind"),
                "refused": Error(13, "not allowed")}[kind]
        owner, name = {
            "beyond": (restoring.Restore, "_beyond"),
            "missing": (restoring.Restore, "_make_missing"),
            "describe": (restoring.Restore, "_describe"),
            "ready": (restoring.Restore, "_make_ready"),
            "objects": (type(ck._kept), "load"),
            "suffices": (type(ck._kept), "suffices"),
            "list": (restoring, "offers"),
            "items": (type(ck._tensors), "items"),
            "current": (type(ck._describing), "is_current"),
            "rows": (type(ck._blobs), "settle"),
        }[where]
        _fail_once(owner, name, what)
        if kind in ("damaged", "gone") and where != "list":
            assert ck.restore() == 1
            assert (model.weight == 1).all()
        else:
            mine = dist.get_rank() == 1
            with pytest.raises(type(what) if mine or isinstance(what, Error)
                               else RuntimeError, match="" if mine
                               else "rank 1: "):
                ck.restore()
        assert ck.restore() == 2, "and in step again"
        assert (model.weight == 2).all()
        assert ck.snapshot(3, wait=30)
        ck.wait()


@pytest.mark.parametrize("where", ["beyond", "missing", "describe", "ready",
                                   "items", "suffices", "objects"])
def test_a_candidate_is_left_together(agent, where):
    run(2, _walk, where, "damaged")


@pytest.mark.parametrize("where, kind", [
    ("list", "refused"), ("beyond", "gone"), ("objects", "other"),
    ("describe", "other"), ("ready", "other"), ("current", "other"),
    ("rows", "other")])
def test_what_cannot_be_passed_over_is_told_to_all(agent, where, kind):
    run(2, _walk, where, kind)


def _ask_for_other_steps(ck: Checkpointer) -> None:
    """None is given a step that it did not ask for."""
    rank = dist.get_rank()
    for step, why in ((rank + 1, "rank 0 asks for step 1, and rank 1 for step "
                                 "2: all ranks must"),
                      (1 if rank else None, "the newest step, and rank 1")):
        with pytest.raises(Invalid, match=why):
            ck.restore(step)
        with pytest.raises(Invalid, match=why):
            full_state_dict("anew", step)
    with pytest.raises(Invalid, match="rank 1 for the newest step with strict"
                                      "=False: all ranks must"):
        ck.restore(strict=rank == 0)
    assert ck.restore(1) == 1


def _begins_anew() -> None:
    """Rank 1 fails where nobody hears it, and calls once more: what it says
    then is no answer to what the others ask."""
    model = nn.Linear(3, 3)
    with Checkpointer(model, job="anew", timeout=60, **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        _ask_for_other_steps(ck)
        if dist.get_rank() == 1:
            with pytest.MonkeyPatch.context() as m:
                m.setattr(restoring.Restore, "_load", None)
                with pytest.raises(TypeError):
                    ck.restore()
        with pytest.raises(Timeout, match=r"at different points of restore\("
                                          r"\): it has failed on one of them"):
            ck.restore()
        assert ck.restore() == 1


def test_a_rank_that_fails_and_begins_anew(agent):
    run(2, _begins_anew)


def _late() -> None:
    """Rank 1 comes when rank 0 has given up, and is in step again."""
    model = nn.Linear(2, 2)
    with Checkpointer(model, job="late", timeout=1, **OPTIONS) as ck:
        if dist.get_rank() == 0:
            with pytest.raises(Timeout, match=r"rank 1 did not come to "
                                              r"restore\(\) within 1 s"):
                ck.restore()
        dist.barrier()
        if dist.get_rank() == 1:
            with pytest.raises(Timeout, match="rank 1 did not come"):
                ck.restore()
        dist.barrier()
        ck._comm.timeout = 60
        assert ck.restore() is None
        assert ck.snapshot(1)
        ck.wait()
        dist.barrier()
        assert ck.restore() == 1


def test_a_rank_that_comes_too_late(agent):
    run(2, _late)


def _elsewhere() -> None:
    model = nn.Linear(2, 2)
    with Checkpointer(model, job="elsewhere", timeout=60, **OPTIONS) as ck:
        rank = dist.get_rank()
        with pytest.raises(Timeout, match=r"rank . is in (snapshot|restore)"):
            ck.snapshot(1) if rank else ck.restore()
        dist.barrier()
        assert ck.restore() is None


def test_ranks_in_different_calls(agent):
    run(2, _elsewhere)


def _leaves(where: str) -> None:
    """Rank 1 ends in the middle; the others are told."""
    model = nn.Linear(2, 2)
    ck = Checkpointer(model, job="leaves", timeout=5, **OPTIONS)
    if dist.get_rank() == 1:
        def leave(*_: Any, **__: Any) -> None:
            os._exit(3)
        if where == "restore":
            restoring.offers = leave
        else:
            type(ck._describing).find_holders = leave
    try:
        ck.restore() if where == "restore" else ck.snapshot(1)
    except Error as e:
        os._exit(0 if "rank 1" in str(e) else 4)
    os._exit(5)


@pytest.mark.parametrize("where", ["restore", "snapshot"])
def test_a_rank_that_leaves(agent, where):
    assert wait(start(2, _leaves, where)) == [0, 3]


def _dies(first: bool) -> None:
    """Rank 1 ends where the ranks speak through the agent: most often before
    the other one comes there, or while that waits for it."""
    model = nn.Linear(2, 2)
    ck = Checkpointer(model, job="dies", timeout=5 if first else 20, **OPTIONS)
    assert ck.snapshot(1)
    ck.wait()
    dist.barrier()
    if dist.get_rank() == 1:
        def leave(*_: Any) -> None:
            os._exit(3)
        restoring.Restore._move_bytes = leave
    elif first:
        real = restoring.Restore._move_bytes

        def come_late(*args: Any) -> Any:
            time.sleep(0.5)
            return real(*args)
        restoring.Restore._move_bytes = come_late
    try:
        ck.restore()
    except Error as e:
        os._exit(0 if "rank 1" in str(e) and "gone" in str(e) else 4)
    os._exit(5)


@pytest.mark.parametrize("first", [False, True])
def test_a_rank_that_dies_when_all_agreed(agent, first):
    assert wait(start(2, _dies, first)) == [0, 3]


def _host_dies() -> None:
    """The store where ranks meet is rank 0's."""
    model = nn.Linear(2, 2)
    ck = Checkpointer(model, job="host", timeout=20, **OPTIONS)
    assert ck.snapshot(1)
    ck.wait()
    dist.barrier()
    if dist.get_rank() == 0:
        os._exit(3)
    for _ in range(2):
        try:
            ck.restore()
        except Timeout as e:
            assert "rank" in str(e), e
        else:
            os._exit(5)
    os._exit(0)


def test_the_rank_that_has_the_store_dies(agent):
    assert wait(start(2, _host_dies)) == [3, 0]


def _forks() -> None:
    """What a child asks is not heard by the other ranks."""
    model = nn.Linear(2, 2)
    ck = Checkpointer(model, job="forks", timeout=20, **OPTIONS)
    assert ck.snapshot(1)
    ck.wait()
    if dist.get_rank() == 1:
        pid = os.fork()
        if not pid:
            try:
                ck.restore()
            except Error as e:
                os._exit(0 if e.errno == errno.EOWNERDEAD else 4)
            os._exit(5)
        assert os.waitpid(pid, 0)[1] == 0
    for _ in range(2):
        assert ck.restore() == 1
    os._exit(0)


def test_a_forked_child_asks_for_nothing(agent):
    assert wait(start(2, _forks)) == [0, 0]


def _meetings() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    comms = [Comm(None, "same", 60), Comm(None, "same", 60)]
    for i in range(20):
        comm = comms[i % 2]
        mine = bytes([rank, i]) * (i * 100)
        assert comm.allgather(mine, "a") == b"".join(
            bytes([r, i]) * (i * 100) for r in range(world))
        assert comm.share(bytes([rank]) * rank, "b") == [
            bytes([r]) * r for r in range(world)]
    for n in (0, 503, 504, 505, 5000):      # around what goes along at once
        assert comms[0].share(bytes([rank]) * (n + rank), "s") == [
            bytes([r]) * (n + r) for r in range(world)]
    half = dist.new_group([0, world - 1])
    if rank in (0, world - 1):
        comm = Comm(half, "same", 60)
        assert comm.world == 2
        assert comm.share(b"%d" % rank, "c") == [b"0", b"%d" % (world - 1)]


def _meetings_of_gpus() -> None:
    _comm.carries_cpu = lambda group: False     # as of NCCL's alone
    dist.all_gather = None
    _meetings()


def _meetings_of_many() -> None:
    _meeting._FEW = 2      # with so many the words do not go along
    _meetings()


def _words_that_go_along() -> None:
    """What is short needs nothing but the store, of whatever bytes it is."""
    rank, world = dist.get_rank(), dist.get_world_size()
    comm = Comm(None, "along", 60)
    Comm._gather = None
    for word in (b"", b"\0", b"\0\xff" * 200, b"go\0", bytes(504)):
        assert comm.share(word + bytes([rank]) * (len(word) < 504), "w") == [
            word + bytes([r]) * (len(word) < 504) for r in range(world)]


def _at_different_points() -> None:
    """Each in the call that the others are in, and not in step there."""
    rank = dist.get_rank()
    comm = Comm(None, "points", 60)
    calls = [lambda: comm.allgather(b"x", "call()"),
             lambda: comm.share(b"x", "call()"),
             lambda: comm.share(b"x", "call()", kind="links"),
             lambda: comm.whether(True, "call()"),
             lambda: comm.meet("call()")]
    for one in calls:
        for other in calls:
            if one is other:
                continue
            with pytest.raises(Timeout, match=r"rank . and ranks? .* are at "
                                              r"different points of call\(\)"):
                one() if rank else other()
            assert comm.share(b"%d" % rank, "after") == [b"0", b"1", b"2"]


def _fails_apart(kind: type[Exception]) -> None:
    """A rank raises what it has to tell and nobody hears; what has others try
    another snapshot has them try none here."""
    rank = dist.get_rank()
    comm = Comm(None, "fails", 60)

    def fail() -> None:
        raise kind(5, "of its own")

    with pytest.raises(kind if rank and kind is Error else Timeout,
                       match="of its own" if rank else "different points"):
        together(comm, "call()", fail) if rank == 1 else \
            comm.allgather(b"x", "call()")
    assert together(comm, "call()", lambda: rank) == [0, 1]


@pytest.mark.parametrize("kind", [Error, NotFound])
def test_what_fails_where_the_others_do_not_hear_it(kind):
    run(2, _fails_apart, kind)


@pytest.mark.parametrize("few", [1, 16])
def test_ranks_at_different_points_of_a_call(few, monkeypatch):
    monkeypatch.setattr(_meeting, "_FEW", few)
    run(3, _at_different_points)


def _another_version(raw: bytes) -> None:
    """Rank 1 does in the store what those of others do."""
    rank = dist.get_rank()
    comm = Comm.at("versions", rank, 2, 60)
    if rank:
        comm._store.set("0/1", raw)
        comm._store.add("0/there", 1)
        comm._store.set("1/verdict", b"go\0")
    dist.barrier()
    if rank == 0:
        for whose in ("rank 1", "others"):
            with pytest.raises(Timeout, match=f"{whose} and rank 0 have "
                               "different versions of shardkeep"):
                comm.meet("restore()")
    dist.barrier()


@pytest.mark.parametrize("raw", [b"restore()", b"restore()\0",
                                 b"restore()\0\5\0\0\0\0\0\0\0words",
                                 b"restore()\0later\0words", b"", b"\xff\0"])
def test_ranks_of_another_version(raw):
    run(2, _another_version, raw)


def _what_rounds_without_all_leave() -> None:
    """Those that some did not come to, and votes, of whoever is not rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    store = _comm.default_store()
    dist.barrier()
    comm, most = Comm.at("apart", rank, world, 60), 0
    for i in range(60):
        if i % 4:
            with pytest.raises(Timeout):
                comm.meet(f"m{rank}")
        else:
            assert comm.whether(rank == 1, "w")
        dist.barrier()
        keys = store.num_keys()
        dist.barrier()      # leaves none that differ from turn to turn
        most = keys if i == 20 else most
        assert i <= 20 or i % 4 or keys <= most, (i, keys, most)
    assert len(comm._votes) <= 8
    dist.barrier()
    if rank == 1:
        comm.end()
        assert not any(store.check([f"apart/{n}/{key}"]) for n in range(60)
                       for key in (*range(world), "there", "verdict", "yes",
                                   "failed"))
    dist.barrier()


@pytest.mark.parametrize("few", [1, 16])
def test_rounds_that_not_all_came_to_leave_nothing(few, monkeypatch):
    monkeypatch.setattr(_meeting, "_FEW", few)
    run(3, _what_rounds_without_all_leave)


def _what_meetings_leave() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    store = _comm.default_store()
    dist.barrier()
    comm, before = Comm.at("left", rank, world, 60), store.num_keys()
    dist.barrier()
    for i in range(30):
        if i % 2:
            assert comm.whether(rank == 1, "w")
        else:
            comm.meet("m")
        dist.barrier()      # each leaves a few keys of its own
        assert store.num_keys() <= before + 8 * (world + 4) + 64, i
    dist.barrier()
    if rank == 0:
        comm.end()
        assert not any(store.check([f"left/{n}/{key}"]) for n in range(30)
                       for key in (*range(world), "there", "verdict", "yes",
                                   "failed"))
    dist.barrier()


@pytest.mark.parametrize("few", [1, 16])
def test_meetings_leave_nothing(few, monkeypatch):
    monkeypatch.setattr(_meeting, "_FEW", few)
    run(3, _what_meetings_leave)


@pytest.mark.parametrize("meetings", [_meetings, _meetings_of_gpus,
                                      _meetings_of_many,
                                      _words_that_go_along])
def test_meetings(meetings):
    run(3, meetings)


@pytest.mark.parametrize("world", [2, 48, 1024, 16384])
def test_one_store_can_answer_all_who_wait(world):
    """A late rank is seen within an eighth of what it is waited for, or of
    the time that the store takes to tell all."""
    comm = Comm(None, "waiting", 60)
    comm.world = world
    waited, asked = 0.0, 0
    while waited < 10:
        pause = comm.pause(waited)
        assert pause <= 1.01 * max(waited / 8, world / 20000)
        waited += pause
        asked += 1
    assert asked * world <= 1.01 * 20000 * 10 + world
    assert asked * world >= min(world * 50, 20000)
