# SPDX-License-Identifier: Apache-2.0
"""Python objects as JSON: what schedulers, data loaders and generators keep.

No pickle: a snapshot must not be able to run code. What JSON has no form for
is tagged; what has no tag is refused, with the path that leads to it. What
comes back is of the type that was put: a derived one is refused, not taken for
the one it derives from.
"""

from __future__ import annotations

import base64
import collections
import io
import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.torch_version import TorchVersion

from ._common import bytes_of, made_to_last, resolved, unfit

_TAG = "__shardkeep__"
#: What a defaultdict may make its values by: other callables are code.
_FACTORIES: dict[str, Any] = {
    "none": None, **{f.__name__: f for f in (
        bool, int, float, complex, str, bytes, list, tuple, dict, set,
        frozenset, collections.deque, collections.Counter,
        collections.OrderedDict)}}


def _array(t: torch.Tensor) -> dict[str, Any]:
    if isinstance(t, DTensor):
        raise _NoForm(t, "DTensor")
    t = resolved(t.detach()) if t.is_conj() or t.is_neg() else t.detach()
    why = unfit(t)
    if why is not None:
        raise _NoForm(t, f"tensor that {why}")
    t = t.cpu().contiguous()
    return {_TAG: "tensor", "dtype": str(t.dtype).removeprefix("torch."),
            "shape": list(t.shape),
            "data": base64.b64encode(bytes_of(t)).decode("ascii")}


def _number(x: float) -> Any:
    if math.isfinite(x):
        return x
    return {_TAG: "float", "value": repr(x)}


def _plain_keys(x: dict[Any, Any]) -> bool:
    return all(type(k) is str for k in x) and _TAG not in x


class _NoForm(TypeError):
    """An object has no JSON form; the path to it grows on the way out."""

    def __init__(self, x: Any, kind: str | None = None) -> None:
        super().__init__()
        self.kind = kind or f"{type(x).__module__}.{type(x).__qualname__}"
        self.path = ""


_LEAVES = frozenset((type(None), bool, int, str))
_DICTS = {dict: "dict", collections.Counter: "counter",
          collections.OrderedDict: "ordered",
          collections.defaultdict: "default"}


def _each(values: Any, step: Callable[[int], str]) -> list[Any]:
    """The forms of several; where one has none, ``step`` says which."""
    if _LEAVES.issuperset(map(type, values)):   # hundreds of numbers, often
        return list(values)
    found: list[Any] = []
    try:
        for v in values:
            found.append(v if type(v) in _LEAVES else _encode(v))
    except _NoForm as e:
        e.path = step(len(found)) + e.path
        raise
    return found


def _index(i: int) -> str:
    return f"[{i}]"


def encode(x: Any, path: str) -> Any:
    """The JSON form of an object; TypeError names the part that has none."""
    try:
        return _encode(x)
    except _NoForm as e:
        raise TypeError(
            f"{path}{e.path} is a {e.kind}, which has no safe form; give its "
            "state as numbers, strings, lists, dicts or whole tensors, and "
            "models as models") from None


def _encode(x: Any) -> Any:
    if type(x) in _LEAVES:
        return x
    if type(x) is float:
        return _number(x)
    if type(x) is list:
        return _each(x, _index)
    if type(x) is tuple:
        return {_TAG: "tuple", "value": _each(x, _index)}
    if type(x) in _DICTS:
        return _dict(x)
    return _rare(x)


def _dict(x: dict[Any, Any]) -> Any:
    keys = list(x)
    if type(x) is dict and _plain_keys(x):
        return dict(zip(keys, _each(x.values(), lambda i: f".{keys[i]}")))
    form = {_TAG: _DICTS[type(x)], "value": [list(pair) for pair in zip(
        _each(keys, lambda i: f" key {keys[i]!r}"),
        _each(x.values(), lambda i: f"[{keys[i]!r}]"))]}
    if isinstance(x, collections.defaultdict):
        form["factory"] = _factory(x)
    return form


def _factory(x: collections.defaultdict[Any, Any]) -> str:
    """The word for what makes a defaultdict's values."""
    for name, made_by in _FACTORIES.items():
        if x.default_factory is made_by:
            return name
    what = getattr(x.default_factory, "__qualname__", x.default_factory)
    raise _NoForm(x, f"defaultdict of {what}")


def _rare(x: Any) -> Any:
    if type(x).__module__ == "numpy":
        return _numpy_form(x)
    if type(x) is TorchVersion:
        return {_TAG: "version", "value": str(x)}
    if type(x) is complex:
        return {_TAG: "complex", "value": [_number(x.real), _number(x.imag)]}
    if isinstance(x, torch.Tensor):
        return _array(x)
    if isinstance(x, torch.dtype):
        return {_TAG: "dtype", "value": str(x).removeprefix("torch.")}
    if isinstance(x, torch.Size):
        return {_TAG: "size", "value": list(x)}
    if type(x) in (bytes, bytearray):
        return {_TAG: type(x).__name__,
                "value": base64.b64encode(x).decode("ascii")}
    if type(x) is io.BytesIO:
        return {_TAG: "BytesIO",
                "value": base64.b64encode(x.getvalue()).decode("ascii")}
    if type(x) in (set, frozenset):
        return {_TAG: type(x).__name__,
                "value": _each(x, lambda _: "{}")}
    if type(x) is collections.deque:
        return {_TAG: "deque", "maxlen": x.maxlen,
                "value": _each(x, _index)}
    raise _NoForm(x)


def _numpy_form(x: Any) -> Any:
    import numpy
    if not isinstance(x, numpy.generic) and \
            type(x) not in (numpy.ndarray, numpy.memmap) or x.dtype.hasobject:
        raise _NoForm(x)
    form = {_TAG: "numpy", "dtype": _descr(x),
            "data": base64.b64encode(x.tobytes()).decode("ascii")}
    if isinstance(x, numpy.ndarray):
        form.update({_TAG: "ndarray", "shape": list(x.shape)})
    return form


def _descr(x: Any) -> Any:
    """Its dtype: a word, or the fields."""
    import numpy
    return x.dtype.str if x.dtype.names is None else _encode(
        numpy.lib.format.dtype_to_descr(x.dtype))


def _tensor(x: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, x["dtype"])
    raw = bytearray(base64.b64decode(x["data"]))
    with made_to_last():
        if not raw:
            return torch.empty(x["shape"], dtype=dtype, device="cpu")
        return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(
            x["shape"]).clone()


def _numpy(x: dict[str, Any]) -> Any:
    import numpy
    dtype = numpy.lib.format.descr_to_dtype(decode(x["dtype"]))
    if not dtype.itemsize:      # empty text: of no length, of no bytes
        a = numpy.zeros(math.prod(x.get("shape", [1])), dtype)
    else:
        a = numpy.frombuffer(base64.b64decode(x["data"]), dtype)
    if x[_TAG] == "numpy":
        return a[0]
    return a.reshape(x["shape"]).copy()


def _mapping(tag: str, pairs: dict[Any, Any], x: dict[str, Any]) -> Any:
    if tag == "default":
        return collections.defaultdict(_FACTORIES[x["factory"]], pairs)
    return {"dict": dict, "counter": collections.Counter,
            "ordered": collections.OrderedDict}[tag](pairs)


def decode(x: Any) -> Any:
    """What :func:`encode` was given."""
    if isinstance(x, list):
        return [decode(v) for v in x]
    if not isinstance(x, dict):
        return x
    if _TAG not in x:
        return {k: decode(v) for k, v in x.items()}
    tag, value = x[_TAG], x.get("value")
    if tag == "tensor":
        return _tensor(x)
    if tag in ("numpy", "ndarray"):
        return _numpy(x)
    if tag == "float":
        return float(value)
    if tag == "complex":
        return complex(*(decode(v) for v in value))
    if tag == "dtype":
        return getattr(torch, value)
    if tag in ("bytes", "bytearray", "BytesIO"):
        raw = base64.b64decode(value)
        return {"bytes": bytes, "bytearray": bytearray,
                "BytesIO": io.BytesIO}[tag](raw)
    if tag == "version":
        return TorchVersion(value)
    if tag in _DICTS.values():
        return _mapping(tag, {decode(k): decode(v) for k, v in value}, x)
    items = [decode(v) for v in value]
    if tag == "deque":
        return collections.deque(items, x["maxlen"])
    return {"tuple": tuple, "set": set, "frozenset": frozenset,
            "size": torch.Size}[tag](items)


def dumps(x: Any, path: str) -> bytes:
    """UTF-8 JSON of an object called ``path`` in errors."""
    try:
        return json.dumps(encode(x, path), separators=(",", ":"),
                          allow_nan=False).encode()
    except RecursionError:
        raise TypeError(f"{path} contains itself, or is nested too deep; give "
                        "its state as plain values") from None
    except ValueError as e:     # an integer of thousands of digits
        raise TypeError(f"{path} has no safe form: {e}") from None


def loads(raw: bytes | bytearray) -> Any:
    """The object of :func:`dumps`; padding is ignored."""
    return decode(json.loads(bytes(raw).rstrip(b" \0")))


def as_parts(raw: bytearray) -> tuple[Any, ...]:
    """What State.tensors() takes as the parts of an object's bytes."""
    at = torch.frombuffer(raw, dtype=torch.uint8).data_ptr() if raw else 0
    return (((0,), (len(raw),), at, None),)
