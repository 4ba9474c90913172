# SPDX-License-Identifier: Apache-2.0
"""What older versions of torch lack, for tests that ask for it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from shardkeep.torch._versions import EXCHANGE
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param

#: Whether a rank can save and load without the others of its group.
ALONE = "no_dist" in inspect.signature(dcp.save).parameters

needs_alone = pytest.mark.skipif(
    not ALONE, reason="dcp.save() has no no_dist")
AsyncCheckpointerType: Any = getattr(
    dcp.state_dict_saver, "AsyncCheckpointerType", None)
needs_processes = pytest.mark.skipif(
    AsyncCheckpointerType is None, reason="async_save() has only threads")
#: Whether FSDP2 shards what is on the CPU, and cuts evenly or not what
#: tensor parallelism has cut.
FSDP2_ON_CPU = hasattr(torch.cpu.Stream, "record_event")
#: Whether gloo averages. Up to 2.8 it takes some for sums, without a word.
AVERAGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
needs_fsdp2 = pytest.mark.skipif(
    not FSDP2_ON_CPU, reason="FSDP2 trains nothing on the CPU")
needs_uneven = pytest.mark.skipif(
    "FSDP+TP sharding does not support uneven" in inspect.getsource(
        _fsdp_param),
    reason="FSDP2 over tensor parallelism cuts evenly only")
needs_no_collectives = pytest.mark.skipif(
    "use_collectives" not in inspect.signature(dcp.save).parameters,
    reason="save() always has collectives")
needs_exchange = pytest.mark.skipif(
    EXCHANGE is None, reason="tensors are not shown to C: all go slowly")
needs_plan_caching = pytest.mark.skipif(
    "enable_plan_caching" not in inspect.signature(
        DefaultSavePlanner).parameters, reason="planners do not cache")


def _dropping(name: str) -> None:
    """Has a function of dcp take ``no_dist``. Where there is no group, or
    one of one rank, as in the tests that need no more, it is all the same."""
    function = getattr(dcp, name)
    if "no_dist" in inspect.signature(function).parameters:
        return

    @functools.wraps(function)
    def call(*args: Any, no_dist: bool = False, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    setattr(dcp, name, call)


def _pass_over(self: Any, event: Any = None) -> Any:
    """The CPU has done already what is asked of it."""
    return event or torch.cpu.Event()


_factors: Any = None


def _add_up_and_divide(reduce_scatter: Any, all_reduce: Any, *_: Any) -> Any:
    """Instead of averages."""
    return _factors(reduce_scatter, all_reduce, torch.float16)


def prepare() -> None:
    """Once in a process, before dcp is used: what tests need most."""
    global _factors
    for name in ("save", "load", "async_save"):     # 2.8 has two of them
        _dropping(name)
    if AVERAGES:
        return
    # 2.6 has no FSDP2 on the CPU, 2.7 none that replicates what it shards:
    # with these they have, 2.6 but for one pass at a time.
    for name in ("record_event", "wait_event"):
        setattr(torch.cpu.Stream, name, _pass_over)
    _factors = _fsdp_collectives._get_gradient_divide_factors
    _fsdp_collectives._get_gradient_divide_factors = _add_up_and_divide
