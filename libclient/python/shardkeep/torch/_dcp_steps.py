# SPDX-License-Identifier: Apache-2.0
"""The step that the ranks of one load read, where none of them was told one.

``dcp.load`` tells its reader nothing of the ranks that load: each looks for
the newest snapshot by itself, and a newer one may come as they look. Their
plans say what each has found, and the coordinator has all go on with the
newest of those, where one agent serves them. What a plan asks for are boxes of
whole tensors: it stands where the other snapshot holds tensors of the same
names, dtypes and shapes, however those lie in it.
"""

from __future__ import annotations

import dataclasses
import errno
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan

from .. import Error
from ._common import BYTES, PLAN, SHARED
from ._reading import Which


class _Of(MetadataIndex):
    """What an item reads, and of which snapshot: planners that make a plan
    anew before it is read leave its items as they are."""

    which: Which
    found: Which        # what the rank had found

    def __init__(self, index: MetadataIndex, which: Which, found: Which
                 ) -> None:
        super().__init__(index.fqn, index.offset, index.index)
        object.__setattr__(self, "which", which)
        object.__setattr__(self, "found", found)


def on_one(job: str | None, plans: list[LoadPlan]) -> list[LoadPlan]:
    """The plans of all ranks, for one snapshot. Those of ranks that were told
    a step say nothing. Agents number the runs of their own."""
    told = {rank: p.storage_data for rank, p in enumerate(plans)
            if isinstance(p.storage_data, Which)}
    runs = {(x.agent, x.run) for x in told.values()}
    agents = {x.agent for x in told.values()}
    if len({x.step for x in told.values()}) < 2 and len(runs) == len(agents):
        return plans
    if len(agents) > 1:
        raise _different(job, told)
    newest = max(told.values())
    return [_moved(p, newest) if told.get(rank, newest) != newest else p
            for rank, p in enumerate(plans)]


def _moved(plan: LoadPlan, to: Which) -> LoadPlan:
    return dataclasses.replace(plan, items=[dataclasses.replace(
        x, storage_index=_Of(x.storage_index, to, plan.storage_data))
        for x in plan.items])


def _different(job: str | None, told: dict[int, Which]) -> Error:
    """Of agents that do not know each other's, none knows a step of all."""
    rank, one = next(iter(told.items()))
    other, which = next((r, x) for r, x in told.items()
                        if x.step != one.step or
                        x.agent == one.agent and x.run != one.run)
    return Error(errno.EIO, f"job {job}: the newest snapshot is step "
                 f"{one.step} of run {one.run} for rank {rank}, and step "
                 f"{which.step} of run {which.run} for rank {other}: their "
                 "agents have different ones, or a newer one came as they "
                 "looked. Give the reader the process_group of the load, or a "
                 "step")


def moved_to(plan: LoadPlan) -> tuple[Which, Which] | None:
    """The snapshot that a plan is to read, and the one that it was made by;
    None: that one."""
    return next(((x.storage_index.which, x.storage_index.found)
                 for x in plan.items if isinstance(x.storage_index, _Of)),
                None)


def form_of(held: dict[str, Any], metadata: Metadata) -> Any:
    """What of a snapshot plans are made by, but for where its parts lie, and
    how long its objects are."""
    return metadata.planner_data, {
        t["name"]: (t["dtype"], None if t["name"].startswith(BYTES) else
                    tuple(t["shape"]))
        for t in held["tensors"] if t["kind"] == "tensor" and
        not t["name"].startswith((PLAN, SHARED))}


def other_form(job: str | None, to: Which, found: Which) -> Error:
    """What is raised where the two differ in that."""
    return Error(errno.EIO, f"job {job}: step {to.step} of run {to.run} came "
                 f"as ranks looked for the newest, and holds other tensors "
                 f"than step {found.step} of run {found.run}, which this rank "
                 "had found. Give the reader the process_group of the load, "
                 "or a step")
