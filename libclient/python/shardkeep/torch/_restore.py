# SPDX-License-Identifier: Apache-2.0
"""A restore: which snapshot, its tensors, its objects, in step on all ranks.

After each thing that may fail on one rank alone the ranks tell each other how
it went. So all of them leave a candidate together, whatever was wrong with
it, and none waits in a call that another will not make.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable
from typing import Any

from .. import LATEST, Client, Error, Mismatch, NotFound, State, _core
from . import _device
from ._common import FROM_DTYPE, milliseconds
from ._blobs import Blobs, alike, objects_in, rows_in
from ._comm import Comm
from ._describing import Describing, Item, uncollected
from ._kept import Kept
from ._links import Links
from ._links import available as links_available
from ._naming import is_state
from ._nodes import (LISTED_MOST, Held, Teller, before_in_memory, candidates,
                     each, in_part, join_runs, left_here, lost_of, names_of,
                     offers, over, several, went_each_time)
from ._report import Report
from ._tensors import LiveTensors
from ._together import PASSED_OVER, judged, together, tried

log = logging.getLogger("shardkeep")


@dataclasses.dataclass
class Saved:
    """A snapshot that is tried."""

    run: int
    step: int
    world: int = 0      #: ranks that saved it
    held: Held | None = None    #: what several agents have of it, or had

    @property
    def lost(self) -> set[int]:
        """The ranks that saved it and of which nothing is left."""
        return self.held.lost if self.held is not None else set()


class Late(NotFound):
    """What is older is there, and lacks less."""


@dataclasses.dataclass
class Ahead:
    """A rank's look at the newest that its agent lists, before it knows
    whether all ranks try that one."""

    saved: Saved
    holders: Any                #: as they were known before
    failure: Exception | None = None    #: of this rank
    #: How it went on all ranks, where all took it.
    said: list[dict[str, Any]] | None = None


class Restore:
    """What a restore works on; one for each call."""

    def __init__(self, client: Client, state: State, comm: Comm, job: str,
                 tensors: LiveTensors, describing: Describing, blobs: Blobs,
                 kept: Kept, newest: int, lost_ok: bool = False) -> None:
        self._client, self._state, self._comm = client, state, comm
        self._job, self._tensors, self._describing = job, tensors, describing
        self._blobs, self._kept = blobs, kept
        self.report: Report | None = None
        #: Whether what ranks had alone may be lost; what there is here of
        #: steps that other agents had the rest of.
        self._lost_ok = lost_ok
        self._here: set[tuple[int, int]] = set()
        self._told: list[dict[str, Any]] = []   # what agents have
        #: Whether several agents serve the ranks.
        self.several = False
        #: The newest step of this rank's run, and whether any rank's goes
        #: beyond what was restored.
        self._newest, self.taken_back = newest, False
        #: Whether what is newer was found incomplete, with what all have.
        self.is_newest = False
        #: Whether names differ, and whether what optimizers have and the
        #: snapshot has not is let go for that.
        self._lacking = self._anew = False
        #: Takes back what was made and let go, the last first.
        self._undo: list[Callable[[], None]] = []
        self._device: int | None = None
        #: What objects have from here on, as all ranks have told.
        self._rows: dict[str, int] = {}
        #: Objects that the snapshot has and nobody asks for.
        self._unasked: list[str] = []
        #: How many ranks saved which run and step, as this agent knows.
        self._worlds: dict[tuple[int, int], int] = {}
        self._ahead: Ahead | None = None

    def _together(self, act: Callable[[], Any]) -> list[Any]:
        return together(self._comm, "restore()", act)

    # ---- which one ----

    def run(self, step: int | None, flags: int, strict: bool) -> int | None:
        """The step that was restored; None on a first run."""
        self.is_newest = step is None and not flags & (
            _core.RESTORE_MEMORY_ONLY | _core.RESTORE_DISK_ONLY)
        for _ in range(LISTED_MOST):
            failed: Error | None = None
            for found in each(self._job, lambda: self._listed(step, strict)):
                try:
                    with uncollected():
                        self._try(Saved(*found), flags, strict)
                    self._say_newer(found)
                    return found[1]
                except PASSED_OVER as e:
                    log.warning("step %d cannot be restored: %s", found[1], e)
                    if failed is None or isinstance(failed, Late):
                        failed = e
                    self.is_newest &= isinstance(e, NotFound)
            if failed is not None:
                raise self._with_remedy(failed)
            if self._is_nothing(step, flags):
                break
        else:
            raise went_each_time(self._job)
        self._describing.take_words(self._together(
            lambda: self._describing.word(self._tensors.items())),
            "restore()")
        if step is not None:
            raise NotFound(errno.ENOENT, f"job {self._job} has no snapshot "
                           f"of step {step}")
        return None

    def _listed(self, step: int | None, strict: bool
                ) -> list[tuple[int, int]]:
        """Runs and steps to try, the same on all ranks. The first time each
        rank looks at the newest before it tells what there is: mostly all
        took the same one, and need not meet once more for it."""
        ahead = not self._told and self._comm.may_share_agent()
        try:
            with uncollected():
                told = self._together(
                    lambda: self._offers(step, strict, ahead))
            found = self._candidates(told)
            self._took([x.pop("ahead", None) for x in told], found)
            return found
        except BaseException:
            self._leave_ahead()
            raise

    def _offers(self, step: int | None, strict: bool, ahead: bool
                ) -> dict[str, Any]:
        mine = offers(self._client, self._job, step, self._worlds)
        mine["asked"] += "" if strict else " with strict=False"
        if not ahead or not mine["complete"]:
            return mine
        newest = max(mine["complete"])
        return {**mine, "ahead": [newest, self._look_ahead(
            Saved(*newest), strict)]}

    def _look_ahead(self, saved: Saved, strict: bool) -> dict[str, Any]:
        """How it went, for the others."""
        self._anew = self._lacking = False
        self._ahead = Ahead(saved, self._describing.holders())
        mine, self._ahead.failure = tried(lambda: self._look(saved, strict))
        return mine

    def _leave_ahead(self) -> None:
        """What came of it is as it was before."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        self._blobs.clear()
        self._take_back()
        self._describing.take_holders(ahead.holders)

    def _took(self, told: list[Any], found: list[tuple[int, int]]) -> None:
        """Keeps what all ranks saw ahead if it is what they try."""
        if self._ahead is None:
            return
        if not self.several and all(
                x and tuple(x[0]) == found[0] for x in told):
            self._ahead.said = [x[1] for x in told]
        else:
            self._leave_ahead()

    def _candidates(self, told: list[dict[str, Any]]
                    ) -> list[tuple[int, int]]:
        """Of what all agents have told."""
        apart = several(told)
        self._told = told
        self.several = apart and links_available()
        # What memory has in parts comes from nowhere without.
        self.is_newest &= self.several or not apart
        if self.several:
            self._teller = Teller(
                self._comm, [x["agent"] for x in told],
                lambda run, step: names_of(self._client, self._job, run,
                                           step))
        self._here = set() if apart else left_here(told)
        return sorted({*candidates(told, self.several), *self._here},
                      reverse=True)

    def agents(self) -> list[int]:
        """That of each rank."""
        return [x["agent"] for x in self._told]

    def _is_nothing(self, step: int | None, flags: int) -> bool:
        """Where nothing was listed that could be tried, whether there is
        nothing indeed. What is damaged, or may be in a store that nobody
        could read, is raised: a trainer that begins anew has its snapshots
        take the place of those."""
        if self.several:
            self._join_runs()       # asks all of them
            return True
        places = self._together(self._state.announce)
        way = self._way(all(x == places[0] for x in places), None)

        def ask() -> bool:
            try:
                self._state.restore(LATEST if step is None else step, flags,
                                    names=[], room=False, **way)
            except NotFound:
                return True
            return False        # it came meanwhile

        nothing = all(self._together(ask))
        rest = in_part(self._told)
        if nothing and rest:
            raise NotFound(errno.ENOENT, f"job {self._job}: {rest}; start it "
                           "on the nodes that it had, or say by cachectl "
                           "evict --force that this is nothing")
        return nothing

    def _with_remedy(self, failed: Error) -> Error:
        """Where what is left of several nodes is all that there is."""
        if not self._here or not isinstance(failed, NotFound):
            return failed
        return NotFound(failed.errno, f"{failed}; start job {self._job} on "
                        "the nodes that it had, or say by cachectl evict "
                        "--force that this is nothing")

    def _say_newer(self, found: tuple[int, int]) -> None:
        """What several agents have is tried; of one alone it is no candidate
        where others had the rest."""
        rest = "" if self.several else in_part(self._told, found)
        if rest and self._comm.rank == 0:
            log.warning("job %s goes back to step %d of run %d: %s; the nodes "
                        "that it had may have newer ones", self._job,
                        found[1], found[0], rest)

    def _way(self, one_agent: bool, links: Links | None) -> dict[str, Any]:
        """How ranks exchange words and bytes; ``one_agent`` where it serves
        all of them, in one run: then through it."""
        if one_agent:
            return {"timeout_ms": milliseconds("timeout", self._comm.timeout)}
        return over(self._comm, links, self._device)

    def join(self, state: State) -> None:
        """Makes what ranks of several agents go on with one run."""
        self._state = state
        self._join_runs()

    def _join_runs(self) -> None:
        """The run's number comes from each agent: ranks agree on one."""
        links = self._comm.links()
        self._together(lambda: join_runs(self._state, self._comm, links))

    def _whole(self) -> list[str]:
        return self._describing.whole_of(self._tensors.items())

    # ---- one of them ----

    def _try(self, saved: Saved, flags: int, strict: bool) -> None:
        self._anew = self._lacking = False
        try:
            self._attempt(saved, flags, strict)
        except Mismatch:
            # All ranks have been told; it may be state of optimizers, which
            # came after the snapshot.
            if not self._lacking or not strict:
                raise
            self._anew = True
            self._attempt(saved, flags, strict)

    def _attempt(self, saved: Saved, flags: int, strict: bool) -> None:
        if self.several:
            sizes = self._together(
                lambda: self._teller.size(saved.run, saved.step))
            saved.held = Held(self._teller.told(sizes),
                              [x for _, _, ranks in sizes for x in ranks])
            self._check_late(saved, flags)
        moved = False
        try:
            one_agent = self._prepare(saved, strict)
            if saved.lost:      # of what there is, nothing else may be
                flags |= _core.RESTORE_MISSING_OK
            report = self._move(saved, flags, one_agent)
            moved = True
            self._load(strict, report[1], saved)
        except BaseException as e:
            self._blobs.clear()
            # What was made for it has no values, or those of what is passed
            # over, beside which an older one's would come.
            if not moved or isinstance(e, PASSED_OVER):
                self._take_back()
            self._undo = []
            raise
        self._undo = []
        self.report = report[0]
        if self._unasked:
            log.warning("job %s: step %d has %s of rank %d, which this "
                        "Checkpointer was not given: neither restored nor in "
                        "later snapshots", self._job, saved.step,
                        ", ".join(self._unasked), self._comm.rank)

    def _take_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _looked(self, saved: Saved, strict: bool) -> list[dict[str, Any]]:
        """At the snapshot, by all ranks, which tell what they have now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.said is None:
            return self._together(lambda: self._look(saved, strict))
        saved.world = ahead.saved.world
        return judged(self._comm, ahead.said, ahead.failure)

    def _prepare(self, saved: Saved, strict: bool) -> bool:
        """Has everything described as the snapshot has it; whether one agent
        serves all ranks, in one run."""
        before = self._ahead.holders if self._ahead is not None else \
            self._describing.holders()
        try:
            said = self._looked(saved, strict)
            self._rows = alike([x["rows"] for x in said])
            if not self._describing.all_alike([x["whole"] for x in said]):
                self._describing.set_holders(self._together(self._whole))
                said = self._together(lambda: self._describe(strict))
        except BaseException:   # what was supposed was not agreed on
            self._describing.take_holders(before)
            raise
        self.taken_back = any(x["newest"] > saved.step for x in said)
        ordinals = [x["device"] for x in said]
        self._device = None if None in ordinals else \
            ordinals[self._comm.rank]
        return all(x["place"] == said[0]["place"] for x in said)

    def _look(self, saved: Saved, strict: bool) -> dict[str, Any]:
        """Describes what there is, then what the snapshot has beyond it."""
        self._blobs.clear()
        self._unasked = []
        if saved.held is None and (saved.run, saved.step) in self._here:
            saved.held = self._left_of(saved)
        self._check_lost(saved)
        items = self._tensors.items()
        self._describing.suppose(items)
        known = [x for x in items if not is_state(x[0])] if self._anew \
            else items
        absent: set[str] = set()    # on the meta device
        self._describing.describe(known, absent)
        lacking = len(known) < len(items)
        if not absent and not lacking and self._is_as_now(saved, items):
            return {**self._describe(strict, False),
                    "rows": self._blobs.rows()}
        beyond = self._beyond(saved)
        if strict:
            self._kept.insist(objects_in(beyond))
            self._unasked = self._kept.unasked(beyond)
        made = self._tensors.materialize({x[0] for x in beyond}, self._undo)
        made |= self._make_missing(beyond)
        if lacking:
            self._tensors.drop({x[0] for x in beyond}, self._undo)
        self._blobs.expect(saved.world, beyond, saved.lost)
        return {**self._describe(strict, made or lacking or bool(absent)),
                "rows": rows_in(saved.world, beyond, self._kept.names())}

    def _left_of(self, saved: Saved) -> Held:
        """What the only agent that there is has of what several had."""
        told = names_of(self._client, self._job, saved.run, saved.step)
        if told is None:
            raise NotFound(errno.ENOENT, f"step {saved.step} went while it "
                           "was looked at")
        return Held([told], told["ranks"])

    def _check_late(self, saved: Saved, flags: int) -> None:
        """Who has an older step in memory has lost nothing: it had not saved
        this one. So what is older and lacks less goes before it. The same on
        all ranks."""
        older = before_in_memory(self._told, saved.run, saved.step)
        if not older or saved.held is None or not saved.lost or \
                not saved.held.has_own() or \
                flags & _core.RESTORE_DISK_ONLY:
            return
        mine = self._told[self._comm.rank]["memory"]
        told = self._together(lambda: [
            self._teller.ranks(*x) if list(x) in mine else [0, []]
            for x in older])
        for (run, step), has in zip(older, zip(*told, strict=True),
                                    strict=True):
            late = saved.lost - lost_of(has)
            if late and lost_of(has) < saved.lost:
                raise Late(errno.ENOENT, f"rank {min(late)} had not saved it "
                           f"yet; step {step} of run {run} is there")

    def _check_lost(self, saved: Saved) -> None:
        """What ranks that come back had alone is not left out unasked."""
        back = {r for r in saved.lost if r < self._comm.world}
        if not back or self._lost_ok or saved.held is None or \
                not saved.held.has_own():
            return
        agents = len({x["agent"] for x in self._told})
        where = f" on the {agents} nodes of this job" if self.several else ""
        raise NotFound(
            errno.ENOENT, f"step {saved.step} of run {saved.run} is not "
            f"complete{where}: {len(saved.lost)} of {saved.held.world} ranks "
            f"have no image, rank {min(saved.lost)} first, and nobody else "
            f"has what rank {min(back)} had alone (generators, extra, local, "
            "running statistics); restore(lost_ok=True) does without that, if "
            "all else is there")

    def _is_as_now(self, saved: Saved, items: list[Item]) -> bool:
        """Whether the snapshot holds the very things that one would which is
        taken now, objects included, as it mostly does where the optimizer has
        its state: then nothing needs to be read to know that, and all is
        described. Else no object is."""
        if saved.held is not None or not self._may_be_all(items) or \
                self._worlds.get((saved.run, saved.step)) != self._comm.world:
            return False
        same = False
        try:
            if self._kept.describe_as_now(self._comm.world):
                saved.world, _, same = self._state.beyond(
                    saved.run, saved.step, True)
        finally:
            if not same:
                self._blobs.clear()
        return same

    def _may_be_all(self, items: list[Item]) -> bool:
        """Whether the optimizers have state, if there are any."""
        return not self._tensors.optims or any(
            is_state(name) for name, _, _ in reversed(items))

    def _beyond(self, saved: Saved) -> list[_core.Beyond]:
        if saved.held is not None:
            saved.world = saved.held.world
            return saved.held.beyond(self._describing.names(),
                                     self._comm.rank)
        saved.world, beyond, _ = self._state.beyond(saved.run, saved.step)
        return beyond

    def _make_missing(self, beyond: list[_core.Beyond]) -> bool:
        made = self._tensors.step_fresh(beyond, self._undo)
        for label, p, stepped, key, shape, dtype in \
                self._tensors.missing(beyond):
            self._undo.append(stepped.without(p, key))
            self._tensors.make_state(label, p, stepped, key, shape,
                                     FROM_DTYPE[dtype])
            made = True
        return made

    def _describe(self, strict: bool, anew: bool = True) -> dict[str, Any]:
        """What the others need to know of this rank's description."""
        if anew:
            items = self._tensors.items()
            if not strict:      # what is not there needs no memory yet
                items = [x for x in items if not x[1].is_meta]
            self._describing.describe(items)
        self._make_ready()
        return {"whole": self._describing.supposed(),
                "place": self._state.announce(), "newest": self._newest,
                "device": self._describing.ordinal()}

    def _move(self, saved: Saved, flags: int,
              one_agent: bool) -> tuple[Report, bool]:
        """The bytes, and whether all have the objects that they need as
        well."""
        reports: list[Report] = []
        way = self._way(one_agent,
                        self._comm.links() if self.several else None)

        def move() -> bool:
            reports.append(self._move_bytes(saved, flags, way))
            return saved.world == self._comm.world and not saved.lost and \
                self._kept.suffices()

        suffice = self._together(move)
        return reports[0], all(suffice)

    def _make_ready(self) -> None:
        """Before all hear that all can go on: from there on they may be in an
        exchange that this rank would not come to."""
        # What the snapshot lacks stays as it is.
        self._describing.aside.take()
        _device.settle(self._describing.devices)

    def _move_bytes(self, saved: Saved, flags: int,
                    way: dict[str, Any]) -> Report:
        try:
            report = Report(**self._state.restore(
                saved.step, flags, run=saved.run, room=False, **way))
        except Mismatch:
            self._lacking = True
            raise
        self._describing.wrote()
        return report

    def _load(self, strict: bool, suffices: bool, saved: Saved) -> None:
        told: list[dict[str, Any]] | None = None
        first = min({*range(saved.world)} - saved.lost, default=0) \
            if saved.lost else 0
        if not suffices:
            told = self._together(lambda: self._kept.told(first))

        def load() -> None:
            if strict:  # described as it will be for the next snapshot,
                self._describing.is_current()   # unless objects change it
            self._kept.load(strict, told, first)
            self._blobs.settle(self._rows)
            if strict:
                self._describing.has_more()

        self._together(load)
        if saved.lost and saved.held is not None and \
                saved.held.has_own() and self._comm.rank == 0:
            log.warning(
                "job %s: step %d is restored without what %d of its %d ranks "
                "had alone, rank %d first: their nodes are lost", self._job,
                saved.step, len(saved.lost), saved.world, min(saved.lost))
