# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own tests of sharded checkpoints assert, through Checkpointer
and FSDP itself: experts on meshes (l, l+4), tensor parallel under FSDP, ragged
and empty shards, offload, partial and meta loads, HSDP to FSDP."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from harness import private_agent, run
from models import everything, full
from older import needs_fsdp2, needs_uneven
from shardkeep import Client, inspect
from shardkeep.torch import Checkpointer
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

warnings.filterwarnings("ignore")
QUIET: dict[str, Any] = {"flush_every": 1 << 30, "raising": True}


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    with private_agent() as directory:
        yield directory


def held(job: str) -> dict[str, Any]:
    """What the newest snapshot holds, by name; meshes put in."""
    client = Client()
    try:
        found = inspect(client, job)
    finally:
        client.close()
    for t in found["tensors"]:
        if t["mesh"] is not None:
            t["mesh"] = found["meshes"][t["mesh"]]
    return {t["name"]: t for t in found["tensors"]}


# ---- E1 to E5: experts ----

class Layer(nn.Module):
    def __init__(self, i: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(100 * seed + i)
        self.net1 = nn.Sequential(nn.Linear(5, 7), nn.ReLU())
        self.net2 = nn.Sequential(nn.Linear(7, 5), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.net1(x))


class Experts(nn.Module):
    """One expert of four on each rank, and layers that all have."""

    def __init__(self, layer: int, seed: int) -> None:
        super().__init__()
        self.second = nn.Module()
        self.second.ep_layers = nn.ModuleList(
            [Layer(i, seed) if i == layer else nn.Module()
             for i in range(4)])
        torch.manual_seed(seed)
        self.second.net = nn.Sequential(nn.Linear(5, 9), nn.ReLU())
        self.net = nn.Sequential(nn.Linear(9, 3), nn.ReLU())
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.second.net(
            self.second.ep_layers[self.layer](x)))


def experts(wrap: str, seed: int) -> tuple[nn.Module, Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = rank % 4
    model: nn.Module = Experts(layer, seed)
    two = init_device_mesh("cpu", (world // 4, 4),
                           mesh_dim_names=("dp", "ep"))
    own, every = two["dp"], init_device_mesh("cpu", (world,))
    if wrap == "fsdp2":
        fully_shard(model.second.ep_layers[layer], mesh=own)
        fully_shard(model, mesh=every)
    else:
        cpu = {"use_orig_params": True, "device_id": torch.device("cpu")}
        model.second.ep_layers[layer] = FSDP(
            model.second.ep_layers[layer], device_mesh=own, **cpu)
        model = FSDP(model, device_mesh=every, **cpu)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model: nn.Module, optim: Any, n: int, width: int) -> float:
    torch.manual_seed(n)
    loss = model(torch.rand(4, width)).square().sum()
    loss.backward()
    optim.step()
    optim.zero_grad()
    return loss.item()


def _experts_save(wrap: str) -> None:
    model, optim = experts(wrap, 1)
    with Checkpointer(model, optim, job="experts", **QUIET) as ck:
        for n in range(2):
            step(model, optim, n, 5)
        assert ck.snapshot(1)
        ck.wait()
        after = torch.tensor([step(model, optim, 2, 5)])
    every = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(every, after)
    if dist.get_rank() == 0:
        torch.save(every, "losses.pt")


def _experts_check(wrap: str) -> None:
    model, optim = experts(wrap, 2)
    world = dist.get_world_size()
    with Checkpointer(model, optim, job="experts", **QUIET) as ck:
        assert ck.restore() == 1
        loss = step(model, optim, 2, 5)
        want = torch.load("losses.pt")[dist.get_rank()].item()
        assert loss == pytest.approx(want, rel=1e-5)
    if wrap != "fsdp2":
        return
    names = held("experts")
    model_keys = {n[6:] for n in names if n.startswith("model.")}
    optim_keys = {n[12:].rpartition(".")[0] for n in names
                  if n.startswith("optim.state.")}
    assert optim_keys == model_keys                                  # E5
    for key in ("net.0.weight", "net.0.bias", "second.net.0.weight",
                "second.net.0.bias"):
        for name in (f"model.{key}", f"optim.state.{key}.exp_avg"):
            assert names[name]["mesh"]["ranks"] == list(range(world))  # E1-2
    mine = {n for n, _ in model.named_parameters()}
    for i in range(4):
        for net in ("net1", "net2"):
            key = f"second.ep_layers.{i}.{net}.0.weight"
            assert (key in mine) == (dist.get_rank() % 4 == i)       # E3
            for name in (f"model.{key}", f"optim.state.{key}.exp_avg"):
                assert names[name]["mesh"]["ranks"] == list(
                    range(i, world, 4))                              # E4


@pytest.mark.parametrize("wrap", ["fsdp1", pytest.param(
    "fsdp2", marks=needs_fsdp2)])
def test_experts(agent: str, wrap: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(agent)
    run(8, _experts_save, wrap)
    run(8, _experts_check, wrap)


# ---- T4 to T8, F7: FSDP over tensor parallel ----

class Mlp(nn.Module):
    def __init__(self, sizes: tuple[int, ...], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net1 = nn.Linear(sizes[0], sizes[1])
        self.net2 = nn.Linear(sizes[1], sizes[2])
        self.net3 = nn.Linear(sizes[2], sizes[3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net3(self.net2(self.net1(x).relu()).relu())


def two_d(sizes: tuple[int, ...], seed: int) -> tuple[nn.Module, Any]:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2),
                            mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Mlp(sizes, seed), mesh["tp"], {
        "net1": ColwiseParallel(), "net2": RowwiseParallel()})
    for layer in (model.net1, model.net2):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def _two_d_save(sizes: tuple[int, ...]) -> None:
    model, optim = two_d(sizes, 1)
    with Checkpointer(model, optim, job="2d", **QUIET) as ck:
        for n in range(2):
            step(model, optim, n, sizes[0])
        assert ck.snapshot(1)
        ck.wait()
    want = everything(model, optim)
    loss = step(model, optim, 2, sizes[0])
    if dist.get_rank() == 0:
        torch.save((want, loss), "want.pt")


def _two_d_load(sizes: tuple[int, ...], plain: bool) -> None:
    want, loss = torch.load("want.pt")
    if plain:
        model: nn.Module = Mlp(sizes, 2)
        optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    else:
        model, optim = two_d(sizes, 2)
    with Checkpointer(model, optim, job="2d", **QUIET) as ck:
        assert ck.restore() == 1
        have = everything(model, optim)
        assert have.keys() == want.keys()
        for name, t in want.items():
            assert torch.equal(have[name], t), name
        assert step(model, optim, 2, sizes[0]) == pytest.approx(loss,
                                                                rel=1e-4)
    if plain:
        return
    names = held("2d")
    in_order = [n[6:] for n in names if n.startswith("model.")]
    assert in_order == [n for n, _ in Mlp(sizes, 1).named_parameters()]  # T4
    t = names["model.net1.weight"]
    assert t["mesh"]["shape"] == [dist.get_world_size() // 2, 2]
    assert t["mesh"]["names"] == ["dp", "tp"] and len(t["placements"]) == 2
    assert t["placements"][1] == "S(0)"                                  # T5


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("sizes", [(8, 16, 8, 4), pytest.param(
    (6, 10, 15, 7), marks=needs_uneven)])
def test_fsdp_over_tensor_parallel(agent: str, world: int,
                                   sizes: tuple[int, ...],
                                   monkeypatch: Any) -> None:
    monkeypatch.chdir(agent)
    run(world, _two_d_save, sizes)
    run(world, _two_d_load, sizes, False)
    run(1, _two_d_load, sizes, True)


# ---- F: ragged, empty, live, offloaded, partial, meta ----

class Ragged(nn.Module):
    """Dimensions 2 to 5, as upstream's tests have them."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(
            nn.Linear(n, n + 1, bias=False) for n in (2, 3, 4))
        self.scale = nn.Parameter(torch.rand(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def _ragged_save() -> None:
    model = Ragged()
    fully_shard(model, mesh=init_device_mesh(
        "cpu", (dist.get_world_size(),)), reshard_after_forward=False)
    with Checkpointer(model, job="ragged", **QUIET) as ck:
        assert ck.snapshot(1)
        ck.wait()
        # F4: what a forward pass leaves whole is taken as shards.
        with torch.no_grad():
            model(torch.rand(1, 2))
        assert ck.snapshot(2, wait=30)
        ck.wait()
    names = held("ragged")
    assert all(t["placements"] == ["S(0)"] for n, t in names.items()
               if n.startswith("model."))                             # F1
    assert {n[6:]: tuple(t["shape"]) for n, t in names.items()
            if n.startswith("model.")} == \
        {n: tuple(p.shape) for n, p in Ragged().named_parameters()}


def _ragged_load(step_: int) -> None:
    model = Ragged(2)
    fully_shard(model, mesh=init_device_mesh("cpu",
                                             (dist.get_world_size(),)))
    pointers = [p._local_tensor.data_ptr() for p in model.parameters()]
    with Checkpointer(model, job="ragged", **QUIET) as ck:
        assert ck.restore(step_) == step_
    assert pointers == [p._local_tensor.data_ptr()
                        for p in model.parameters()]                  # F3
    for (n, p), q in zip(model.named_parameters(), Ragged().parameters()):
        assert torch.equal(p.full_tensor(), q), n


@pytest.mark.parametrize("world", [4, 8])
def test_ragged_and_empty_shards(world: int) -> None:
    run(world, _ragged_save)
    for step_ in (1, 2):
        run(world, _ragged_load, step_)
        run(3, _ragged_load, step_)


def _partial() -> None:
    """F5: some of the tensors, into a model on the meta device."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = nn.Module()
        model.layers = nn.ModuleList(
            nn.Linear(n, n + 1, bias=False) for n in (2, 3, 4))
        model.head = nn.Linear(4, 2)        # not in the snapshot
        model.scale = nn.Parameter(torch.empty(5))
    fully_shard(model.layers[1], mesh=mesh)
    with Checkpointer(model, job="ragged", **QUIET) as ck:
        with pytest.raises(ValueError, match="head.weight is on the meta"):
            ck.restore()
        assert ck.restore(strict=False) == 2
    want = dict(Ragged().named_parameters())
    for name, p in model.named_parameters():
        if name.startswith("head"):
            assert p.device.type == "meta", "left alone"
        else:
            assert torch.equal(full(p), want[name]), name
            assert p.requires_grad


def test_partial_and_meta_loads() -> None:
    run(4, _ragged_save)
    run(2, _partial)


def _meta_training() -> None:
    """A model that never had other memory than what was restored."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Ragged()
    fully_shard(model, mesh=mesh)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    with Checkpointer(model, optim, job="ragged", **QUIET) as ck:
        assert ck.restore(1, strict=False) == 1
        step(model, optim, 0, 2)
        assert ck.snapshot(3, wait=30)
        ck.wait()
    plain = Ragged()
    step(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 0, 2)
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.full_tensor(), q.detach())


def test_training_goes_on_from_meta() -> None:
    run(4, _ragged_save)
    run(2, _meta_training)


def _offloaded() -> None:
    """F6: what lies in host memory stays there."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    model = Ragged(3)
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)),
                offload_policy=CPUOffloadPolicy(pin_memory=False))
    with Checkpointer(model, job="ragged", **QUIET) as ck:
        assert ck.restore(1) == 1
        assert ck.snapshot(9, wait=30)
        ck.wait()
    for p, q in zip(model.parameters(), Ragged().parameters()):
        assert p.device.type == "cpu"
        assert torch.equal(p.full_tensor(), q)


def test_cpu_offload() -> None:
    run(4, _ragged_save)
    run(4, _offloaded)


# ---- H: HSDP ----

class Uneven(Mlp):
    def __init__(self, seed: int) -> None:
        super().__init__((5, 10, 15, 30), seed)
        self.net4 = nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net4(super().forward(x).relu())


class Even(Mlp):
    def __init__(self, seed: int) -> None:
        super().__init__((5, 8, 4, 12), seed)


def hsdp(kind: type[nn.Module], seed: int, mesh: DeviceMesh
         ) -> tuple[nn.Module, Any]:
    model = kind(seed)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def _hsdp(kind: type[nn.Module]) -> None:
    world = dist.get_world_size()
    mesh2 = init_device_mesh("cpu", (2, world // 2),
                             mesh_dim_names=("replicate", "shard"))
    model, optim = hsdp(kind, 1, mesh2)
    step(model, optim, 0, 5)
    with Checkpointer(model, optim, job="hsdp", **QUIET) as ck:
        assert ck.snapshot(1)
        ck.wait()
        want = everything(model, optim)
        step(model, optim, 1, 5)
        assert not torch.equal(everything(model, optim)["net1.weight"],
                               want["net1.weight"])                   # H1
        assert ck.restore(1) == 1
        for name, t in everything(model, optim).items():
            assert torch.equal(t, want[name]), name                   # H2
    names = held("hsdp")
    weight = names["model.net1.weight"]
    assert weight["placements"] == ["R", "S(0)"]
    assert weight["mesh"]["names"] == ["replicate", "shard"]
    rows = sum(b["size"][0] for b in weight["boxes"])
    assert rows == weight["shape"][0], "replicas are kept once"
    mesh1 = init_device_mesh("cpu", (world,))
    other, other_optim = hsdp(kind, 2, mesh1)
    assert other.net1.weight.placements != model.net1.weight.placements
    assert not torch.equal(full(other.net1.weight), want["net1.weight"])
    with Checkpointer(other, other_optim, job="hsdp", **QUIET) as ck:
        assert ck.restore(1) == 1
        for name, t in everything(other, other_optim).items():
            assert torch.equal(t, want[name]), name                # H3, H4
    assert all(p.placements == (Shard(0),) for p in other.parameters())
    assert all(p.placements == (Replicate(), Shard(0))
               for p in model.parameters())


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("kind", [Even, Uneven])
def test_hsdp_to_fsdp(kind: type[nn.Module], world: int) -> None:
    run(world, _hsdp, kind)


# ---- plain and DDP ----

def _ddp(save: bool) -> None:
    torch.manual_seed(1 if save else 2)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    optim = torch.optim.Adam(model.parameters(), lr=0.1)
    with Checkpointer(model, optim, job="ddp", **QUIET) as ck:
        if not save:
            assert ck.restore() == 1
        else:
            step(model, optim, 0, 4)
            assert ck.snapshot(1)
            ck.wait()
        loss = torch.tensor(step(model, optim, 1, 4))
    if save and dist.get_rank() == 0:
        torch.save(loss, "loss.pt")
    if not save:
        assert loss.item() == pytest.approx(torch.load("loss.pt").item())


def test_ddp(agent: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(agent)
    run(2, _ddp, True)
    names = held("ddp")
    assert names["model.0.weight"]["boxes"][0]["size"] == [6, 4]
    # One copy of each, but for what each rank has of its own batches.
    copies = {n: len(t["boxes"]) for n, t in names.items()
              if n.startswith("model.")}
    statistics = {f"model.1.{x}" for x in ("running_mean", "running_var",
                                           "num_batches_tracked")}
    assert len(copies) == 9 and statistics < copies.keys()
    assert {n for n, k in copies.items() if k == 2} == statistics
    assert {k for n, k in copies.items() if n not in statistics} == {1}
    run(4, _ddp, False)
    run(1, _ddp, False)
