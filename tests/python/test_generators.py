# SPDX-License-Identifier: Apache-2.0
"""Random generators, as each snapshot writes them."""

from __future__ import annotations

import random

import pytest
import torch
from shardkeep.torch import _generators, _objects


def _changes() -> list[object]:
    numpy = pytest.importorskip("numpy")
    return [lambda: None, random.random, lambda: torch.rand(1),
            numpy.random.rand, lambda: random.gauss(0, 1),
            numpy.random.randn, lambda: random.seed(3),
            lambda: torch.manual_seed(3), lambda: numpy.random.seed(3)]


def test_they_are_written_as_any_object_is():
    generators = _generators.Generators()
    for change in 2 * _changes():
        change()
        raw = generators.written()
        assert raw == _objects.dumps(_generators.rng_state(), "rng")
        want = random.random(), torch.rand(1)
        _generators.set_rng_state(_objects.loads(raw))
        assert (random.random(), torch.rand(1)) == want


def test_what_stays_is_not_written_again(monkeypatch):
    written = []

    def note(x, name, write=_objects.dumps):
        written.append(name)
        return write(x, name)

    _changes()
    generators = _generators.Generators()
    monkeypatch.setattr(_objects, "dumps", note)
    first = generators.written()
    assert set(written) >= {"rng.python", "rng.torch", "rng.numpy"}
    del written[:]
    assert generators.written() is first and not written
    torch.rand(1)
    assert generators.written() != first
    assert written == ["rng.torch"]
    del written[:]
    random.random()
    generators.written()
    assert written == ["rng.python"]


def _is_seen(generators: _generators.Generators) -> bool:
    return generators.written() == _objects.dumps(_generators.rng_state(),
                                                  "rng")


def test_what_is_drawn_beside_the_last_one_is_state():
    """Normal numbers come in pairs: the second one is kept, and taking it
    changes nothing else."""
    numpy = pytest.importorskip("numpy")
    generators = _generators.Generators()
    random.seed(3)
    numpy.random.seed(3)
    for draw in 4 * (lambda: random.gauss(0, 1), numpy.random.randn):
        draw()
        assert _is_seen(generators)
    state = numpy.random.get_state(legacy=False)
    for has in (0, 1, 0):
        for gauss in (0.0, -0.0, 2.5):
            numpy.random.set_state({**state, "has_gauss": has,
                                    "gauss": gauss})
            assert _is_seen(generators)
    number, words, _ = random.getstate()
    for gauss in (0.0, -0.0, None, 1.5):
        random.setstate((number, words, gauss))
        assert _is_seen(generators)


def test_each_number_of_a_state_is_seen():
    numpy = pytest.importorskip("numpy")
    generators = _generators.Generators()
    number, words, gauss = random.getstate()
    state = numpy.random.get_state(legacy=False)
    for at in (0, 1, 311, 622, 623):
        other = [*words]
        other[at] ^= 1
        random.setstate((number, tuple(other), gauss))
        assert _is_seen(generators)
        state["state"]["key"][at] ^= 1
        numpy.random.set_state(state)
        assert _is_seen(generators)
    for pos in (0, 1, 624):
        random.setstate((number, (*words[:-1], pos), gauss))
        state["state"]["pos"] = pos
        numpy.random.set_state(state)
        assert _is_seen(generators)


def test_where_states_lie_is_known_here():
    numpy = pytest.importorskip("numpy")
    assert _generators._word_of_python() is not None
    assert _generators._word_of_numpy(numpy) is not None


@pytest.mark.parametrize("unknown", ["_python_is_memory", "_numpy_is_memory"])
def test_of_others_the_state_itself_is_compared(monkeypatch, unknown):
    monkeypatch.setattr(_generators, unknown, lambda *_: False)
    generators = _generators.Generators()
    for change in 2 * _changes():
        change()
        assert _is_seen(generators)
    assert generators.written() is generators.written()


def test_a_generator_of_other_bits(monkeypatch):
    numpy = pytest.importorskip("numpy")
    if not hasattr(numpy.random, "set_bit_generator"):
        pytest.skip("this NumPy has always the same")
    generators = _generators.Generators()
    assert _is_seen(generators)
    was = numpy.random.get_bit_generator()
    try:
        # Of the same kind, and the same numbers, and another object.
        for seed in (5, 5, 6):
            numpy.random.set_bit_generator(numpy.random.MT19937(seed))
            assert _is_seen(generators)
            numpy.random.rand()
            assert _is_seen(generators)
        numpy.random.set_bit_generator(numpy.random.PCG64(1))
        assert _generators._word_of_numpy(numpy) is None
    finally:
        numpy.random.set_bit_generator(was)
    assert _is_seen(generators)


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_what_another_thread_draws_meanwhile_and_takes_back(
        monkeypatch, name):
    """As who has a seed of his own for a while does."""
    numpy = pytest.importorskip("numpy")
    mine = random if name == "python" else numpy.random
    get, put = (random.getstate, random.setstate) if mine is random else \
        (mine.get_state, mine.set_state)
    generators, found = _generators.Generators(), _generators._found

    def meanwhile():
        for each, word, tell, *more in found():
            def while_seeded(tell=tell):
                before = get()
                mine.seed(77)
                try:
                    return tell()
                finally:
                    put(before)

            yield each, word, while_seeded if each == name else tell, *more

    mine.seed(5)
    monkeypatch.setattr(_generators, "_found", meanwhile)
    generators.written()
    monkeypatch.undo()
    assert _is_seen(generators)
    assert generators.written() is generators.written()
