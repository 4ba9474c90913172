# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a model and its optimizer, and back on any mesh."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from .. import (
    LATEST, Client, Error, Mismatch, NotFound, State, Timeout, _core,
    snapshots)
from . import _device
from ._agreed import Agreed, agreeing
from ._blobs import Blobs, are_apart, is_row, unheld_in
from ._comm import Comm
from ._common import (
    check_name, lasting, milliseconds, number_of, step_of)
from ._describing import Describing
from ._kept import Kept
from ._report import Report
from ._restore import Restore
from ._steps import STEPS
from ._tensors import LiveTensors, as_list

log = logging.getLogger("shardkeep")

_UNTIL = {"sealed": _core.SEALED, "complete": _core.COMPLETE,
          "durable": _core.DURABLE}
#: Of errors that another rank tells.
_KINDS = {errno.ETIMEDOUT: Timeout, errno.ENOENT: NotFound}
_SOURCES = {None: 0, "memory": _core.RESTORE_MEMORY_ONLY,
            "disk": _core.RESTORE_DISK_ONLY}


def _one_of(name: str, value: Any, known: dict[Any, int]) -> int:
    if value not in known:
        words = ", ".join(f'"{k}"' for k in known if k is not None)
        raise ValueError(f"{name}={value!r}: one of {words}")
    return known[value]


class Doubt:
    """A step of which is asked whether it is complete: every ten seconds
    another one."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.since = -math.inf

    def begin(self, step: int | None) -> None:
        now = time.monotonic()
        if now >= self.since + 10:
            self.step, self.since = step, now


def _never_because(e: Error) -> str:
    return (e.strerror or "").rpartition("will not be complete: ")[2]


def _while_there(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that keeps nothing alive: a Checkpointer that nobody has any
    more, as where a notebook's cell runs again, is to let go of its job."""
    there = weakref.WeakMethod(method)

    def hook(*args: Any) -> None:
        method = there()
        if method is not None:
            method(*args)

    return hook


def _in_turn(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that one thread at a time is in; others wait."""
    @functools.wraps(method)
    def call(self: Checkpointer, *args: Any, **kwargs: Any) -> Any:
        # A forked child may have it locked, by a thread that it has not.
        with self._turn if self._is_ours() else contextlib.nullcontext():
            return method(self, *args, **kwargs)

    return call


def _check_named(what: str, objects: Any) -> None:
    if objects is None:
        return
    if not isinstance(objects, dict):
        raise TypeError(f"{what} is of type {type(objects).__qualname__}: a "
                        "dict of objects by name is needed")
    for name in objects:
        if not isinstance(name, str):
            raise TypeError(f"{what} has an object under {name!r}: names are "
                            "strings")
        check_name(name, False)


def _check_given(model: Any, job: Any, extra: Any, local: Any) -> None:
    if not isinstance(job, str):
        raise TypeError(f"job is {job!r}: a name is needed, a string")
    _check_named("extra", extra)
    _check_named("local", local)
    if model is None:
        raise TypeError("the model is None")


_REPLICAS = {True: 0, False: _core.JOB_NO_REPLICAS,
             "node": _core.JOB_NODE_REPLICAS}


_COPIES = {"fast": _core.COPY_FAST, "overlap": _core.COPY_OVERLAP}


def _flags(verify: bool, replicas: bool | str, copies: str) -> int:
    if replicas not in _REPLICAS:
        raise ValueError(f'replicas={replicas!r}: True, False or "node"')
    if copies not in _COPIES:
        raise ValueError(f'copies={copies!r}: "fast" or "overlap"')
    return ((_core.JOB_VERIFY if verify else 0) | _REPLICAS[replicas] |
            _COPIES[copies])


class Checkpointer:
    """Keeps a training job's state in the agent's memory.

    Parameters, persistent buffers and optimizer state are described once, by
    their meshes and placements if they are DTensors, as whole otherwise; a
    snapshot then costs one call into C. ``param_groups``, what modules give
    as ``get_extra_state()`` and whatever ``extra`` names go along as JSON,
    each rank's own; where ranks hold other parts when they come back, groups
    and modules find theirs by their names.

    Args:
        model: plain, DDP, FSDP1, FSDP2, tensor parallel, or any mix; a list
            of the stages of a pipeline that this rank has.
        optim: its optimizer, several, or None; wrapped ones as well. ``[]``:
            there is none to be kept, and what steps the model is not named.
        job: the name that snapshots are kept under.
        extra: objects with ``state_dict()`` and ``load_state_dict()``, such
            as schedulers, or plain values, by name. A rank that did not exist
            before gets rank 0's.
        local: objects of this rank alone by name, such as data loaders. A
            rank that did not exist before keeps what it has.
        group: the ranks of the job; None: all of torch.distributed, which is
            to be initialized before this, or one.
        rng: whether the generators' states go along, for each rank.
        run: which incarnation of the job this is; 0: $SHARDKEEP_RUN, else the
            agent numbers it.
        slots: snapshots a rank can hold in memory, at least 2; 0: 2.
        flush_every: which steps go to disk: multiples of it; 0: about two a
            minute, and those that are waited for;
            :data:`shardkeep.FLUSH_NEVER`: only when asked, when the job ends,
            or at shutdown.
        keep_last: how many complete snapshots stay on disk, the newest ones;
            :data:`shardkeep.KEEP_ALL`: all. Pinned ones stay as well, those in
            use, and always the newest complete one. With this and the next
            three 0 the agent's options hold.
        keep_every: and those of steps that are multiples of it.
        keep_age: none that is so many seconds older than the newest one.
        keep_bytes: no more than that of all ranks, the newest first.
        replicas: whether each rank keeps all that it has, also what other
            ranks have as well (DDP, HSDP). Without, of what several have one
            does, each a like share: memory, and what a snapshot copies, are
            less by as much. With "node" one of each node does: each node has all
            that its ranks have in common with others, once. With copies, others
            of its node make up for what a rank that died had not saved, if
            ranks have nothing of their own: neither ``optim``, ``extra``,
            ``local`` nor ``rng``. Else the newest whole step is an older one.
            With copies or "node", other nodes make up for one that is lost:
            see :meth:`restore`.
        copies: of tensors on GPUs, "fast": as their memory or the link is,
            by kernels too; or "overlap": beside the trainer's kernels, by
            copy engines alone, which is slower.
        verify: refuse snapshots whose tensors changed before the fence.
        fence_hook: fence before every step of any optimizer by itself; at the
            second step of ``optim``, when its state is there, the agent is
            told to make room, so that the first snapshot finds its memory
            warm.
        raising: whether a failed snapshot is an exception, not a log line.
        socket: of the agent; None: where the library looks for it.
        timeout: seconds to wait for other ranks where all must come.

    Tensors may lie in host memory and on CUDA devices, in any mixture. Of the
    latter a snapshot has what the current streams have been asked for; the
    fence before an optimizer's step makes its stream wait for the copies, and
    the host only for tensors of host memory. A captured graph has no fence in
    it: call :meth:`fence` before each replay that writes the tensors.

    Any thread may call any method; what another one's :meth:`snapshot`,
    :meth:`restore`, :meth:`prepare` or :meth:`close` has begun is waited for.
    The ranks must call them in the same order. A Checkpointer is neither
    copied nor pickled, and is no forked child's, whose steps it lets pass.
    """

    def __init__(self, model: torch.nn.Module | list[torch.nn.Module],
                 optim: torch.optim.Optimizer |
                 list[torch.optim.Optimizer] | None = None, *, job: str,
                 extra: dict[str, Any] | None = None,
                 local: dict[str, Any] | None = None,
                 group: dist.ProcessGroup | None = None, rng: bool = True,
                 run: int = 0, slots: int = 0, flush_every: int = 0,
                 keep_last: int = 0, keep_every: int = 0, keep_age: int = 0,
                 keep_bytes: int = 0, replicas: bool | str = True,
                 copies: str = "fast", verify: bool = False,
                 fence_hook: bool = True, raising: bool = False,
                 socket: str | None = None, timeout: float = 300) -> None:
        _check_given(model, job, extra, local)
        self._turn = threading.RLock()
        self._pid, self._closed = os.getpid(), False
        self._tensors = LiveTensors(as_list(model), as_list(optim))
        self._comm = Comm(group, job, timeout)
        self.rank, self.world = self._comm.rank, self._comm.world
        self.job = job
        if self._comm.launched():
            log.warning("job %s: WORLD_SIZE is %d, and torch.distributed is "
                        "not initialized: this process is a job of one rank; "
                        "make the Checkpointer after init_process_group()",
                        job, self._comm.launched())
        self.raising = raising
        #: What the last restore did, None before one.
        self.report: Report | None = None
        self.last_step: int | None = None
        self._newest = -1       # step that this run may have
        self._told = False      # what became of that one
        self._back = False      # that steps went back, and said so
        # The first step of what is described now, until one was complete.
        self._unproven: int | None = None
        self._doubt, self._changed = Doubt(), False
        self._unheld: set[str] = set()      # of such a step, and said so
        self._client = Client(socket)
        self._job: dict[str, Any] = {
            "run": run, "slots": slots, "flush_every": flush_every,
            "keep_last": keep_last, "keep_every": keep_every,
            "keep_age": keep_age, "keep_bytes": keep_bytes,
            "flags": _flags(verify, replicas, copies)}
        self._state = self._new_state()
        self._blobs = Blobs(self._state, self.rank, self.world)
        self._kept = Kept(self._tensors, self._blobs, self.rank, extra, local,
                          rng)
        self._describing = Describing(self._state, self._comm, self._tensors,
                                      self._blobs, self._kept.sizes)
        self._looked = False    # for what snapshots do not hold
        self._streams = _device.Streams()
        self._captured = False      # and said so
        self._several = False       # agents, as the last restore has found
        self._agreed: Agreed | None = None      # then, of one rank of each
        self._stepped: set[int] = set()     # ids of optimizers
        self._early = True
        self._hooks = [o.before_steps(_while_there(self._before_step))
                       for o in self._tensors.optims if fence_hook]
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._none_meant = optim is not None and not self._tensors.optims
        if fence_hook:
            STEPS.tell(self._before_another)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"the Checkpointer of job {self.job} is a rank of it in this "
            "process, and can be neither copied nor pickled; leave it out of "
            "what is, as by __getstate__()")

    def _is_ours(self) -> bool:
        """Whether this process made it: a forked child has memory of its
        own."""
        return self._pid == os.getpid()

    def _check_ours(self) -> None:
        """Before it speaks to the other ranks, to whom it is the parent."""
        if not self._is_ours():
            raise Error(errno.EOWNERDEAD, f"the Checkpointer of job {self.job} "
                        "was made before fork(); make one in the child")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the Checkpointer of job {self.job} is closed; "
                             "make another one to go on")

    def _new_state(self) -> State:
        return State(self._client, self.job, self.rank, self.world,
                     **self._job)

    # ---- snapshots ----

    def _describe(self) -> None:
        """Tells the library what there is now."""
        if not self._looked:
            self._looked = True
            for what in self._tensors.unsaved() + self._kept.unsaved():
                log.warning("job %s: snapshots do not hold %s", self.job,
                            what)
        self._changed |= self._describing.all()
        self._changed |= self._kept.put(self._describing.more)

    @_in_turn
    def prepare(self, timeout: float = 60) -> None:
        """Waits until the memory for snapshots is warm.

        Optional: without it the second step of an optimizer tells the agent
        to make room, or the first snapshot. Call it when the optimizer has
        its state. With a ``timeout`` of 0 it waits for nothing.
        """
        self._check_open()
        self._early = False
        self.fence()            # before its blobs are written again
        self._describe()
        self._state.prepare(milliseconds("timeout", timeout))

    def _fence_step(self) -> None:
        if self._closed:
            return
        devices = self._describing.devices
        if devices and _device.captures():
            self._say_captured()
            devices = []
        self._let_go(self._streams.for_fence(devices))

    def _before_another(self, optim: torch.optim.Optimizer) -> None:
        """One that was not given may write to the same memory."""
        if any(optim is x.inner for x in self._tensors.optims):
            return      # by its own hook
        self._fence_step()
        if not self._none_meant and optim not in self._others and \
                not self._tensors.are_of(optim):
            self._others.add(optim)
            self._say_not_given(optim)

    def _say_not_given(self, optim: torch.optim.Optimizer) -> None:
        name = self._tensors.first_of(optim)
        if name:
            log.warning("job %s: %s steps %s, and was not given to this "
                        "Checkpointer: snapshots do not hold its state; %s",
                        self.job, type(optim).__qualname__, name,
                        "make a Checkpointer of what steps now"
                        if self._tensors.optims else
                        "give it, or optim=[] where the model alone is meant")

    def _before_step(self, optim: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_ours():
            return
        self._fence_step()
        if self._early and id(optim) in self._stepped:
            self._make_room()
        elif self._early:
            self._stepped.add(id(optim))

    def _say_captured(self) -> None:
        if not self._captured:
            self._captured = True
            log.warning("job %s: the optimizer's step is captured in a CUDA "
                        "graph, which has no fence in it; call fence() "
                        "before each replay", self.job)

    def _make_room(self) -> None:
        """Registers early, unless other ranks would have to be asked who has
        which tensors: nobody knows whether they step as well. restore() has
        asked. What is wrong, the snapshot will tell."""
        self._early = False
        try:
            if self._describing.knows_holders():
                self.prepare(0)
        except Exception as e:
            log.debug("no room is made yet: %s", e)

    @_in_turn
    def snapshot(self, step: int, *, flush: bool | None = None,
                 wait: float = 0, stream: Any = None) -> bool:
        """Starts a snapshot and returns at once.

        The tensors may be read, but not written, nor resized or freed in
        place, before :meth:`fence`, which the optimizer's step calls by
        itself. Giving a parameter other data, as ``model.half()`` does, is
        neither. Buffers may be written, up to 64 MiB of
        plain ones, the smallest: they are copied in this call. ``flush`` sends
        it to disk, or not, whatever ``flush_every`` says; ``wait`` is how
        many seconds to wait for a free slot; ``stream`` the
        ``torch.cuda.Stream`` that wrote the tensors last, None: the current
        one of each device. Refused while a CUDA graph is captured.

        Returns whether one was started. A failure is logged and counted, and
        training goes on, unless ``raising``; what cannot be stored at all is
        always an exception, before anything is written, and so are ranks
        that disagree on what there is, at the call after.
        """
        self._check_open()
        self._comm.check_world()
        flags = 0 if flush is None else (
            _core.SNAPSHOT_FLUSH if flush else _core.SNAPSHOT_NO_FLUSH)
        step, wait_ms = step_of(step), milliseconds("wait", wait)
        on = None if stream is None else number_of(stream)
        self._early = False
        try:
            self._check_ours()
            _device.refuse_capture()
            self._let_go()          # before its blobs are written again
            self._look_back()
            self._look_beside()
            if self._agreed is not None:
                self._agreed.look(self._state)
            with self._asking(step, flags, wait_ms):
                self._describe()
                self._copy(step, flags, wait_ms, stream, on)
        except Mismatch:
            raise
        except Error as e:
            if self.raising:
                raise
            log.warning("no snapshot of step %d: %s", step, e)
            return False
        if self._changed:
            self._unproven, self._changed = step, False
        self.last_step, self._told = step, False
        self._say_older(step)
        self._newest = max(self._newest, step)
        return True

    def _say_older(self, step: int) -> None:
        """Steps that count anew, as in each epoch, are no newer ones."""
        if step >= self._newest or self._back:
            return
        self._back = True
        log.warning("job %s: step %d came after step %d, and a restore finds "
                    "the highest step, not the last one: count steps over all "
                    "of training, or go back by restore(%d)", self.job, step,
                    self._newest, step)

    @contextlib.contextmanager
    def _asking(self, step: int, flags: int, wait_ms: int) -> Iterator[None]:
        """The agent has a slot ready by the time that all is looked at."""
        state = self._state
        try:
            state.ask(step, flags, wait_ms)
            yield
        except BaseException:
            state.ask_no_more()
            raise

    def _copy(self, step: int, flags: int, wait_ms: int, stream: Any,
              on: int | None) -> None:
        for again in (False, True):
            self._describing.aside.take(stream)
            try:
                self._state.snapshot(
                    step, flags, wait_ms, self._describing.storages(),
                    self._streams.for_snapshot(self._describing.devices)
                    if on is None else on)
                return
            except Error as e:
                # The same address, and allocated anew.
                if again or e.errno != errno.EFAULT:
                    raise
            self._describing.again()

    def _look_back(self) -> None:
        """Whether a snapshot became complete: the next ones will as well
        while the same things are described."""
        if self._unproven is None:
            return
        run = self._state.status()["run"]
        for s in snapshots(self._client, self.job):
            if s["run"] != run or s["step"] < self._unproven:
                continue
            if s["complete"]:
                self._unproven = None
                self._unheld = set()
                return
            self._refuse(s["step"], s["note"])
            self._say_unheld(s["step"], s["note"])

    def _look_beside(self) -> None:
        """Who describes anew looks back; that another rank did so is seen now
        and then, by what becomes of one step."""
        if self._unproven is None:
            self._doubt.begin(self.last_step)
        step = self._doubt.step
        if step is None:
            return
        try:
            self._state.wait(step, _core.COMPLETE, 0)
            self._doubt.step = None
        except Timeout as e:    # looked at again, in the next call
            self._refuse(step, _never_because(e))
        except Error as e:
            self._doubt.step = None
            self._refuse(step, _never_because(e))

    def _refuse(self, step: int, note: str) -> None:
        """Ranks that disagree never make a snapshot that can be restored."""
        if are_apart(note):     # each goes on with objects of its own
            if self._blobs.disagree():
                log.warning("step %d of job %s will never be complete: %s",
                            step, self.job, note)
        elif "disagree" in note:
            self._unproven = None   # what is mended is looked at
            raise Mismatch(errno.ENOKEY, f"step {step} of job {self.job} will "
                           f"never be complete: {note}; give what differs "
                           "between ranks names of its own")

    def _say_unheld(self, step: int, note: str) -> None:
        """What ranks hold together, and one of them has not. That may come,
        as an optimizer's state does with the first gradients."""
        names = {x for x in unheld_in(note) if not is_row(x)}
        if names <= self._unheld:
            return
        self._unheld |= names
        each = "" if self._job["flags"] & _core.JOB_NO_REPLICAS == 0 else \
            ", or keep what each rank has (replicas=True)"
        said = (f"step {step} of job {self.job} is not complete, and none is "
                f"while that is so: {note}; have all ranks step it, with "
                f"gradients of zero where there are none{each}")
        if self.raising:
            raise Mismatch(errno.ENOKEY, said)
        log.warning("%s", said)

    def fence(self, stream: Any = None) -> None:
        """Returns when the last snapshot has let go of the tensors.

        With a ``torch.cuda.Stream`` it waits for those of host memory only:
        what that stream is asked for from here on comes after the copies.
        """
        self._check_open()
        self._let_go(None if stream is None else [number_of(stream)])

    def _let_go(self, streams: list[int] | None = None) -> None:
        """What became of a snapshot is told once: it is no reason to refuse
        the next. On the host, or where streams are given, on those."""
        if not self._is_ours():
            return
        try:
            for stream in streams or ():
                self._state.fence_stream(stream)
            if not streams:
                self._state.fence()
        except Error as e:
            told, self._told = self._told, True
            if told:
                return
            if self.raising:
                raise
            log.warning("the snapshot of step %s failed: %s",
                        self.last_step, e)

    def wait(self, step: int | None = None, until: str = "complete",
             timeout: float = 60) -> None:
        """Waits until a snapshot is "sealed", "complete" or "durable".

        Where several agents serve the job, as its restore has found, none of
        them knows of the others' images: for "complete" and "durable" all
        ranks must call it, each waits for its own part, and then, as long
        again, for the word of all others. What fails on one fails on all.
        """
        self._check_open()
        state = _one_of("until", until, _UNTIL)
        if step is None:
            step = self.last_step
        if step is None:
            raise ValueError("there is no snapshot to wait for")
        step = step_of(step)
        timeout = lasting("timeout", timeout)
        if self._several and state != _core.SEALED:
            self._wait_together(step, _core.WRITTEN if state == _core.DURABLE
                                else _core.SEALED, timeout)
        else:
            self._wait_alone(step, state, timeout)

    def _wait_together(self, step: int, state: int, timeout: float) -> None:
        mine: Error | None = None
        # Others may have waited to the end of their time.
        end = time.monotonic() + 2 * timeout + 1
        try:
            self._wait_alone(step, state, timeout)
        except Error as e:
            mine = e
        word = b"" if mine is None else \
            f"{mine.errno or errno.EIO} {mine.strerror}".encode()
        words = self._comm.share(word, f"wait({step})",
                                 end - time.monotonic())
        if mine is not None:
            raise mine
        for rank, other in enumerate(words):
            if other:
                number, _, why = other.decode().partition(" ")
                kind = _KINDS.get(int(number), Error)
                raise kind(int(number), f"rank {rank}: {why}")

    def _wait_alone(self, step: int, state: int, timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:     # what will never come is not waited for to the end
            left = max(0, end - time.monotonic())
            try:
                self._state.wait(step, state,
                                 milliseconds("timeout", min(left, 1)))
                return
            except (Timeout, NotFound) as e:
                self._refuse(step, _never_because(e))
                if left <= 1 or isinstance(e, NotFound):
                    raise

    def flush(self, step: int | None = None) -> None:
        """Has the agent write a snapshot to disk now."""
        self._check_open()
        step = self.last_step if step is None else step
        if step is None:
            raise ValueError("there is no snapshot to flush")
        self._state.flush(step_of(step))

    def status(self) -> dict[str, int]:
        """The last snapshot's times in nanoseconds, and counts: what
        ``sk_status()`` has."""
        self._check_open()
        return self._state.status()

    # ---- restoring ----

    @_in_turn
    def restore(self, step: int | None = None, *, strict: bool = True,
                source: str | None = None, lost_ok: bool = False
                ) -> int | None:
        """Brings everything back, in place, on whatever mesh it lies now.

        The newest complete snapshot (``step`` None or
        :data:`shardkeep.LATEST`), or that of ``step``, from the node's
        memory, else from disk (``source``: "memory" or "disk" alone). Where
        several agents serve the ranks, what a node lacks comes out of the
        memory of the others, and a first restore, which finds nothing, makes
        them one run. Every rank must call it, and all restore the same one,
        or none. What follows an older step of this life is a run of its own,
        which is newer than all before it. Optimizer state that a fresh
        optimizer lacks is made first, what came after the snapshot is let go,
        and tensors on the meta device get their memory. ``strict=False``
        leaves alone what the snapshot lacks and ignores what nobody asks for.
        Where a node is lost, what its ranks had in common with others comes
        from those; what each had alone (generators, ``local``) is lost, so
        that an older step which has it comes back, or with ``lost_ok`` the
        newest, and those ranks keep what they have.

        Returns the step, None on a first run. ``report`` has the details.
        """
        self._check_open()
        self._check_ours()
        self._comm.check_world()
        step = LATEST if step is None else step_of(step)
        if step < LATEST:
            raise ValueError(f"step {step} is negative")
        flags = 0 if strict else (_core.RESTORE_MISSING_OK |
                                  _core.RESTORE_EXTRA_OK)
        flags |= _one_of("source", source, _SOURCES)
        restore = Restore(self._client, self._state, self._comm, self.job,
                          self._tensors, self._describing, self._blobs,
                          self._kept, self._newest, lost_ok)
        with self._comm.one_call():
            found = restore.run(None if step == LATEST else step, flags,
                                strict)
            self._several = restore.several
            begun = self._state.begun()
            if restore.taken_back:
                self._begin_run(restore)
            self._agree(restore)
        if found is not None:           # and all else is done
            self._state.make_room(begun, restore.is_newest)
            self.report = restore.report
            log.log(logging.INFO if self.rank == 0 else logging.DEBUG,
                    "job %s goes on after %s", self.job, self.report)
        return found

    def _agree(self, restore: Restore) -> None:
        """From here on, on what is on the disks of all agents."""
        agents, before = restore.agents(), self._agreed
        run = self._state.status()["run"]
        if before is not None:
            if self._several and before.is_of(agents, run):
                return      # on all ranks alike
            before.end()
        self._agreed = agreeing(self._comm.part("agreed"), agents, run,
                                self.rank) if self._several else None

    def _begin_run(self, restore: Restore) -> None:
        """The steps after the one that was restored are there already, and
        newer ones of what was taken back: who comes after a crash would find
        those. So all ranks go on in the next run, whose steps are newer."""
        if self._job["run"] or os.environ.get("SHARDKEEP_RUN"):
            log.warning("job %s: its run is given a number, so there are no "
                        "snapshots until training is past step %d again, and "
                        "a restore finds that; let the agent number runs",
                        self.job, self._newest)
            return
        state = self._new_state()
        state.nodes_as(self._state)
        if self._agreed is not None:
            self._agreed.end()
        self._state.close()
        self._state = state
        self._blobs.move(self._state)
        self._describing.move(self._state)
        self.last_step, self._newest, self._unproven = None, -1, None
        self._doubt.step = None
        self._changed = self._early = True
        if self._several:
            restore.join(self._state)

    # ---- the end ----

    @_in_turn
    def close(self) -> None:
        """Waits for the last seal and lets go; the images stay. While another
        thread waits in it that is refused, and it stays open."""
        if not self._closed:
            with contextlib.suppress(Error):
                self._state.fence()     # from here on no step needs one
        self._closed = True
        if self._agreed is not None and self._is_ours():
            self._agreed.end()
        try:
            self._state.close()
        except RuntimeError:
            self._closed = False
            raise
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        STEPS.tell_no_more(self._before_another)
        self._client.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
