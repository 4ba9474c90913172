# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a training job that outlive it.

The agent of this node keeps sharded model and optimizer state in memory that
no crashed trainer can take with it, writes it to disk behind the trainer's
back, and gives it back to any mesh.

This module is the C library, thinly: tensors are described by pointers. Users
of PyTorch want :mod:`shardkeep.torch`, which fills them in:

>>> from shardkeep.torch import Checkpointer
>>> with Checkpointer(model, optim, job="llama") as ck:
...     done = ck.restore()             # None on the first run
...     for step in range(0 if done is None else done + 1, last):
...         optim.zero_grad()
...         loss(model).backward()
...         optim.step()                # fences by itself
...         ck.snapshot(step)           # returns at once

Every failure is an :class:`Error` with the library's sentence; none of them is
a reason to end training.
"""

from __future__ import annotations

import errno as _errno
import json as _json
from typing import Any

from . import _core
from ._core import (DTYPES, FLUSH_NEVER, KEEP_ALL, LATEST, Client, Mesh,
                    State)

__all__ = [
    "Busy", "Client", "Damaged", "DTYPES", "Error", "FLUSH_NEVER", "Invalid",
    "KEEP_ALL", "LATEST", "Mesh", "Mismatch", "NotFound", "State",
    "TensorChanged", "Timeout", "inspect", "snapshots", "version",
]


class Error(OSError):
    """A call into Shardkeep failed.

    ``errno`` says how, ``strerror`` is the library's sentence: what, which
    object, how much, what to do.
    """

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class NotFound(Error):
    """No such snapshot: a first run, or it was evicted."""


class Busy(Error):
    """No slot is free; the sentence says how long the oldest flush needs."""


class Timeout(Error):
    """Somebody did not come in time."""


class Mismatch(Error):
    """Keys are missing on either side; the sentence lists them all."""


class Invalid(Error, ValueError):
    """What was asked for cannot be: a bad argument, another dtype or global
    shape than was saved."""


class Damaged(Error):
    """A checksum failed and no other holder is left; says of which tensor."""


class TensorChanged(Error):
    """A tensor was overwritten before the fence; it is named."""


_core.set_errors(Error, {
    _errno.ENOENT: NotFound,
    _errno.EBUSY: Busy,
    _errno.ETIMEDOUT: Timeout,
    _errno.ENOKEY: Mismatch,
    _errno.EINVAL: Invalid,
    _errno.EBADMSG: Damaged,
    _errno.ECANCELED: TensorChanged,
})


#: The version of the package, which is the library's.
__version__ = _core.version()


def version() -> str:
    """The version of the C library."""
    return _core.version()


def snapshots(client: Client, job: str | None = None) -> list[dict[str, Any]]:
    """The snapshots that the agent knows, newest first.

    Each has ``job``, ``run``, ``step``, ``world``, ``complete``, ``durable``,
    ``newest``, ``pinned``, ``memory_bytes``, ``disk_bytes`` and ``note``.
    """
    return _json.loads(client.snapshots(job))


def inspect(client: Client, job: str, step: int = LATEST,
            run: int = 0, brief: bool = False) -> dict[str, Any]:
    """What one snapshot holds: as :func:`snapshots`, and its ``tensors``.

    Each of those has ``name``, ``kind`` (``tensor``, ``blob`` or ``local``),
    ``rank`` (of a local blob), ``dtype``, ``shape``, ``mesh`` (an index into
    the list ``meshes``, or None), ``placements`` and ``boxes``: ``rank``,
    ``offset`` and ``size`` of what primary images hold of it.
    ``brief`` leaves out meshes, placements and boxes.
    """
    return _json.loads(client.inspect(job, step, run, brief))
