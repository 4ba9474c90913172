# SPDX-License-Identifier: Apache-2.0
"""What a model's names hold changes between snapshots: each holds what is
there when it is taken, under the names it has then."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import shardkeep
import torch
import torch.distributed as dist
from harness import run
from shardkeep.torch import Checkpointer
from shardkeep.torch.full import load_tensors
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


class Model(nn.Module):
    """Two layers that share a weight, and names for what comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight
        self.register_parameter("scale", None)
        self.register_buffer("cache", None)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("one", torch.zeros(3))
        self.register_buffer("other", self.one)


def _untied(m: Model) -> None:
    m.last.weight = nn.Parameter(torch.full((3, 3), 5.0))


def _untied_first(m: Model) -> None:
    m.first.weight = nn.Parameter(torch.full((3, 3), 5.0))


def _untied_in_place(m: Model) -> None:
    m.last.weight = nn.Parameter(m.last.weight.detach().clone())


def _buffers_untied(m: Model) -> None:
    m.other = torch.full((3,), 5.0)


def _set(m: Model) -> None:
    m.scale = nn.Parameter(torch.full((2,), 5.0))


def _buffer_set(m: Model) -> None:
    m.cache = torch.full((2,), 5.0)


def _made_persistent(m: Model) -> None:
    m.register_buffer("mean", torch.full((3,), 5.0))


def _made_passing(m: Model) -> None:
    m.register_buffer("one", torch.full((3,), 5.0), persistent=False)


def _none(m: Model) -> None:
    m.first.bias = None


def _tied(m: Model) -> None:
    m.last.bias = m.first.bias


def _stored(job: str) -> set[str]:
    return {t["name"] for t in shardkeep.inspect(
        shardkeep.Client(), job)["tensors"]}


@pytest.mark.parametrize("change", [
    _untied, _untied_first, _untied_in_place, _buffers_untied, _set,
    _buffer_set, _made_persistent, _made_passing, _none, _tied])
@pytest.mark.parametrize("first", [True, False], ids=["saved", "made"])
def test_a_snapshot_has_what_a_name_holds(
        agent: str, change: Callable[[Model], None], first: bool) -> None:
    model = Model()
    with Checkpointer(model, job="names", rng=False, raising=True) as ck:
        if first:
            ck.snapshot(0)
            ck.fence()
        change(model)
        ck.snapshot(1)
        ck.wait()
        want = {k: t.clone() for k, t in model.state_dict().items()}
        with torch.no_grad():
            for t in model.state_dict().values():
                t.fill_(-1)
        assert ck.restore() == 1
        got = model.state_dict()
        assert got.keys() == want.keys()
        assert all(torch.equal(got[k], want[k]) for k in want)
    # What is tied stands once, under the first name.
    kinds = {id(t): k for k, t in reversed(
        list(model.state_dict(keep_vars=True).items()))}
    assert _stored("names") == {"model." + k for k in kinds.values()}


def test_a_parameter_has_its_own_name(agent: str) -> None:
    """Also one that lies where another one was."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optim = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    with Checkpointer(model, optim, job="ids", rng=False,
                      raising=True) as ck:
        at = id(model[1].weight)
        for _ in range(50):
            model[1].weight = nn.Parameter(torch.ones(3, 3))
            model[1].bias = nn.Parameter(torch.ones(3))
            if id(model[1].bias) == at:
                break
        optim.add_param_group({"params": [model[1].bias], "lr": 0.5})
        model(torch.ones(2, 3)).sum().backward()
        optim.step()
        ck.snapshot(0)
        ck.wait()
    assert "optim.state.1.bias.momentum_buffer" in _stored("ids")


class Replaces(nn.Module):
    """Takes its state back as tensors of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.register_buffer("table", torch.zeros(3))

    def get_extra_state(self) -> list[float]:
        return [float(x) for x in self.table]

    def set_extra_state(self, state: list[float]) -> None:
        self.table = torch.tensor(state)


def test_objects_that_replace_tensors_when_they_come_back(agent: str
                                                          ) -> None:
    model = Replaces()
    with Checkpointer(model, job="extra", rng=False, raising=True) as ck:
        model.table.fill_(1)
        ck.snapshot(1)
        ck.wait()
        assert ck.restore() == 1
        model.table.fill_(2)
        ck.snapshot(2)
        ck.wait()
        model.table.fill_(3)
        assert ck.restore() == 2
    assert (model.table == 2).all()
    fresh = Replaces()
    fresh.set_extra_state = lambda state: None  # type: ignore[method-assign]
    with Checkpointer(fresh, job="extra", rng=False, raising=True) as ck:
        assert ck.restore() == 2
    assert (fresh.table == 2).all(), "the tensor itself was saved"


def test_a_parameter_that_the_optimizer_alone_has_is_told(agent: str) -> None:
    model = nn.Linear(3, 3)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Checkpointer(model, optim, job="stranger") as ck:
        model(torch.ones(2, 3)).sum().backward()
        optim.step()
        assert ck.snapshot(0)
        model.bias = nn.Parameter(torch.ones(3))
        with pytest.raises(ValueError, match="parameter 1 of group 0, of "
                                             r"shape \[3\], that is not"):
            ck.snapshot(1)


def _other_modules(model: torch.nn.Module) -> None:
    del model[2:]       # which makes it another dict, of the same ones
    model.append(torch.nn.Linear(3, 3))


def _other_parameters(model: torch.nn.Module) -> None:
    model[0]._parameters = {
        name: torch.nn.Parameter(torch.full_like(p, 7))
        for name, p in model[0].named_parameters()}


def _other_buffers(model: torch.nn.Module) -> None:
    model[1]._buffers = {k: b + 5 for k, b in model[1]._buffers.items()}


def _other_persistence(model: torch.nn.Module) -> None:
    model[1]._non_persistent_buffers_set = {"running_mean"}


def _other_attributes(model: torch.nn.Module) -> None:
    with torch.no_grad():
        other = torch.nn.Linear(3, 3)
        other.weight.fill_(7)
    model[0].__dict__ = vars(other)


@pytest.mark.parametrize("change", [
    _other_modules, _other_parameters, _other_buffers, _other_persistence,
    _other_attributes])
def test_what_a_module_has_its_parts_in(agent, change):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3),
                                torch.nn.BatchNorm1d(3))
    with Checkpointer(model, job="parts", raising=True) as ck:
        assert ck.snapshot(0, wait=60)
        change(model)
        assert ck.snapshot(1, wait=60)
        ck.wait()
    found = load_tensors("parts", prefix="model.")
    want = model.state_dict()
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], t) for name, t in want.items())


class _Memory(bytearray):
    """Whose end is seen."""


def _in_memory() -> tuple[torch.Tensor, weakref.ref[_Memory]]:
    room = _Memory(torch.ones(4096).numpy().tobytes())
    return torch.frombuffer(room, dtype=torch.float32), weakref.ref(room)


class Derived(torch.Tensor):
    """One that the library has to be told of."""


def _given_other_data() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    data, there = zip(*(_in_memory() for _ in range(4)))
    m = nn.Module()
    m.plain, m.kept = nn.Parameter(data[0]), nn.Parameter(torch.ones(4096))
    m.sharded = nn.Parameter(DTensor.from_local(
        torch.ones(4096), mesh, [Shard(0)]))
    m.sharded._local_tensor = data[1]
    m.derived = nn.Parameter(torch.ones(4096).as_subclass(Derived))
    m.derived.data = data[2]
    optim = torch.optim.SGD([m.kept], lr=0.1, momentum=0.9)
    optim.state[m.kept]["momentum_buffer"] = data[3]
    del data
    with Checkpointer(m, optim, job="data", raising=True,
                      flush_every=shardkeep.FLUSH_NEVER) as ck:
        assert ck.snapshot(1)
        for t in (m.plain, m.sharded._local_tensor, m.derived,
                  optim.state[m.kept]["momentum_buffer"]):
            t.data = torch.zeros(4096)
        assert all(x() is not None for x in there), "it may be read yet"
        ck.wait()
        assert all((t == 1).all() for t in load_tensors("data").values()
                   if t.dtype == torch.float32)
        assert ck.snapshot(2, wait=30)
        ck.wait()
        assert [x() for x in there] == [None] * 4, "held for nothing"
        assert not any(t.any() for name, t in load_tensors("data").items()
                       if t.dtype == torch.float32 and "kept" not in name)


def test_other_data_before_the_fence(agent):
    """What a snapshot reads is held, whatever the tensor has now."""
    run(1, _given_other_data)
