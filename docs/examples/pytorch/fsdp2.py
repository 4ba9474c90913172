# SPDX-License-Identifier: Apache-2.0
"""FSDP2 training of a small transformer that outlives its processes.

    torchrun --nproc-per-node 4 docs/examples/pytorch/fsdp2.py --kill-at 60
    torchrun --nproc-per-node 3 docs/examples/pytorch/fsdp2.py
    python docs/examples/pytorch/plot.py losses.csv losses.png

The first line ends with every rank killed by SIGKILL in the middle of step
60; the second goes on from the node's memory, on another number of ranks.
Where there are GPUs, each rank takes one.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shardkeep.torch import Checkpointer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

TEXT = "/usr/share/common-licenses/GPL-3"
WINDOW, WIDTH, HEADS = 64, 96, 4


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.reshape(b, t, HEADS, c // HEADS).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter = torch.nn.Embedding(letters, WIDTH)
        self.place = torch.nn.Embedding(WINDOW, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        y = self.letter(x) + self.place(places)
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


def batch(text: torch.Tensor, step: int, rank: int, world: int, size: int
          ) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the step's batch, whatever the world."""
    g = torch.Generator().manual_seed(step)
    at = torch.randint(len(text) - WINDOW - 1, (size,), generator=g)
    mine = [text[i:i + WINDOW + 1] for i in at.tolist()[rank::world]]
    both = torch.stack(mine)
    return both[:, :-1], both[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--job", default="example-fsdp2")
    parser.add_argument("--losses", default="losses.csv")
    o = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    raw = open(TEXT, encoding="utf-8").read()
    letters = sorted(set(raw))
    text = torch.tensor([letters.index(c) for c in raw])
    model = Transformer(len(letters)).to(device)
    mesh = init_device_mesh(device, (world,))
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, o.steps)

    with Checkpointer(model, optim, job=o.job, extra={"sched": sched},
                      flush_every=50) as ck:
        done = ck.restore()
        if rank == 0 and done is not None:
            print(f"{world} ranks go on after {ck.report}")
        for step in range(0 if done is None else done + 1, o.steps):
            x, y = (t.to(device) for t in batch(text, step, rank, world,
                                                o.batch))
            optim.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            if step == o.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            optim.step()        # fences by itself
            sched.step()
            ck.snapshot(step, wait=10)
            mean = loss.detach() * len(x) / o.batch
            dist.all_reduce(mean)
            if rank == 0:
                with open(o.losses, "a", encoding="utf-8") as f:
                    f.write(f"{step},{mean.item():.4f},{world}\n")
        ck.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
