# SPDX-License-Identifier: Apache-2.0
"""Ranks that bench-pytorch and bench-nodes measure, and their state."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from pytorch_peers import end_with_parent

LAYER = ((4, 4), (1, 4), (1, 4), (4, 4), (11, 4), (11, 4), (4, 11))


class State(torch.nn.Module):
    """Parameters, and an optimizer whose moments are made by hand."""

    def __init__(self, mesh, total: int, tensors: int, dim: int = 0) -> None:
        super().__init__()
        world = mesh.size()
        count = max(1, tensors // 3)
        weights = [LAYER[i % len(LAYER)] for i in range(count)]
        unit = sum(a * b for a, b in weights) * 10      # 2 + 4 + 4 bytes
        side = max(world, int((total / unit) ** 0.5) // world * world)
        moments = {}
        for i, (a, b) in enumerate(weights):
            local = [a * side, b * side]
            local[dim] //= world
            p = torch.nn.Parameter(DTensor.from_local(
                torch.randn(local).to(torch.bfloat16), mesh, (Shard(dim),),
                run_check=False), requires_grad=False)
            self.register_parameter(f"w{i}", p)
            moments[p] = {k: DTensor.from_local(
                torch.rand(local), mesh, (Shard(dim),), run_check=False)
                for k in ("exp_avg", "exp_avg_sq")}
        self.optim = torch.optim.AdamW(self.parameters())
        for p, m in moments.items():
            self.optim.state[p] = dict(m, step=torch.tensor(1.0))

    def everything(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, p in self.named_parameters():
            found[f"model.{name}"] = p.detach()
            for key, t in self.optim.state[p].items():
                found[f"optim.state.{name}.{key}"] = t
        return found

    def local_bytes(self) -> int:
        return sum(getattr(t, "_local_tensor", t).numel() *
                   getattr(t, "_local_tensor", t).element_size()
                   for t in self.everything().values())


def slowest(seconds: float) -> float:
    t = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


class Timer:
    def __init__(self) -> None:
        self.series: dict[str, list[float]] = {}

    def start(self) -> None:
        dist.barrier()
        self.began = time.perf_counter()

    def mark(self, what: str) -> None:
        self.series.setdefault(what, []).append(
            slowest(time.perf_counter() - self.began))


def wait_all(pids: list[int]) -> list[int]:
    """Who ends before its time leaves the others waiting for it: they end
    with it."""
    left = {os.pidfd_open(p): p for p in pids}
    codes = []
    while left:
        for fd in select.select(list(left), [], [])[0]:
            codes.append(os.waitpid(left.pop(fd), 0)[1])
            os.close(fd)
            for p in left.values() if codes[-1] != signal.SIGKILL else ():
                os.kill(p, signal.SIGKILL)
    return codes


def run_ranks(ranks: int, main: Callable[[int, str], None],
              what: object) -> None:
    """``main(rank, meeting)`` in new processes, which kill themselves at the
    end as a crash would; the meeting is for torch.distributed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            try:
                end_with_parent()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                main(rank, meeting)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
    codes = wait_all(pids)
    if codes != [signal.SIGKILL] * ranks:
        raise SystemExit(f"{what}: ranks ended with {codes}")


def size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(float(text.rstrip("KMG")) * units.get(text[-1], 1))
