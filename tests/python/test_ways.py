# SPDX-License-Identifier: Apache-2.0
"""The fast ways into torch are those that its version has. Where one is not
found all goes on, slower and without a word: here it is said."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

import pytest
import torch
from harness import run
from older import EXCHANGE, needs_exchange
from shardkeep import Client, State, _core
from shardkeep.torch import _describe, _versions
from shardkeep.torch._describe import Meshes, describe, usual
from shardkeep.torch._watch import _local_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

OF_ALL = ["KINDS", "Async", "STRIDED", "Buffer", "OF_BATCHES", "_overlap",
          "_of_functions", "_flattens", "_copy_each"]


@pytest.mark.parametrize("name", OF_ALL)
def test_what_every_version_has_is_found(name: str) -> None:
    assert getattr(_versions, name)


def test_tensors_are_shown_where_they_can_be() -> None:
    can = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
    assert bool(EXCHANGE) == can == bool(usual(Meshes()))


def test_all_that_tells_transformations_is_found() -> None:
    assert len(_versions._of_functions) == 2


def test_states_are_staged() -> None:
    state = {"w": torch.ones(2)}
    assert _versions.memory_for(state)["w"].shape == (2,)
    assert torch.equal(_versions.staged(state, False)["w"], state["w"])


def test_samples_are_made() -> None:
    assert len(_describe._samples()) == 5


@pytest.mark.parametrize("name", ["_local_tensor", "_spec"])
def test_sharded_ones_have_slots(name: str) -> None:
    assert isinstance(getattr(DTensor, name), MemberDescriptorType)


def _counting(name: str, asked: list[str]) -> property:
    way = getattr(DTensor, name)

    def get(t: Any) -> Any:
        asked.append(name)
        return way.__get__(t, type(t))

    return property(get, way.__set__)


def _no_call(*_: Any) -> None:
    raise ZeroDivisionError


def _unasked() -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = {f"t{i}": DTensor.from_local(torch.ones(2), mesh, (Shard(0),),
                                         run_check=False) for i in range(5)}
    items = [(name, t, name) for name, t in model.items()]
    describe("t0", model["t0"], Meshes())   # its kind is fit
    how, asked = usual(Meshes()), []
    watches = [_core.Watch([(model, name) for name in model], [], [], x,
                           _local_of) for x in (how, None)]
    client = Client()
    state = State(client, "unasked", 0, 1)
    state.describe(items, how, set(), model, _no_call)  # learns the mesh
    for name in ("_local_tensor", "_spec"):
        setattr(DTensor, name, _counting(name, asked))
    assert model["t0"]._local_tensor is not None and len(asked) == 1
    state.describe(items, how, set(), model, _no_call)
    assert all(w.holds() for w in watches)
    assert len(asked) == 1, asked
    state.close()
    client.close()


@needs_exchange
def test_sharded_ones_are_read_by_their_slots(agent: str) -> None:
    run(1, _unasked)
