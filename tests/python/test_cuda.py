# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs, simulated or real (gpu.py)."""

from __future__ import annotations

import contextlib
import errno
import logging
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator

import gpu
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpu import KIND, run_anew
from harness import run
from models import Holder, Shard, local_part, sharded, whole
from shardkeep import Busy
from shardkeep.torch import Checkpointer, _device
from shardkeep.torch._common import check_local
from shardkeep.torch._describe import Meshes, describe
from shardkeep.torch._flat import FlatPart
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed.device_mesh import DeviceMesh

pytestmark = gpu.needed


@pytest.fixture(autouse=True, params=["late"])
def found(request, monkeypatch):
    """Ranks that are started in it find the driver."""
    gpu.find(monkeypatch)
    monkeypatch.setenv("VCUDA_SCHED", request.param)


def _model(device: str = KIND) -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5),
                               torch.nn.BatchNorm1d(5),
                               torch.nn.Linear(5, 3)).to(device)


def _step(model: torch.nn.Module, optim: torch.optim.Optimizer) -> None:
    optim.zero_grad()
    x = torch.ones(4, 6).cumsum(0)
    model(x.to(next(model.parameters()).device)).pow(2).sum().backward()
    optim.step()


def _all(model: torch.nn.Module, optim: torch.optim.Optimizer
         ) -> list[torch.Tensor]:
    found = [t.detach().cpu().clone() for t in model.state_dict().values()]
    for p in model.parameters():
        found += [t.cpu().clone() for t in optim.state[p].values()]
    return found


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _there_and_back() -> None:
    gpu.begin()
    model = _model()
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Checkpointer(model, optim, job="gpu", raising=True) as ck:
        assert ck.restore() is None
        for step in range(3):
            _step(model, optim)
            was = _all(model, optim)
            assert ck.snapshot(step, wait=60)
        _step(model, optim)
        assert not _same(_all(model, optim), was)
        ck.wait()
        assert ck.restore() == 2
        assert _same(_all(model, optim), was)
        assert next(model.parameters()).device.type == KIND


def test_a_model_on_a_device_there_and_back(agent):
    run_anew(1, _there_and_back)


@pytest.fixture
def device_memory(monkeypatch):
    """The agent that is started in it gives device slots."""
    monkeypatch.setenv("SHARDKEEP_DEVICE_MEMORY", "64M")


def _stays_on_the_device(copies: str) -> None:
    gpu.begin()
    model = _model()
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Checkpointer(model, optim, job="stays", raising=True,
                      copies=copies) as ck:
        assert ck.restore() is None
        # The agent makes the device slot when the first is there.
        for step in range(400):
            _step(model, optim)
            was = _all(model, optim)
            assert ck.snapshot(step, wait=60)
            ck.wait()
            made = ck.status()["device_bytes"]
            if step % 20 < 19 or not made:
                continue
            _step(model, optim)
            assert ck.restore() == step
            assert _same(_all(model, optim), was)
            if ck.report.bytes_device_slot:
                break
        assert made, "the agent made no device slot"
        assert 0 < ck.report.bytes_device_slot <= ck.report.bytes_memory
    if gpu.SIMULATED:
        assert (gpu.count("overlap") > 0) == (copies == "overlap")


@pytest.mark.parametrize("copies", ["fast", "overlap"])
def test_a_restore_stays_on_the_device(device_memory, agent, copies):
    run_anew(1, _stays_on_the_device, copies)


def _goes_back() -> None:
    gpu.begin()
    model = _model()
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    states = []
    with Checkpointer(model, optim, job="back", raising=True) as ck:
        for step in range(3):
            _step(model, optim)
            states.append(_all(model, optim))
            if not step:
                ck.prepare(60)
            assert ck.snapshot(step, wait=60)
            ck.wait()
        hashed = gpu.count("hashed")
        for step in (2, 1, 2):
            _step(model, optim)
            assert ck.restore(step) == step
            assert _same(_all(model, optim), states[step])
            # Out of memory that this process has locked, on the device.
            assert not gpu.SIMULATED or gpu.count("hashed") > hashed


def test_who_goes_back_fetches_what_is_locked(agent):
    run_anew(1, _goes_back)


# ---- streams ----

def _holder(n: int = 4, **kinds: str) -> torch.nn.Module:
    model = torch.nn.Module()
    for name, kind in kinds.items():
        model.register_parameter(name, torch.nn.Parameter(
            torch.arange(float(n), device=kind)))
    return model


@contextlib.contextmanager
def _held(job: str, model: torch.nn.Module, *optims: torch.optim.Optimizer
          ) -> Iterator[tuple[Checkpointer, contextlib.ExitStack]]:
    """What the current stream has to do takes long, until the gate opens."""
    with Checkpointer(model, *optims, job=job, raising=True) as ck:
        gpu.warm(ck)
        with gpu.hold() as gate:
            ck.prepare()
            yield ck, gate


def _stream_waits_and_the_host_does_not() -> None:
    gpu.begin()
    gpu.use(gpu.Stream())
    model = _holder(a=KIND, b="cpu")
    optim = torch.optim.SGD(model.parameters(), lr=1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with _held("fence", model, optim) as (ck, gate):
        waited = gpu.calls("cuStreamSynchronize")
        ck.snapshot(1)
        before = ck.status()
        ck._before_step(optim)  # the hook, without the step that follows
        assert ck.status()["copied_ns"] == before["copied_ns"] == 0
        gpu.set_async(model.a, 0xff)
        with torch.no_grad():
            model.b.fill_(-1)
        assert gpu.calls("cuStreamSynchronize") == waited
        assert not gpu.current_stream().query()
        gate.close()
        ck.wait()
        gpu.current_stream().synchronize()
        assert model.a.isnan().all()
        ck.restore()
        assert torch.equal(model.a.detach().cpu(), torch.arange(4.))
        assert torch.equal(model.b.detach(), torch.arange(4.))


def test_the_stream_waits_for_the_copies_and_the_host_does_not(agent):
    run(1, _stream_waits_and_the_host_does_not)


def _memory_let_go_of() -> None:
    gpu.begin()
    gpu.use(gpu.Stream())       # each has memory of its own
    model = _holder(a=KIND)
    with _held("reuse", model) as (ck, gate):
        at = model.a.data_ptr()
        ck.snapshot(1)
        # As model.to("cpu") does it.
        model.a.data = torch.empty(0, device=KIND)
        other = torch.empty(4, device=KIND)
        reused = other.data_ptr() == at     # to print it would wait
        assert not reused, "it is not given to the next"
        ck._before_step(None)
        gate.close()
        ck.fence()
        assert torch.empty(4, device=KIND).data_ptr() == at, \
            "and held no longer than that"
        ck.wait()
        model.a.data = torch.empty(4, device=KIND)
        ck.restore()
        assert torch.equal(model.a.detach().cpu(), torch.arange(4.))


def test_memory_that_a_snapshot_copies_is_not_given_to_others(agent):
    run(1, _memory_let_go_of)


def _allocated_anew() -> None:
    gpu.begin()
    model = _holder(a=KIND)
    with Checkpointer(model, job="anew", raising=True) as ck:
        ck.snapshot(1)
        ck.wait()
        at = model.a.data_ptr()
        model.a.data = torch.zeros(0, device=KIND)
        gpu.empty_cache()
        model.a.data = torch.full((4,), 5., device=KIND)
        if not gpu.SIMULATED and model.a.data_ptr() != at:
            pytest.skip("the driver has it elsewhere")
        assert model.a.data_ptr() == at
        ck.snapshot(2)
        ck.wait()
        model.a.data.fill_(0)
        assert ck.restore() == 2
        assert torch.equal(model.a.detach().cpu(), torch.full((4,), 5.))


def test_memory_allocated_anew_at_its_address_is_described_anew(agent):
    run(1, _allocated_anew)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """What the package logs, in a rank of its own."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda r: said.append(r.getMessage())
    logging.getLogger("shardkeep").addHandler(handler)
    yield said
    logging.getLogger("shardkeep").removeHandler(handler)


def _captured() -> None:
    gpu.begin()
    gpu.use(gpu.Stream())
    model = _holder(a=KIND)
    with Checkpointer(model, job="graph", raising=True) as ck, \
            _logged() as said:
        ck.snapshot(1)
        with gpu.capture():
            with pytest.raises(Busy, match="captures a CUDA graph"):
                ck.snapshot(2)
            ck.raising = False
            assert not ck.snapshot(2) and "captures a CUDA" in said.pop()
            ck.raising = True
            ck._before_step(None)
            assert len(said) == 1 and "call fence() before each" in said[0]
            ck._before_step(None)       # once is enough
        assert len(said) == 1
        ck.snapshot(3)
        ck.wait()


def test_a_snapshot_in_a_capture_is_refused(agent):
    run(1, _captured)


def _other_streams() -> None:
    """Not the current one: the one that is said."""
    gpu.begin()
    model = _holder(a=KIND)
    other = gpu.Stream()
    with Checkpointer(model, job="others", raising=True) as ck:
        gpu.warm(ck)
        ck.prepare()
        gpu.use(other)
        with gpu.hold() as gate:        # of the other one, current or not
            gpu.set_async(model.a, 0)
            gpu.use(gpu.Stream())
            ck.snapshot(1, stream=other)
            ck.fence(other)
            gpu.use(other)
            gpu.set_async(model.a, 0xff)
            assert not other.query()    # neither call waited
            gate.close()
        ck.wait()
        other.synchronize()
        assert model.a.isnan().all()
        assert ck.restore() == 1
        assert torch.equal(model.a.detach().cpu(), torch.zeros(4))


def test_a_stream_that_is_named(agent):
    run(1, _other_streams)


def _two_devices() -> None:
    gpu.begin()
    model = _holder(a=f"{KIND}:0", b=f"{KIND}:1", c="cpu")
    one, two = gpu.Stream(f"{KIND}:0"), gpu.Stream(f"{KIND}:1")
    gpu.use(one)
    gpu.use(two)
    with Checkpointer(model, job="two", raising=True) as ck, \
            gpu.hold(1) as gate:
        ck.prepare()
        gpu.set_async(model.b, 0)
        ck.snapshot(1)              # behind both streams
        ck._before_step(None)       # before both streams
        gpu.set_async(model.a, 0xff)
        gpu.set_async(model.b, 0xff)
        gate.close()
        ck.wait()
        ck.restore()
        assert torch.equal(model.a.detach().cpu(), torch.arange(4.))
        assert torch.equal(model.b.detach().cpu(), torch.zeros(4))
        assert model.b.device.index == 1


@gpu.two
def test_a_rank_with_two_devices(agent, monkeypatch):
    gpu.find(monkeypatch, devices=2)
    run(1, _two_devices)


# ---- from one memory to the other ----

def _save_there(path: str) -> None:
    gpu.begin()
    model = _model()
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    _step(model, optim)
    with Checkpointer(model, optim, job="move", raising=True) as ck:
        ck.snapshot(1)
        ck.wait()
    torch.save(_all(model, optim), path)


def _load_here(device: str, capturable: bool, path: str) -> None:
    if device == KIND:
        gpu.begin()
    with torch.device("meta"):
        model = _model("meta")
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1,
                              capturable=capturable)
    torch.set_default_device(device)
    with Checkpointer(model, fresh, job="move") as ck:
        assert ck.restore() == 1
    for p in model.parameters():
        assert p.device.type == device
        assert fresh.state[p]["exp_avg"].device.type == device
        assert fresh.state[p]["step"].device.type == (
            device if capturable else "cpu")
    assert _same(_all(model, fresh), torch.load(path))


@pytest.mark.parametrize("device, capturable", [
    ("cpu", False), (KIND, False), (KIND, True)])
def test_a_fresh_job_on_the_host_or_a_device(agent, device, capturable):
    run_anew(1, _save_there, f"{agent}/was")
    run(1, _load_here, device, capturable, f"{agent}/was")


def _generators() -> None:
    gpu.begin()
    with Checkpointer(_holder(a=KIND), job="rng", raising=True) as ck:
        ck.snapshot(1)
        ck.wait()
        was = gpu.rand(3)
        ck.restore()
        assert torch.equal(gpu.rand(3), was)


def test_the_generator_of_the_device_goes_along(agent):
    run(1, _generators)


def _rate_on_the_device() -> None:
    gpu.begin()
    gpu.use(gpu.Stream())
    model = _holder(a=KIND)
    rate = torch.full((), 0.5, device=KIND)
    optim = torch.optim.SGD(model.parameters(), lr=rate)
    with Checkpointer(model, optim, job="rate", raising=True) as ck:
        gpu.set_async(rate, 0)          # as the stream is told to
        ck.snapshot(1)
        ck.wait()
        rate.fill_(0.25)
        assert ck.restore() == 1
        now = optim.param_groups[0]["lr"]
        assert float(now) == 0


def test_a_learning_rate_on_the_device(agent):
    run(1, _rate_on_the_device)


# ---- distributed checkpoint, sharded tensors ----

def _by_dcp() -> None:
    gpu.begin()
    full = torch.arange(12.)
    state = {"a": full.to(KIND), "b": full.clone(), "n": 3}
    dcp.save(state, storage_writer=ShardkeepWriter("dcp/1"), no_dist=True)
    state["a"] += 1
    dcp.async_save(state, storage_writer=ShardkeepWriter("dcp/2")).result()
    into = {"a": torch.zeros(12, device=KIND), "b": torch.zeros(12), "n": 0}
    for step, more in ((1, 0), (2, 1)):
        dcp.load(into, storage_reader=ShardkeepReader(f"dcp/{step}"),
                 no_dist=True)
        assert into["a"].device.type == KIND
        assert torch.equal(into["a"].cpu(), full + more)
        assert torch.equal(into["b"], full)
    into["a"] = torch.zeros(12, dtype=torch.float64, device=KIND)
    dcp.load(into, storage_reader=ShardkeepReader("dcp/2"), no_dist=True)
    assert torch.equal(into["a"].cpu(), full.double() + 1)


def test_distributed_checkpoint_of_a_device(agent):
    run(1, _by_dcp)


def _sharded() -> None:
    gpu.begin()
    world = dist.get_world_size()
    mesh = DeviceMesh(KIND, list(range(world)), mesh_dim_names=("dp",))
    full = whole("w", (7, 3))
    model = Holder({"w": sharded(full, mesh, (Shard(0),)), "host": whole("h", (3,))})
    assert model.w._local_tensor.device.type == KIND
    with Checkpointer(model, job="sharded", raising=True) as ck:
        ck.restore()
        if world == 4:
            ck.snapshot(1)
            ck.wait()
        else:
            with torch.no_grad():
                model.w._local_tensor.fill_(0)
            assert ck.restore() == 1
            assert torch.equal(model.w._local_tensor.cpu(), local_part(
                full, mesh, (Shard(0),)))


def test_dtensors_of_devices_on_another_mesh(agent):
    run(4, _sharded)
    run(3, _sharded)


class _Shards:
    """As a ShardedTensor."""

    dtype = torch.float32

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def size(self) -> torch.Size:
        return torch.Size([4 * len(self._kinds)])

    def local_shards(self) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(
            tensor=torch.zeros(4, device=kind),
            metadata=types.SimpleNamespace(shard_offsets=[4 * i],
                                           shard_sizes=[4]))
            for i, kind in enumerate(self._kinds)]


def _kinds() -> None:
    gpu.begin()
    meshes = Meshes()
    flat = FlatPart(torch.zeros(6, device=f"{KIND}:{gpu.LAST}"), None, 0)
    assert describe("x", flat, meshes)[9] == gpu.LAST
    assert describe("x", _Shards(KIND, KIND), meshes)[9] == 0
    assert describe("x", _Shards("cpu"), meshes)[9] is None
    with pytest.raises(ValueError, match="x lies in parts on device 0, the C"):
        describe("x", _Shards("cpu", KIND), meshes)
    freed = torch.zeros(5, device=KIND)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="x has no memory"):
        describe("x", freed, meshes)


def test_all_kinds_of_tensors_say_where_they_are(monkeypatch):
    gpu.find(monkeypatch, devices=2)
    run(1, _kinds)


# ---- what is refused ----

def test_other_devices_are_refused_by_name(agent):
    t = torch.empty(3, device="meta")
    with pytest.raises(ValueError, match="x is on the meta device"):
        check_local("x", t)
    assert "host memory and of CUDA devices only" in _device.unfit(
        _Elsewhere())


class _Elsewhere:
    device = torch.device("xpu:0")


# ---- no GPU ----

_WITHOUT = """
import sys
first, second = sys.argv[1:3]
__import__(first), __import__(second)
import shardkeep, torch
from harness import private_agent

with private_agent():
    client = shardkeep.Client()
    state = shardkeep.State(client, "none", 0, 1)
    try:
        state.tensors([("w", shardkeep.DTYPES["F32"], (4,), None, (), 4096,
                        None, None, None, 0)])
    except shardkeep.Error as e:
        print(e.errno, e)
    assert not torch.cuda.is_available()
    state.tensors([("h", shardkeep.DTYPES["F32"], (4,), None, (),
                    torch.ones(4).data_ptr(), None, None, None)])
    state.close()
    client.close()
"""


# Where there is one, to ask for it is to initialize a driver.
@pytest.mark.skipif(not gpu.SIMULATED or torch.cuda.is_available(),
                    reason="there is a GPU")
@pytest.mark.parametrize("order", [("torch", "shardkeep.torch"),
                                   ("shardkeep", "torch")])
def test_torch_and_the_loader_without_a_driver(monkeypatch, order):
    """Also where torch is built for CUDA."""
    monkeypatch.delenv("SHARDKEEP_LIBCUDA")
    said = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *order], check=True, text=True,
        stdout=subprocess.PIPE, cwd=pathlib.Path(__file__).parent).stdout
    assert re.match(rf"{errno.ENODEV} .*libcuda", said)
