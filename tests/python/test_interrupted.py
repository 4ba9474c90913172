# SPDX-License-Identifier: Apache-2.0
"""Who interrupts a call, as in a notebook, or has it end by an error, goes on:
what comes after is as if that call had not been."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from shardkeep.torch import Checkpointer, _restore, checkpointer
from torch import nn

_PACKAGE = checkpointer.__file__.removesuffix("checkpointer.py")


class _At:
    """Interrupts a call at the n-th line of the package that it comes to, or
    of one file of it."""

    def __init__(self, n: int, file: str = "") -> None:
        self.left, self._of = n, _PACKAGE + file

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self._line

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._of) \
            else None

    def ends(self, call: Callable[[], Any]) -> bool:
        """Whether it came so far."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return self.left <= 0


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def _fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)


def _all(model: nn.Module, value: float) -> bool:
    return all(bool((p == value).all()) for p in model.parameters())


def test_a_snapshot(agent: str) -> None:
    model = _net()
    extra: dict[str, Any] = {"epoch": 0}
    more = nn.Linear(3, 3)
    at = step = 0
    came = True
    with Checkpointer(model, job="interrupted", extra=extra,
                      raising=True) as ck:
        while came:
            at += 1 + at // 6
            if len(model) > 2:
                del model[2]
            elif step % 4 < 2:
                model.append(more)
            extra["epoch"] = "x" * (step % 3 * 3000)
            came = _At(at).ends(lambda: ck.snapshot(step, wait=60))
            ck.fence()
            step += 1
            _fill(model, step)
            assert ck.snapshot(step, wait=60)
            ck.wait()
            ck.fence()
            want = dict(extra)
            _fill(model, -1)
            extra["epoch"] = None
            assert ck.restore() == step
            assert _all(model, step) and extra == want, at
            step += 1
    assert at > 100


Sizes = tuple[int | None, int | None]


def _objects(sizes: Sizes, step: int) -> list[dict[str, Any]]:
    """Of which lengths the objects are, None: there is none."""
    return [{} if n is None else {name: f"{step}" + "x" * n}
            for name, n in zip(("extra", "local"), sizes)]


def _interrupted_while_put(job: str, at: int, before: Sizes, then: Sizes
                           ) -> bool:
    """What is put after a put that was interrupted is what is kept."""
    extra: dict[str, Any] = {}
    local: dict[str, Any] = {}
    came = False
    with Checkpointer(_net(), job=job, extra=extra, local=local, slots=8,
                      raising=True) as ck:
        for step, sizes in enumerate([(0, 0), before, then, then,
                                      (9000, 9000)]):
            for d, now in zip((extra, local), _objects(sizes, step)):
                d.clear()
                d.update(now)
            if step == 2:
                came = _At(at, "_blobs.py").ends(
                    lambda: ck.snapshot(step, wait=60))
            else:
                assert ck.snapshot(step, wait=60)
        for step, sizes in ((4, (9000, 9000)), (3, then)):
            ck.wait(step)
            for d, now in zip((extra, local), _objects(sizes, 0)):
                d.clear()
                d.update(dict.fromkeys(now))
            assert ck.restore(step) == step
            assert [extra, local] == _objects(sizes, step), at
        return came


@pytest.mark.parametrize("before, then", [
    ((0, 0), (9000, 9000)), ((9000, 9000), (0, 0)),
    ((9000, 9000), (None, None)), ((None, None), (9000, 9000))])
def test_objects_that_are_put(agent: str, before: Sizes, then: Sizes) -> None:
    at = 1
    while _interrupted_while_put(f"put{at}", at, before, then):
        at += 1
    assert at > 3


def test_a_restore(agent: str) -> None:
    model = _net()
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    at, came = 0, True
    with Checkpointer(model, optim, job="interrupted", raising=True) as ck:
        _fill(model, 1)
        assert ck.snapshot(1)       # without state
        ck.wait()
        while came:
            at += 1 + at // 6
            model(torch.ones(2, 3)).sum().backward()
            optim.step()
            came = _At(at).ends(ck.restore)
            assert ck.restore() == 1
            assert _all(model, 1) and not optim.state, at
    assert at > 100


def test_state_that_was_let_go_is_taken_again(agent: str, monkeypatch: Any
                                              ) -> None:
    model = _net()
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    move = _restore.Restore._move

    def interrupted(self: Any, *args: Any) -> Any:
        if not optim.state:
            raise KeyboardInterrupt
        return move(self, *args)

    with Checkpointer(model, optim, job="interrupted", raising=True) as ck:
        assert ck.snapshot(1)       # without state
        ck.wait()
        model(torch.ones(2, 3)).sum().backward()
        optim.step()
        had = dict(optim.state)
        with monkeypatch.context() as m:
            m.setattr(_restore.Restore, "_move", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ck.restore()
        assert {p: id(x) for p, x in optim.state.items()} == {
            p: id(x) for p, x in had.items()}
        assert ck.restore() == 1 and not optim.state


def test_models_that_are_refused_are_refused_again(agent: str) -> None:
    first, second = _net(), _net()
    del second[0], second[0]
    with Checkpointer([first, second], job="twice", raising=True) as ck:
        assert ck.snapshot(1)
        second.append(nn.Linear(3, 3))
        for _ in range(2):
            with pytest.raises(ValueError, match="two tensors are called"):
                ck.snapshot(2)
        del second[0]
        _fill(first, 5)
        assert ck.snapshot(3, wait=60)
        ck.wait()
        _fill(first, 6)
        assert ck.restore() == 3
    assert _all(first, 5)
