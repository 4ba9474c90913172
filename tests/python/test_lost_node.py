# SPDX-License-Identifier: Apache-2.0
"""A node is lost: what its ranks had in common with others comes from those,
and what each had alone is not left out unasked."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
from typing import Any

import linear
import pytest
import torch
import torch.distributed as dist
from harness import Logged, Nodes, run, start, wait
from models import Holder, Replicate, Shard, sharded, whole
from shardkeep import Client, NotFound, snapshots
from shardkeep.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

OF = [0, 0, 1, 1]       # the nodes of ranks that save
KEPT = [True, "node"]   # ways in which each node has all


def _checkpointer(nodes: Nodes, of: list[int], own: bool, replicas: Any,
                  model: nn.Module, optim: torch.optim.Optimizer,
                  at: dict[str, int], mine: dict[str, int],
                  slots: int = 0) -> Checkpointer:
    words = {"extra": {"at": at}, "local": {"mine": mine}} if own else {}
    return Checkpointer(model, optim, job="lost", raising=True, timeout=60,
                        socket=nodes[of[dist.get_rank()]], rng=own,
                        replicas=replicas, slots=slots, **words)


def _save(nodes: Nodes, directory: str, own: bool, replicas: Any) -> None:
    """Three steps."""
    model, optim = linear.training()
    rank, at = dist.get_rank(), {"step": 0}
    ck = _checkpointer(nodes, OF, own, replicas, model, optim, at,
                       {"rank": rank})
    assert ck.restore() is None
    for step in range(1, 4):
        linear.step(model, optim)
        at["step"] = step
        ck.snapshot(step, wait=60, flush=False)
        ck.fence()
        ck.wait(step, until="sealed")
        if rank == 0:
            torch.save(linear.values(model, optim), f"{directory}/step-{step}")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _saved(nodes: Nodes, directory: pathlib.Path, own: bool, replicas: Any,
           lost: int | None = 1) -> str:
    codes = wait(start(4, _save, nodes, str(directory), own, replicas))
    assert codes == [-signal.SIGKILL] * 4
    if lost is not None:
        nodes.restart(lost, signal.SIGKILL, disk=False)
    return str(directory)


def _load(nodes: Nodes, directory: str, of: list[int], own: bool,
          replicas: Any, lost_ok: bool, want: int | None) -> None:
    model, optim = linear.training()
    rank, said = dist.get_rank(), Logged()
    logging.getLogger("shardkeep").addHandler(said)
    mine, at = {"rank": -1}, {"step": -1}
    with _checkpointer(nodes, of, own, replicas, model, optim, at,
                       mine) as ck:
        if want is None:
            with pytest.raises(NotFound):
                ck.restore(lost_ok=lost_ok)
            return
        assert ck.restore(lost_ok=lost_ok) == want
        # By one rank, and where that is so.
        assert len(said.found) == (own and rank == 0), said.found
        saved = torch.load(f"{directory}/step-{want}")
        for has, had in zip(linear.values(model, optim), saved, strict=True):
            assert torch.equal(has, had)
        if own:
            assert at["step"] == want
            # The first node's ranks have their own.
            assert mine["rank"] == (rank if rank < 2 else -1)
        # And goes on.
        linear.step(model, optim)
        ck.snapshot(want + 1, wait=60)
        ck.wait(want + 1)


@pytest.mark.parametrize("replicas", KEPT)
def test_what_is_common_comes_from_the_others(nodes, tmp_path, replicas):
    directory = _saved(nodes, tmp_path, False, replicas)
    run(4, _load, nodes, directory, OF, False, replicas, False, 3)


@pytest.mark.parametrize("replicas", KEPT)
def test_what_ranks_had_alone_is_not_left_out_unasked(nodes, tmp_path,
                                                      replicas):
    directory = _saved(nodes, tmp_path, True, replicas)
    run(4, _load, nodes, directory, OF, True, replicas, False, None)
    run(4, _load, nodes, directory, OF, True, replicas, True, 3)


@pytest.mark.parametrize("first", [0, 1])
def test_whichever_node_it_is(nodes, tmp_path, first):
    directory = _saved(nodes, tmp_path, False, "node", lost=first)
    run(4, _load, nodes, directory, [1, 0, 1, 0], False, "node", False, 3)


@pytest.mark.parametrize("replicas", KEPT)
def test_a_job_goes_on_on_the_other_node(nodes, tmp_path, replicas):
    """With the ranks that were there, as if nothing had been."""
    directory = _saved(nodes, tmp_path, True, replicas)
    run(2, _load, nodes, directory, [0, 0], True, replicas, False, 3)


def test_ranks_that_were_lost_come_back_on_the_other_node(nodes, tmp_path):
    directory = _saved(nodes, tmp_path, True, "node")
    run(3, _load, nodes, directory, [0, 0, 0], True, "node", False, None)
    run(3, _load, nodes, directory, [0, 0, 0], True, "node", True, 3)


NAMES = {"a": (9, 4), "b": (64, 30), "odd": (5,)}


def _hsdp(fill: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Shards on the ranks of a node, copies on the other one."""
    mesh = init_device_mesh("cpu", (2, 2))
    model = Holder({k: sharded(whole(k, shape), mesh, (Replicate(), Shard(0)),
                               fill) for k, shape in NAMES.items()})
    for p in model.parameters():
        p.requires_grad_(True)
        p.grad = p.detach() * 2 if fill else None
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _sums(model: nn.Module, optim: torch.optim.Optimizer) -> list[float]:
    moments = [optim.state[p][k] for p in model.parameters()
               for k in ("exp_avg", "exp_avg_sq")]
    return [x.to_local().double().sum().item()
            for x in (*model.parameters(), *moments)]


def _save_hsdp(nodes: Nodes, directory: str, replicas: Any) -> None:
    model, optim = _hsdp(True)
    rank = dist.get_rank()
    ck = Checkpointer(model, optim, job="hsdp", raising=True, timeout=60,
                      socket=nodes[OF[rank]], replicas=replicas)
    assert ck.restore() is None
    optim.step()
    ck.snapshot(1, wait=60, flush=False)
    ck.wait(1, until="complete")
    torch.save(_sums(model, optim), f"{directory}/hsdp-{rank}")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _load_hsdp(nodes: Nodes, directory: str, replicas: Any,
               lost_ok: bool) -> None:
    model, optim = _hsdp(False)
    rank = dist.get_rank()
    with Checkpointer(model, optim, job="hsdp", raising=True, timeout=60,
                      socket=nodes[OF[rank]], replicas=replicas) as ck:
        if not replicas or not lost_ok:
            with pytest.raises(NotFound):
                ck.restore(lost_ok=lost_ok)
            return
        assert ck.restore(lost_ok=True) == 1
        assert _sums(model, optim) == torch.load(f"{directory}/hsdp-{rank}")


@pytest.mark.parametrize("replicas", [*KEPT, False])
def test_shards_that_the_other_node_has_as_well(nodes, tmp_path, replicas):
    wait(start(4, _save_hsdp, nodes, str(tmp_path), replicas))
    nodes.restart(1, signal.SIGKILL, disk=False)
    for lost_ok in (False, True):
        run(4, _load_hsdp, nodes, str(tmp_path), replicas, lost_ok)


def test_shared_out_over_all_it_is_lost(nodes, tmp_path):
    directory = _saved(nodes, tmp_path, False, False)
    run(4, _load, nodes, directory, OF, False, False, True, None)
    run(2, _load, nodes, directory, [0, 0], False, False, True, None)


def _goes_on(nodes: Nodes, steps: list[int], last: list[int],
             further: list[list[int]], durable: int = 0,
             stopped: int | None = None) -> None:
    """A life that restores the last of ``last``, if any, takes ``steps``, and
    then those of its node. It is killed; an agent that is stopped before does
    nothing about that."""
    model, optim = linear.training()
    rank = dist.get_rank()
    ck = _checkpointer(nodes, OF, True, True, model, optim, {"step": 0},
                       {"rank": rank}, slots=4)
    assert ck.restore() == (last[-1] if last else None)
    for step in steps + further[OF[rank]]:
        linear.step(model, optim)
        ck.snapshot(step, wait=60, flush=step == durable)
        ck.fence()
        ck.wait(step, until="durable" if step == durable else "sealed")
    dist.barrier()
    if rank == 0 and stopped is not None:
        os.kill(nodes.agents[stopped].pid, signal.SIGSTOP)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _finds(nodes: Nodes, want: int, mine: list[int]) -> None:
    """And what of ranks was theirs alone; who has not keeps what it had."""
    model, optim = linear.training()
    has = {"rank": -1}
    with _checkpointer(nodes, OF, True, True, model, optim, {"step": -1},
                       has, slots=4) as ck:
        assert ck.restore(lost_ok=True) == want
        assert has["rank"] == mine[dist.get_rank()]


def test_who_had_not_saved_it_yet_has_lost_nothing(nodes):
    """Nodes are steps apart: what both have has all."""
    wait(start(4, _goes_on, nodes, [1, 2], [], [[3], []]))
    run(4, _finds, nodes, 2, [0, 1, 2, 3])


def test_nor_who_left_out_more_than_one(nodes):
    wait(start(4, _goes_on, nodes, [1, 2], [], [[3, 4], []]))
    run(4, _finds, nodes, 2, [0, 1, 2, 3])


def test_nor_who_had_restored_it(nodes):
    """The first step of a life, which one node has not taken."""
    wait(start(4, _goes_on, nodes, [1, 2], [], [[], []]))
    wait(start(4, _goes_on, nodes, [], [1, 2], [[3], []]))
    run(4, _finds, nodes, 2, [0, 1, 2, 3])


def test_what_a_lost_node_has_on_its_disk_is_older(nodes):
    """What it may flush once its ranks have died, it has not."""
    wait(start(4, _goes_on, nodes, [1, 2, 3], [], [[], []], 2, 1))
    nodes.restart(1, signal.SIGKILL)
    run(4, _finds, nodes, 3, [0, 1, -1, -1])


def _says_how(nodes: Nodes) -> None:
    model, optim = linear.training()
    with _checkpointer(nodes, OF, True, True, model, optim, {"step": -1},
                       {"rank": -1}) as ck, \
            pytest.raises(NotFound, match=r"lost_ok=True"):
        ck.restore()


def _one_further(nodes: Nodes) -> None:
    """The first rank, beside its neighbour."""
    model, optim = linear.training()
    ck = _checkpointer(nodes, OF, True, True, model, optim, {"step": 0},
                       {"rank": dist.get_rank()})
    assert ck.restore() is None
    for step in (1, 2) if dist.get_rank() == 0 else (1,):
        linear.step(model, optim)
        ck.snapshot(step, wait=60, flush=False)
        ck.fence()
        ck.wait(step, until="sealed")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_raised_says_how_to_do_without(nodes):
    """Also where the newest was passed over for another reason."""
    wait(start(4, _one_further, nodes))
    nodes.restart(1, signal.SIGKILL, disk=False)
    run(4, _says_how, nodes)


def _with_a_new_layer(nodes: Nodes) -> None:
    """What is new looks like what is lost, until a step is whole again."""
    def wider() -> tuple[nn.Module, torch.optim.Optimizer]:
        return linear.training(lambda model: nn.Sequential(*model,
                                                           nn.Linear(8, 3)))

    def opened(model: nn.Module, optim: torch.optim.Optimizer
               ) -> Checkpointer:
        return _checkpointer(nodes, OF, False, "node", model, optim, {}, {})

    with opened(*wider()) as ck, pytest.raises(
            NotFound, match=r"model\.3\..*; if it is new, restore without"):
        ck.restore(strict=False, lost_ok=True)
    model, optim = linear.training()
    with opened(model, optim) as ck:
        assert ck.restore() == 3
        ck.snapshot(4, wait=60)
        ck.wait(4)
    more, optim = wider()
    new = more[3].weight.detach().clone()
    with opened(more, optim) as ck:
        assert ck.restore(strict=False) == 4
    assert torch.equal(more[3].weight, new)
    assert torch.equal(more[0].weight, model[0].weight)


def test_a_new_layer_waits_until_all_is_there(nodes, tmp_path):
    _saved(nodes, tmp_path, False, "node")
    run(4, _with_a_new_layer, nodes)


def test_each_node_has_it_once(nodes, tmp_path):
    _saved(nodes, tmp_path, False, "node", lost=None)
    whole = linear.kept_bytes()
    for node in range(2):
        client = Client(nodes[node])
        found = next(s for s in snapshots(client, "lost") if s["step"] == 3)
        client.close()
        assert not found["complete"] and found["local"]
        # Besides, objects and headers of two ranks.
        assert whole < found["memory_bytes"] < whole + whole // 2
