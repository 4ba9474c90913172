# SPDX-License-Identifier: Apache-2.0
"""What torchrun starts in test_torchrun.py: trains by its arguments, and says
in a directory how far it is.

    elastic.py DIRECTORY ddp|hsdp

All ranks have the same batch, and are as many as a power of two: whoever
averages their gradients has those of one rank, bit for bit.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import linear
import torch
import torch.distributed as dist
from shardkeep.torch import Checkpointer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 1000        # or until it is to end


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    """By the ranks of a node; each node has all of it."""
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (dist.get_world_size() // here, here),
                            mesh_dim_names=("nodes", "ranks"))
    return fully_shard(model, mesh=mesh)    # type: ignore[no-any-return]


def source(ck: Checkpointer) -> str:
    """Where all that this rank has came from."""
    if ck.report is None:
        return "nothing"
    return "disk" if ck.report.bytes_disk else "memory"


def main() -> None:
    directory, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optim = linear.training(
        sharded if kind == "hsdp" else DistributedDataParallel)
    ck = Checkpointer(model, optim, job="elastic", raising=True, rng=False,
                      timeout=60)
    done = ck.restore()
    if rank == 0:
        with open(directory / "lives", "a", encoding="utf-8") as f:
            f.write(f"{done} {world} {source(ck)}\n")
    for step in range(0 if done is None else done + 1, STEPS):
        loss = linear.step(model, optim)
        if step == 3 and done is None and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)    # before it has saved it
        ck.snapshot(step, wait=60)
        ck.wait()
        if rank == 0:
            with open(directory / "losses", "a", encoding="utf-8") as f:
                f.write(f"{step} {world} {loss.hex()}\n")
        ends = torch.tensor([float((directory / "end").exists())])
        dist.all_reduce(ends)       # all see it in the same step
        if ends.item():
            break
        time.sleep(0.05)            # steps last a little
    ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
