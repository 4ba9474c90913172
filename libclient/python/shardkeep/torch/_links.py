# SPDX-License-Identifier: Apache-2.0
"""Bytes from rank to rank, where several agents serve the job.

They go by sockets between all ranks, of our own: what is given up breaks its
connections, and the trainer's must not be those. So the ranks need not meet
before each exchange either, as in the trainer's group. Where they cannot be
made, all ranks go by gloo, in a group that they make for it.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import errno
import os
import secrets
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import Error, Timeout, _core
from ._common import bytes_of, milliseconds

#: The number of a peer, and memory.
Part = tuple[int, memoryview]

_TO_MEET = 30.0     # seconds at most: then gloo is to have time, too


def available() -> bool:
    """Whether this build of torch has what it takes."""
    return dist.is_available() and dist.is_gloo_available()


def without_sockets() -> bool:
    """Whether the user wants gloo: ``SHARDKEEP_LINKS=gloo``."""
    return os.environ.get("SHARDKEEP_LINKS") == "gloo"


class Links(abc.ABC):
    """One connection to each rank; made by all of them together."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    @property
    @abc.abstractmethod
    def broken(self) -> bool:
        """Whether there is no use in them any more."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Ends it: what others wait for fails as well."""

    @abc.abstractmethod
    def way(self) -> dict[str, Any]:
        """As arguments for ``State.restore()``."""

    @abc.abstractmethod
    def spread(self, root: int, data: bytearray, timeout: float) -> None:
        """What ``root`` has, into everybody's; Timeout where it does not
        come, after which there is no other."""

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        """Around what a rank does when others may be exchanging already: it
        fails, and they need not wait."""
        try:
            yield
        except Exception:
            self.abort()
            raise


# ---- sockets of our own ----

class Sockets(Links):
    """By ``sk_comm_meet()``: a restore goes by them without Python."""

    def __init__(self, rank: int, core: _core.Links) -> None:
        super().__init__(rank)
        self._core = core

    @property
    def broken(self) -> bool:
        return self._core.broken

    def abort(self) -> None:
        self._core.abort()

    def way(self) -> dict[str, Any]:
        return {"comm": self._core}

    def spread(self, root: int, data: bytearray, timeout: float) -> None:
        try:
            self._core.broadcast(root, data, milliseconds("timeout", timeout))
        except Error as e:
            raise Timeout(errno.ETIMEDOUT, f"rank {self._rank} did not get "
                          f"what rank {root} has to tell: {e}") from None


def _store_host(store: Any) -> str:
    """A node that all ranks can reach: the store's; "*" where it is none's."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR", "*")
    return f"[{host}]" if ":" in host else host


class Meeting:
    """How the ranks find each other: rank 0 has a port, and says in the store
    where it is, and what only the others can know."""

    def __init__(self, store: Any, rank: int, world: int, timeout: float,
                 pause: Callable[[float], float]) -> None:
        self._store, self._rank, self._world = store, rank, world
        self._timeout, self._pause = min(timeout, _TO_MEET), pause

    def attend(self) -> Sockets:
        """Error where they did not meet, or RuntimeError."""
        began = time.monotonic()
        if self._rank == 0:
            return self._lead()
        secret, _, at = self._told(began).partition(" ")
        left = self._timeout - (time.monotonic() - began)
        return self._links(at, secret, max(left, 0.001))

    def _links(self, at: str, secret: str, timeout: float,
               **words: Any) -> Sockets:
        return Sockets(self._rank, _core.Links(
            at, self._rank, self._world, secret,
            milliseconds("timeout", timeout), **words))

    def _lead(self) -> Sockets:
        secret, told = secrets.token_hex(16), []

        def tell(at: str) -> None:
            self._store.set("at", f"{secret} {at}")
            told.append(at)

        try:
            return self._links(
                f"{_store_host(self._store)}:0", secret, self._timeout,
                tell=tell, interfaces=os.environ.get("GLOO_SOCKET_IFNAME"))
        except Error:
            if not told:        # the others need not wait
                self._store.set("at", "")
            raise

    def _told(self, began: float) -> str:
        while not self._store.check(["at"]):
            waited = time.monotonic() - began
            if waited >= self._timeout:
                raise Timeout(errno.ETIMEDOUT, "rank 0 did not say where it "
                              f"is within {self._timeout:g} s")
            time.sleep(self._pause(waited))
        told: str = self._store.get("at").decode()
        if not told:
            raise Error(errno.ENOTCONN, "rank 0 cannot be reached")
        return told


# ---- gloo ----

class Gloo(Links):
    """By a process group of gloo's."""

    def __init__(self, store: Any, rank: int, world: int,
                 timeout: float) -> None:
        super().__init__(rank)
        self._world = world
        with self._failing(f"rank {rank} could not connect to the others"):
            self._gloo: Any = dist.ProcessGroupGloo(
                store, rank, world, datetime.timedelta(seconds=timeout))

    @property
    def broken(self) -> bool:
        return self._gloo is None

    def abort(self) -> None:
        self._gloo = None

    def way(self) -> dict[str, Any]:
        return {"allgather": self.allgather, "world": self._world,
                "exchange": self.exchange, "abort": self.abort}

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
        every = torch.empty(self._world, len(mine), dtype=torch.uint8,
                            device="cpu")
        # By rank 0, which takes 2 messages a rank; gloo's own, a ring, takes
        # as many as there are pairs of ranks.
        parts = [list(every.unbind())] if self._rank == 0 else []
        with self._exchanging("did not hear what all others have to say"):
            self._wait(self._gathered(parts, every, mine), timeout_ms)
        return bytes_of(every)

    def _gathered(self, parts: list[list[torch.Tensor]], every: torch.Tensor,
                  mine: bytes) -> Iterator[Any]:
        yield self._gloo.gather(parts, [_tensor(bytearray(mine))],
                                dist.GatherOptions())
        yield self._gloo.broadcast([every], dist.BroadcastOptions())

    def spread(self, root: int, data: bytearray, timeout: float) -> None:
        with self._exchanging(f"did not get what rank {root} has to tell"):
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._wait([self._gloo.broadcast([_tensor(data)], options)],
                       int(timeout * 1000))


def _tensor(memory: Any) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
