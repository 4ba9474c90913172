# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes, with an agent of their own.

The parent imports torch and computes nothing, so that it may fork: ranks
start in milliseconds. It also imports what the first operation on a DTensor
would, for a second or two, in each of them.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import older
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from shardkeep._tools import path as program

BOUND_S = int(os.environ.get("SK_RANK_SECONDS", "300"))
#: How a rank ends where there is nothing to be seen.
LEFT_OUT = 77

older.prepare()


@functools.cache
def _meetings() -> str:
    """Where ranks meet. They end by _exit(), so only the parent removes
    it."""
    made = tempfile.mkdtemp(prefix="shardkeep-meetings-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def start_agent(directory: str) -> subprocess.Popen[bytes]:
    """One that serves ``directory/agent.sock``, and is ready."""
    agent = subprocess.Popen(
        [program("shardkeepd"), "--socket", f"{directory}/agent.sock",
         "--log-level", "error", "--ready-fd", "1"],
        env={**os.environ, "SHARDKEEP_STORE": f"{directory}/store"},
        stdout=subprocess.PIPE)
    assert agent.stdout is not None and agent.stdout.read(1)
    return agent


def end_agent(agent: subprocess.Popen[bytes], sig: int = signal.SIGKILL
              ) -> None:
    agent.send_signal(sig)
    agent.wait()
    assert agent.stdout is not None
    agent.stdout.close()


class Nodes(list[str]):
    """The sockets of two agents with stores of their own."""

    def __init__(self, directories: list[str]) -> None:
        super().__init__(d + "/agent.sock" for d in directories)
        self._directories = directories
        self.agents = [start_agent(d) for d in directories]

    def end(self) -> None:
        for agent in self.agents:
            end_agent(agent)

    def restart(self, node: int, sig: int, disk: bool = True) -> None:
        end_agent(self.agents[node], sig)
        if not disk:
            shutil.rmtree(self._directories[node] + "/store",
                          ignore_errors=True)
        self.agents[node] = start_agent(self._directories[node])


@contextlib.contextmanager
def private_agent(memory: str = "1G") -> Iterator[str]:
    """A directory in which the first client starts an agent."""
    directory = tempfile.mkdtemp(prefix="shardkeep-python-")
    kept = dict(os.environ)
    os.environ.pop("SHARDKEEP_SOCKET", None)
    os.environ.update(
        SHARDKEEP_SOCKET=f"{directory}/agent.sock",
        SHARDKEEP_STORE=f"{directory}/store", SHARDKEEP_MEMORY=memory)
    agent = start_agent(directory)
    try:
        yield directory
    finally:
        end_agent(agent)
        os.environ.clear()
        os.environ.update(kept)
        shutil.rmtree(directory)


def _child(rank: int, world: int, meeting: str,
           fn: Callable[..., None], args: tuple[Any, ...]) -> None:
    try:
        signal.alarm(BOUND_S)
        faulthandler.dump_traceback_later(max(1, BOUND_S - 5), file=2)
        torch.set_num_threads(1)    # ranks share few cores
        dist.init_process_group("gloo", init_method=f"file://{meeting}",
                                rank=rank, world_size=world)
        fn(*args)
        dist.barrier()
        dist.destroy_process_group()
    except pytest.skip.Exception as e:
        print(e, flush=True)
        os._exit(LEFT_OUT)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def start(world: int, fn: Callable[..., None], *args: Any) -> list[int]:
    """Starts ``fn(*args)`` in ``world`` ranks; their process ids."""
    meeting = tempfile.mktemp(dir=_meetings())
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            _child(rank, world, meeting, fn, args)
        pids.append(pid)
    return pids


def wait(pids: list[int]) -> list[int]:
    """How they ended: exit status, or minus the signal."""
    end = time.monotonic() + BOUND_S
    left, codes = dict(enumerate(pids)), [0] * len(pids)
    while left:
        pid, status = os.waitpid(-1, 0)
        for i, p in list(left.items()):
            if p == pid:
                codes[i] = os.waitstatus_to_exitcode(status)
                del left[i]
        assert time.monotonic() < end
    return codes


def run(world: int, fn: Callable[..., None], *args: Any) -> None:
    """Runs it in all ranks; none may fail."""
    codes = wait(start(world, fn, *args))
    if LEFT_OUT in codes:
        pytest.skip("a rank had nothing to see")
    assert codes == [0] * world, codes


def run_anew(world: int, fn: Callable[..., None], *args: Any) -> None:
    """The same, in processes that inherit nothing of this one. PyTorch's
    autograd knows the devices that there were when it was first used, and a
    forked child goes on with that."""
    context = multiprocessing.get_context("spawn")
    meeting = tempfile.mktemp(dir=_meetings())
    ranks = [context.Process(target=_child,
                             args=(rank, world, meeting, fn, args))
             for rank in range(world)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    codes = [p.exitcode for p in ranks]
    assert codes == [0] * world, codes


class Logged(logging.Handler):
    """What is said aloud."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())
