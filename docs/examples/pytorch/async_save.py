# SPDX-License-Identifier: Apache-2.0
"""dcp.async_save with Shardkeep's storage in place of a directory.

    torchrun --nproc-per-node 2 docs/examples/pytorch/async_save.py

The writer and the reader are all that differs from a checkpoint on disk.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed.checkpoint.state_dict import (get_state_dict,
                                                     set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(),
                                torch.nn.Linear(256, 64))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optim = torch.optim.AdamW(model.parameters())
    # Its collectives run beside training's: on a group of their own.
    group = dist.new_group(backend="gloo")
    pending = None
    for step in range(10):
        optim.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optim.step()
        if pending is not None:
            pending.result()
        m, o = get_state_dict(model, optim)
        pending = dcp.async_save(
            {"model": m, "optim": o}, process_group=group,
            storage_writer=ShardkeepWriter(job="async", step=step))
    pending.result()

    m, o = get_state_dict(model, optim)
    saved = [t.to_local().clone() for t in m.values()]
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().zero_()
    state = {"model": m, "optim": o}
    dcp.load(state, storage_reader=ShardkeepReader(job="async"))
    set_state_dict(model, optim, model_state_dict=state["model"],
                   optim_state_dict=state["optim"])
    same = all(torch.equal(a, p.to_local())
               for a, p in zip(saved, model.parameters()))
    if dist.get_rank() == 0:
        print("the newest step is back" if same else "it differs")
    dist.destroy_process_group()
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
