# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job agree, with a bound on every wait.

A collective that another rank does not enter has no end of its own, and what
is entered late meets another rank's next one. So ranks meet first, in the
store of torch.distributed (:mod:`_meeting`), and none begins to exchange
before all of them are in the same call.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import errno
import hashlib
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .. import Error
from ._common import bytes_of
from ._fresh import Fresh
from ._links import Gloo, Links, Meeting, Sockets, without_sockets
from ._meeting import Meetings
from ._versions import default_store

log = logging.getLogger("shardkeep")

_SHORT = 504     # bytes that go along with their number
_SHORT_OF_FEW = 4088        # where a store takes them
#: How many of each name and ranks this process has made, since its group was.
_made: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = \
    weakref.WeakKeyDictionary()


def carries_cpu(group: dist.ProcessGroup | None) -> bool:
    """Whether it moves tensors of host memory."""
    return "cpu:" in dist.get_backend_config(group)


class Comm(Meetings):
    """The ranks of a process group; one rank without torch.distributed.

    Where the group cannot carry CPU tensors, as NCCL's alone, words go by
    gloo in a group of their own. ``timeout`` is in seconds. Made, and used,
    in the same order on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None, name: str,
                 timeout: float) -> None:
        up = dist.is_available() and dist.is_initialized()
        self._begin(dist.get_rank(group) if up else 0,
                    dist.get_world_size(group) if up else 1, timeout)
        self._alone = not up
        self._group = group
        self._by_group = up and carries_cpu(group)
        if self.world > 1:
            self._fresh = Fresh(self._place(name), self.rank, self.world)

    def check_world(self) -> None:
        """Refuses one rank that has become one of several: each would keep
        what is the others' as well under rank 0 of 1."""
        if self._alone and dist.is_available() and dist.is_initialized() and \
                dist.get_world_size() > 1:
            raise RuntimeError(
                "this Checkpointer was made before torch.distributed was "
                f"initialized, as one rank alone, and there are "
                f"{dist.get_world_size()}; make it afterwards, or give the "
                "group of this rank")

    def launched(self) -> int:
        """How many ranks a launcher says there are, where this is one that
        was made alone; 0: it says nothing of it."""
        said = os.environ.get("WORLD_SIZE", "") if self._alone else ""
        return int(said) if said.isdecimal() and int(said) > 1 else 0

    def may_share_agent(self) -> bool:
        """Whether one agent may serve all ranks, as far as a launcher says
        how many of them are on this node."""
        here = os.environ.get("LOCAL_WORLD_SIZE", "")
        return not here.isdecimal() or int(here) >= self.world

    @classmethod
    def at(cls, key: str, rank: int, world: int, timeout: float) -> Comm:
        """Of ranks that know no group of theirs, and a key that no others
        have; words go by gloo in a group of their own."""
        comm = cls.__new__(cls)
        comm._begin(rank, world, timeout)
        comm._store = dist.PrefixStore(key, default_store())
        return comm

    def _begin(self, rank: int, world: int, timeout: float) -> None:
        super().__init__(rank, world, timeout)
        self._alone = False     # made without torch.distributed
        self._group: dist.ProcessGroup | None = None
        self._by_group = False
        self._links: Links | None = None
        self._linked = 0
        self._gloo_only = False
        self._words: Any = None

    def _place(self, name: str) -> dist.Store:
        world = dist.group.WORLD
        group = self._group or world
        ranks = ",".join(map(str, dist.get_process_group_ranks(group)))
        whose = hashlib.sha256(f"{name}/{ranks}".encode()).hexdigest()[:16]
        # Of several that one process makes, each rank's third is the third.
        made = _made.setdefault(world, collections.Counter())
        made[whose] += 1
        return dist.PrefixStore(f"shardkeep/{whose}/{made[whose]}",
                                default_store())

    # ---- exchanging ----

    def links(self) -> Links:
        """For bytes; all ranks ask, and what broke for one is made anew."""
        mine = b"there"
        if self._links is None or self._links.broken:
            mine = b"gloo" if without_sockets() else b"lacking"
        said = set(self.share(mine, "restore()", kind="links"))
        if said != {b"there"}:
            self._gloo_only |= b"gloo" in said
            self._links = None
            self._linked += 1
            self._links = self._connect(dist.PrefixStore(
                f"links/{self._linked}", self._store))
        assert self._links is not None
        return self._links

    def _connect(self, store: Any) -> Links:
        """By sockets; where a rank has none, all go by gloo from then on."""
        made = None if self._gloo_only else self._meet_all(store)
        return made or Gloo(store, self.rank, self.world, self.timeout)

    def _meet_all(self, store: Any) -> Sockets | None:
        made, why = None, ""
        try:
            made = Meeting(store, self.rank, self.world, self.timeout,
                           self.pause).attend()
        except (Error, RuntimeError) as e:
            why = f"rank {self.rank}: {e}"
        failed = [x for x in self.share(why.encode()[:_SHORT], "restore()",
                                        kind="links") if x]
        if self.rank == 0:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                store.delete_key("at")
        if not failed:
            return made
        self._gloo_only = True
        if self.rank == 0:
            log.warning("restores over several nodes go by gloo, as the ranks "
                        "could not connect to each other: %s",
                        failed[0].decode(errors="replace"))
        return None

    def _gather(self, parts: list[torch.Tensor], mine: torch.Tensor) -> Any:
        if self._by_group:
            return dist.all_gather(parts, mine, group=self._group,
                                   async_op=True)
        if self._words is None:
            self._words = dist.ProcessGroupGloo(
                dist.PrefixStore("words", self._store), self.rank, self.world,
                datetime.timedelta(seconds=self.timeout))
        return self._words.allgather([parts], [mine])

    def allgather(self, mine: bytes, what: str, timeout: float | None = None,
                  kind: str = "bytes") -> bytes:
        """As many bytes from each, joined in rank order; ``kind`` as of
        :meth:`meet`."""
        if self.world == 1:
            return mine
        timeout = self.timeout if timeout is None else timeout
        self.meet(what, timeout, kind=kind)
        if not mine:
            return b""
        send = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        parts = [torch.empty_like(send) for _ in range(self.world)]
        try:
            self._gather(parts, send).wait(datetime.timedelta(seconds=timeout))
        except RuntimeError as e:
            raise Error(errno.EIO, f"{what}: {self.world} ranks could not "
                        f"exchange {len(mine)} bytes each: {e}") from e
        return b"".join(map(bytes_of, parts))

    def share(self, mine: bytes, what: str, timeout: float | None = None,
              kind: str = "words") -> list[bytes]:
        """What every rank gives, of any length, in rank order: in one
        exchange where all of it is short, else in two."""
        if self.world == 1:
            return [mine]
        short = _SHORT_OF_FEW if self.are_few() else _SHORT
        heads = self._heads(len(mine).to_bytes(8, "little") + mine[:short],
                            what, timeout, kind)
        n = [int.from_bytes(x[:8], "little") for x in heads]
        most = max(n)
        if most <= short:
            return [x[8:8 + n[i]] for i, x in enumerate(heads)]
        every = self.allgather(mine.ljust(most, b"\0"), what, timeout, "rest")
        return [every[i * most:i * most + n[i]] for i in range(self.world)]

    def _heads(self, mine: bytes, what: str, timeout: float | None,
               kind: str) -> list[bytes]:
        if self.are_few():
            return self.meet(what, timeout, mine, kind)
        size = 8 + _SHORT
        every = self.allgather(mine.ljust(size, b"\0"), what, timeout, kind)
        return [every[i:i + size] for i in range(0, len(every), size)]

    def spreading(self) -> Callable[[bytearray], None]:
        """What has every rank have rank 0's bytes; all ranks ask for it."""
        if self.world == 1:
            return lambda data: None
        if not self._by_group:
            links = self.links()
            return lambda data: links.spread(0, data, self.timeout)
        return lambda data: dist.broadcast(
            torch.frombuffer(data, dtype=torch.uint8), group_src=0,
            group=self._group)

    def for_restore(self, mine: bytes, timeout_ms: int) -> bytes:
        """The comm that :meth:`State.restore` takes."""
        return self.allgather(mine, "restore()", timeout_ms / 1000 or None)
