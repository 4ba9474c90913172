# SPDX-License-Identifier: Apache-2.0
"""The states of a rank's random generators, as objects.

Few change from step to step, and to be told a state takes longer than all
else in a snapshot's call: Python's is hundreds of numbers, an object each.
So each generator has a word, had at once, that no other state has: of Python's
and NumPy's the memory that holds the state. Where a generator has it is learned
from one of the same type, by what that tells; of one that is unlike what is
known here the state itself is the word.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _device, _objects
from ._common import bytes_of

#: A generator's name, its word, which may be None, what tells its state, and
#: whether a word is that of a state.
Found = tuple[str, Any, Callable[[], Any], Callable[[Any, Any], bool]]


def rng_state() -> dict[str, Any]:
    return {name: tell() for name, _, tell, _ in _found()}


def set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        _device.set_generator_state(state["cuda"])
    if "numpy" in state:
        import numpy
        numpy.random.set_state(state["numpy"])


def _found() -> Iterator[Found]:
    yield "python", _word_of_python(), random.getstate, _is_of_python
    state = torch.get_rng_state()
    yield "torch", _word_of_bytes(state), lambda: state, _is_itself
    on_device = _device.generator_state()
    if on_device is not None:
        yield "cuda", _word_of_bytes(on_device), lambda: on_device, _is_itself
    numpy = sys.modules.get("numpy")
    if numpy:       # None: somebody keeps it out
        yield "numpy", _word_of_numpy(numpy), \
            lambda: numpy.random.get_state(legacy=False), _is_of_numpy


def _is_itself(word: Any, state: Any) -> bool:
    """Of a word that was made of the state."""
    return True


def _word_of_bytes(state: torch.Tensor) -> Any:
    if state.is_cpu and state.dtype == torch.uint8 and state.dim() == 1 and \
            state.is_contiguous():
        return bytes_of(state)
    return None


# ---- memory ----

def _own(x: Any, kind: type) -> bytes:
    """What an object has beyond the head of any: a type's part of it."""
    head = object.__basicsize__
    return ctypes.string_at(id(x) + head, kind.__basicsize__ - head)


def _known(learn: Callable[..., bool]) -> Callable[..., bool]:
    """What is asked once; whatever is otherwise than thought is unknown."""
    @functools.cache
    def known(*args: Any) -> bool:
        try:
            return sys.implementation.name == "cpython" and learn(*args)
        except Exception:
            return False

    return known


# ---- Python's ----

#: The part that is C, and has the numbers.
_C_PART = random.Random.__base__ or object
_PYTHON = struct.Struct("i624I")    # how many were used, and its numbers


def _word_of(it: random.Random) -> Any:
    return _own(it, _C_PART), repr(it.gauss_next)


def _is_of_python(word: Any, state: Any) -> bool:
    _, (*numbers, used), gauss = state
    return word[1] == repr(gauss) and \
        bool(word[0].startswith(_PYTHON.pack(used, *numbers)))


@_known
def _python_is_memory() -> bool:
    """Whether the numbers, and how many were used, are in the object."""
    sample = random.Random(5)
    for _ in range(3):
        if not _is_of_python(_word_of(sample), sample.getstate()):
            return False
        sample.random()     # the numbers stay: 2 more were used
    return True


def _word_of_python() -> Any:
    it = getattr(random.getstate, "__self__", None)
    if type(it) is not random.Random or \
            getattr(random.getstate, "__func__", None) \
            is not random.Random.getstate or \
            not _python_is_memory():
        return None
    return _word_of(it)


# ---- NumPy's ----

_MT = struct.calcsize("624Ii")  # its numbers, and how many were used
_GAUSS = struct.Struct("id")    # whether there is a number more, and it


def _word_of_both(it: Any, bits: Any) -> Any:
    return _own(it, type(it)), \
        ctypes.string_at(bits.ctypes.state_address, _MT)


def _is_of_numpy(word: Any, state: Any) -> bool:
    mt = state["state"]
    used = struct.pack("i", mt["pos"])
    return word[1] == mt["key"].tobytes() + used and \
        _GAUSS.pack(state["has_gauss"], state["gauss"]) in word[0]


@_known
def _numpy_is_memory(kind: type, bits: type) -> bool:
    """Whether the bits' memory is their state, and the object has the number
    that was drawn together with the last one."""
    sample = kind(bits(5))
    seen = []
    for has, gauss in ((0, 0.0), (1, 0.0), (1, 0.5), (0, 0.5)):
        sample.random_sample()
        sample.set_state({**sample.get_state(legacy=False), "gauss": gauss,
                          "has_gauss": has})
        word = _word_of_both(sample, sample._bit_generator)
        seen.append(word[0])
        if not _is_of_numpy(word, sample.get_state(legacy=False)):
            return False
    return len(set(seen)) == len(seen) and \
        _own(sample, kind) == seen[-1]


def _word_of_numpy(numpy: Any) -> Any:
    it = getattr(numpy.random.get_state, "__self__", None)
    bits = getattr(it, "_bit_generator", None)
    if type(it) is not numpy.random.RandomState or \
            type(bits) is not numpy.random.MT19937 or \
            not _numpy_is_memory(type(it), type(bits)):
        return None
    return _word_of_both(it, bits)


# ---- as they are written ----

def _same(a: Any, b: Any) -> bool:
    """Of what generators tell: numbers, in whatever holds them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if hasattr(a, "tobytes"):
        return bool(a.tobytes() == b.tobytes())
    return bool(a == b)


#: The word of a state that nobody knows.
_NONE = object()


class Generators:
    """What they tell, as it is written; the same bytes, in one object, while
    none has another state."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, bytes]] = {}
        self._raw = b""

    def written(self) -> bytes:
        """As any object is, of :func:`rng_state`."""
        parts, changed = {}, False
        for name, word, tell, is_of in _found():
            state = tell() if word is None else None
            last = self._last.get(name)
            if last is None or not _same(
                    last[0], state if word is None else word):
                changed = True
                state = tell() if state is None else state
                raw = _objects.dumps(state, f"rng.{name}")
                # Another thread may have drawn in between: a word of another
                # state, and one that was read meanwhile, is none to keep.
                last = (state if word is None else word if is_of(word, state)
                        else _NONE), raw
            parts[name] = last
        if changed or parts.keys() != self._last.keys():
            self._raw = b"{" + b",".join(
                b'"%s":%s' % (name.encode(), raw)
                for name, (_, raw) in parts.items()) + b"}"
            self._last = parts
        return self._raw
