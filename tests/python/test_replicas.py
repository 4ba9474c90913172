# SPDX-License-Identifier: Apache-2.0
"""A model that all ranks have whole: kept by each of them, or once."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import linear
import pytest
import torch
import torch.distributed as dist
from harness import run, start, wait
from shardkeep import Client, snapshots
from shardkeep.torch import Checkpointer
from torch import nn

SAVED = 3       # ranks that save
TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/bench-replicas"


def _training() -> tuple[nn.Module, torch.optim.Optimizer]:
    return linear.training(nn.parallel.DistributedDataParallel)


def _save(directory: str, replicas: bool) -> None:
    model, optim = _training()
    ck = Checkpointer(model, optim, job=f"whole-{replicas}",
                      replicas=replicas, raising=True)
    assert ck.restore() is None
    for step in range(1, 4):
        linear.step(model, optim)
        ck.snapshot(step, wait=60)
    ck.wait(3)
    if dist.get_rank() == 0:
        torch.save(linear.values(model, optim), f"{directory}/values")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _load(directory: str, replicas: bool) -> None:
    model, optim = _training()
    ck = Checkpointer(model, optim, job=f"whole-{replicas}",
                      replicas=replicas, raising=True)
    assert ck.restore() == 3
    assert ck.report is not None and ck.report.bytes_disk == 0
    for mine, its in zip(linear.values(model, optim),
                         torch.load(f"{directory}/values"), strict=True):
        assert torch.equal(mine, its)
    ck.close()


def _memory_bytes(replicas: bool) -> int:
    client = Client()
    found: list[dict[str, Any]] = snapshots(client, f"whole-{replicas}")
    client.close()
    return next(s["memory_bytes"] for s in found if s["step"] == 3)


@pytest.mark.parametrize("world", [1, SAVED, 4])
def test_a_whole_model_is_kept_once(agent: str, world: int) -> None:
    bytes_kept = {}
    for replicas in (True, False):
        codes = wait(start(SAVED, _save, agent, replicas))
        assert codes == [-signal.SIGKILL] * SAVED
        bytes_kept[replicas] = _memory_bytes(replicas)
        run(world, _load, agent, replicas)
    # Besides, objects of each rank.
    whole = linear.kept_bytes()
    assert whole <= bytes_kept[False] < 3 * whole
    assert bytes_kept[True] - bytes_kept[False] >= (SAVED - 1) * whole


def test_what_the_benchmark_says_of_it(tmp_path: pathlib.Path) -> None:
    said = subprocess.run(
        [sys.executable, str(TOOL), "--ranks", "2", "--bytes", "3M",
         "--tensors", "6", "--rounds", "1", "--dir", str(tmp_path), "--json"],
        check=True, capture_output=True, text=True)
    each, once = json.loads(said.stdout)["figures"].values()
    assert each["kept_bytes"] > 1.8 * once["kept_bytes"] > 1.8 * (2 << 20)
    for way in each, once:
        assert 0 < way["call"] <= way["safe"]
        assert way["copy"] > 0 and way["restore"] > 0


def _dies(alone: bool, replicas: bool) -> None:
    """One rank, before it has saved what the others have; ``alone``: ranks have
    nothing of their own beside the model."""
    model, optim = _training()
    ck = Checkpointer(model, None if alone else optim, job="dies",
                      rng=not alone, replicas=replicas, raising=True)
    assert ck.restore() is None
    for step in 1, 2:
        linear.step(model, optim)
        if step == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ck.snapshot(step, wait=60)
        ck.wait(step, until="complete" if step == 1 else "sealed")
    os.kill(os.getpid(), signal.SIGKILL)


def _comes_back(alone: bool, step: int) -> None:
    model, optim = _training()
    with Checkpointer(model, None if alone else optim, job="dies",
                      rng=not alone, raising=True) as ck:
        assert ck.restore() == step


@pytest.mark.parametrize("alone, replicas, step", [
    (True, True, 2), (True, False, 1), (False, True, 1), (False, False, 1)])
def test_what_a_rank_that_died_had_not_saved(
        agent: str, alone: bool, replicas: bool, step: int) -> None:
    """Others have its tensors; its groups and generators nobody has."""
    wait(start(2, _dies, alone, replicas))
    run(2, _comes_back, alone, step)
