# SPDX-License-Identifier: Apache-2.0
"""The storage classes of distributed checkpoint where they are used as the
framework's own are: cached plans, stagers, threads, many jobs, converters."""

from __future__ import annotations

import io
import re
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import private_agent, run
from older import needs_plan_caching
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed.checkpoint import (CheckpointException,
                                          DefaultSavePlanner)
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.staging import AsyncStager

warnings.filterwarnings("ignore")


def _save(state: dict[str, Any], where: str, **options: Any) -> Any:
    planner = options.pop("planner", None)
    return dcp.save(state, storage_writer=ShardkeepWriter(where, **options),
                    planner=planner, no_dist=not dist.is_initialized())


def _load(state: dict[str, Any], where: str) -> dict[str, Any]:
    dcp.load(state, storage_reader=ShardkeepReader(where),
             no_dist=not dist.is_initialized())
    return state


# ---- plans that are cached ----

def _cached_plans() -> None:
    """Of the second save only one rank's plan is new."""
    rank = dist.get_rank()
    planner = {"enable_plan_caching": True}
    state = {f"w{rank}": torch.full((4,), 1.0 + rank), "n": 1}
    for step in range(1, 6):
        if rank == 1 and step >= 3:
            state[f"late{step}"] = torch.full((step,), float(step))
        state[f"w{rank}"] += 1
        _save(state, f"cached/{step}", planner=DefaultSavePlanner(**planner))
        into = {k: torch.zeros_like(t) if isinstance(t, torch.Tensor) else 0
                for k, t in state.items()}
        for k, t in _load(into, f"cached/{step}").items():
            assert torch.equal(t, state[k]) if isinstance(
                t, torch.Tensor) else t == state[k], (step, k)


@needs_plan_caching
def test_one_ranks_plan_changes(agent):
    run(2, _cached_plans)


@needs_plan_caching
def test_a_plan_of_another_storage_is_refused(agent, tmp_path):
    state = {"w": torch.ones(3)}
    planner = dict(enable_plan_caching=True)
    dcp.save(state, checkpoint_id=str(tmp_path / "1"), no_dist=True,
             planner=DefaultSavePlanner(**planner))
    with pytest.raises(CheckpointException, match="another storage"):
        _save(state, "other/1", planner=DefaultSavePlanner(**planner))
    for cached in vars(dcp.planner.SavePlanner).values():
        if isinstance(cached, dict):
            cached.clear()


# ---- stagers ----

@pytest.mark.parametrize("cached", [False, True])
def test_a_writer_is_a_stager(agent, cached):
    writer = ShardkeepWriter(cache_staged_state_dict=cached)
    assert isinstance(writer, AsyncStager)
    state = {"w": torch.arange(4.0), "n": 3}
    staged = writer.stage(state)
    state["w"] += 1
    assert staged["w"].tolist() == [0, 1, 2, 3] and staged["n"] == 3
    again = writer.stage(state)
    assert (again["w"].data_ptr() == staged["w"].data_ptr()) == cached
    assert again["w"].tolist() == [1, 2, 3, 4]
    assert not writer.should_synchronize_after_execute
    writer.synchronize_staging()
    if hasattr(AsyncStager, "close"):
        writer.close()


def _asynchronous(cached: bool) -> None:
    state = {"w": torch.zeros(1000)}
    writer = ShardkeepWriter(cache_staged_state_dict=cached)
    for step in range(3):
        state["w"] += 1
        done = dcp.async_save(state, checkpoint_id=f"async/{step}",
                              storage_writer=writer)
        state["w"] += 1
        done.result()
    for step in range(3):
        got = _load({"w": torch.zeros(1000)}, f"async/{step}")["w"]
        assert (got == 2 * step + 1).all()


@pytest.mark.parametrize("cached", [False, True])
def test_the_writer_stages_an_asynchronous_save(agent, cached):
    run(1, _asynchronous, cached)


# ---- threads and jobs ----

def test_threads_save_one_job(agent):
    failed: list[BaseException] = []
    start = threading.Barrier(6)

    def save(job: str, i: int) -> None:
        try:
            start.wait()
            _save({"w": torch.full((500,), float(i))}, f"{job}/{i}")
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=save, args=(job, i))
               for job in ("shared", "other") for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    got = _load({"w": torch.zeros(500)}, "other/2")["w"]
    assert (got == 2).all()


def test_jobs_that_are_saved_once_let_go():
    with private_agent(memory="200M"):
        for i in range(5):
            _save({"w": torch.full((30 << 18,), float(i))},
                  f"/some/where/model-{'abcde'[i]}")
        got = _load({"w": torch.zeros(30 << 18)}, "/some/where/model-e")
        assert (got["w"] == 4).all()
        got = _load({"w": torch.zeros(30 << 18)}, "/some/where/model-a")
        assert (got["w"] == 0).all()


def test_another_agent_at_another_socket():
    for value in (1.0, 2.0):
        with private_agent():
            _save({"w": torch.full((3,), value)}, "moved/1")
            got = _load({"w": torch.zeros(3)}, "moved/1")["w"]
            assert got.tolist() == [value] * 3


# ---- what planners make of keys and values ----

class _Renaming(DefaultSavePlanner):
    """Other names in storage than in the state dict."""

    def set_up_planner(self, state_dict: Any, *args: Any,
                       **kwargs: Any) -> None:
        super().set_up_planner({f"new.{k}": v for k, v in state_dict.items()},
                               *args, **kwargs)


class _Converting(DefaultSavePlanner):
    """Halves tensors and writes other objects than were given."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        if isinstance(object, torch.Tensor):
            return object / 2
        data = io.BytesIO()
        torch.save({"converted": object}, data)
        return data


class _Unsafe(DefaultSavePlanner):
    def transform_object(self, write_item: Any, object: Any) -> Any:
        data = io.BytesIO()
        torch.save(threading.current_thread().__class__, data)
        return data


def test_names_and_values_that_planners_change(agent):
    state = {"w": torch.full((3,), 4.0), "n": 5}
    _save(state, "renamed/1", planner=_Renaming())
    got = _load({"new.w": torch.zeros(3), "new.n": 0}, "renamed/1")
    assert got["new.w"].tolist() == [4] * 3 and got["new.n"] == 5
    _save(state, "converted/1", planner=_Converting())
    got = _load({"w": torch.zeros(3), "n": 0}, "converted/1")
    assert got["w"].tolist() == [2] * 3 and got["n"] == {"converted": 5}
    with pytest.raises(CheckpointException, match="n: what _Unsafe makes"):
        _save({"n": 5}, "unsafe/1", planner=_Unsafe())


class _Asking(dcp.DefaultLoadPlanner):
    """Asks for a key that the metadata does not list."""

    def create_local_plan(self) -> Any:
        import dataclasses
        plan = super().create_local_plan()
        item = plan.items[0]
        return dataclasses.replace(plan, items=[dataclasses.replace(
            item, storage_index=MetadataIndex("prefix.w", [0]))])


def test_a_key_that_is_not_there_is_named(agent):
    _save({"w": torch.ones(3)}, "keys/1")
    with pytest.raises(CheckpointException, match=r"keys/1 has no prefix\.w"):
        dcp.load({"w": torch.zeros(3)}, planner=_Asking(), no_dist=True,
                 storage_reader=ShardkeepReader("keys/1"))


def test_metadata_has_a_version(agent):
    saved = _save({"w": torch.ones(3)}, "version/1")
    reader = ShardkeepReader("version/1")
    assert saved.version == reader.read_metadata().version == "1.0.0"


# ---- names ----

@pytest.mark.parametrize("name", ["python:x", "dcp.bytes.z", "dcp.plan.0",
                                  "a\0b", "a\nb", "\ud800"])
def test_names_that_would_be_lost_are_refused(agent, name):
    """By the save: a load would not find what is called so."""
    with pytest.raises(CheckpointException, match=re.escape(repr(name))):
        _save({name: torch.ones(2), "b": torch.ones(1)}, "names/1")
    with pytest.raises(CheckpointException, match="no snapshot|no job|no comp"):
        _load({"b": torch.zeros(1)}, "names/1")
    if name.isprintable():      # objects are not called that
        _save({name: "object", "b": torch.ones(1)}, "names/2")
        found = {name: "", "b": torch.zeros(1)}
        _load(found, "names/2")
        assert found[name] == "object"
