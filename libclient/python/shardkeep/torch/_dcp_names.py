# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint id names, and what of a storage is each thread's own."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import posixpath
import re
import threading
from collections.abc import Callable
from typing import Any

from ._common import step_of


def parse_id(checkpoint_id: str | os.PathLike[str]) -> tuple[str, int]:
    """The job and the step that a checkpoint id means.

    ``job/step`` and ``shardkeep:job/step`` are just that, with a slash at the
    end or without, where the step is one: of 63 bits, and without zeros before
    it. Of any other text, such as the path of a directory, the job is made,
    and a number at its end is the step; no two paths mean the same snapshot.
    Where numbers begin with zeros, those of as many digits are of one job. The
    address of another storage, ``s3://bucket``, is refused.
    """
    text = os.fspath(checkpoint_id).removeprefix("shardkeep:")
    if not is_ours(text):
        raise ValueError(f"{checkpoint_id} is the address of another storage")
    match = re.fullmatch(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)/(0|[1-9][0-9]{0,18})/?", text)
    if match and int(match[2]) < 2**63:
        return match[1], int(match[2])
    text = posixpath.normpath(text)
    match = re.fullmatch(r"(.*?)([0-9]{1,15})", text, re.DOTALL)
    before, number = match.groups() if match else (text, "")
    # So that no two texts are one snapshot: 0.1 and 0.01, x and x0.
    form = "none" if not number else \
        f"{len(number)}" if number.startswith("0") and number != "0" else ""
    digest = hashlib.sha256(f"{before}\0{form}".encode(
        errors="surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", before).strip("-_")[-80:]
    return f"dcp-{name}-{digest}" if name else f"dcp-{digest}", int(number or 0)


def is_ours(checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether it can name a snapshot: any text but another's address."""
    text = os.fspath(checkpoint_id)
    return bool(text) and not re.match(r"(?!shardkeep:)[a-z0-9+.-]+://", text)


def one_id(checkpoint_id: str | os.PathLike[str] | None,
           path: str | os.PathLike[str] | None
           ) -> str | os.PathLike[str] | None:
    """The one of two words for it that was given."""
    if checkpoint_id is not None and path is not None:
        raise TypeError("path is another word for checkpoint_id: give one")
    return path if checkpoint_id is None else checkpoint_id


class _Mine(threading.local):
    """What the save or the load on this thread is about: several may be under
    way by one object, each on a thread of its own."""

    it: Any = None
    #: Whether this thread has said of which checkpoint.
    told = False

    def __reduce__(self) -> Any:
        return _Mine, ()


def of_this(phase: Callable[..., Any]) -> Any:
    """A method that the framework calls for what this thread has begun, or
    else another one last."""
    @functools.wraps(phase)
    def call(self: Named, *args: Any, **kwargs: Any) -> Any:
        return phase(self._mine.it or self._last or self, *args, **kwargs)
    return call


class Named:
    """Whose storage a checkpoint id names: a job's step."""

    def _name(self, job: str | None, step: int | None) -> None:
        self._mine = _Mine()
        self._last: Any = None
        self._id: str | os.PathLike[str] | None = None
        self._job = job
        self._step = None if step is None else step_of(step)

    def _rename(self, checkpoint_id: str | os.PathLike[str] | None) -> None:
        if checkpoint_id is not None:
            self._id = checkpoint_id
            self._job, self._step = parse_id(checkpoint_id)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies, which are in the midst of nothing."""
        return {**self.__dict__, "_mine": _Mine(), "_last": None}

    def _begin(self) -> Any:
        """Stands for it in what this thread begins."""
        mine = copy.copy(self)
        mine._mine = self._mine
        self._mine.it = mine
        return mine

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """What the framework's log calls the checkpoint."""
        if self._id is not None:
            return self._id
        return f"{self._job}" if self._step is None else \
            f"{self._job}/{self._step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]
                               ) -> bool:
        return is_ours(checkpoint_id)
