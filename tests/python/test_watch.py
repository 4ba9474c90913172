# SPDX-License-Identifier: Apache-2.0
"""What may become of tensors between two snapshots is seen, whichever way the
framework shows them; what may not concern us is not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shardkeep import _core
from shardkeep.torch._watch import _API, _PLAIN

Tensors = dict[str, torch.Tensor]


def _replaced(d: Tensors) -> None:
    d["b"] = d["b"].clone()


def _lost(d: Tensors) -> None:
    del d["a"]


def _added(d: Tensors) -> None:
    d["z"] = torch.zeros(1)


def _reallocated(d: Tensors) -> None:
    d["c"].data = d["c"].detach().clone()


def _resized(d: Tensors) -> None:
    d["b"].resize_(2, 3)


def _turned(d: Tensors) -> None:
    d["b"].t_()


def _restrided(d: Tensors) -> None:
    d["b"].as_strided_((5, 4), (1, 5))


def _moved_inside(d: Tensors) -> None:
    d["a"].set_(d["a"].untyped_storage(), 1, (6,), (1,))


def _of_another_dtype(d: Tensors) -> None:
    d["a"].data = d["a"].view(torch.int32)


CHANGES = [_replaced, _lost, _added, _reallocated, _resized, _turned,
           _restrided, _moved_inside, _of_another_dtype]


def _tensors() -> Tensors:
    return {"a": torch.zeros(7), "b": torch.zeros(5, 4),
            "c": torch.nn.Parameter(torch.zeros(3, 1, 2)),
            "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4),
            "half": torch.zeros(4, dtype=torch.bfloat16)}


def _watch(d: Tensors, api: Any) -> _core.Watch:
    return _core.Watch([(d, k, t, t, type(t) in _PLAIN)
                        for k, t in d.items()], [(d, len(d))], api)


@pytest.mark.parametrize("api", [None, _API], ids=["attributes", "dlpack"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[Tensors], None],
                          api: Any) -> None:
    d = _tensors()
    watch = _watch(d, api)
    assert watch.holds()
    change(d)
    assert not watch.holds()


@pytest.mark.parametrize("api", [None, _API], ids=["attributes", "dlpack"])
def test_values_are_not_looked_at(api: Any) -> None:
    d = _tensors()
    watch = _watch(d, api)
    with torch.no_grad():
        for t in d.values():
            t.add_(1)
    d["c"].sum().backward()
    assert watch.holds()


@pytest.mark.parametrize("api", [None, _API], ids=["attributes", "dlpack"])
def test_what_dlpack_cannot_show_is_looked_at(api: Any) -> None:
    d = {"conj": torch.zeros(3, dtype=torch.complex64).conj(),
         "meta": torch.zeros(3, device="meta")}
    watch = _watch(d, api)
    assert watch.holds()
    d["conj"].resize_(2)
    assert not watch.holds()


def test_it_lets_go() -> None:
    d = _tensors()
    d["a"].watch = _watch(d, _API)     # a circle
    gone = weakref.ref(d["a"])
    del d
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("args", [
    ([({}, "a", 1, 1)], [], None), ([(1, "a", 1, 1, False)], [], None),
    ([], [1], None), ([], [], "api"), (1, [], None),
    ([({}, "a", 1, 1, False)], [], None)])
def test_nonsense_is_refused(args: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        _core.Watch(*args)
