# SPDX-License-Identifier: Apache-2.0
"""The binding alone, with memory of its own: no torch in these processes."""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import json
import os
import pydoc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shardkeep
from harness import Nodes, private_agent
from shardkeep import (DTYPES, Busy, Client, Error, Invalid, Mesh, Mismatch,
                       NotFound, State, TensorChanged, _core, inspect,
                       snapshots)
from shardkeep._tools import path as program


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    with private_agent() as directory:
        yield directory


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    for state in _states:
        state.close()
    _states.clear()
    client.close()


class Memory:
    """Floats at an address, as a tensor would have them."""

    def __init__(self, *shape: int, fill: float = 0.0) -> None:
        self.shape = shape
        n = 1
        for s in shape:
            n *= s
        self.values = array.array("f", [fill] * n)

    @property
    def at(self) -> int:
        return self.values.buffer_info()[0]

    def described(self, called: str, **change: Any) -> tuple[Any, ...]:
        t = {"name": called, "dtype": DTYPES["F32"], "shape": self.shape,
             "mesh": None, "placements": (), "at": self.at, "strides": None,
             "local": None, "parts": None, **change}
        return tuple(t.values())


_states: list[State] = []


def state_of(client: Client, job: str, **more: Any) -> State:
    state = State(client, job, more.pop("rank", 0), more.pop("world", 1),
                  flush_every=shardkeep.FLUSH_NEVER, **more)
    _states.append(state)
    return state


def taken(state: State, step: int) -> None:
    state.snapshot(step, wait_ms=30000)
    state.fence()
    state.wait(step, _core.COMPLETE, 30000)


# ---- the whole way ----

def test_there_and_back(client: Client) -> None:
    m = Memory(4, 3, fill=2.5)
    raw = bytearray(b"scheduler")
    state = state_of(client, "core")
    state.tensors([m.described("w")], m)
    state.blob("config", raw)
    taken(state, 7)
    m.values[:] = array.array("f", [0.0] * 12)
    raw[:] = b"---------"
    report = state.restore()
    assert report["step"] == 7 and report["bytes_memory"] > 0
    assert m.values.tolist() == [2.5] * 12 and raw == b"scheduler"
    listed = snapshots(client, "core")
    assert [s["step"] for s in listed] == [7] and listed[0]["complete"]
    held = inspect(client, "core")
    assert [t["name"] for t in held["tensors"]] == ["w", "config"]
    assert held["tensors"][0]["shape"] == [4, 3]
    state.close()


def test_another_process_after_a_kill(agent: str, client: Client) -> None:
    code = """
        import os, signal, array
        from shardkeep import Client, State, DTYPES, _core
        values = array.array("f", range(6))
        state = State(Client(), "killed", 0, 1, flush_every=1 << 30)
        state.tensors([("w", DTYPES["F32"], (6,), None, (),
                        values.buffer_info()[0], None, None, None)])
        state.snapshot(1)
        state.wait(1, _core.COMPLETE, 30000)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", "\n".join(
        line[8:] for line in code.splitlines())], timeout=60, check=False)
    assert done.returncode == -9
    m = Memory(6)
    state = state_of(client, "killed")
    state.tensors([m.described("w")], m)
    assert state.restore()["step"] == 1
    assert m.values.tolist() == [0, 1, 2, 3, 4, 5]


def _descriptors(of: str) -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):    # that of the list
            found += of in os.readlink(f"/proc/self/fd/{fd}")
    return found


def test_what_is_described_leaves_no_descriptor(client: Client) -> None:
    """Whether it is handed over or the agent has it: tests/libclient/known.c
    counts how often."""
    m = Memory(4)
    state = state_of(client, "once")
    state.tensors([m.described("w")], m)
    taken(state, 1)
    assert not _descriptors("shardkeep:layout")
    state.close()
    state = state_of(client, "once")
    state.tensors([m.described("w")], m)
    state.announce()
    state.blob("more", bytearray(3))    # that was of something else
    state.announce()
    assert not _descriptors("shardkeep:layout")
    state.remove("more")
    assert state.restore()["step"] == 1
    state.announce()
    state.close()
    assert not _descriptors("shardkeep:layout")


def test_torch_is_not_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import shardkeep, sys; "
         "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"],
        timeout=60, check=False)
    assert done.returncode == 0


# ---- meshes ----

def test_meshes() -> None:
    Mesh((2, 3))
    Mesh((2, 2), (3, 1, 2, 0), ("dp", "tp"))
    for bad in [lambda: Mesh(()), lambda: Mesh((2,), (0,)),
                lambda: Mesh((2,), (1, 1)), lambda: Mesh((0,)),
                lambda: Mesh((2,), names=("a", "b"))]:
        with pytest.raises((Invalid, ValueError)):
            bad()


def test_parts_of_two_ranks_become_one(client: Client) -> None:
    mesh = Mesh((2,))
    states = []
    for rank in range(2):
        half = Memory(2, 3, fill=rank + 1)
        state = state_of(client, "halves", rank=rank, world=2)
        state.tensors([half.described(
            "w", shape=(4, 3), mesh=mesh,
            placements=((_core.SHARD, 0, 0),), local=(2, 3))], half)
        state.snapshot(1)
        states.append((state, half))
    states[0][0].wait(1, _core.COMPLETE, 30000)
    whole = Memory(4, 3)
    reader = state_of(client, "halves", flags=_core.JOB_READER)
    reader.tensors([whole.described("w")], whole)
    assert reader.restore()["step"] == 1
    assert whole.values.tolist() == [1] * 6 + [2] * 6
    # The right half of it, into memory with strides.
    columns = Memory(4, 5)
    reader.tensors([columns.described("w", shape=(4, 3), parts=(
        ((0, 1), (4, 2), columns.at + 4, (5, 1)),))], columns)
    reader.restore()
    assert columns.values.tolist() == [0, 1, 1, 0, 0] * 2 + \
        [0, 2, 2, 0, 0] * 2


# ---- what is refused ----

@pytest.mark.parametrize("change, sentence", [
    ({"local": (3, 3)}, "w"),
    ({"dtype": 9999}, "w"),
    ({"shape": (-1, 3)}, "w"),
    ({"shape": (4, 3), "at": 0}, "w"),
    ({"name": "shardkeep.own"}, "shardkeep."),
])
def test_descriptions_that_cannot_be(client: Client, change: dict[str, Any],
                                     sentence: str) -> None:
    m = Memory(4, 3)
    state = state_of(client, "bad")
    with pytest.raises((Invalid, ValueError)) as e:
        state.tensors([m.described("w", **change)], m)
        state.snapshot(1)
    assert sentence in str(e.value)


@pytest.mark.parametrize("given", [
    None, 3, [()], [("w",)], ["w"], [(1, 2, 3, 4, 5, 6, 7, 8, 9)],
    [("w", 1, (3,), "mesh", (), 0, None, None, None)],
    [("w", 1, "shape", None, (), 0, None, None, None)],
    [("w", 1, (3,), None, ((1,),), 0, None, None, None)],
    [("w", 1, (1,) * 99, None, (), 0, None, None, None)],
    [("w", 1, (3,), None, (), -5, None, None, None)],
    [("w", 1, (3,), None, (), 0, None, None, 5)],
    [("w", 1, (3,), None, (), 0, None, None, None, "gpu")],
    [("w", 1, (3,), None, (5,), 0, None, None, None)],
    [("w", 1, (3,), None, (), 0, None, None, (5,))],
])
def test_no_descriptions_at_all(client: Client, given: Any) -> None:
    state = state_of(client, "bad")
    with pytest.raises((TypeError, ValueError, OverflowError, Error)):
        state.tensors(given)


def test_cuda_is_refused_with_a_sentence(client: Client) -> None:
    m = Memory(4)
    with pytest.raises(Error, match="w"):
        state_of(client, "gpu").tensors([(*m.described("w"), 0)], m)


def test_all_or_none(client: Client) -> None:
    m = Memory(4)
    state = state_of(client, "half")
    with pytest.raises((Invalid, ValueError)):
        state.tensors([m.described("good"),
                       m.described("bad", local=(9,))], m)
    with pytest.raises(Invalid, match="described|tensor"):
        state.snapshot(1)


def test_no_agent_is_no_first_run(tmp_path: Path) -> None:
    with pytest.raises(Error, match="no agent answers") as e:
        Client(str(tmp_path / "none.sock"), start=False)
    assert not isinstance(e.value, NotFound)
    assert e.value.errno == errno.ECONNREFUSED


def test_errors_are_of_their_kind(client: Client) -> None:
    m = Memory(4)
    state = state_of(client, "kinds")
    state.tensors([m.described("w")], m)
    with pytest.raises(NotFound):
        state.restore()
    taken(state, 1)
    with pytest.raises(NotFound, match="99"):
        state.restore(99)
    with pytest.raises(Error, match="lives already"):
        second = state_of(client, "kinds")
        second.tensors([m.described("w")], m)
        second.snapshot(2)
    state.close()
    other = state_of(client, "kinds")
    other.tensors([m.described("v")], m)
    with pytest.raises(Mismatch, match="v"):
        other.restore()
    other.close()
    wrong = state_of(client, "kinds")
    wrong.tensors([Memory(5).described("w")], m)
    with pytest.raises(Invalid, match="w"):
        wrong.restore()
    with pytest.raises(Error) as e:
        Client("/nowhere/agent.sock", start=False)
    assert "/nowhere/agent.sock" in str(e.value) and e.value.errno
    assert issubclass(Busy, Error) and issubclass(Error, OSError)


def test_a_tensor_that_changed_is_named(client: Client) -> None:
    m = Memory(1000)
    state = state_of(client, "verify", flags=_core.JOB_VERIFY)
    state.tensors([m.described("quiet.weight")], m)
    state.snapshot(1)
    m.values[5] = 1.0
    with pytest.raises(TensorChanged, match="quiet.weight"):
        state.fence()


# ---- lifetimes ----

def test_memory_is_kept_while_it_is_copied(client: Client) -> None:
    class Kept(Memory):
        pass

    m = Kept(100, fill=1)
    gone = weakref.ref(m)
    state = state_of(client, "kept")
    state.tensors([m.described("w")], m)
    state.snapshot(1, keep=m)
    del m
    gc.collect()
    assert gone() is not None
    state.fence()
    state.clear()
    gc.collect()
    assert gone() is None


def test_a_blob_cannot_be_resized_while_it_is_described(client: Client
                                                        ) -> None:
    raw = bytearray(10)
    state = state_of(client, "room")
    state.blob("b", raw)
    with pytest.raises(BufferError):
        raw.extend(b"more")
    state.remove("b")
    raw.extend(b"more")
    with pytest.raises(NotFound):
        state.remove("b")


def test_closed_objects_say_so(client: Client) -> None:
    m = Memory(3)
    state = state_of(client, "closed")
    state.close()
    state.close()
    with pytest.raises(ValueError, match="closed"):
        state.tensors([m.described("w")], m)
    other = Client()
    other.close()
    other.close()
    with pytest.raises(ValueError, match="closed"):
        other.snapshots()
    with pytest.raises(ValueError, match="closed"):
        State(other, "x", 0, 1)


def test_a_client_stays_while_its_states_do() -> None:
    m = Memory(3, fill=4)
    state = State(Client(), "outlives", 0, 1)
    gc.collect()
    state.tensors([m.described("w")], m)
    taken(state, 1)
    state.close()


def test_what_was_never_made_is_refused(client: Client) -> None:
    state = state_of(client, "unmade")
    mesh, usual, links = (kind.__new__(kind) for kind in (
        Mesh, _core.Usual, _core.Links))
    unmade: Any = _core.State.__new__(_core.State)
    with pytest.raises(ValueError, match="the mesh was not made"):
        state.tensors([("a", DTYPES["U8"], (4,), mesh, ((0, 0, 0),), 0, None,
                        None, None)])
    with pytest.raises(ValueError, match="the Usual was not made"):
        state.describe([], usual, set(), {}, lambda *_: None)
    with pytest.raises(ValueError, match="the Usual was not made"):
        _core.Watch([], [], [], usual, lambda t: t)
    with pytest.raises(RuntimeError, match="have not met"):
        state.restore(comm=links)
    with pytest.raises(ValueError, match="the state is closed"):
        unmade.restore()
    with pytest.raises(ValueError, match="the client is closed"):
        State(Client.__new__(Client), "z", 0, 1)


def test_after_a_fork_the_child_is_told(client: Client) -> None:
    m = Memory(3)
    state = state_of(client, "fork")
    state.tensors([m.described("w")], m)
    pid = os.fork()
    if not pid:
        try:
            state.snapshot(1)
        except Error:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    taken(state, 1)      # the parent's is as it was


# ---- threads ----

def test_threads_share_a_client(client: Client) -> None:
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            m = Memory(5000, fill=i)
            state = state_of(client, f"thread-{i}")
            state.tensors([m.described("w")], m)
            for step in range(5):
                taken(state, step)
            m.values[:] = array.array("f", [0.0] * 5000)
            state.restore()
            assert m.values[77] == i
            state.close()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


def test_ranks_agree_by_the_callers_allgather(client: Client) -> None:
    """Three ranks in three threads, which talk through a list."""
    world, mesh = 3, Mesh((3,))
    barrier = threading.Barrier(world)
    said: list[bytes] = [b""] * world
    failed: list[BaseException] = []

    def work(rank: int) -> None:
        def allgather(mine: bytes, timeout_ms: int) -> bytes:
            said[rank] = mine
            barrier.wait(30)
            every = b"".join(said)
            barrier.wait(30)
            return every

        try:
            m = Memory(2, fill=rank)
            state = State(Client(), "meet", rank, world)
            state.tensors([m.described(
                "w", shape=(6,), mesh=mesh,
                placements=((_core.SHARD, 0, 0),))], m)
            taken(state, 1)
            m.values[:] = array.array("f", [9.0, 9.0])
            report = state.restore(allgather=allgather, world=world)
            assert report["step"] == 1 and m.values.tolist() == [rank] * 2
            state.close()
        except BaseException as e:
            failed.append(e)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(r,))
               for r in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


_DESCRIBES = """
import sys, threading
import shardkeep
state = shardkeep.State(shardkeep.Client(), "beside", 0, 2)
state.blob("a", bytearray(8))
asked = threading.Event()
def describe():
    asked.wait(30)
    if sys.argv[1] == "blob":
        state.blob("b", bytearray(4))
    else:
        state.remove("a")
def allgather(mine, timeout_ms):
    asked.set()
    other.join(0.3)     # it waits for this restore, and must let it go on
    raise OSError("network")
other = threading.Thread(target=describe)
other.start()
try:
    state.restore(allgather=allgather, world=2)
except (OSError, shardkeep.Error):
    other.join(30)
    sys.exit(other.is_alive())
"""


@pytest.mark.parametrize("call", ["blob", "remove"])
def test_who_describes_beside_a_restore_lets_it_go_on(call: str) -> None:
    subprocess.run([sys.executable, "-c", _DESCRIBES, call], timeout=60,
                   check=True)


def test_an_exception_of_the_allgather_is_raised(client: Client) -> None:
    class Mine(Exception):
        pass

    def allgather(mine: bytes, timeout_ms: int) -> bytes:
        raise Mine("network")

    m = Memory(2)
    state = state_of(client, "raises", rank=0, world=2)
    state.tensors([m.described("w")], m)
    with pytest.raises((Mine, Error)):
        state.restore(allgather=allgather, world=2)


# ---- for the reader ----

def test_help_is_worth_reading() -> None:
    for thing in (shardkeep, Client, Mesh, State, shardkeep.inspect):
        text = pydoc.plain(pydoc.render_doc(thing))
        assert len(text.splitlines()) > 5
    for name in dir(State):
        if not name.startswith("_"):
            assert getattr(State, name).__doc__, name


def test_what_comes_back_is_json(client: Client) -> None:
    m = Memory(2)
    state = state_of(client, "text")
    state.tensors([m.described("quo\"te\\ ä")], m)
    taken(state, 3)
    found = json.loads(client.inspect("text"))
    assert found["tensors"][0]["name"] == "quo\"te\\ ä"
    assert found["meshes"] == []
    assert shardkeep.version().count(".") == 2


def steps_on_disk(client: Client, job: str) -> list[int]:
    return sorted(s["step"] for s in snapshots(client, job) if s["durable"])


def test_a_job_keeps_all_where_others_keep_the_last(client):
    m = Memory(2)
    for job, said in ("all", {"keep_last": shardkeep.KEEP_ALL}), ("last", {}):
        state = state_of(client, job, **said)
        state.tensors([m.described("w")], m)
        for step in range(1, 7):
            taken(state, step)
            state.flush(step)
            state.wait(step, _core.DURABLE, 30000)
    until = time.monotonic() + 30
    while len(steps_on_disk(client, "last")) > 4:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert steps_on_disk(client, "last") == [3, 4, 5, 6]
    assert steps_on_disk(client, "all") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("wrong", [
    {"slots": -1}, {"flush_every": -1}, {"keep_last": -1},
    {"keep_last": 2**32 + 3}, {"keep_every": -4}, {"keep_age": -1},
    {"keep_bytes": 2**64}, {"run": -1},
])
def test_no_number_is_taken_for_another_one(client, wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}: a whole"):
        State(client, "numbers", 0, 1, **wrong)
    with pytest.raises(TypeError, match=f"{name} is 1.5: a whole"):
        State(client, "numbers", 0, 1, **{name: 1.5})


def test_no_wait_is_taken_for_another_one(client):
    state = state_of(client, "waits")
    for wait in -1, 2**32:
        for act in (lambda n=wait: state.snapshot(1, wait_ms=n),
                    lambda n=wait: state.prepare(n),
                    lambda n=wait: state.wait(1, _core.SEALED, n),
                    lambda n=wait: state.restore(timeout_ms=n),
                    lambda n=wait: Client(timeout_ms=n)):
            with pytest.raises(ValueError, match=f"_ms is {wait}: a whole"):
                act()
    with pytest.raises(ValueError, match="run is -1"):
        inspect(client, "waits", run=-1)


# ---- a slot that is asked for ahead ----

def _counted(what: str) -> int:
    said = subprocess.run([program("cachectl"), "stats", "--json"], check=True,
                          capture_output=True).stdout
    return sum(int(s["value"]) for s in json.loads(said)["stats"]
               if what in s["name"])


def _discarded() -> int:
    return _counted("discarded_client")


def _described(client: Client, job: str) -> tuple[State, Memory]:
    """With two slots, and a state that is as it was."""
    m = Memory(6)
    state = state_of(client, job)
    state.tensors([m.described("w")], m)
    taken(state, 1)
    taken(state, 2)
    return state, m


def test_a_slot_that_is_asked_for_is_the_snapshots(client: Client) -> None:
    state, m = _described(client, "ahead")
    before = _discarded()
    for step in range(3, 9):
        m.values[0] = step
        state.ask(step, 0, 30000)
        assert all(s["step"] < step or not s["complete"]
                   for s in snapshots(client, "ahead"))    # asks in between
        taken(state, step)
    assert _discarded() == before
    m.values[0] = 0
    assert state.restore()["step"] == 8 and m.values[0] == 8


@pytest.mark.parametrize("end", ["no more", "another step", "other flags",
                                 "described", "removed", "not taken",
                                 "closed"])
def test_a_slot_that_is_asked_for_in_vain_is_given_back(
        client: Client, end: str) -> None:
    """Two slots would be lost after the second time."""
    state, m = _described(client, "vain")
    more = Memory(2)
    for step in range(3, 9):
        state.ask(step, 0, 30000)
        if end == "no more":
            state.ask_no_more()
        elif end == "another step":
            state.snapshot(100 + step, wait_ms=30000)
            state.fence()
            state.wait(100 + step, _core.SEALED, 30000)
        elif end == "other flags":
            state.snapshot(step, _core.SNAPSHOT_NO_FLUSH, 30000)
            state.fence()
            state.wait(step, _core.SEALED, 30000)
            continue
        elif end == "described":
            state.tensors([more.described(f"more{step}")], more)
        elif end == "removed":
            state.tensors([more.described("x")], more)
            state.remove("x")
        elif end == "not taken":
            with pytest.raises(Invalid):
                state.snapshot(-1)
        else:
            state.close()
            state = state_of(client, "vain")
            state.tensors([m.described("w")], m)
        step = 200 + step if end == "another step" else step
        taken(state, step)
        found = [s for s in snapshots(client, "vain") if s["complete"]]
        assert any(s["step"] == step for s in found)


def test_a_slot_that_an_agent_took_with_it_is_asked_for_again(
        tmp_path: Path) -> None:
    nodes = Nodes([str(tmp_path)])
    client = Client(nodes[0])
    state, _ = _described(client, "gone")
    for step in range(3, 8):
        state.ask(step, 0, 30000)
        if step % 2:
            nodes.restart(0, signal.SIGKILL)
        taken(state, step)
    state.close()
    client.close()
    nodes.end()


def test_two_states_that_ask_at_once(client: Client) -> None:
    a, _ = _described(client, "one")
    b, _ = _described(client, "other")
    before = _discarded()
    for step in range(3, 7):
        a.ask(step, 0, 30000)
        b.ask(step, 0, 30000)   # finds that another is under way
        taken(b, step)
        taken(a, step)
    assert _discarded() == before


def test_the_oldest_is_all_that_asking_in_vain_costs(client: Client) -> None:
    state, m = _described(client, "cost")
    for step in range(3, 40):
        state.ask(step, 0, 30000)
        state.ask_no_more()
        assert [s["step"] for s in snapshots(client, "cost")
                if s["complete"]] == [2]
    assert state.restore()["step"] == 2


def _pin(word: str, steps: list[int]) -> None:
    for step in steps:
        subprocess.run([program("cachectl"), word, f"busy/{step}"],
                       check=True)


def test_that_there_was_no_slot_then_is_no_answer(client: Client) -> None:
    state, _ = _described(client, "busy")
    for step in range(3, 6):
        held = [s["step"] for s in snapshots(client, "busy")]
        _pin("pin", held)
        state.ask(step, 0, 0)
        snapshots(client, "busy")       # it has been answered
        with pytest.raises(Busy):
            state.snapshot(step)
        state.ask(step, 0, 0)
        snapshots(client, "busy")
        _pin("unpin", held)
        state.snapshot(step)
        state.fence()
        state.wait(step, _core.COMPLETE, 30000)


def test_who_waits_for_a_slot_hears_signals(client: Client) -> None:
    state, _ = _described(client, "busy")
    held = [s["step"] for s in snapshots(client, "busy")]
    _pin("pin", held)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    was = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            state.snapshot(3, wait_ms=20000)
        before = _counted("shardkeep_slots_refused")
        with pytest.raises(Busy):
            state.snapshot(3, wait_ms=450)
        assert _counted("shardkeep_slots_refused") == before + 1, "once, in however many slices"
        # What makes room comes while it is waited for.
        signal.signal(signal.SIGALRM, lambda *_: _pin("unpin", held))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        state.snapshot(3, wait_ms=20000)
    finally:
        signal.signal(signal.SIGALRM, was)
    state.wait(3, _core.COMPLETE, 30000)
