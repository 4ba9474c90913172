#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a snapshot at each step costs training: a loop of matrix products, with
and without, taken in turn.

    gpu_step.py [--device cuda] [--mib 1024] [--seconds 20]

Each step multiplies, then an optimizer writes to the state, which waits for the
last snapshot where it has to; a word is fetched, as of a loss that is logged.
Lines of JSON, as tests/sim/facts.c has them. The agent is the one that
SHARDKEEP_SOCKET names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from shardkeep.torch import Checkpointer

BAR = 1.0                       # % that a step may be longer
STEP_S = 0.1                    # that one is made to take
BLOCK = 4                       # steps that are timed together
ROUNDS = 40                     # at most
PRODUCTS_MOST = 1 << 14         # of a step


class Loop:
    """A step of training, as far as a GPU sees it."""

    def __init__(self, device: str, mib: int, side: int) -> None:
        self.device, self.side, self.products = device, side, 1
        kind = torch.float32 if device == "cpu" else torch.bfloat16
        self.a = torch.ones(side, side, dtype=kind, device=device)
        self.out = torch.empty_like(self.a)
        self.model = torch.nn.Linear(1024, mib * 256, bias=False,
                                     device=device)
        self.model.weight.grad = torch.zeros_like(self.model.weight)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        for _ in range(self.products):
            torch.mm(self.a, self.a, out=self.out)
        self.optim.step()
        self.out[0, 0].item()   # the loss, of those who look at each

    def finish(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, steps: int) -> float:
        """Seconds a step."""
        self.finish()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.finish()
        return (time.perf_counter() - begun) / steps

    def fit(self, seconds: float) -> None:
        """As many products as a step of that length has."""
        self.timed(2)
        while self.products < PRODUCTS_MOST and \
                min(self.timed(1) for _ in range(3)) < seconds:
            self.products *= 2


class Trial:
    def __init__(self, loop: Loop, ck: Checkpointer) -> None:
        self.loop, self.ck = loop, ck
        self.at = self.asked = self.taken = 0
        self.calls: list[float] = []

    def beside(self, steps: int) -> float:
        """Seconds a step, a snapshot after each. One that finds no free slot
        is left out, as in training."""
        self.loop.finish()
        begun = time.perf_counter()
        for _ in range(steps):
            self.loop.step()
            self.at += 1
            self.asked += 1
            called = time.perf_counter()
            self.taken += self.ck.snapshot(self.at, flush=False)
            self.calls.append(time.perf_counter() - called)
        self.loop.finish()
        return (time.perf_counter() - begun) / steps

    def warm(self) -> None:
        """Slots, of the device too, are there before anything is timed."""
        self.ck.prepare()
        for _ in range(3):
            self.at += 1
            if not self.ck.snapshot(self.at, wait=60, flush=False):
                raise SystemExit("gpu_step: no snapshot is taken here")
            self.ck.fence()
            self.ck.wait(timeout=60)


def say(**known: object) -> None:
    print(json.dumps(known), flush=True)


def run(loop: Loop, trial: Trial, seconds: float) -> None:
    alone, beside = [], []
    trial.warm()
    until = time.monotonic() + seconds
    while len(alone) < 3 or (time.monotonic() < until and
                             len(alone) < ROUNDS):
        alone.append(loop.timed(BLOCK))
        beside.append(trial.beside(BLOCK))
        trial.ck.wait(timeout=60)       # what is left of it is over
    if not trial.taken:
        raise SystemExit("gpu_step: no snapshot was taken beside a step")
    more = 100 * (statistics.median(b / a for a, b in zip(alone, beside)) - 1)
    on_device = trial.ck.status()["device_bytes"]
    say(fact="bar", what="% that a step is longer", of="matrix products",
        tier="device" if on_device else "host", value=round(more, 3), bar=BAR,
        met=more <= BAR, mib=loop.model.weight.nbytes >> 20,
        step_ms=round(statistics.median(alone) * 1e3, 3),
        call_ms=round(statistics.median(trial.calls) * 1e3, 4),
        asked=trial.asked, taken=trial.taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--step", type=float, default=STEP_S,
                        help="seconds of one")
    parser.add_argument("--seconds", type=float, default=20)
    o = parser.parse_args()
    loop = Loop(o.device, o.mib, o.side)
    # Its hook makes every step wait for the snapshot before.
    with Checkpointer(loop.model, loop.optim, job="gpu-step",
                      raising=False) as ck:
        loop.fit(o.step)
        run(loop, Trial(loop, ck), o.seconds)


if __name__ == "__main__":
    main()
