# SPDX-License-Identifier: Apache-2.0
"""What may fail on one rank alone, and then fails on all.

After it the ranks tell each other how it went, so none waits in a call that
another will not make.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import shardkeep

from .. import Damaged, Error, NotFound
from ._comm import Comm
from ._meeting import Apart

log = logging.getLogger("shardkeep")

#: What is wrong with one snapshot, and not with what was asked for.
PASSED_OVER = (Damaged, NotFound)


def _word(e: Exception) -> list[Any]:
    # Of what is a kind of one that all know, that one.
    name = next((c.__name__ for c in type(e).__mro__
                 if getattr(shardkeep, c.__name__, None) is c),
                type(e).__name__)
    return [name, getattr(e, "errno", None) or errno.EIO,
            str(e), isinstance(e, PASSED_OVER)]


def _of_another(rank: int, word: list[Any]) -> Exception:
    """The exception that another rank had."""
    kind = getattr(shardkeep, word[0], None)
    text = f"rank {rank}: {word[2]}"
    if isinstance(kind, type) and issubclass(kind, Error):
        return kind(word[1], text)
    return RuntimeError(text)


def _told(comm: Comm, what: str, mine: dict[str, Any],
          failure: Exception | None) -> list[dict[str, Any]]:
    """By all ranks. Where they are apart, which ends the call for all of
    them, this rank raises what it had to tell."""
    try:
        return [json.loads(x) for x in comm.share(json.dumps(mine).encode(),
                                                  what)]
    except Apart as e:
        if failure is None:
            raise
        if isinstance(failure, PASSED_OVER):    # no other snapshot is tried
            raise Apart(e.errno, f"{failure}; {e.strerror}") from failure
        raise failure from e


def tried(act: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    """How the act went, in forms that JSON has, for :func:`judged`; and this
    rank's exception."""
    try:
        return {"value": act()}, None
    except Apart:
        raise       # all that came know it
    except Exception as e:
        return {"failed": _word(e)}, e


def judged(comm: Comm, words: list[dict[str, Any]],
           failure: Exception | None) -> list[Any]:
    """What the act gave on every rank; where it failed on one, all raise:
    this rank's own exception before another's."""
    failed = {r: w["failed"] for r, w in enumerate(words) if "failed" in w}
    if not failed:
        return [w["value"] for w in words]
    # Ranks take the same way: what cannot be passed over comes first.
    fatal = {r: w for r, w in failed.items() if not w[3]} or failed
    if failure is not None and comm.rank in fatal:
        raise failure
    raise _of_another(*next(iter(fatal.items()))) from failure


def together(comm: Comm, what: str, act: Callable[[], Any]) -> list[Any]:
    """What the act gave on every rank, as :func:`judged`. ``what`` names the
    call that the ranks are in."""
    mine, failure = tried(act)
    return judged(comm, _told(comm, what, mine, failure), failure)


@contextlib.contextmanager
def absent_are_logged() -> Iterator[None]:
    """For calls that a framework makes. It tells all ranks of a failure in an
    exchange of its own, which fails too where a rank is gone: then that is
    raised, and who did not come stands in the log."""
    try:
        yield
    except Apart as e:
        log.error("%s", e)
        raise
