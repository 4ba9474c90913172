# SPDX-License-Identifier: Apache-2.0
"""What did not change since the last snapshot is not written again; whatever
did, wherever it is, is."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run
from shardkeep import NotFound
from shardkeep.torch import Checkpointer, _blobs, _device, _kept, _objects
from shardkeep.torch._tensors import LiveTensors
from torch import nn


def _made() -> tuple[LiveTensors, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optim = torch.optim.AdamW([{"params": [model.weight], "lr": 0.5},
                               {"params": [model.bias], "betas": (0.5, 0.9)}])
    return LiveTensors([model], [optim]), optim


def _set(key: str, *values: Any) -> list[Callable[[Any], object]]:
    return [lambda o, v=v: o.param_groups[1].__setitem__(key, v)
            for v in values]


_NAN = float("nan")
_IN_ITSELF: list[Callable[[Any], object]] = [
    *_set("own", [1, 2]),
    lambda o: o.param_groups[1]["own"].append(3),
    lambda o: o.param_groups[1]["own"].clear(),
    *_set("own", {"deep": [{"er": 1}]}),
    lambda o: o.param_groups[1]["own"]["deep"][0].update(er=2),
    *_set("own", (1, [2])),
    lambda o: o.param_groups[1]["own"][1].append(3),
    *_set("own", torch.tensor(0.1)),
    lambda o: o.param_groups[1]["own"].fill_(0.2),
    *_set("own", bytearray(b"a")),
    lambda o: o.param_groups[1]["own"].extend(b"b"),
    *_set("own", None),
]
_CHANGES: list[Callable[[Any], object]] = [
    *_set("lr", 0.25, 1, True, 1.0, 0.0, -0.0, 0, False, _NAN, 1e-3),
    *_set("betas", (0.5, 0.9), (0.5, 0.95), (0, 1), (0.0, 1.0), [0.5, 0.9]),
    *_set("new", None, "word", "", (), ((1, 2), "x"), 1 << 70, 1j),
    lambda o: o.param_groups[1].pop("new"),
    *_IN_ITSELF,
    lambda o: o.param_groups[1].update(
        {k: o.param_groups[1].pop(k) for k in ("own", "lr")}),
    lambda o: o.param_groups.__setitem__(0, dict(o.param_groups[0])),
    lambda o: o.param_groups.reverse(),
    lambda o: o.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    lambda o: o.param_groups.pop(),
    lambda o: o.param_groups[0].update({7: 8}),
]


def test_settings_are_written_as_they_are() -> None:
    tensors, optim = _made()
    settings = _kept._Settings()

    def is_seen() -> bool:
        return settings.written(tensors, False) == _objects.dumps(
            tensors.optimizers(False), "optim")

    assert is_seen() and is_seen()
    for change in _CHANGES:
        change(optim)
        assert is_seen() and is_seen()


def test_settings_that_stay_are_not_written_again() -> None:
    tensors, optim = _made()
    settings = _kept._Settings()
    first = settings.written(tensors, False)
    assert settings.written(tensors, False) is first
    optim.state["more"] = 1     # of no parameter
    assert settings.written(tensors, True) == _objects.dumps(
        tensors.optimizers(True), "optim")
    assert settings.written(tensors, False) == first


def test_what_is_changed_meanwhile_and_back(monkeypatch) -> None:
    """By another thread, as for one step without a rate."""
    tensors, optim = _made()
    settings, group = _kept._Settings(), optim.param_groups[0]
    told = tensors.optimizers

    def meanwhile(more: bool) -> Any:
        rate, group["lr"] = group["lr"], 0.0
        try:
            return told(more)
        finally:
            group["lr"] = rate

    monkeypatch.setattr(tensors, "optimizers", meanwhile)
    settings.written(tensors, False)
    monkeypatch.undo()
    assert settings.written(tensors, False) == _objects.dumps(
        tensors.optimizers(False), "optim")


def test_what_has_no_form_is_refused_each_time() -> None:
    tensors, optim = _made()
    settings = _kept._Settings()
    settings.written(tensors, False)
    optim.param_groups[0]["own"] = object()
    for _ in range(2):
        with pytest.raises(TypeError, match="object"):
            settings.written(tensors, False)
    del optim.param_groups[0]["own"]
    assert settings.written(tensors, False) == _objects.dumps(
        tensors.optimizers(False), "optim")


def _there_and_back() -> None:
    model, told = nn.Linear(2, 2), {"n": 0}
    optim = torch.optim.SGD(model.parameters(), lr=0.5)
    filled: list[bytes] = []
    fill = _blobs._fill

    def note(room: bytearray, raw: bytes) -> None:
        filled.append(raw)
        fill(room, raw)

    _blobs._fill = note
    with Checkpointer(model, optim, job="unchanged", extra={"told": told},
                      raising=True) as ck:
        def snapshot(step: int) -> int:
            del filled[:]
            assert ck.snapshot(step, wait=60)
            ck.wait(timeout=60)
            return len(filled)

        ck.restore()
        every = snapshot(0)
        assert snapshot(1) == 1     # who tells is asked, and is written
        optim.param_groups[0]["lr"] = 0.125
        assert snapshot(2) == 2
        torch.rand(1)
        want = torch.get_rng_state()
        assert snapshot(3) == 2
        optim.param_groups[0]["lr"], told["n"] = 9.0, 9
        torch.rand(1)
        assert ck.restore() == 3
        assert (optim.param_groups[0]["lr"], told["n"]) == (0.125, 0)
        assert torch.equal(torch.get_rng_state(), want)
        # What was put before the restore is not taken for what is there.
        assert snapshot(4) == every
        optim.param_groups[0]["lr"] = 1.0
        assert ck.restore() == 4
        assert optim.param_groups[0]["lr"] == 0.125


def test_objects_that_stay_are_not_written_again(agent: str) -> None:
    run(1, _there_and_back)


class _Told:
    """A state that keeps its blobs, and can be interrupted."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytearray] = {}
        self.interrupted = False

    def blob(self, name: str, room: bytearray, local: bool) -> None:
        self.blobs[name] = room

    def remove(self, name: str) -> None:
        if self.blobs.pop(name, None) is None:
            raise NotFound(errno.ENOENT, f"{name} is not described")
        if self.interrupted:
            raise KeyboardInterrupt


def test_who_is_interrupted_has_put_nothing() -> None:
    told: Any = _Told()
    blobs = _blobs.Blobs(told, 0, 1)
    objects = {"a": (b"1", True), "b": (b"2", True)}
    blobs.put(objects)
    was = {name: bytes(room) for name, room in told.blobs.items()}
    assert len(was) == 2
    told.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        blobs.put({"a": objects["a"]})
    told.interrupted = False
    blobs.put(objects)
    assert told.blobs == was


def _none_left() -> None:
    model = nn.Linear(2, 2)
    with Checkpointer(model, job="none", rng=False, raising=True) as ck:
        for step in range(3):
            assert ck.snapshot(step, wait=60)
            ck.wait(timeout=60)
        assert ck.restore() == 2


def test_a_rank_that_has_no_objects(agent: str) -> None:
    run(1, _none_left)


def test_storages_are_held_and_devices_not_asked_for(monkeypatch) -> None:
    """What is described on a device lies there."""
    def asked(_: Any) -> bool:
        raise AssertionError

    tensors = [torch.ones(3), nn.Parameter(torch.ones(8)[2:])]
    monkeypatch.setattr(_device, "is_device", asked)
    assert [x.data_ptr() for x in _device.storages_of(tensors)] == \
        [t.untyped_storage().data_ptr() for t in tensors]


def test_streams_are_known_by_their_numbers(monkeypatch) -> None:
    """Without an object made of each, where the framework gives numbers."""
    one, two = torch.device("cuda", 0), torch.device("cuda", 1)
    monkeypatch.setattr(_device, "RAW_STREAM", lambda i: 40 + i)
    streams = _device.Streams()
    assert streams.for_snapshot([]) == 0
    assert streams.for_snapshot([two]) == 41
    assert streams.for_fence([two, one]) == [40, 41]
    monkeypatch.setattr(_device, "RAW_STREAM", lambda i: 0)
    assert streams.for_snapshot([one, two]) == 0    # each one's default
    assert streams.for_fence([one, two]) == [0]
