# SPDX-License-Identifier: Apache-2.0
"""A part of a store that is of these ranks alone.

A store may outlive them: torchrun's serves all lives of a job, and what those
before wrote stands in it, under the same ranks. So each draws a number and
says it. Rank 0 answers each with a part that it has drawn: that is of now,
as nobody knew the number before. What it answers to ranks that are gone,
nobody reads.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import torch.distributed as dist


class Fresh:
    """What rank 0 has drawn, of ``world`` ranks that speak in ``store``."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store, self._rank, self._world = store, rank, world
        self._mine = secrets.token_hex(8)
        self._heard = -1        # how many had spoken at the last look
        self._answered: dict[int, bytes] = {}
        if rank:
            store.set(str(rank), self._mine)
            store.add("said", 1)        # after it

    def found(self) -> Any:
        """The part; None where rank 0 has not answered yet."""
        if self._rank == 0:
            return self._part(self._mine)
        if not self._store.check([f"to/{self._mine}"]):
            return None
        part = self._store.get(f"to/{self._mine}").decode()
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._store.delete_key(f"to/{self._mine}")
        return self._part(part)

    def _part(self, name: str) -> Any:
        return dist.PrefixStore(name, self._store)

    def answer(self) -> None:
        """By rank 0, again and again: to those that have spoken since."""
        heard = self._store.add("said", 0)
        if heard == self._heard:
            return
        self._heard = heard
        for rank, number in self._numbers().items():
            if self._answered.get(rank) != number:
                self._answered[rank] = number
                self._store.set(f"to/{number.decode()}", self._mine)

    def _numbers(self) -> dict[int, bytes]:
        ranks = list(range(1, self._world))
        if not self._store.check([str(r) for r in ranks]):
            ranks = [r for r in ranks if self._store.check([str(r)])]
        if not ranks:
            return {}
        return dict(zip(ranks, self._store.multi_get(
            [str(r) for r in ranks]), strict=True))
