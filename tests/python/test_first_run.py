# SPDX-License-Identifier: Apache-2.0
"""Who finds nothing begins anew: that is said where there is nothing, and not
where something is that cannot be restored."""

from __future__ import annotations

import errno
import glob
import logging
import os
import signal
import subprocess
from typing import Any

import pytest
import shardkeep.torch._reading as reading
import shardkeep.torch._restore as restoring
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import Logged, Nodes, run
from models import Shard, sharded, whole
from shardkeep import Client, Damaged, Error, NotFound, snapshots
from shardkeep._tools import path as program
from shardkeep.torch import Checkpointer
from shardkeep.torch.dcp import ShardkeepReader
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.device_mesh import init_device_mesh

OPTIONS: dict[str, Any] = {"job": "once", "raising": True, "timeout": 60}


def _save(socket: str, steps: tuple[int, ...] = (3,)) -> None:
    with Checkpointer(nn.Linear(3, 3), socket=socket, **OPTIONS) as ck:
        for step in steps:
            ck.snapshot(step, flush=True, wait=30)
            ck.wait(until="durable")


def _flip_the_last_byte(path: str) -> None:
    with open(path, "r+b") as f:
        f.seek(-1, 2)
        last = f.read(1)[0]
        f.seek(-1, 2)
        f.write(bytes([last ^ 1]))


def _files(nodes: Nodes) -> list[str]:
    found = glob.glob(f"{nodes._directories[0]}/store/once/*/rank-*")
    assert found
    return found


def _restores_nothing(socket: str) -> None:
    """However often it is tried."""
    with Checkpointer(nn.Linear(3, 3), socket=socket, **OPTIONS) as ck:
        for _ in range(2):
            with pytest.raises(Damaged):
                ck.restore()


def _loads_nothing(socket: str) -> None:
    for group in (None, dist.group.WORLD):
        with pytest.raises(CheckpointException, match="is damaged"):
            dcp.load({"model.weight": torch.zeros(3, 3)},
                     storage_reader=ShardkeepReader(
                         job="once", socket=socket, process_group=group))


@pytest.mark.parametrize("world", [1, 2])
def test_what_is_damaged_is_there(nodes, world):
    run(world, _save, nodes[0])
    nodes.restart(0, signal.SIGKILL)
    for path in _files(nodes):
        _flip_the_last_byte(path)
    run(world, _restores_nothing, nodes[0])
    run(world, _restores_nothing, nodes[0])     # by the next life as well
    run(world, _loads_nothing, nodes[0])


def _flip_in_the_header(path: str) -> None:
    with open(path, "r+b") as f:
        f.seek(200)
        byte = f.read(1)[0]
        f.seek(200)
        f.write(bytes([byte ^ 1]))


def _cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _raises(socket: str) -> None:
    with Checkpointer(nn.Linear(3, 3), socket=socket, **OPTIONS) as ck:
        for _ in range(2):
            with pytest.raises(Error, match="is damaged: ") as e:
                ck.restore()
            assert e.value.errno == errno.EIO


@pytest.mark.parametrize("damage", [_flip_in_the_header, _cut])
@pytest.mark.parametrize("world", [1, 2])
def test_what_is_no_image_any_more_was_there(nodes, world, damage):
    """Of one rank alone, too: then the rest is not whole."""
    run(world, _save, nodes[0])
    nodes.restart(0, signal.SIGKILL)
    damage(sorted(_files(nodes))[-1])
    run(world, _raises, nodes[0])
    run(world, _raises, nodes[0])


def _restores_none(sockets: list[str]) -> None:
    """The first rank's node has nothing."""
    with Checkpointer(nn.Linear(3, 3), socket=sockets[dist.get_rank()],
                      **OPTIONS) as ck, pytest.raises(Error):
        ck.restore()


def test_what_is_no_image_any_more_was_there_for_all_nodes(nodes):
    run(1, _save, nodes[0])
    nodes.restart(0, signal.SIGKILL)
    for path in _files(nodes):
        _cut(path)
    run(2, _restores_none, list(nodes))


def test_what_one_node_alone_has_is_there(nodes, monkeypatch):
    """By a torch that has nothing to bring it with."""
    run(1, _save, nodes[1])
    monkeypatch.setattr(restoring, "links_available", lambda: False)
    run(2, _restores_none, list(nodes))


def _finds_at_second_sight(socket: str) -> None:
    """It is whole when the library looks, as what was replaced meanwhile."""
    real, looks = restoring.offers, []

    def offers(*args: Any) -> Any:
        told = real(*args)
        looks.append(told)
        return {**told, "complete": [], "parts": []} if len(looks) < 2 \
            else told

    with pytest.MonkeyPatch.context() as m, Checkpointer(
            nn.Linear(3, 3), socket=socket, **OPTIONS) as ck:
        m.setattr(restoring, "offers", offers)
        assert ck.restore() == 3
        m.setattr(restoring, "offers", lambda *args: {
            **real(*args), "complete": [], "parts": []})
        with pytest.raises(Error) as e:
            ck.restore()
        assert e.value.errno == errno.EIO
        m.setattr(reading, "offers", restoring.offers)
        if dist.get_world_size() > 1:
            with pytest.raises(CheckpointException, match="load again"):
                dcp.load({}, storage_reader=ShardkeepReader(
                    job="once", socket=socket,
                    process_group=dist.group.WORLD))


@pytest.mark.parametrize("world", [1, 2])
def test_what_comes_while_it_is_looked_for_is_there(nodes, world):
    run(world, _save, nodes[0])
    run(world, _finds_at_second_sight, nodes[0])


def _ends_in_its_first(socket: str, rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Module()
    model.w = nn.Parameter(sharded(whole("w", (6, 2)), mesh, (Shard(0),),
                                   True))
    with Checkpointer(model, socket=socket, **OPTIONS) as ck:
        assert ck.restore() is None
        if dist.get_rank() == rank:
            ck.snapshot(1)
            ck.wait(until="sealed")
        os._exit(0)


def test_what_never_was_whole_is_nothing(nodes):
    """A job that ended in its first snapshot begins anew."""
    for rank in (0, 1, 0):
        run(2, _ends_in_its_first, nodes[0], rank)
    client = Client(nodes[0])
    found = snapshots(client, "once")
    client.close()
    assert found and not any(s["complete"] for s in found)


def _sharded(sockets: list[str]) -> Checkpointer:
    """Of a model that takes both ranks; their agents are two."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Module()
    model.w = nn.Parameter(sharded(whole("w", (6, 2)), mesh, (Shard(0),),
                                   True))
    return Checkpointer(model, socket=sockets[dist.get_rank()], **OPTIONS)


def _saves_in_part(sockets: list[str], ranks: tuple[int, ...]) -> None:
    """Each rank that is named; the others end before that."""
    with _sharded(sockets) as ck:
        assert ck.restore() is None
        if dist.get_rank() in ranks:
            ck.snapshot(1)
            ck.wait(until="sealed")
        os._exit(0)


def _is_in_part(sockets: list[str]) -> None:
    with _sharded(sockets) as ck:
        for _ in range(2):
            with pytest.raises(NotFound, match="step 1 .* is not complete on "
                                               "the 2 nodes"):
                ck.restore()


def _begins_anew(sockets: list[str]) -> None:
    with _sharded(sockets) as ck:
        assert ck.restore() is None
        ck.snapshot(1)
        ck.wait(until="sealed")


def _goes_on(sockets: list[str]) -> None:
    with _sharded(sockets) as ck:
        assert ck.restore() == 1


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_there_in_part_of_several_nodes(nodes, lost):
    """Whether it was ever whole no agent knows: a job that ended in its first
    snapshot, and one of which a node has lost its memory, leave the same.
    Somebody says that nothing was, and it begins anew."""
    run(2, _saves_in_part, list(nodes), (0, 1) if lost else (0,))
    if lost:
        nodes.restart(1, signal.SIGKILL, disk=False)
    run(2, _is_in_part, list(nodes))
    for where in ("--memory", "--disk"):
        subprocess.run([program("cachectl"), "evict", "--force", where,
                        "--socket", nodes[0], "once/1"], check=False)
    run(2, _begins_anew, list(nodes))
    run(2, _goes_on, list(nodes))


def _is_the_rest(socket: str) -> None:
    """Of what two nodes had, on one of them; also as one rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Module()
    model.w = nn.Parameter(sharded(whole("w", (6, 2)), mesh, (Shard(0),),
                                   True))
    with Checkpointer(model, socket=socket, **OPTIONS) as ck:
        for _ in range(2):
            with pytest.raises(NotFound, match="step 1 .* is not complete: 1 "
                               "of 2 ranks have no image.*evict --force"):
                ck.restore()


@pytest.mark.parametrize("kept", ["memory", "disk"])
@pytest.mark.parametrize("world", [1, 2])
def test_what_is_left_on_one_of_several_nodes_is_there(nodes, world, kept):
    """A job that loses a node and goes on without begins at nothing only where
    somebody says so."""
    run(2, _saves_in_part, list(nodes), (0, 1))
    if kept == "disk":
        nodes.restart(1, signal.SIGTERM)
    run(world, _is_the_rest, nodes[1])
    for where in ("--memory", "--disk"):
        subprocess.run([program("cachectl"), "evict", "--force", where,
                        "--socket", nodes[1], "once/1"], check=False)
    run(2, _begins_anew, [nodes[1]] * 2)
    run(2, _goes_on, [nodes[1]] * 2)


def _goes_back(socket: str, step: int | None) -> None:
    said = Logged()
    logging.getLogger("shardkeep").addHandler(said)
    with _sharded([socket] * 2) as ck:
        assert ck.restore(step) == 1
    newer = [x for x in said.found if "goes back to step 1 of run 1: step 2 "
             "of run 2 is not complete" in x]
    assert len(newer) == (step is None and dist.get_rank() == 0), said.found


def _saves_on_several(sockets: list[str]) -> None:
    with _sharded(sockets) as ck:
        assert ck.restore() == 1
        ck.snapshot(2)
        ck.wait(until="complete")


def test_what_is_older_than_what_several_nodes_had_is_said(nodes):
    """A job that has grown, and is where it began."""
    run(2, _begins_anew, [nodes[0]] * 2)
    run(2, _saves_on_several, list(nodes))
    for step in None, 1:
        run(2, _goes_back, nodes[0], step)
