# SPDX-License-Identifier: Apache-2.0
"""One Checkpointer, and others than who made it: threads, children, copies."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Logged
from shardkeep import Error
from shardkeep.torch import Checkpointer, checkpointer
from torch import nn


def _pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 3)
    optim = torch.optim.Adam(model.parameters())
    _step(model, optim)
    return model, optim


def _step(model: nn.Module, optim: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 3)).sum().backward()
    optim.step()


@pytest.mark.parametrize("make", [
    copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["copy", "deepcopy", "pickle"])
def test_there_are_no_copies(agent: str, make: Callable[[Any], Any]) -> None:
    model, optim = _pair()
    with Checkpointer(model, optim, job="copied", raising=True) as ck:
        assert ck.snapshot(1)
        with pytest.raises(TypeError, match="Checkpointer of job copied is"):
            make(ck)
        with pytest.raises(TypeError, match="Checkpointer of job copied is"):
            make({"trainer": [ck]}) if make is not copy.copy else make(ck)
        assert ck.snapshot(2, wait=30)
        ck.wait()
        assert ck.restore() == 2


def _is_told(ck: Checkpointer, raising: bool) -> None:
    try:
        assert not ck.snapshot(2) and not raising
    except Error as e:
        assert raising and e.errno == errno.EOWNERDEAD


@pytest.mark.parametrize("raising", [False, True])
def test_a_forked_child_steps_what_is_its_own(agent: str, raising: bool
                                              ) -> None:
    model, optim = _pair()
    logged = Logged()
    checkpointer.log.addHandler(logged)
    with Checkpointer(model, optim, job="forked", raising=raising) as ck:
        assert ck.snapshot(1)
        pid = os.fork()
        if not pid:
            try:
                for _ in range(3):
                    _step(model, optim)
                ck.fence()
                _is_told(ck, raising)
                told = [x for x in logged.found if "no snapshot" not in x or
                        "made before fork(); make one in the child" not in x]
                assert len(logged.found) == (not raising)
                ck.close()
                os._exit(len(told))
            except BaseException:
                os._exit(100)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        want = model.weight.detach().clone()
        _step(model, optim)
        ck.wait()
        assert ck.restore() == 1 and torch.equal(model.weight, want)
    checkpointer.log.removeHandler(logged)


def test_a_child_of_a_locked_one_ends(agent: str) -> None:
    """Another thread, which the child has not, is in a call at the fork."""
    model, optim = _pair()
    within, go = threading.Event(), threading.Event()

    class Slow:
        def state_dict(self) -> dict[str, int]:
            within.set()
            go.wait(60)
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    with Checkpointer(model, optim, job="locked", extra={"slow": Slow()},
                      raising=True) as ck:
        thread = threading.Thread(target=ck.snapshot, args=(1,))
        thread.start()
        assert within.wait(60)
        pid = os.fork()
        if not pid:
            try:
                ck.snapshot(2)
            except OSError:
                os._exit(0)
            finally:
                os._exit(1)
        try:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            go.set()
            thread.join()
        ck.wait()


class _Alone:
    """Sees whether two threads ask for it at once."""

    def __init__(self) -> None:
        self.within, self.met, self.value = 0, False, 0

    def _look(self) -> None:
        self.within += 1
        time.sleep(0.001)       # another thread's turn, if it has one
        self.met |= self.within > 1
        self.within -= 1

    def state_dict(self) -> dict[str, int]:
        self._look()
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._look()
        self.value = state["value"]


def test_threads_take_turns(agent: str) -> None:
    model, optim = _pair()
    extra = _Alone()
    failed: list[BaseException] = []
    lock, step = threading.Lock(), 1

    def save(ck: Checkpointer) -> None:
        nonlocal step
        with lock:
            step += 1
            mine = step
        try:
            ck.snapshot(mine, wait=30)
        except OSError as e:    # another one's step, which is newer, is there
            if "sealed step" not in str(e):
                raise

    def work(call: Callable[[], Any]) -> None:
        try:
            for _ in range(15):
                call()
        except BaseException as e:
            failed.append(e)

    with Checkpointer(model, optim, job="turns", extra={"x": extra},
                      raising=True) as ck:
        assert ck.snapshot(1)
        ck.wait()
        threads = [threading.Thread(target=work, args=(call,)) for call in (
            lambda: save(ck), lambda: save(ck), ck.restore, ck.restore,
            ck.prepare, ck.fence, ck.status)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failed, failed
        assert not extra.met
        extra.value = 7
        want = model.weight.detach().clone()
        assert ck.snapshot(step + 1, wait=30)
        ck.wait()
        with torch.no_grad():
            model.weight.fill_(0)
        extra.value = 0
        assert ck.restore() == step + 1
        assert extra.value == 7 and torch.equal(model.weight, want)


class _InUse:
    """A state that another thread is in."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def close(self) -> None:
        raise RuntimeError("the state is in use by another thread")


def test_who_cannot_close_it_has_it_as_it_was(agent: str) -> None:
    model, optim = _pair()
    ck = Checkpointer(model, optim, job="in-use", raising=True)
    assert ck.snapshot(1)
    ck.fence()
    state = ck._state
    ck._state = _InUse(state)
    with pytest.raises(RuntimeError, match="in use"):
        ck.close()
    assert ck.snapshot(2, wait=30)
    before = model.weight.detach().clone()
    ck._state = state
    fenced: list[None] = []
    let_go = ck._let_go
    ck._let_go = lambda *a: (fenced.append(None), let_go(*a))[1]
    _step(model, optim)
    assert fenced
    ck.wait()
    assert ck.restore() == 2 and torch.equal(model.weight, before)
    ck.close()
    ck.close()
    fenced.clear()
    _step(model, optim)
    assert not fenced
