# SPDX-License-Identifier: Apache-2.0
"""Where ranks meet before they exchange anything: in a store.

Each says which call it is in, and at which point of it, and none goes on
before all of them are in the same one. Whoever waits too long says for all
that this meeting did not take place; a late rank reads it and is in step
again. Where ranks are few, a short word of each goes along: the last one to
come reads all, and they stand in what it says.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from .. import Error, Timeout
from ._common import lasting
from ._fresh import Fresh

_GO = b"all\0"
_OLDER_GO = b"go\0"     # of those that said only which call they are in
_FEW = 16       # ranks whose words the store takes along
_ROUNDS = 8     # of few ranks, that stay in the store: a restore takes less
_ANSWER = 0.00005       # seconds that a store takes for one
#: What a rank may meet the others for.
_KINDS = frozenset(("meeting", "vote", "words", "rest", "bytes", "links"))
#: Comes before the round in which a call began.
_SINCE = "@"
#: Those of a round besides one for each rank.
_KEYS = ("there", "verdict", "yes", "failed")


class Apart(Timeout):
    """The ranks did not meet; all that came know it."""


class _Said(NamedTuple):
    """By a rank that came."""

    what: str
    kind: str       # "": it has another version
    word: bytes


def _put(what: str, kind: str, word: bytes) -> bytes:
    return b"\0".join((what.encode(), kind.encode(), word))


def _taken(raw: bytes) -> _Said:
    what, _, rest = raw.partition(b"\0")
    kind, _, word = rest.partition(b"\0")
    name = kind.decode(errors="replace")
    return _Said(what.decode(errors="replace"),
                 name if name.partition(_SINCE)[0] in _KINDS else "", word)


def _packed(words: Iterable[bytes]) -> bytes:
    return b"".join(len(x).to_bytes(4, "little") + x for x in words)


def _unpacked(raw: bytes) -> list[bytes]:
    words, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at:at + 4], "little")
        words.append(raw[at + 4:end])
        at = end
    return words


def _ranks(which: Iterable[int]) -> str:
    names = [str(r) for r in which]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _deleting() -> contextlib.AbstractContextManager[None]:
    """Not every store can."""
    return contextlib.suppress(RuntimeError, NotImplementedError)


@contextlib.contextmanager
def _speaking(what: str) -> Iterator[None]:
    """A store goes with the rank that has it."""
    try:
        yield
    except getattr(dist, "DistError", RuntimeError) as e:
        raise Timeout(errno.ECONNRESET, f"{what}: the store where the ranks "
                      "meet does not answer, as where the rank that has it, "
                      f"most often rank 0, is gone: {e}") from e


class Meetings:
    """Of ``world`` ranks, of which this is ``rank``, in a store that nobody
    else writes to: one after the other, the same on all ranks."""

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        """``timeout``: in seconds, of all that is given none."""
        self.rank, self.world = rank, world
        self.timeout = lasting("timeout", timeout, some=True)
        self._store: Any = None
        self._fresh: Fresh | None = None    # until all ranks have met in it
        self._round = 0
        self._began: int | None = None      # the round of a call's first one
        self._missed: list[tuple[int, str]] = []    # before this rank was in
        self._forgotten = 0     # rounds that this rank has left nothing of
        self._votes: set[int] = set()       # rounds, of those after

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Of several meetings: a rank that fails between two of them, which
        nobody hears, and makes the call again is not taken for one that goes
        on."""
        before = self._began
        if before is None:
            self._began = self._round
        try:
            yield
        finally:
            self._began = before

    def meet(self, what: str, timeout: float | None = None,
             word: bytes = b"", kind: str = "meeting") -> list[bytes]:
        """Returns when all ranks are in ``what``, for the same ``kind`` of
        thing, with the words of all where ranks are few, else nothing; Apart
        says who is not."""
        with _speaking(what):
            return self._meet(what, timeout, word, kind)

    def _meet(self, what: str, timeout: float | None, word: bytes, kind: str
              ) -> list[bytes]:
        timeout = self.timeout if timeout is None else timeout
        self._come_in(what, timeout)
        n, self._round = self._round, self._round + 1
        if self._began is not None:
            kind = f"{kind}{_SINCE}{self._began}"
        mine = _Said(what, kind, word)
        store = self._store
        store.set(f"{n}/{self.rank}", _put(*mine))
        # Only one of them is the last.
        if store.add(f"{n}/there", 1) == self.world:
            said = self._decide(n, mine, timeout, range(self.world))
        else:
            said = self._await_verdict(n, mine, timeout)
        if not said.startswith(_GO):
            raise Apart(errno.ETIMEDOUT, self._another_version(["others"])
                        if said.startswith(_OLDER_GO) else
                        said.decode(errors="replace"))
        self._fresh = None
        self._forget(n)
        return _unpacked(said[len(_GO):])

    def _decide(self, n: int, mine: _Said, timeout: float,
                there: Sequence[int]) -> bytes:
        """The first verdict stands."""
        said = dict(zip(there, map(_taken, self._store.multi_get(
            [f"{n}/{r}" for r in there]))))
        verdict = self._absent(mine, timeout, said).encode()
        if not verdict:
            verdict = _GO + _packed(x.word for x in said.values()
                                    if self.are_few())
        found: bytes = self._store.compare_set(f"{n}/verdict", "", verdict)
        return found

    def _await_verdict(self, n: int, mine: _Said, timeout: float) -> bytes:
        key, began = f"{n}/verdict", time.monotonic()
        while not self._store.check([key]):
            waited = time.monotonic() - began
            if waited >= timeout:
                return self._decide(n, mine, timeout, [
                    r for r in range(self.world)
                    if self._store.check([f"{n}/{r}"])])
            time.sleep(self.pause(waited))
            self._answer()
        found: bytes = self._store.get(key)
        return found

    def _answer(self) -> None:
        if self._fresh is not None and self.rank == 0:
            self._fresh.answer()

    def _come_in(self, what: str, timeout: float) -> None:
        """Has what nobody before these ranks wrote to. Apart where rank 0,
        who says which part that is, does not come."""
        if self._fresh is None:
            return
        began = time.monotonic()
        while self._store is None:
            self._store = self._fresh.found()
            if self._store is not None:
                break
            waited = time.monotonic() - began
            if waited >= timeout:
                why = (f"rank 0 did not come to {what} within {timeout:g} s; "
                       "every rank must call it")
                self._missed.append((self._round, why))
                self._round += 1
                raise Apart(errno.ETIMEDOUT, why)
            time.sleep(self.pause(waited))
        for n, why in self._missed:     # the others are not to wait there
            self._store.compare_set(f"{n}/verdict", "", why)
        self._missed = []
        self._answer()

    def part(self, name: str) -> Any:
        """A part of the store that is these ranks' alone, and of this time;
        for who has met."""
        return dist.PrefixStore(f"{self._round}/{name}", self._store)

    def pause(self, waited: float) -> float:
        """Seconds until a rank that waits asks again: an eighth of what it
        has waited; but one store answers all ranks, some 20,000 times a
        second."""
        least = self.world * _ANSWER
        return min(max(waited / 8, least), max(0.02, least))

    def are_few(self) -> bool:
        """So that short words go along with a meeting."""
        return self.world <= _FEW

    # ---- who is not in it ----

    def _absent(self, mine: _Said, timeout: float, there: dict[int, _Said]
                ) -> str:
        """In a sentence, by what those said that came; "" where all are."""
        what = mine.what
        others = [r for r, x in there.items() if not x.kind]
        if others:
            return self._another_version([_ranks(others)])
        elsewhere = [f"rank {r} is in {x.what}" for r, x in there.items()
                     if x.what != what]
        if elsewhere:
            return (f"rank {self.rank} is in {what}, {', '.join(elsewhere)}: "
                    "all ranks must make the same calls in the same order")
        ahead = [r for r, x in there.items() if x.kind != mine.kind]
        if ahead:
            return (f"rank {self.rank} and {_ranks(ahead)} are at different "
                    f"points of {what}: it has failed on one of them")
        missing = [r for r in range(self.world) if r not in there]
        if missing:
            return (f"{_ranks(missing)} did not come to {what} within "
                    f"{timeout:g} s; every rank must call it")
        return ""

    def _another_version(self, whose: list[str]) -> str:
        return (f"{whose[0]} and rank {self.rank} have different versions of "
                "shardkeep: all ranks of a job must have the same one")

    # ---- what stays in the store ----

    def _forget(self, met: int) -> None:
        """What all have read, as the round in which all have met now says,
        and those before it in which they have not."""
        behind = _ROUNDS if self.are_few() else 1
        while self._forgotten <= met - behind:
            n, self._forgotten = self._forgotten, self._forgotten + 1
            keys = [str(self.rank)]
            if self.rank == 0:
                keys += _KEYS if n in self._votes else _KEYS[:2]
            self._votes.discard(n)
            self._delete(n, keys)

    def _delete(self, n: int, keys: Iterable[str]) -> None:
        with _deleting():
            for key in keys:
                self._store.delete_key(f"{n}/{key}")

    def end(self) -> None:
        """Takes away what the last meetings left in the store. For one rank,
        whichever, when all others are through with it."""
        for n in range(self._forgotten, max(self._round, 1)):
            self._delete(n, [*map(str, range(self.world)), *_KEYS])
        self._forgotten = self._round

    # ---- votes ----

    def whether(self, mine: bool, what: str) -> bool:
        """Whether one of the ranks says so; nothing else is exchanged. Error
        where one has failed before it came."""
        with _speaking(what):
            self._come_in(what, self.timeout)
            n = self._voting("yes", int(mine))
            self.meet(what, kind="vote")
            if self._store.add(f"{n}/failed", 0):
                raise Error(errno.EIO, f"{what}: another rank has failed")
            return bool(self._store.add(f"{n}/yes", 0) > 0)

    def fail(self, what: str) -> None:
        """Instead of :meth:`whether`: this rank cannot go on, and the others
        need not wait for it."""
        with _speaking(what):
            self._come_in(what, self.timeout)
            self._voting("failed", 1)
            self.meet(what, kind="vote")

    def _voting(self, key: str, more: int) -> int:
        n = self._round
        self._votes.add(n)
        self._store.add(f"{n}/{key}", more)
        return n
