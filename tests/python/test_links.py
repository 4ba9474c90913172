# SPDX-License-Identifier: Apache-2.0
"""Links of the binding: ranks that are threads, and no torch."""

from __future__ import annotations

import array
import errno
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from harness import private_agent
from shardkeep import Client, Error, Invalid, Mesh, State, Timeout, _core
from test_core import Memory, taken

WAIT_MS = 60000


def _meet(rank: int, world: int, told: queue.Queue[str], **words: Any
          ) -> _core.Links:
    """``told`` has a place for each of the others."""
    def tell(at: str) -> None:
        for _ in range(1, world):
            told.put(at)

    if rank:
        return _core.Links(told.get(timeout=60), rank, world, "secret",
                           WAIT_MS)
    return _core.Links("*:0", 0, world, "secret", WAIT_MS, tell, **words)


def _each(world: int, act: Callable[[int, _core.Links], Any]) -> list[Any]:
    """What comes of it in a thread for each rank, once all have met."""
    told: queue.Queue[str] = queue.Queue()
    found: list[Any] = [None] * world

    def work(rank: int) -> None:
        try:
            links = _meet(rank, world, told)
            try:
                found[rank] = act(rank, links)
            except BaseException:
                links.abort()
                raise
        except BaseException as e:
            found[rank] = e

    threads = [threading.Thread(target=work, args=(r,)) for r in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def test_words_and_bytes() -> None:
    world = 6

    def act(rank: int, links: _core.Links) -> bool:
        assert links.allgather(bytes([rank, 7]), WAIT_MS) == b"".join(
            bytes([r, 7]) for r in range(world))
        assert links.allgather(b"", WAIT_MS) == b""
        for root in range(world):
            data = bytearray(b"words" if rank == root else 5)
            links.broadcast(root, data, WAIT_MS)
            assert data == b"words"
        rooms = {r: bytearray(3) for r in range(world) if r != rank}
        links.exchange([(r, bytes([rank, r, 1])) for r in rooms],
                       list(rooms.items()), WAIT_MS)
        assert rooms == {r: bytes([r, rank, 1]) for r in rooms}
        return links.broken

    assert _each(world, act) == [False] * world


def test_one_that_ends_them_keeps_nobody_waiting() -> None:
    def act(rank: int, links: _core.Links) -> Any:
        if rank == 1:
            links.abort()
            assert links.broken
        with pytest.raises(Error) as e:
            links.allgather(b"word", 1 << 31)
        assert e.value.errno == (errno.EIO if rank == 1 else
                                 errno.ECONNRESET)
        assert f"rank {rank} did not hear" in str(e.value)
        return links.broken

    assert _each(6, act) == [True] * 6


def test_one_that_says_nothing_is_not_waited_for() -> None:
    done = threading.Event()

    def act(rank: int, links: _core.Links) -> None:
        if rank == 1:
            done.wait(60)
            return
        with pytest.raises(Timeout):
            links.allgather(b"word", 200)
        done.set()

    assert _each(2, act) == [None] * 2


def test_what_cannot_be_said() -> None:
    def act(rank: int, links: _core.Links) -> None:
        for root in -1, 2:
            with pytest.raises(ValueError, match=f"no rank {root} of 2"):
                links.broadcast(root, bytearray(1), 100)
        with pytest.raises((TypeError, BufferError)):
            links.exchange([], [(1 - rank, b"only to read")], 100)
        with pytest.raises((TypeError, BufferError)):
            links.broadcast(0, b"only to read", 100)
        with pytest.raises(ValueError, match="timeout_ms is -1"):
            links.allgather(b"x", -1)
        with pytest.raises(TypeError, match="a part is a tuple, and 1 is none"):
            links.exchange([1], [], 100)
        assert links.allgather(b"x", WAIT_MS) == b"xx", "none of it did harm"
        with pytest.raises(Invalid):
            links.exchange([(rank, b"to itself")], [], 100)

    assert _each(2, act) == [None] * 2


def test_meetings_that_cannot_be() -> None:
    with pytest.raises(Invalid, match="that can tell"):
        _core.Links("*:0", 0, 2)
    with pytest.raises(Invalid, match="no rank 2 of 2"):
        _core.Links("host:7", 2, 2)
    with pytest.raises(ZeroDivisionError):
        _core.Links("*:0", 0, 2, tell=lambda at: 1 / 0)
    with pytest.raises(Error, match="none0"):
        _core.Links("*:0", 0, 2, tell=lambda at: None, interfaces="none0")
    with pytest.raises(Timeout, match="rank 1 did not come"):
        _core.Links("*:0", 0, 2, timeout_ms=50, tell=lambda at: None)
    unmet = _core.Links.__new__(_core.Links)
    assert unmet.broken
    unmet.abort()
    with pytest.raises(RuntimeError, match="have not met"):
        unmet.allgather(b"x", 100)


def test_one_call_at_a_time() -> None:
    def act(rank: int, links: _core.Links) -> None:
        if rank == 0:
            second = threading.Event()

            def wait() -> None:
                second.set()
                links.broadcast(1, bytearray(1), WAIT_MS)

            thread = threading.Thread(target=wait)
            thread.start()
            second.wait(60)
            refused = False
            while not refused:      # until the other is in its call
                try:
                    links.broadcast(0, bytearray(0), WAIT_MS)
                except RuntimeError as e:
                    refused = "another call" in str(e)
            go.set()
            thread.join()
        else:
            go.wait(60)
            links.broadcast(1, bytearray(1), WAIT_MS)

    go = threading.Event()
    assert _each(2, act) == [None] * 2


def test_a_forked_child_has_none_of_them() -> None:
    def act(rank: int, links: _core.Links) -> bytes:
        links.allgather(b"x", WAIT_MS)
        pid = 0 if rank else os.fork()
        if not pid and not rank:
            try:
                links.abort()
                links.allgather(b"x", 100)
            except Error as e:
                os._exit(e.errno)
            finally:
                os._exit(0)
        if pid:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == errno.EOWNERDEAD
        return links.allgather(b"y", WAIT_MS)

    assert _each(2, act) == [b"yy"] * 2


# ---- for a restore ----

def test_a_restore_takes_them() -> None:
    """Words of all, though one agent serves them."""
    world, mesh = 3, Mesh((3,))

    def act(rank: int, links: _core.Links) -> Any:
        m = Memory(2, fill=rank)
        client = Client()
        state = State(client, "links", rank, world)
        state.tensors([m.described(
            "w", shape=(6,), mesh=mesh,
            placements=((_core.SHARD, 0, 0),))], m)
        taken(state, 1)
        m.values[:] = array.array("f", [9.0, 9.0])
        report = state.restore(comm=links, timeout_ms=WAIT_MS)
        state.close()
        client.close()
        assert report["step"] == 1 and m.values.tolist() == [rank] * 2
        return links.broken

    with private_agent():
        assert _each(world, act) == [False] * world


def test_comms_of_other_ranks_are_refused() -> None:
    def act(rank: int, links: _core.Links) -> None:
        client = Client()
        for state, word in ((State(client, "j", 1 - rank, 2), "links are"),
                            (State(client, "k", rank, 3), "of 2 ranks")):
            with pytest.raises(ValueError, match=word):
                state.restore(comm=links)
            with pytest.raises(TypeError, match="Links are needed"):
                state.restore(comm=object())
            with pytest.raises(ValueError, match="comm is of 5 ranks"):
                state.restore(allgather=lambda b, ms: b, world=5)
            state.close()
        client.close()
        assert links.allgather(b"x", WAIT_MS) == b"xx"

    with private_agent():
        assert _each(2, act) == [None] * 2
