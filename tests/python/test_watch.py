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
from shardkeep.torch._tensors import LiveTensors
from shardkeep.torch._describe import Meshes, usual
from shardkeep.torch._watch import _local_of

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


def _swapped(d: Tensors) -> None:
    torch.utils.swap_tensors(d["b"], torch.zeros(5, 4))


def _freed(d: Tensors) -> None:
    d["b"].untyped_storage().resize_(0)


def _lost_for_another(d: Tensors) -> None:
    del d["a"]
    d["z"] = torch.zeros(1)


CHANGES = [_replaced, _lost, _added, _reallocated, _resized, _turned,
           _restrided, _moved_inside, _of_another_dtype, _swapped, _freed,
           _lost_for_another]


_USUAL = usual(Meshes())


def _tensors() -> Tensors:
    return {"a": torch.zeros(7), "b": torch.zeros(5, 4),
            "c": torch.nn.Parameter(torch.zeros(3, 1, 2)),
            "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4),
            "half": torch.zeros(4, dtype=torch.bfloat16)}


def _watch(d: Tensors, how: Any) -> _core.Watch:
    return _core.Watch([(d, k) for k in d], [(d, len(d))], [], how, _local_of)


@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[Tensors], None],
                          how: Any) -> None:
    d = _tensors()
    watch = _watch(d, how)
    assert watch.holds()
    change(d)
    assert not watch.holds()


@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
def test_values_are_not_looked_at(how: Any) -> None:
    d = _tensors()
    watch = _watch(d, how)
    with torch.no_grad():
        for t in d.values():
            t.add_(1)
    d["c"].sum().backward()
    assert watch.holds()


@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
def test_what_dlpack_cannot_show_is_looked_at(how: Any) -> None:
    d = {"conj": torch.zeros(3, dtype=torch.complex64).conj(),
         "meta": torch.zeros(3, device="meta")}
    watch = _watch(d, how)
    assert watch.holds()
    d["conj"].resize_(2)
    assert not watch.holds()


@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
def test_a_dict_that_changed_and_has_the_same_is_the_same(how: Any) -> None:
    d = _tensors()
    watch = _watch(d, how)
    for _ in range(3):
        b = d["b"]
        d["b"] = b.clone()
        assert not watch.holds()
        d["b"] = b
        assert watch.holds()
        assert watch.holds()
    d["z"] = d.pop("a")
    assert not watch.holds()


def _own_part(t: Any) -> Any:
    return t._local_tensor


class Slotted:
    __slots__ = ["_local_tensor"]


class Plain:
    _local_tensor: torch.Tensor


def _like(kind: type) -> Any:
    """What is usual, with sharded tensors of that type."""
    return usual(Meshes(), kind)


@pytest.mark.parametrize("kind", [Slotted, Plain])
@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
def test_a_sharded_tensors_own_part_is_looked_at(kind: type,
                                                 how: Any) -> None:
    one = kind()
    local = one._local_tensor = torch.zeros(4, 4)
    d = {"one": one}
    watch = _core.Watch([(d, "one")], [], [], _like(kind) if how else None,
                        _own_part)
    assert watch.holds()
    one._local_tensor = local.clone()
    assert not watch.holds()
    one._local_tensor = local
    assert watch.holds()
    local.data = local.clone()
    assert not watch.holds()


def _own_part_lost(one: Any) -> None:
    del one._local_tensor


def test_a_sharded_tensor_without_its_part_is_not_the_same() -> None:
    one = Slotted()
    one._local_tensor = torch.zeros(4)
    watch = _core.Watch([({"one": one}, "one")], [], [], _like(Slotted),
                        _own_part)
    _own_part_lost(one)
    assert not watch.holds()


@pytest.mark.parametrize("what", [KeyboardInterrupt, MemoryError,
                                  AttributeError])
@pytest.mark.parametrize("how", [None, _USUAL], ids=["attributes", "usual"])
def test_what_goes_wrong_while_looking_is_raised(what: type[BaseException],
                                                 how: Any) -> None:
    def local_of(t: Any) -> Any:
        raise what("here")

    with pytest.raises(what, match="here"):
        _core.Watch([({"one": Plain()}, "one")], [], [], how, local_of)


class Trained:
    """A model and its optimizer after a step."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4),
                                         torch.nn.BatchNorm1d(4))
        self.optim = torch.optim.AdamW(self.model.parameters())
        self.step()
        self.weight = self.model[0].weight
        self.state = self.optim.state[self.weight]

    def step(self) -> None:
        self.model(torch.randn(5, 3)).sum().backward()
        self.optim.step()
        self.optim.zero_grad()


def _assigned(x: Trained) -> None:
    x.model.load_state_dict({k: t.clone() for k, t in
                             x.model.state_dict().items()}, assign=True)


def _optimizer_loaded(x: Trained) -> None:
    x.optim.load_state_dict(x.optim.state_dict())


def _state_replaced(x: Trained) -> None:
    x.state["exp_avg"] = x.state["exp_avg"].clone()


def _states_replaced(x: Trained) -> None:
    x.optim.state[x.weight] = {k: t.clone() for k, t in x.state.items()}


def _state_of_another_kind(x: Trained) -> None:
    x.state["step"] = 1


def _group_of_others(x: Trained) -> None:
    params = x.optim.param_groups[0]["params"]
    params[0], params[1] = params[1], params[0]


def _converted(x: Trained) -> None:
    x.model.to(torch.float64)


def _parameter_set(x: Trained) -> None:
    with torch.no_grad():
        x.weight.set_(torch.zeros(4, 3))


def _buffer_replaced(x: Trained) -> None:
    x.model[1].running_mean = torch.zeros(4)


def _module_added(x: Trained) -> None:
    x.model.append(torch.nn.Linear(4, 4))


def _module_replaced(x: Trained) -> None:
    x.model[1] = torch.nn.BatchNorm1d(4)


def _attributes_of_another(x: Trained) -> None:
    x.model[1].__dict__ = vars(torch.nn.BatchNorm1d(4))


@pytest.mark.parametrize("change", [
    _assigned, _optimizer_loaded, _state_replaced, _states_replaced,
    _state_of_another_kind, _group_of_others, _converted, _parameter_set,
    _buffer_replaced, _module_added, _module_replaced,
    _attributes_of_another])
def test_a_change_of_a_trainers_tensors_is_seen(
        change: Callable[[Trained], None]) -> None:
    x = Trained()
    live = LiveTensors([x.model], [x.optim])
    live.items()
    watch = live.watch()
    assert watch.holds()
    change(x)
    assert not watch.holds()


def test_training_changes_nothing() -> None:
    x = Trained()
    live = LiveTensors([x.model], [x.optim])
    live.items()
    watch = live.watch()
    for _ in range(3):
        x.step()
        x.model.load_state_dict(x.model.state_dict())
        assert watch.holds()


def _holds(what: Any, kind: Any) -> Callable[[], bool]:
    return _core.Watch([], [], [(what, kind)], None, _own_part).holds


def test_values_of_a_dict_are_the_same_objects() -> None:
    one, d = [1], {"a": [0], "n": 1}
    d["b"] = one
    holds = _holds(d, list)
    assert holds()
    d["n"] = 2          # of another type
    assert holds()
    d["c"] = 3
    assert holds()
    d["b"] = [1]        # equal, and another
    assert not holds()
    d["b"] = one
    assert holds()
    d["d"] = []
    assert not holds()
    del d["d"], d["b"]
    assert not holds()


def test_values_of_names_are_the_same_objects() -> None:
    one: list[Any] = []
    d = {"a": one, "b": 1}
    holds = _holds(d, ("a", "none"))
    assert holds()
    d["b"] = d["c"] = 2     # of other names
    assert holds() and holds()
    d["a"] = []             # equal, and another
    assert not holds()
    d["a"] = one
    assert holds()
    d["none"] = one
    assert not holds()
    del d["none"], d["a"]
    assert not holds()


def test_values_of_a_list_are_the_same_objects() -> None:
    one = [1]
    x: list[Any] = [one, 2]
    holds = _holds(x, object)
    assert holds()
    x[0] = [1]
    assert not holds()
    x[0] = one
    assert holds()
    x.append(3)
    assert not holds()
    x.clear()
    assert not holds()


def test_it_lets_go() -> None:
    d = _tensors()
    d["a"].watch = _watch(d, _USUAL)     # a circle
    gone = weakref.ref(d["a"])
    del d
    gc.collect()
    assert gone() is None


class _Slots:
    __slots__ = ["a"]


@pytest.mark.parametrize("args", [
    ([({}, "a", 1, 1)], [], [], None), ([(1, "a", 1)], [], [], None),
    ([1], [], [], None), ([({}, "a")], [], [], None), ([({}, [])], [], [], None),
    (1, [], [], None), ([], [1], [], None), ([], [([],)], [], None),
    ([], [([], "a")], [], None), ([], [], [1], None),
    ([], [], [((), object)], None), ([], [], [([], 1)], None),
    ([], [], [([],)], None), ([], [], [], "usual"),
    ([], [], [(_Slots(), None)], None), ([], [], [(None,)], None),
    ([], [], [([], ("a",))], None), ([], [], [({}, ([],))], None)])
def test_nonsense_is_refused(args: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, KeyError)):
        _core.Watch(*args, _own_part)


class _Has:
    def __init__(self) -> None:
        self.a: Any = [0]
        self.other = 0


@pytest.mark.parametrize("make", [
    _Has, lambda: torch.nn.Linear(1, 1), lambda: type("D", (dict,), {})()])
def test_the_dict_of_an_object_is_the_same(make: Callable[[], Any]) -> None:
    x, other = make(), make()
    holds = _holds(x, None)
    x.more = 1          # whatever is in it
    assert holds() and holds()
    mine = vars(x)
    x.__dict__ = dict(mine)
    assert not holds()
    x.__dict__ = mine
    assert holds()
    x.__dict__ = vars(other)
    assert not holds()


def _set_often(x: _Has, value: Any) -> None:
    """As an interpreter does that has learned where the attribute lies."""
    for i in range(200):
        x.other = i
        x.a = value


_ONE: list[Any] = [1]


@pytest.mark.parametrize("change", [
    lambda x, d: d.update(a=_ONE), lambda x, d: d.pop("a"),
    lambda x, d: d.popitem(), lambda x, d: d.clear(),
    lambda x, d: d.setdefault("c", _ONE), lambda x, d: d.__ior__({"c": _ONE}),
    lambda x, d: d.__delitem__("a"), lambda x, d: setattr(x, "a", _ONE),
    lambda x, d: delattr(x, "a"), lambda x, d: object.__setattr__(
        x, "a", _ONE), lambda x, d: _set_often(x, _ONE),
    lambda x, d: x.__dict__.update({"a": _ONE}),
])
def test_no_change_of_a_dict_is_missed(
        change: Callable[[_Has, Any], object]) -> None:
    """Where the interpreter tells of changes they are not looked for."""
    x = _Has()
    d = vars(x)
    holds = [_holds(d, list), _holds(d, ("a", "c")),
             _core.Watch([], [(d, len(d))], [(d, ("a",))], None,
                         _own_part).holds]
    _set_often(x, x.a)
    for _ in range(3):
        x.other += 1
        assert all(h() for h in holds)
    was, before = dict(d), list(d.items())
    change(x, d)
    assert not all(h() for h in holds)
    for _ in range(3):
        now = [h() for h in holds]
        assert now[2] == (len(d) == len(was) and d.get("a") is was["a"])
        assert now[1] == all(d.get(k) is was.get(k) for k in ("a", "c"))
    d.clear()
    d.update(before)
    assert all(h() for h in holds)


def test_what_another_watched_is_watched_still() -> None:
    d = {"a": [0]}
    first, second = _holds(d, list), _holds(d, list)
    assert first() and second()
    d["a"] = d["a"][:]
    assert not second()
    second = _holds(d, list)        # as the next description has it
    assert second() and not first()
    del first
    gc.collect()
    d["a"] = []
    assert not second()


def test_lists_and_sets_are_looked_at_each_time() -> None:
    one, d, s = [1], {"a": 1}, {1}
    x: list[Any] = [one]
    holds = _core.Watch([], [(s, 1), (d, 1)], [(x, object), (d, int)], None,
                        _own_part).holds
    assert holds() and holds()
    x[0] = [1]
    assert not holds()
    x[0] = one
    assert holds()
    s.add(2)
    assert not holds()
    s.remove(2)
    assert holds()
    d["b"] = 1
    assert not holds()
