# SPDX-License-Identifier: Apache-2.0
"""Objects of ranks, when other ranks come back."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run
from shardkeep import Client, inspect
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader
from shardkeep.torch.full import load_tensors
from torch import nn

OPTIONS: dict[str, Any] = {"flush_every": 1 << 30, "raising": True}


def _save() -> None:
    rank = dist.get_rank()
    local = {"loader": {"at": 10 + rank}}
    if rank == 2:       # what only one rank has
        local["writer"] = {"lines": 7}
    with Checkpointer(nn.Linear(2, 2), job="objects", local=local, extra={
            "same": {"n": 1}, "own": {"n": rank, "text": "x" * 3000 * rank}},
            **OPTIONS) as ck:
        assert ck.snapshot(1)
        ck.wait()


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _load() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    said = _Said()
    logging.getLogger("shardkeep").addHandler(said)
    extra: dict[str, Any] = {"same": {}, "own": {}}
    loader = {"at": 0}
    with Checkpointer(nn.Linear(2, 2), job="objects", extra=extra,
                      local={"loader": loader}, **OPTIONS) as ck:
        assert ck.restore() == 1
        assert extra["same"] == {"n": 1}
        assert extra["own"]["n"] == (rank if rank < 3 else 0)
        assert loader["at"] == (10 + rank if rank < 3 else 0)
        warned = [s for s in said.said if "not the same" in s]
        assert bool(warned) == (world != 3 and rank == 0), said.said
        assert all("extra.own" in s and "rank 0; rank 1; rank 2" in s
                   for s in warned)
        # What was read for others does not stay in the next snapshot.
        assert ck.snapshot(2, wait=30)
        ck.wait()
        assert not ck._blobs._theirs
        assert not [n for n, r in ck._blobs._shared if r != rank]


def test_the_same_ranks_and_others(agent):
    for world in (3, 1, 2, 5):
        run(3, _save)
        run(world, _load)


def test_objects_are_no_tensors_of_the_model(agent):
    run(3, _save)
    assert set(load_tensors("objects")) == {"model.weight", "model.bias"}
    found = ShardkeepReader(job="objects").read_metadata()
    assert set(found.state_dict_metadata) == {"model.weight", "model.bias"}


def test_schedulers_within_others(agent):
    def made(groups: int) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        params = list(model.parameters())
        optim = torch.optim.SGD(
            [{"params": [p], "lr": 1.0 + i} for i, p in enumerate(params)]
            if groups == 2 else params, lr=5)
        lr = torch.optim.lr_scheduler
        return model, optim, lr.SequentialLR(
            optim, [lr.ConstantLR(optim, 0.5, 2), lr.ExponentialLR(
                optim, 0.9)], [3])

    def save() -> None:
        model, optim, sched = made(2)
        with Checkpointer(model, optim, job="nested", extra={"s": sched},
                          **OPTIONS) as ck:
            ck.snapshot(1)
            ck.wait()

    def load() -> None:
        model, optim, sched = made(1)
        with Checkpointer(model, optim, job="nested", extra={"s": sched},
                          **OPTIONS) as ck:
            assert ck.restore() == 1
        assert optim.param_groups[0]["lr"] == 0.5
        assert [s.base_lrs for s in sched._schedulers] == [[1.0], [1.0]]
        sched.step()

    run(1, save)
    run(2, load)


# ---- rows: what all ranks have, in one tensor ----

NAMES = ("a", "a:0", "a:all")       # as those of tensors end


def _one(extra: dict[str, Any], job: str = "rows", **options: Any
         ) -> Checkpointer:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    return Checkpointer(model, torch.optim.Adam(model.parameters()), job=job,
                        extra=extra, local={"loader": {"at": dist.get_rank()}},
                        **OPTIONS, **options)


def _named(job: str = "rows") -> dict[str, list[int]]:
    """The tensors that objects are in, and their shapes."""
    client = Client()
    held = inspect(client, job)
    client.close()
    return {t["name"].removeprefix("python:"): t["shape"]
            for t in held["tensors"] if t["name"].startswith("python:")}


def _items(directory: str, job: str) -> list[Any]:
    """What each rank's image on disk says that its rank describes, but for
    boxes, as the digests of descriptions have it."""
    found = []
    for path in sorted(Path(directory, "store", job).glob(
            "**/*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        said = json.loads(header["__metadata__"]["shardkeep"])["items"]
        found.append([{k: v for k, v in x.items() if k != "boxes" and not (
            k == "shape" and x["kind"] == "local")} for x in said])
    return found


def _save_rows(directory: str, job: str, restored: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    extra = {name: [name, rank, "x" * 100 * rank] for name in NAMES}
    with _one(extra, job) as ck:
        if restored:
            assert ck.restore() is None
        assert ck.snapshot(1, flush=True)
        ck.wait(until="durable")
    dist.barrier()
    if rank:
        return
    every = _items(directory, job)
    assert len(every) == world and all(x == every[0] for x in every)
    assert not any(x.get("explicit") for x in every[0])
    assert set(_named(job)) == {f"{n}:all" for n in (
        "optim", "params", *("extra." + n for n in NAMES))}


def _load_rows(job: str, saved: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    extra: dict[str, Any] = dict.fromkeys(NAMES)
    with _one(extra, job) as ck:
        assert ck.restore() == 1
        whose = rank if rank < saved else 0
        assert extra == {n: [n, whose, "x" * 100 * whose] for n in NAMES}
        before = _named(job)
        dist.barrier()
        assert ck.snapshot(2)
        ck.wait()
        dist.barrier()
        after = _named(job)
        assert after.keys() == before.keys()
        assert all(x == [world, before[n][1]] for n, x in after.items())


@pytest.mark.parametrize("restored", (False, True))
def test_ranks_of_the_same_objects_describe_the_same(agent, restored):
    for world in (3, 2, 1, 4):
        run(3, _save_rows, agent, f"rows-{world}", restored)
        run(world, _load_rows, f"rows-{world}", 3)


def _outgrow(job: str, alone: bool) -> None:
    """Objects that outgrow their rows, on one rank or on all."""
    rank = dist.get_rank()
    extra: dict[str, Any] = {"a": rank, "b": rank}
    with _one(extra, job) as ck:
        assert ck.restore() is None
        assert ck.snapshot(1)
        ck.wait()
        if rank == 1 or not alone:
            extra["a"] = [rank, "x" * 2000]
        extra["new"] = rank
        if rank == 2:
            del extra["b"]
        assert ck.snapshot(2, wait=30)
        ck.wait()
        dist.barrier()
        assert set(_named(job)) == {
            "optim:all", "params:all", "extra.a:all", "extra.b:all",
            *(f"extra.a:{r}" for r in ((1,) if alone else range(3))),
            *(f"extra.new:{r}" for r in range(3))}


def _find_outgrown(job: str, alone: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    extra: dict[str, Any] = {"a": 0, "b": -1, "new": -1}
    with _one(extra, job) as ck:
        assert ck.restore() == 2
        whose = rank if rank < 3 else 0
        assert extra["a"] == ([whose, "x" * 2000] if whose == 1 or not alone
                              else whose)
        assert extra["b"] == (whose if whose < 2 else 0)
        assert extra["new"] == whose
        dist.barrier()
        assert ck.snapshot(3, wait=30)
        ck.wait()
        dist.barrier()
        found = _named(job)
        # Only as many more times: one that is not alone has more room.
        assert found["extra.a:all"] == [world, 4096]
        assert set(found) == {"optim:all", "params:all", "extra.a:all",
                              "extra.b:all", "extra.new:all"}


@pytest.mark.parametrize("alone", (True, False))
def test_objects_that_outgrow_their_rows(agent, alone):
    for world in (3, 2, 4):
        job = f"grown-{world}"
        run(3, _outgrow, job, alone)
        run(world, _find_outgrown, job, alone)


def test_ones_rank_huge_object_is_no_room_for_all(agent):
    def save() -> None:
        rank = dist.get_rank()
        with _one({"a": "x" * (1 << 20 if rank == 0 else 10)}) as ck:
            assert ck.snapshot(1)
            ck.wait()
            dist.barrier()
            found = _named()
            assert found["extra.a:all"] == [2, 1024]
            assert found["extra.a:0"] == [1 << 22]

    def load() -> None:
        extra = {"a": ""}
        with _one(extra) as ck:
            assert ck.restore() == 1
        assert len(extra["a"]) == (10 if dist.get_rank() == 1 else 1 << 20)

    run(2, save)
    run(2, load)
    run(3, load)


def test_what_one_rank_cannot_store_keeps_nobody_waiting(agent):
    def save() -> None:
        rank = dist.get_rank()
        extra: dict[str, Any] = {"a": object() if rank else 1}
        with _one(extra, timeout=20) as ck:
            assert ck.restore() is None
            if rank:
                with pytest.raises(TypeError, match="extra.a is a"):
                    ck.snapshot(1)
                extra["a"] = 2
            else:
                assert ck.snapshot(1)
            assert ck.snapshot(2, wait=30)
            ck.wait(2)
        dist.barrier()
        assert "extra.a:0" in _named() and "extra.a:all" not in _named()

    run(2, save)


def test_ranks_that_have_other_objects(agent):
    def save() -> None:
        rank = dist.get_rank()
        with _one({"a": rank, f"of {rank % 2}": rank}) as ck:
            assert ck.restore() is None
            assert ck.snapshot(1)
            ck.wait()
        dist.barrier()
        assert set(_named()) == {
            "optim:all", "params:all", "extra.a:all", "extra.of 0:0",
            "extra.of 1:1", "extra.of 0:2"}

    def load() -> None:
        rank = dist.get_rank()
        extra: dict[str, Any] = {"a": -1, f"of {rank % 2}": -1}
        with _one(extra) as ck:
            assert ck.restore() == 1
        assert extra == {"a": rank, f"of {rank % 2}": rank}

    run(3, save)
    run(3, load)


@pytest.mark.parametrize("rows", ([1024, 2048], [1024, None]))
def test_ranks_that_do_not_agree_go_on_without(agent, caplog, rows):
    """As where an exchange ends well for one of them alone."""
    def save() -> None:
        with _one({"a": 1}) as ck:
            assert ck.restore() is None
            ck._describing.all()
            mine = rows[dist.get_rank()]
            ck._blobs.agree({"extra.a": mine} if mine else {})
            assert ck.snapshot(1)
            ck.wait(until="sealed")
            dist.barrier()
            assert ck.snapshot(2, wait=30)
            assert not mine or "never be complete: " in caplog.text
            ck.wait(2)

    run(2, save)


# ---- as they were kept before there were rows ----

def _save_older() -> None:
    rank = dist.get_rank()
    with _one({"a": [rank, "x" * 600 * rank]}) as ck:
        ck._blobs.agree = lambda rows: None     # type: ignore[method-assign]
        assert ck.snapshot(1)
        ck.wait()
        dist.barrier()
        assert set(_named()) == {f"{n}:{r}" for n in (
            "optim", "params", "extra.a") for r in range(3)}


def _load_older() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    extra: dict[str, Any] = {"a": None}
    with _one(extra) as ck:
        assert ck.restore() == 1
        whose = rank if rank < 3 else 0
        assert extra["a"] == [whose, "x" * 600 * whose]
        dist.barrier()
        assert ck.snapshot(2)
        ck.wait()
        dist.barrier()
        found = _named()
        assert set(found) == {"optim:all", "params:all", "extra.a:all"}
        assert found["extra.a:all"] == [world, 4096]


def test_snapshots_of_before_come_back_and_have_rows_then(agent):
    for world in (3, 2, 1, 5):
        run(3, _save_older)
        run(world, _load_older)
