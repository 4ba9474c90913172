# SPDX-License-Identifier: Apache-2.0
"""Random generators, as each snapshot writes them."""

from __future__ import annotations

import random

import pytest
import torch
from shardkeep.torch import _kept, _objects


def _changes() -> list[object]:
    numpy = pytest.importorskip("numpy")
    return [lambda: None, random.random, lambda: torch.rand(1),
            numpy.random.rand, lambda: random.gauss(0, 1),
            numpy.random.randn, lambda: random.seed(3),
            lambda: torch.manual_seed(3), lambda: numpy.random.seed(3)]


def test_they_are_written_as_any_object_is():
    generators = _kept._Generators()
    for change in 2 * _changes():
        change()
        raw = generators.written()
        assert raw == _objects.dumps(_kept.rng_state(), "rng")
        want = random.random(), torch.rand(1)
        _kept.set_rng_state(_objects.loads(raw))
        assert (random.random(), torch.rand(1)) == want


def test_what_stays_is_not_written_again(monkeypatch):
    written = []

    def note(name, x, write=_kept._written):
        written.append(name)
        return write(name, x)

    monkeypatch.setattr(_kept, "_written", note)
    _changes()
    generators = _kept._Generators()
    first = generators.written()
    assert set(written) >= {"rng.python", "rng.torch", "rng.numpy"}
    del written[:]
    assert generators.written() == first and not written
    torch.rand(1)
    generators.written()
    assert written == ["rng.torch"]
    del written[:]
    random.random()
    generators.written()
    assert written == ["rng.python"]
