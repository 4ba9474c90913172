# SPDX-License-Identifier: Apache-2.0
"""What is read from, where nothing is trained: the agent of the rank, or those
of all ranks of a group."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from .. import LATEST, Client, Error, NotFound, State, _core, inspect
from . import _objects
from ._comm import Comm
from ._common import PLAN
from ._dcp_nodes import can_be
from ._links import available as links_available
from ._meeting import Apart
from ._nodes import (LISTED_MOST, Teller, candidates, each, left_of, offers,
                     over, several, went_each_time)
from ._together import PASSED_OVER, together
from ._versions import default_store

#: Descriptions as State.tensors() takes them, and what holds their memory.
Described = tuple[list[Any], Any]

_T = TypeVar("_T")

#: The call that ranks meet in.
_LOAD = "a load"


class Which(NamedTuple):
    """A snapshot, as an agent knows it."""

    agent: int
    run: int
    step: int


class Gone(NotFound):
    """What was there when it was looked at."""


class Agent:
    """This rank's, connected to when it is first asked."""

    def __init__(self, socket: str | None) -> None:
        self._socket = socket
        self._client: Client | None = None

    def client(self) -> Client:
        if self._client is None:
            self._client = Client(self._socket)
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def described_bytes(raw: dict[str, bytearray]) -> list[Any]:
    """Memory for the bytes of objects, as State.tensors() takes it."""
    return [(name, _core.DTYPES["U8"], (len(b),), None, (), 0, None, None,
             _objects.as_parts(b), None) for name, b in raw.items()]


def _plans_in(held: dict[str, Any]) -> dict[str, bytearray]:
    """Memory for what the planners of the ranks that saved said of keys."""
    return {t["name"]: bytearray(t["shape"][0]) for t in held["tensors"]
            if t["name"].startswith(PLAN)}


class Alone:
    """The agent of this rank has all of it."""

    def __init__(self, agent: Agent, job: str) -> None:
        self._agent, self._job = agent, job
        self.run, self.step = 0, LATEST
        self._instance = 0      # of the agent that was looked at, alone
        #: What State.restore() said of each that there was.
        self.reports: list[dict[str, Any]] = []

    def look(self, run: int, step: int, brief: bool = False
             ) -> dict[str, Any]:
        """What there is of the snapshot, as inspect() has it."""
        client = self._agent.client()
        held = inspect(client, self._job, step, run, brief)
        self._instance = client.instance()
        self.run, self.step = held["run"], held["step"]
        return held

    def which(self) -> Which:
        """What was looked at."""
        return Which(self._instance, self.run, self.step)

    def plans(self, held: dict[str, Any]) -> list[Any]:
        """What the planners of the ranks that saved said of their keys."""
        raw = _plans_in(held)
        self.bring(lambda: (described_bytes(raw), raw))
        return [_objects.loads(b) for b in raw.values()]

    def refuse_unreadable(self, run: int, step: int) -> None:
        """Where nothing whole was found: raises what the library says of it
        if that is not that there is nothing, as of what is damaged. Who hears
        of nothing may begin anew."""
        with self._reader(0, 1) as state:
            try:
                state.restore(step, run=run, names=[])
            except NotFound:
                return
        raise Error(errno.EIO, f"job {self._job}: a snapshot came while it "
                    "was looked for; load again")

    def whether(self, mine: bool) -> bool:
        """Whether a rank has something to read; all ranks ask."""
        return mine

    def bring(self, describe: Callable[[], Described]) -> None:
        """Fills the memory of what is described; all ranks come to it.
        ``Gone`` where nobody has it any more."""
        described, keep = describe()
        if described:
            with self._reader(0, 1) as state:
                state.tensors(described, keep)
                self._restore(state, [d[0] for d in described])

    def _restore(self, state: State, names: list[str], **how: Any) -> None:
        try:
            self.reports.append(state.restore(self.step, run=self.run,
                                              names=names, **how))
        except NotFound as e:
            raise Gone(e.errno, f"{e}; it was there when the load began: "
                       "newer ones take its place in memory. Load a step that "
                       "is on disk, or have this one pinned (cachectl pin)"
                       ) from None

    @contextlib.contextmanager
    def _reader(self, rank: int, world: int) -> Iterator[State]:
        state = State(self._agent.client(), self._job, rank, world,
                      flags=_core.JOB_READER)
        try:
            yield state
        finally:
            state.close()

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """Around all of the reading, where one rank may fail and others
        not."""
        try:
            yield
        finally:
            self._agent.close()


class Several(Alone):
    """Several agents have parts of it, and all ranks read together: bytes go
    between them as in a restore over nodes. What fails on one fails on
    all."""

    def __init__(self, agent: Agent, job: str, comm: Comm,
                 agents: list[int]) -> None:
        super().__init__(agent, job)
        self._comm, self._told = comm, False
        self._teller = Teller(comm, agents, self._here)

    def _here(self, run: int, step: int) -> Any:
        try:
            return inspect(self._agent.client(), self._job, step, run)
        except NotFound:
            return None

    def _together(self, act: Callable[[], Any]) -> list[Any]:
        self._told = True       # what fails here fails on all
        found = together(self._comm, _LOAD, act)
        self._told = False
        return found

    def look(self, run: int, step: int, brief: bool = False
             ) -> dict[str, Any]:
        self.run, self.step = run, step
        told = self._teller.told(self._together(
            lambda: self._teller.size(run, step)))
        if not told:
            raise NotFound(errno.ENOENT, f"job {self._job}: step {step} went "
                           "while it was looked at")
        return _merged(told)

    def plans(self, held: dict[str, Any]) -> list[Any]:
        """Read by one rank, for all; by this it is known whether the snapshot
        is complete."""
        raw = _plans_in(held) if self._comm.rank == 0 else {}
        self.bring(lambda: (described_bytes(raw), raw))
        mine = b"".join(len(b).to_bytes(8, "little") + b
                        for b in raw.values())
        return [_objects.loads(b) for b in _split(self._spread(mine))]

    def _spread(self, mine: bytes) -> bytes:
        """What rank 0 has."""
        size = self._together(lambda: len(mine))[0]
        data = bytearray(mine if self._comm.rank == 0 else size)
        if size:
            self._comm.links().spread(0, data, self._comm.timeout)
        return bytes(data)

    def whether(self, mine: bool) -> bool:
        return any(self._together(lambda: mine))

    def bring(self, describe: Callable[[], Described]) -> None:
        with contextlib.ExitStack() as stack:
            names: list[str] = []
            states: list[State] = []

            def prepare() -> int | None:
                described, keep = describe()
                states.append(stack.enter_context(self._reader(
                    self._comm.rank, self._comm.world)))
                names.extend(d[0] for d in described)
                if described:
                    states[0].tensors(described, keep)
                return _one_device(described)

            devices = self._together(prepare)
            device = None if None in devices else devices[self._comm.rank]
            words = over(self._comm, self._comm.links(), device)

            self._together(lambda: self._restore(states[0], names, **words))

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        with self._comm.one_call():
            try:
                yield
            except Apart:
                raise
            except Exception as e:
                if not self._told:      # the others wait for this rank
                    self._together(functools.partial(_raise, e))
                raise
            finally:
                self._agent.close()


def _raise(e: Exception) -> None:
    raise e


def _one_device(described: list[Any]) -> int | None:
    """The rank's GPU, for NCCL, whatever goes to host memory besides; None
    where it has none, or several."""
    found = {d[9] for d in described} - {None}
    return found.pop() if len(found) == 1 else None


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at:at + 8], "little")
        yield data[at + 8:end]
        at = end


def _merged(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What several agents know of one snapshot, as one would."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    boxes: set[tuple[Any, ...]] = set()
    for one in told:
        for t in one["tensors"]:
            key = (t["kind"], t["name"], t["rank"])
            mine = found.setdefault(key, {**t, "boxes": []})
            for b in t["boxes"]:
                # An image may be here in memory and there on disk.
                which = (*key, b["rank"], *b["offset"], *b["size"])
                if which not in boxes:
                    boxes.add(which)
                    mine["boxes"].append(b)
    return {**told[0], "tensors": list(found.values())}


# ---- which snapshot ----

#: What to read from, what the snapshot holds, what its planners said.
Answer = tuple[Alone, dict[str, Any], list[Any]]


class Question:
    """Which snapshot of which job."""

    def __init__(self, job: str, step: int, run: int) -> None:
        self.job, self.step, self.run = job, step, run

    def ask(self, socket: str | None, group: dist.ProcessGroup | None,
            timeout: float) -> Answer:
        """Of this rank's agent; or of all that serve the ranks of a group,
        which all come to it."""
        agent = Agent(socket)
        try:
            if group is not None and dist.get_world_size(group) > 1:
                return self._ask_together(agent, comm_of(group, timeout))
            return self.read(lambda: self._ask_alone(agent))
        except NotFound as e:
            if group is not None or not can_be():
                raise
            raise NotFound(e.errno, f"{e}; where ranks are of several nodes, "
                           "give the reader their process_group") from None
        finally:
            agent.close()

    def read(self, act: Callable[[], _T]) -> _T:
        """What ``act`` comes to. Where the newest went meanwhile, for newer
        ones came, it is done once more, with those."""
        for _ in range(LISTED_MOST):
            try:
                return act()
            except Gone:
                if self.step != LATEST:
                    raise
        raise went_each_time(self.job)

    def _ask_alone(self, agent: Agent) -> Answer:
        way = Alone(agent, self.job)
        try:
            held = way.look(self.run, self.step)
        except NotFound as e:
            way.refuse_unreadable(self.run, self.step)
            rest = left_of(agent.client(), self.job, self._wanted(), self.run)
            raise NotFound(e.errno, "; ".join(
                [e.strerror, *rest[2:]])) from None
        return way, held, way.plans(held)

    def _ask_together(self, agent: Agent, comm: Comm) -> Answer:
        def look(way: Alone, held: dict[str, Any], plans: list[Any]
                 ) -> Answer:
            if isinstance(way, Several):
                return way, held, plans
            found: list[Any] = []

            def here() -> None:
                found.append(way.look(way.run, way.step))
                found.append(way.plans(found[0]))

            together(comm, _LOAD, here)
            return way, found[0], found[1]

        return self.read_together(agent, comm, look)

    def read_together(self, agent: Agent, comm: Comm, act: Callable[
            [Alone, dict[str, Any], list[Any]], _T]) -> _T:
        """What ``act`` comes to, which fails on all ranks or on none, with the
        snapshot that they choose; done once more as in ``read()``."""
        with comm.one_call():
            return self._read_together(agent, comm, act)

    def _read_together(self, agent: Agent, comm: Comm, act: Callable[
            [Alone, dict[str, Any], list[Any]], _T]) -> _T:
        before: tuple[int, int] | None = None
        for _ in range(LISTED_MOST):
            way, held, plans = self.choose(agent, comm)
            which = way.run, way.step
            try:
                return act(way, held, plans)
            except NotFound:
                if self.step != LATEST or which == before:
                    raise
            before = which
        raise went_each_time(self.job)

    def choose(self, agent: Agent, comm: Comm) -> Answer:
        """The snapshot that all ranks are to read; where one agent serves
        them it was not looked at."""
        told: list[dict[str, Any]] = []

        def apart() -> bool:
            return several(told) and links_available()

        def listed() -> list[tuple[int, int]]:
            told[:] = together(comm, _LOAD, lambda: offers(
                agent.client(), self.job, self._wanted()))
            return [x for x in candidates(told, apart())
                    if self.run in (0, x[0])]

        failed: Error | None = None
        for run, step in each(self.job, listed):
            if not apart():
                alone = Alone(agent, self.job)
                alone.run, alone.step = run, step
                return alone, {}, []
            way = Several(agent, self.job, comm, [x["agent"] for x in told])
            try:
                held = way.look(run, step)
                return way, held, way.plans(held)
            except PASSED_OVER as e:
                failed = failed or e
        raise failed or self._nothing(agent, comm)

    def _nothing(self, agent: Agent, comm: Comm) -> Error:
        """What is raised where nothing was listed; what nobody could read is
        raised here."""
        together(comm, _LOAD, lambda: Alone(
            agent, self.job).refuse_unreadable(self.run, self.step))
        which = "" if self.step == LATEST else f" of step {self.step}"
        which += f" of run {self.run}" if self.run else ""
        rests = together(comm, _LOAD, lambda: left_of(
            agent.client(), self.job, self._wanted(), self.run))
        return NotFound(errno.ENOENT, "; ".join(
            [f"job {self.job} has no complete snapshot{which}",
             *max(rests)[2:]]))

    def _wanted(self) -> int | None:
        return None if self.step == LATEST else self.step


_comms: dict[tuple[int, ...], tuple[int, Any, Comm]] = {}


def comm_of(group: dist.ProcessGroup, timeout: float) -> Comm:
    """One for all loads of a group, so that a rank that missed one is in step
    again at the next."""
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in the process group that the "
                         "reader was given")
    key = tuple(dist.get_process_group_ranks(group))
    pid, store, comm = _comms.get(key, (0, None, None))
    if comm is None or pid != os.getpid() or store is not default_store():
        comm = Comm(group, "dcp", timeout)
        _comms[key] = os.getpid(), default_store(), comm
    comm.timeout = timeout
    return comm
