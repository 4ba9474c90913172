# SPDX-License-Identifier: Apache-2.0
"""Whole state dicts, imports and exports."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import Nodes, run
from models import Holder, Shard, _StridedShard, sharded, whole, wrong
from safetensors.torch import load_file, save_file
from shardkeep import NotFound
from shardkeep._tools import path as program
from shardkeep.torch import Checkpointer, _comm
from shardkeep.torch._objects import dumps, loads
from shardkeep.torch.dcp import ShardkeepReader
from shardkeep.torch.full import (broadcast_from_rank0, full_state_dict,
                                  load_tensors)
from shardkeep.torch.importer import import_checkpoint, main
from torch.distributed.device_mesh import init_device_mesh

NAMES = {"a": (9, 4), "b": (2, 3), "c": (5,)}


def _full():
    return {k: whole(k, shape) for k, shape in NAMES.items()}


def _gather() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (world,))
    full = _full()
    model = Holder({k: sharded(t, mesh, (Shard(0),))
                    for k, t in full.items()})
    with Checkpointer(model, job="whole", flush_every=1 << 30) as ck:
        ck.snapshot(1)
        ck.wait()
        got = full_state_dict("whole", 1)
        if rank:
            assert got == {}
        else:
            assert list(got) == list(full), "in order"
            assert all(torch.equal(got[k], full[k]) and
                       got[k].device.type == "cpu" for k in full)
        with pytest.raises((NotFound, RuntimeError)):
            full_state_dict("whole", 99)
        dist.barrier()


def test_gathered_to_rank_0(agent):
    run(4, _gather)
    assert torch.equal(load_tensors("whole", prefix="model.",
                                    names=["b"])["b"], _full()["b"])
    with pytest.raises(KeyError, match="zzz"):
        load_tensors("whole", prefix="model.", names=["zzz"])
    with pytest.raises(TypeError, match="names is 'b'"):
        load_tensors("whole", names="b")
    subprocess.run([program("cachectl"), "export", "--prefix", "model.",
                    "whole", f"{agent}/out.safetensors"], check=True,
                   stdout=subprocess.DEVNULL)
    out = load_file(f"{agent}/out.safetensors")
    assert all(torch.equal(out[k], t) for k, t in _full().items())
    subprocess.run([program("cachectl"), "export", "whole",
                    f"{agent}/all.safetensors"], check=True,
                   stdout=subprocess.DEVNULL)
    out = load_file(f"{agent}/all.safetensors")
    assert out and all(k.startswith(("model.", "optim.")) for k in out)


def _gather_over(nodes: Nodes) -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (4,))
    full = _full()
    model = Holder({k: sharded(t, mesh, (Shard(0),))
                    for k, t in full.items()})
    at = nodes[rank // 2]
    with Checkpointer(model, job="whole", raising=True, socket=at) as ck:
        assert ck.restore() is None
        ck.snapshot(1)
        ck.wait(until="complete")
        for step in (None, 1):
            got = full_state_dict("whole", step, socket=at)
            assert got.keys() == (set() if rank else full.keys())
            assert all(torch.equal(t, full[k]) for k, t in got.items())
        with pytest.raises((KeyError, RuntimeError), match="zzz"):
            full_state_dict("whole", socket=at, names=["zzz"])
        with pytest.raises(NotFound, match="step 99"):
            full_state_dict("whole", 99, socket=at)
        dist.barrier()


def test_gathered_from_two_nodes(nodes):
    run(4, _gather_over, nodes)


def test_wherever_tensors_are_made(agent):
    """A default device is for what the trainer makes."""
    full = _full()
    dcp.save(full, checkpoint_id=f"{agent}/dcp", no_dist=True)
    with torch.device("meta"):
        assert import_checkpoint(f"{agent}/dcp", "made", 1) == 3
        got = load_tensors("made")
        none = loads(dumps(torch.zeros(0, 3, device="cpu"), "none"))
    assert all(torch.equal(got[k], t) for k, t in full.items())
    assert none.device.type == "cpu" and none.shape == (0, 3)


def _spread() -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    full = _full()
    how = {"a": (_StridedShard(0, split_factor=2), Shard(0)),
           "b": (Shard(0), Shard(1)), "c": (Shard(0), Shard(0))}
    into = {k: sharded(t, mesh, how[k], False) for k, t in full.items()}
    into["plain"] = torch.zeros(3)
    full["plain"] = torch.ones(3)
    broadcast_from_rank0(full if dist.get_rank() == 0 else {}, into)
    assert torch.equal(into.pop("plain"), torch.ones(3))
    assert not any(wrong(t, full[k]) for k, t in into.items())


def test_spread_from_rank_0(agent):
    run(4, _spread)


_DTYPES = (torch.bool, torch.int16, torch.uint16, torch.uint64,
           torch.bfloat16, torch.float8_e4m3fn, torch.complex64)


def _spread_all_kinds(by_cpu: bool) -> None:
    """Of whatever dtype and form, by groups that move none of them."""
    if not by_cpu:
        _comm.carries_cpu = lambda group: False     # as of NCCL's alone
        dist.broadcast = None
    full = {str(d): (torch.arange(6) % 2).to(d) for d in _DTYPES}
    full |= {"one": torch.tensor(3.), "none": torch.empty(0, 3),
             "turned": torch.arange(6.).view(2, 3).t(),
             "conjugate": torch.arange(3.).to(torch.complex64).mul(1j).conj()}
    into = {k: torch.zeros(t.shape, dtype=t.dtype) for k, t in full.items()}
    broadcast_from_rank0(full if dist.get_rank() == 0 else {}, into)
    for name, t in full.items():
        assert bytes(into[name].contiguous().untyped_storage()) == bytes(
            t.resolve_conj().contiguous().untyped_storage()), name


@pytest.mark.parametrize("by_cpu", [True, False])
def test_spread_whatever_it_is(agent, by_cpu):
    run(2, _spread_all_kinds, by_cpu)


def _spread_elsewhere() -> None:
    full, into = {"a": torch.ones(3)}, {"a": torch.zeros(3)}
    with torch.device("meta"):
        broadcast_from_rank0(full if dist.get_rank() == 0 else {}, into)
    assert torch.equal(into["a"], full["a"])


def test_spread_whatever_the_default_device(agent):
    run(2, _spread_elsewhere)


def _spread_unlike() -> None:
    rank = dist.get_rank()
    full = {"a": torch.ones(3), "b": torch.ones(2)}

    def refused(into: dict[str, torch.Tensor], why: str) -> None:
        with pytest.raises((KeyError, ValueError, RuntimeError), match=why):
            broadcast_from_rank0(full if rank == 0 else {}, into)
        assert not any(t.any() for t in into.values())

    refused({"a": torch.zeros(3), "c": torch.zeros(2)}, "rank 0 has no c")
    refused({"a": torch.zeros(2)}, r"a is \(3,\) on rank 0")
    more = {"b": torch.zeros(2)} if rank == 2 else {}
    refused({"a": torch.zeros(3), **more}, "ranks 0 and 2 .*\"b\"")
    wide = torch.float64 if rank == 1 else torch.float32
    refused({"a": torch.zeros(3, dtype=wide)}, "ranks 0 and 1 .*float")
    into = {"a": torch.zeros(3)}
    broadcast_from_rank0(full if rank == 0 else {}, into)
    assert torch.equal(into["a"], full["a"])


def test_spread_among_ranks_that_differ(agent):
    run(3, _spread_unlike)


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_imports(agent):
    full = _full()
    save_file(full, f"{agent}/model.safetensors")
    assert import_checkpoint(f"{agent}/model.safetensors", "st", 5,
                             prefix="model.") == 3
    blank = Holder({k: torch.zeros_like(t) for k, t in full.items()})
    with Checkpointer(blank, job="st") as ck:
        assert ck.restore(strict=False) == 5
    assert all(torch.equal(getattr(blank, k), t) for k, t in full.items())
    dcp.save({"m": full, "step": 7}, checkpoint_id=f"{agent}/dcp",
             no_dist=True)
    assert main([f"{agent}/dcp", "--job", "imported", "--step", "8"]) == 0
    state = {"m": {k: torch.zeros_like(t) for k, t in full.items()},
             "step": 0}
    flat = {f"m.{k}": t for k, t in state["m"].items()}
    dcp.load(flat, storage_reader=ShardkeepReader("imported/8"),
             no_dist=True)
    assert all(torch.equal(flat[f"m.{k}"], t) for k, t in full.items())
    assert main([f"{agent}/nowhere", "--job", "x"]) == 1
    assert main([f"{agent}/store", "--job", "x"]) == 1


@pytest.mark.parametrize("within", [True, False], ids=["folder", "file"])
def test_a_damaged_file_is_named(agent, capsys, within):
    file = f"{agent}/weights/model.safetensors"
    os.mkdir(os.path.dirname(file))
    save_file(_full(), file)
    os.truncate(file, 20)
    path = os.path.dirname(file) if within else file
    assert main([path, "--job", "damaged"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"importer: {file} is no safetensors file")
