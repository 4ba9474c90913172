# SPDX-License-Identifier: Apache-2.0
"""Bytes from rank to rank, where several agents serve the job.

They go by gloo, in a group of its own that the ranks make for it: what is
given up breaks its group, and the trainer's must not be that one. So the ranks
need not meet before each exchange either, as in the trainer's.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import Timeout

#: The number of a peer, and memory.
Part = tuple[int, memoryview]


def available() -> bool:
    """Whether this build of torch has what it takes."""
    return dist.is_available() and dist.is_gloo_available()


class Links:
    """One connection to each rank; made by all of them together."""

    def __init__(self, store: Any, rank: int, world: int,
                 timeout: float) -> None:
        self._rank, self._world = rank, world
        with self._failing(f"rank {rank} could not connect to the others"):
            self._gloo: Any = dist.ProcessGroupGloo(
                store, rank, world, datetime.timedelta(seconds=timeout))

    @property
    def broken(self) -> bool:
        return self._gloo is None

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:
            # What is under way would keep the connections open, and others
            # waiting at them.
            traceback.clear_frames(e.__traceback__)
            self.abort()
            raise Timeout(errno.ETIMEDOUT, f"{what}: {e}") from None

    @contextlib.contextmanager
    def _exchanging(self, what: str) -> Iterator[None]:
        if self._gloo is None:
            raise Timeout(errno.ETIMEDOUT, "another exchange has failed")
        with self._failing(f"rank {self._rank} {what}"):
            yield

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        """Around what a rank does when others may be exchanging already: it
        fails, and they need not wait."""
        try:
            yield
        except Exception:
            self.abort()
            raise

    def abort(self) -> None:
        """Ends it: what others wait for fails as well."""
        self._gloo = None

    @staticmethod
    def _wait(works: Iterable[Any], timeout_ms: int) -> None:
        end = time.monotonic() + timeout_ms / 1000
        for work in works:
            left = max(0.001, end - time.monotonic())
            if not work.wait(datetime.timedelta(seconds=left)):
                raise RuntimeError("it was given up")

    def exchange(self, sends: list[Part], receives: list[Part],
                 timeout_ms: int) -> None:
        """Sends and receives all of them; Timeout where one does not come,
        after which there is no other."""
        peers = ", ".join(map(str, sorted({r for r, _ in sends + receives})))
        with self._exchanging(f"could not exchange bytes with rank {peers}"):
            self._wait([self._gloo.recv([_tensor(m)], r, 0)
                        for r, m in receives] +
                       [self._gloo.send([_tensor(m)], r, 0)
                        for r, m in sends], timeout_ms)

    def allgather(self, mine: bytes, timeout_ms: int) -> bytes:
        """As many bytes of each, joined in rank order; Timeout as above."""
        if not mine:
            return b""
        every = torch.empty(self._world, len(mine), dtype=torch.uint8)
        # By rank 0, which takes 2 messages a rank; gloo's own, a ring, takes
        # as many as there are pairs of ranks.
        parts = [list(every.unbind())] if self._rank == 0 else []
        with self._exchanging("did not hear what all others have to say"):
            self._wait(self._gathered(parts, every, mine), timeout_ms)
        return every.numpy().tobytes()

    def _gathered(self, parts: list[list[torch.Tensor]], every: torch.Tensor,
                  mine: bytes) -> Iterator[Any]:
        yield self._gloo.gather(parts, [_tensor(bytearray(mine))],
                                dist.GatherOptions())
        yield self._gloo.broadcast([every], dist.BroadcastOptions())

    def spread(self, root: int, data: bytearray, timeout: float) -> None:
        """What ``root`` has, into everybody's."""
        with self._exchanging(f"did not get what rank {root} has to tell"):
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._wait([self._gloo.broadcast([_tensor(data)], options)],
                       int(timeout * 1000))


def _tensor(memory: Any) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
