# SPDX-License-Identifier: Apache-2.0
"""What the library reads of most tensors by itself is what Python would tell;
and how often a restore looks at them, whatever their number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run
from models import Holder, everything
from older import EXCHANGE, needs_exchange
from shardkeep import Client, State, _core, inspect
from shardkeep.torch import Checkpointer, _describing, _objects
from shardkeep.torch import _describe as _describe_module
from shardkeep.torch._describe import (
    Meshes, describe, locals_of, parts_of, usual)
from shardkeep.torch._kept import Kept
from shardkeep.torch._tensors import LiveTensors
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.overrides import TorchFunctionMode

Item = tuple[str, Any, str]


def _memories() -> dict[str, torch.Tensor]:
    return {
        "dense": torch.arange(24.).reshape(4, 6),
        "turned": torch.arange(24.).reshape(4, 6).t(),
        "sliced": torch.arange(48.).reshape(4, 12)[:, ::2],
        "later": torch.arange(30.)[5:29].reshape(2, 12),
        "last": torch.arange(8.).view(4, 2)[1:, 1],
        "one": torch.arange(3.).reshape(1, 3, 1),
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "long": torch.arange(6),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j, 3 - 1j]),
        "float8": torch.ones(4).to(torch.float8_e4m3fn),
        "parameter": nn.Parameter(torch.ones(2, 2)),
    }


def _items() -> list[Item]:
    """Whole ones, sharded ones, and those that belong to sharded ones."""
    flat = init_device_mesh("cpu", (1,))
    square = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
    ways = [(flat, (Shard(0),)), (flat, (Replicate(),)),
            (square, (Shard(0), Shard(0))), (square, (Replicate(), Shard(1))),
            (square, (Shard(1), Shard(0)))]
    found: list[Item] = [(name, t, name) for name, t in _memories().items()]
    for i, (mesh, placements) in enumerate(ways):
        for name, t in _memories().items():
            if any(getattr(p, "dim", -1) >= t.ndim for p in placements):
                continue
            owner = f"{name}:{i}"
            found += [(owner, DTensor.from_local(t.detach(), mesh, placements,
                                                 run_check=False), owner),
                      (f"{owner}.step", torch.tensor(float(i)), owner)]
    return found


@contextlib.contextmanager
def _state(job: str) -> Iterator[tuple[Client, State]]:
    client = Client()
    state = State(client, job, 0, 1)
    yield client, state
    state.close()
    client.close()


def _describe(state: State, items: list[Item], at_once: bool) -> int:
    """How many of them Python had to tell of."""
    meshes, told = Meshes(), []
    model = {name: t for name, t, _ in items}
    kept: list[Any] = []

    def slowly(name: str, t: Any, owner: str) -> Any:
        told.append(name)
        kept.extend(locals_of(t))
        return describe(name, t, meshes, None, model.get(owner))

    how = usual(meshes) if at_once else None
    held, devices = state.describe(items, how, set(), model, slowly, kept)
    assert len(held) == len(items) - len(told) and not devices
    return len(told)


def _bytes(items: list[Item]) -> list[bytes]:
    return [bytes(local.detach().contiguous().reshape(-1).view(torch.uint8)
                  .tolist()) for _, t, _ in items for local in locals_of(t)
            if local.numel()]


def _overwrite(items: list[Item]) -> None:
    with torch.no_grad():
        for _, t, _ in items:
            for local in locals_of(t):
                local.zero_()


def _either_way() -> None:
    items = _items()
    want = _bytes(items)
    _describe_kinds(items)
    seen = []
    for job, at_once in (("usual", True), ("slow", False)):
        with _state(job) as (client, state):
            told = _describe(state, items, at_once)
            assert told == (0 if at_once and EXCHANGE else len(items))
            state.snapshot(1)
            state.fence()
            state.wait(1, _core.COMPLETE, 60_000)
            seen.append(inspect(client, job)["tensors"])
            _overwrite(items)
            _describe(state, items, not at_once)
            state.restore(1)
            assert _bytes(items) == want
    assert seen[0] == seen[1] and len(seen[0]) == len(items)


def _describe_kinds(items: list[Item]) -> None:
    """Has each kind looked at once, as the first description does."""
    for name, t, owner in items:
        describe(name, t, Meshes())


def test_it_reads_what_python_would_tell(agent: str) -> None:
    run(1, _either_way)


class _Odd(torch.Tensor):
    """A type that nobody knows."""


def _says_parts() -> torch.Tensor:
    t: Any = torch.arange(4.)
    t.global_shape, t.global_offsets = (8,), ((4,),)
    t.local_offsets, t.local_sizes = ((0,),), ((4,),)
    return t


def _shrunk() -> torch.Tensor:
    t = torch.ones(8)
    t.untyped_storage().resize_(28)
    return t


@needs_exchange
@pytest.mark.parametrize("make", [
    lambda: torch.arange(4.).as_subclass(_Odd), _says_parts, _shrunk,
    lambda: torch.ones(1).expand(3), lambda: torch.ones(2, 0).expand(2, 0),
    lambda: torch.tensor([1 + 2j]).conj(), lambda: torch.eye(3).to_sparse(),
    lambda: torch.tensor([1 + 2j]).conj().imag,
    lambda: torch.ones(3, device="meta"),
    lambda: torch._efficientzerotensor(3),
    lambda: torch._to_functional_tensor(torch.ones(3)), lambda: "no tensor"])
def test_of_others_python_tells(agent: str, make: Callable[[], Any]) -> None:
    """Also where others of their type were seen."""
    told = []

    def slowly(name: str, t: Any, owner: str) -> Any:
        told.append(name)
        return describe(name, torch.ones(2), Meshes())

    t = make()
    few = isinstance(t, torch.Tensor) and t.numel() == 0
    items = [("a", torch.ones(3), "a"), ("odd", t, "odd")]
    _describe_kinds(items[:1])
    with _state("others") as (_, state):
        held, _ = state.describe(items, usual(Meshes()), set(), dict(
            (n, t) for n, t, _ in items), slowly)
        assert told == ([] if few else ["odd"])
        assert held[0] is items[0][1]


@needs_exchange
def test_what_is_called_odd_is_told(agent: str) -> None:
    told = []

    def slowly(name: str, t: Any, owner: str) -> Any:
        told.append(name)
        return describe(name, t, Meshes())

    items = [(x, torch.ones(3), o) for x, o in (
        ("a", "a"), ("a.x", "a"), ("b", "b"), ("b.x", "b"), ("b.y", "b"))]
    _describe_kinds(items)
    model = {name: t for name, t, _ in items}
    with _state("odd") as (_, state):
        for odd, want in ((set(), []), ({"b"}, ["b", "b.x", "b.y"]),
                          ({"b.x"}, ["b.x"])):
            told.clear()
            state.describe(items, usual(Meshes()), odd, model, slowly)
            assert told == want


def _no_call(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("change", [
    {0: 1}, {0: [1]}, {0: [("a", torch.ones(1))]},
    {0: [(1, torch.ones(1), 1)]}, {0: [("a\0b", torch.ones(1), "a\0b")]},
    {1: 1}, {2: []}, {3: []}, {4: 1, 0: [("a", 1, "a")]},
    {4: _no_call, 0: [("a", 1, "a")]}])
def test_nonsense_is_refused(agent: str, change: dict[int, Any]) -> None:
    args: list[Any] = [[("a", torch.ones(1), "a")], usual(Meshes()), set(),
                       {}, lambda *x: 1]
    for i, x in change.items():
        args[i] = x
    describe("a", torch.ones(1), Meshes())
    with _state("nonsense") as (_, state):
        with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
            state.describe(*args)
        _describe(state, [("a", torch.ones(1), "a")], True)


# ---- how often ----

class _Counts:
    """Of calls, by name."""

    def __init__(self, monkeypatch: Any) -> None:
        self.of: dict[str, int] = {}
        self._patch = monkeypatch

    def count(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counted(*args: Any, **words: Any) -> Any:
            self.of[name] = self.of.get(name, 0) + 1
            return call(*args, **words)

        self._patch.setattr(owner, name, counted)


def _trained(n: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(n)),
                          nn.BatchNorm1d(2))
    optim = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 2)).sum().backward()
    optim.step()
    return model, optim


@needs_exchange
@pytest.mark.parametrize("n", [3, 60])
def test_a_restart_looks_once(agent: str, n: int, monkeypatch: Any) -> None:
    model, optim = _trained(n)
    with Checkpointer(model, optim, job="once") as ck:
        ck.snapshot(1)
        ck.wait()
    want = {k: t.clone() for k, t in everything(model, optim).items()}
    model, optim = _trained(n)
    counts = _Counts(monkeypatch)
    with Checkpointer(model, optim, job="once") as ck:
        counts.count(LiveTensors, "items")
        counts.count(LiveTensors, "_find_parameters")
        counts.count(LiveTensors, "scalars")
        counts.count(LiveTensors, "covered_by")
        counts.count(_describing, "describe")
        counts.count(_objects, "loads")
        assert ck.restore() == 1
        # The three buffers of the last layer, looked at and described.
        assert counts.of == {"items": 1, "_find_parameters": 1, "describe": 6,
                             "loads": counts.of["loads"]}
        assert counts.of["loads"] <= 3      # groups, generators, no labels
        assert ck.snapshot(2)
        assert counts.of["items"] == 1, "it is as the restore described it"
    got = everything(model, optim)
    assert all(torch.equal(got[k], want[k]) for k in want)


def _mapped(job: str = "room") -> int:
    """Slots of the job that this process can write to."""
    with open("/proc/self/maps", encoding="ascii") as f:
        return sum(f"memfd:shardkeep:{job}:" in line and " rw-s " in line
                   for line in f)


def test_memory_for_snapshots_comes_after_all_else(agent: str,
                                                   monkeypatch: Any) -> None:
    """It is faulted in beside whatever goes on, which is the training."""
    model, optim = _trained(3)
    with Checkpointer(model, optim, job="room") as ck:
        ck.snapshot(1)
        ck.wait()
    before, seen = _mapped(), []
    load, watch = Kept.load, LiveTensors.watch
    monkeypatch.setattr(Kept, "load", lambda *x: (
        seen.append(_mapped()), load(*x))[1])
    monkeypatch.setattr(LiveTensors, "watch", lambda *x: (
        seen.append(_mapped()), watch(*x))[1])
    model, optim = _trained(3)
    with Checkpointer(model, optim, job="room") as ck:
        assert ck.restore() == 1
        assert seen == [before] * 2 and _mapped() > before
        assert ck.snapshot(2)


@pytest.mark.parametrize("number", [0, 7])
def test_memory_comes_where_steps_are_taken_back(agent: str, number: int
                                                 ) -> None:
    """At once where the run goes on, as one with a number does; for a new
    run when training has begun."""
    model, optim = _trained(3)
    with Checkpointer(model, optim, job="taken", run=number,
                      flush_every=1 << 30) as ck:
        for step in (1, 2):
            assert ck.snapshot(step, wait=30)
            ck.wait()
        model.register_buffer("more", torch.zeros(5))   # laid out anew
        assert ck.restore(1, strict=False) == 1
        assert (_mapped("taken") > 0) == bool(number)
        optim.step()
        optim.step()
        assert _mapped("taken")
        assert ck.snapshot(3, wait=30)


def _asking(samples: Any) -> tuple[Any, list[Any]]:
    """What reads as usual() has it, and what it asked keys of."""
    asked: list[Any] = []

    def keys(t: Any) -> Any:
        asked.append(t)
        return _describe_module.KINDS(t)

    how = _core.Usual(
        EXCHANGE, keys, _describe_module.fit,
        _describe_module._PLAIN, DTensor, _describe_module._PLACEMENTS,
        Meshes().placed, _describe_module.TO_DTYPE, samples)
    return how, asked


@needs_exchange
@pytest.mark.parametrize("n", [5, 300])
def test_keys_are_asked_once_of_each_kind(agent: str, n: int) -> None:
    items = [(f"t{i}", t, f"t{i}") for i in range(n)
             for t in [torch.ones(2) if i % 2 else
                       nn.Parameter(torch.ones(2))]]
    _describe_kinds(items[:2])
    how, asked = _asking(_describe_module._samples())
    with _state("asked") as (_, state):
        held, _ = state.describe(items, how, set(), {}, _no_call)
        assert len(held) == n and len(asked) == 2
        how, asked = _asking(())
        held, _ = state.describe(items, how, set(), {}, _no_call)
        assert len(held) == n and len(asked) == n


class _Other(torch.Tensor):
    """Of no type that the library knows."""


@needs_exchange
def test_parts_are_those_that_have_values() -> None:
    run(1, _parts)


def _says_shards() -> torch.Tensor:
    t: Any = torch.arange(4.)
    shards = [SimpleNamespace(tensor=torch.zeros(2)) for _ in range(2)]
    t.local_shards = lambda: shards
    return t


def _parts() -> None:
    items = [t for _, t, _ in _items()] * 20
    items[7:7] = [torch.ones(3).as_subclass(_Other), _says_shards(),
                  _says_parts()]
    how = usual(Meshes())
    assert how is not None
    for begin, end in ((0, len(items)), (3, 11), (5, 5), (9, 10**9)):
        found = how.parts(items, begin, end, parts_of)
        expected = [x for t in items[begin:end] for x in parts_of(t)]
        assert [id(x) for x in found] == [id(x) for x in expected]
    for bad in ((-1, 3, parts_of), (0, 9, None), (0, 9, lambda t: 1 / 0)):
        with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
            how.parts(items, *bad)

    def shorten(t: Any) -> list[Any]:
        del items[2:]
        return [t]

    assert how.parts(items, 7, len(items), shorten)[0] is not None


def _in_a_transformation(act: Callable[[], None]) -> None:
    def once(x: torch.Tensor) -> torch.Tensor:
        act()
        return x.sum()

    torch.func.grad(once)(torch.zeros(3))


def _within(mode: Any) -> Callable[[Callable[[], None]], None]:
    def within(act: Callable[[], None]) -> None:
        with mode():
            act()

    return within


class _Renaming(TorchFunctionMode):
    """Makes of all tensors another type's."""

    def __torch_function__(self, f: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        found = f(*args, **(kwargs or {}))
        return found.as_subclass(_Odd) if type(found) is torch.Tensor \
            else found


@needs_exchange
@pytest.mark.parametrize("within", [
    _within(lambda: torch.device("meta")), _within(FakeTensorMode),
    _within(torch.inference_mode), _within(_Renaming),
    _in_a_transformation],
    ids=["device", "fake", "inference", "functions", "transformation"])
def test_samples_are_the_same_wherever_they_are_made(
        agent: str, within: Any, monkeypatch: Any) -> None:
    items = [(f"t{i}", torch.ones(2), f"t{i}") for i in range(6)]
    _describe_kinds(items[:1])
    monkeypatch.setattr(_describe_module, "_made", [])
    within(_describe_module._samples)
    samples = _describe_module._samples()
    assert [(type(x), x.device.type, x.is_inference())
            for x, *_ in samples] == [
        (nn.Parameter if i == 1 else torch.Tensor,
         "meta" if i == 4 else "cpu", False) for i in range(5)]
    how, asked = _asking(samples)
    with _state("where") as (_, state):
        state.describe(items, how, set(), {}, _no_call)
    assert len(asked) == 1


def test_samples_that_cannot_be_made_are_made_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(_describe_module, "_made", [])
    with monkeypatch.context() as m:
        m.setattr(torch, "_neg_view", _no_call)
        assert not _describe_module._samples()
    assert _describe_module._samples()


def _shifted(samples: Any, at: int) -> Any:
    """One of them says otherwise than it is."""
    one = list(samples[1])
    one[at] += 8
    return samples[0], tuple(one), *samples[2:]


@needs_exchange
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_samples_that_do_not_agree_teach_nothing(agent: str, at: int) -> None:
    items = [(f"t{i}", torch.ones(2), f"t{i}") for i in range(6)]
    _describe_kinds(items[:1])
    samples = _shifted(_describe_module._samples(), at)
    if at == 1:     # as it stands nothing may be read by
        samples = (samples[0], (samples[1][0], samples[0][1],
                                *samples[1][2:]), *samples[2:])
    how, asked = _asking(samples)
    with _state("wrong") as (_, state):
        held, _ = state.describe(items, how, set(), {}, _no_call)
        assert len(held) == 6 and len(asked) == 6


@needs_exchange
@pytest.mark.parametrize("samples", [1, (1, 2), ((1, 2), (3, 4)),
                                     (("a", "b", 1, 1, 1, 1),) * 2])
def test_samples_that_are_none_are_refused(samples: Any) -> None:
    with pytest.raises(TypeError):
        _asking(samples)


def _sharded(n: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    calls = []
    placed = Meshes.placed
    Meshes.placed = lambda *x: calls.append(x[1]) or placed(*x)
    model = Holder({f"w{i}": DTensor.from_local(
        torch.full((2, 3), float(i + dist.get_rank())), mesh, (Shard(i % 2),),
        run_check=False) for i in range(n)})
    with Checkpointer(model, job="meshes", timeout=60) as ck:
        assert ck.restore() is None
        assert ck.snapshot(1, wait=30)
        ck.wait()
        dist.barrier()
        calls.clear()
        assert ck.restore() == 1
        assert len(calls) <= 4, "of each mesh and placements"


@needs_exchange
@pytest.mark.parametrize("n", [4, 40])
def test_meshes_are_asked_for_once(agent: str, n: int) -> None:
    run(2, _sharded, n)
