# SPDX-License-Identifier: Apache-2.0
"""Optimizers: groups and state of pipeline stages and experts, wrappers, and
state that belongs to no parameter."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import Logged, run
from models import whole
from shardkeep import Mismatch
from shardkeep.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import (PostLocalSGDOptimizer,
                                     ZeroRedundancyOptimizer)
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

OPTIONS: dict[str, Any] = {"flush_every": 1 << 30, "raising": True}


# ---- pipeline stages ----

def _stage(layers: list[int], fill: bool) -> nn.Module:
    """Layers of a model, by their numbers in the whole one."""
    model = nn.Module()
    for i in layers:
        layer = nn.Linear(5, 4)
        with torch.no_grad():
            for n, p in layer.named_parameters():
                p.copy_(whole(f"{i}{n}", tuple(p.shape)) if fill
                        else torch.zeros(()))
        model.add_module(f"layer{i}", layer)
    return model


def _lr(name: str) -> float:
    """Each layer has its rate, and biases no decay."""
    return 0.01 * (1 + int(name[5]))


def _optimizer(model: nn.Module, by_layer: bool, fill: bool
               ) -> torch.optim.Optimizer:
    groups: dict[Any, dict[str, Any]] = {}
    for n, p in model.named_parameters():
        key = (n[5] if by_layer else "", n.endswith("bias"))
        g = groups.setdefault(key, {
            "params": [], "lr": _lr(n) if fill else 9.0,
            "weight_decay": 0.0 if key[1] or not fill else 0.1})
        g["params"].append(p)
    return torch.optim.AdamW(list(groups.values()), lr=7.0)


def _mine(layers: int) -> list[int]:
    """Consecutive layers; the first ranks have one more."""
    rank, world = dist.get_rank(), dist.get_world_size()
    edges = [layers * r // world for r in range(world + 1)]
    return list(range(edges[rank], edges[rank + 1]))


def _save_stages(job: str, layers: int) -> None:
    model = _stage(_mine(layers), True)
    optim = _optimizer(model, True, True)
    for p in model.parameters():
        p.grad = p.detach().clone()
    optim.step()
    sched = torch.optim.lr_scheduler.StepLR(optim, 100)
    with Checkpointer(model, optim, job=job, extra={"sched": sched},
                      **OPTIONS) as ck:
        assert ck.restore() is None
        for step in (1, 2):
            assert ck.snapshot(step, wait=30)
            ck.wait()


def _load_stages(job: str, layers: int) -> None:
    model = _stage(_mine(layers), False)
    optim = _optimizer(model, True, False)
    sched = torch.optim.lr_scheduler.StepLR(optim, 100)
    with Checkpointer(model, optim, job=job, extra={"sched": sched},
                      **OPTIONS) as ck:
        assert ck.restore() in (2, 3)
        names = {id(p): n for n, p in model.named_parameters()}
        for i, g in enumerate(optim.param_groups):
            n = names[id(g["params"][0])]
            assert g["lr"] == pytest.approx(_lr(n)), n
            assert g["weight_decay"] == (0.0 if "bias" in n else 0.1), n
            assert sched.base_lrs[i] == pytest.approx(_lr(n)), n
            for p in g["params"]:
                n = names[id(p)]
                assert optim.state[p]["step"] == 1, n
                assert optim.state[p]["exp_avg"].any(), n
        assert ck.snapshot(3, wait=30)
        ck.wait()


def test_pipeline_stages(agent):
    """More groups here than there, and other layers after a restart."""
    run(3, _save_stages, "three", 4)
    run(3, _load_stages, "three", 4)
    run(2, _save_stages, "two", 4)
    run(4, _load_stages, "two", 4)
    run(1, _load_stages, "two", 4)


def _alike(asked: bool) -> None:
    """Of slices of a Sequential, and of stages with names of their own."""
    rank, logged = dist.get_rank(), Logged()
    logging.getLogger("shardkeep").addHandler(logged)
    torch.manual_seed(rank)
    slices = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    stages = nn.ModuleDict({f"stage{rank}": nn.Linear(3, 3)})
    torch.manual_seed(0)
    copies = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    copies(torch.full((4, 3), float(rank)))
    for job, model in ("slices", slices), ("stages", stages), ("ddp", copies):
        with Checkpointer(model, job=job, **OPTIONS) as ck:
            if asked:
                assert ck.restore() is None
            assert ck.snapshot(1)
            ck.wait()
        assert len(logged.found) == (rank == 0), logged.found
    if rank == 0:
        assert "model.0.bias, model.0.weight: not the same on ranks 0 and 1" \
            in logged.found[0]


def test_stages_of_the_same_names(agent):
    """One of them would come back as both."""
    run(2, _alike, True)
    run(2, _alike, False)


def _experts(save: bool) -> None:
    """A rank without an expert has a group without parameters."""
    rank = dist.get_rank()
    model = _stage([0] + [1] * (rank == 0), save)
    experts = [p for n, p in model.named_parameters() if "layer1" in n]
    shared = [p for n, p in model.named_parameters() if "layer0" in n]
    optim = torch.optim.SGD([{"params": shared},
                             {"params": experts, "lr": 5.0 if save else 1.0}],
                            lr=2.0 if save else 1.0, momentum=0.5)
    with Checkpointer(model, optim, job="experts", **OPTIONS) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
            return
        assert ck.restore() == 1
        assert [g["lr"] for g in optim.param_groups] == [2.0, 5.0]


def test_a_group_without_parameters(agent):
    run(2, _experts, True)
    run(2, _experts, False)


def test_groups_that_become_one(agent, caplog):
    model = nn.Linear(3, 3)
    optim = torch.optim.SGD([{"params": [model.weight], "weight_decay": 0.1},
                             {"params": [model.bias], "lr": 3}], lr=1)
    with Checkpointer(model, optim, job="one", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    optim = torch.optim.SGD(model.parameters(), lr=torch.tensor(9.0))
    rate = optim.param_groups[0]["lr"]
    with Checkpointer(model, optim, job="one", **OPTIONS) as ck:
        assert ck.restore() == 1
    assert optim.param_groups[0]["lr"] is rate and rate == 1, "in place"
    assert optim.param_groups[0]["weight_decay"] == 0.1
    assert "differed in lr, weight_decay" in caplog.text


def test_another_kind_of_optimizer_is_told(agent, caplog):
    model = nn.Linear(3, 3)

    def goes_on(optim: torch.optim.Optimizer) -> str:
        caplog.clear()
        with Checkpointer(model, optim, job="kind", **OPTIONS) as ck:
            assert ck.restore() == 1
        return caplog.text

    optim = torch.optim.AdamW([{"params": [model.weight], "of": "mine"},
                               {"params": [model.bias]}])
    with Checkpointer(model, optim, job="kind", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    told = goes_on(torch.optim.SGD(model.parameters(), lr=1, momentum=0.9))
    assert "has amsgrad, betas, eps" in told and "none of kind SGD" in told
    assert "restore the model alone" in told
    assert told.count("none of kind") == 1, "once for all groups"
    # Its like, with settings of its own as well, have nothing to be told of.
    likes = [torch.optim.AdamW(model.parameters(), fused=True),
             torch.optim.Adam([{"params": model.parameters(), "by": "me"}])]
    for like in likes:
        assert "kind" not in goes_on(like)


# ---- ranks that disagree ----

def _disagree() -> None:
    model = nn.Module()
    model.register_buffer("table", torch.zeros(3 + dist.get_rank()))
    with Checkpointer(model, job="apart", flush_every=1 << 30) as ck:
        assert ck.snapshot(1)
        step = ck._unproven
        with pytest.raises(Mismatch, match=r"ranks 0 and 1 .*model\.table"):
            ck.wait(timeout=30)
        dist.barrier()
        ck._unproven = step     # as if nobody had waited
        with pytest.raises(Mismatch, match=r"step 1 .*ranks 0 and 1 .*table"):
            ck.snapshot(2)
        model.table = torch.zeros(4)
        assert ck.snapshot(3, wait=10)
        ck.wait()
        assert ck.snapshot(4, wait=10)


def test_ranks_that_disagree_are_named(agent):
    run(2, _disagree)


def _one_changes() -> None:
    model = nn.Module()
    model.register_buffer("table", torch.zeros(4))
    changes = dist.get_rank() == 1
    with Checkpointer(model, job="later", flush_every=1 << 30) as ck:
        assert ck.snapshot(1)
        ck.wait(timeout=30)
        if changes:
            model.table = torch.zeros(5)
        with pytest.raises(Mismatch, match=r"ranks 0 and 1 .*model\.table"):
            end = time.monotonic() + 60
            for step in itertools.count(2):
                assert time.monotonic() < end, "it is not told"
                if step == 3:
                    ck._doubt.since -= 100      # as if that were long ago
                ck.snapshot(step, wait=10)
        dist.barrier()
        if changes:
            model.table = torch.zeros(4)
        ck._doubt.since -= 100
        with contextlib.suppress(Mismatch):     # of the steps before
            ck.snapshot(1000, wait=10)
        assert ck.snapshot(1001, wait=10)
        ck.wait(timeout=30)
        ck._doubt.since -= 100
        assert ck.snapshot(1002, wait=10)


def test_who_did_not_change_is_told(agent):
    run(2, _one_changes)


# ---- wrappers ----

def _net(fill: bool) -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    with torch.no_grad():
        for n, p in net.named_parameters():
            p.copy_(whole(n, tuple(p.shape)) if fill else torch.zeros(()))
    return net


def _step(net: nn.Module, optim: Any, n: int) -> None:
    for _ in range(n):
        for p in net.parameters():
            p.grad = p.detach() * 0.5 + 1
        optim.step()


def _wrapped(kind: str, net: nn.Module, lr: float = 0.1) -> Any:
    if kind == "zero":
        return ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam,
                                       lr=lr)
    optim = torch.optim.Adam(net.parameters(), lr=lr)
    if kind == "accelerate":
        from accelerate import Accelerator
        return Accelerator(cpu=True).prepare_optimizer(optim)
    return optim


def _save_wrapped(kind: str) -> None:
    net = _net(True)
    optim = _wrapped(kind, net)
    _step(net, optim, 2)
    with Checkpointer(net, optim, job="wrapped", **OPTIONS) as ck:
        assert ck.snapshot(2)
        ck.wait()


def _load_wrapped(kind: str) -> None:
    want = _net(True)
    plain = _wrapped("", want)
    _step(want, plain, 4)
    net = _net(False)
    optim = _wrapped(kind, net, lr=5)
    with Checkpointer(net, optim, job="wrapped", **OPTIONS) as ck:
        assert ck.restore() == 2
        assert optim.param_groups[0]["lr"] == 0.1
        _step(net, optim, 2)
        assert ck.snapshot(4, wait=30)
        ck.wait()
    for (n, a), b in zip(net.named_parameters(), want.parameters()):
        assert torch.equal(a, b), n


def test_zero_redundancy_optimizer(agent):
    run(2, _save_wrapped, "zero")
    run(3, _load_wrapped, "zero")
    run(2, _save_wrapped, "zero")
    run(1, _load_wrapped, "")
    run(1, _save_wrapped, "")
    run(2, _load_wrapped, "zero")


def test_the_optimizer_of_accelerate(agent):
    pytest.importorskip("accelerate")
    run(1, _save_wrapped, "accelerate")
    run(1, _load_wrapped, "")


def test_wrappers_that_hold_more(agent, caplog):
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            super().__init__([p for g in optimizer.param_groups
                              for p in g["params"]], {})
            self.optimizer = optimizer

    net = _net(True)
    inner = torch.optim.Adam(net.parameters())
    with pytest.raises(TypeError, match="Lookahead wraps Adam"):
        Checkpointer(net, Lookahead(inner), job="ahead")
    with pytest.raises(TypeError, match="str is no optimizer"):
        Checkpointer(net, "adam", job="ahead")

    class Averager:
        step = 0

        def average_parameters(self, params: Any) -> None:
            self.step += 1

    local = PostLocalSGDOptimizer(inner, Averager())
    with Checkpointer(net, local, job="local", **OPTIONS) as ck:
        ck.snapshot(1)
    assert 'do not hold "step" of PostLocalSGDOptimizer' in caplog.text


def test_what_is_only_like_an_optimizer(agent):
    class Like:
        def __init__(self, net: nn.Module) -> None:
            self.param_groups = [{"params": [*net.parameters()], "lr": 0.1}]
            self.state = {net[0].weight: {"m": torch.ones(5, 6)}}

    net = _net(True)
    with pytest.raises(TypeError, match="Like is no torch.* fence_hook=False"):
        Checkpointer(net, Like(net), job="like")
    again = Like(net)
    with Checkpointer(net, Like(net), job="like", fence_hook=False,
                      **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    again.state[net[0].weight]["m"].zero_()
    with Checkpointer(net, again, job="like", fence_hook=False,
                      **OPTIONS) as ck:
        assert ck.restore() == 1
    assert again.state[net[0].weight]["m"].all()


class _Sam(torch.optim.Optimizer):
    """Steps another one from where the parameters were before."""

    def __init__(self, params: Any, **more: Any) -> None:
        super().__init__(params, {"rho": 0.05, **more})
        self.base_optimizer = torch.optim.SGD(self.param_groups, **more)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self) -> None:     # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
        self.base_optimizer.step()


class _Lookahead(torch.optim.Optimizer):
    """Whose state dict is another one's, as timm has it."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__([{"params": base.param_groups[0]["params"]}], {})
        self._base_optimizer = base
        self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self) -> None:     # type: ignore[override]
        self._base_optimizer.step()
        for p in self.param_groups[0]["params"]:
            slow = self.state[p].setdefault("slow", p.clone())
            p.copy_(slow.add_(p - slow, alpha=0.5))

    def state_dict(self) -> dict[str, Any]:
        return self._base_optimizer.state_dict()


class _Composite(torch.optim.Optimizer):
    """Which has others for some parameters, in a dict."""

    def __init__(self, params: Any, **more: Any) -> None:
        params = list(params)
        super().__init__(params, {"lr": 0.1})
        self.parts = {"adam": torch.optim.AdamW(params[1:], lr=0.1)}

    @torch.no_grad()
    def step(self) -> None:     # type: ignore[override]
        p = self.param_groups[0]["params"][0]
        m = self.state[p].setdefault("m", torch.zeros_like(p))
        p.sub_(m.add_(p.grad), alpha=0.1)
        self.parts["adam"].step()


@pytest.mark.parametrize("make", [
    lambda net: _Sam(net.parameters(), lr=0.1, momentum=0.9),
    lambda net: _Lookahead(torch.optim.AdamW(net.parameters(), lr=0.1)),
    lambda net: _Composite(net.parameters())])
def test_an_optimizer_within_one(agent, caplog, make):
    """What both keep of a parameter comes back."""
    net, again = _net(True), _net(False)
    optim, other = make(net), make(again)
    _step(net, optim, 3)
    with Checkpointer(net, optim, job="within", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        _step(net, optim, 2)
    with Checkpointer(again, other, job="within", **OPTIONS) as ck:
        assert ck.restore() == 1
        _step(again, other, 2)
    for (n, a), b in zip(again.named_parameters(), net.parameters()):
        assert torch.equal(a, b), n
    assert len(other.state) == len(optim.state)
    assert not caplog.records, caplog.text


def test_state_beside_a_list_of_optimizers_is_told(agent, caplog):
    class Several(torch.optim.Optimizer):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net.parameters(), {})
            self.optimizers = [torch.optim.SGD(x.parameters(), lr=0.1)
                               for x in net]

        def step(self) -> None:     # type: ignore[override]
            for optim in self.optimizers:
                optim.step()

    net = _net(True)
    optim = Several(net)
    with Checkpointer(net, optim, job="several", **OPTIONS) as ck:
        _step(net, optim, 1)
        ck.snapshot(1)
    assert not caplog.records, caplog.text
    optim.state[net[0].weight]["mine"] = torch.ones(3)
    with Checkpointer(net, optim, job="several", **OPTIONS) as ck:
        ck.snapshot(2)
    assert [r.getMessage() for r in caplog.records] == [
        "job several: snapshots do not hold the state that "
        f"{Several.__qualname__} has beside its optimizers'"]


def test_the_one_within_is_called_as_without(agent, caplog):
    net, again = _net(True), _net(False)
    optim = torch.optim.AdamW(net.parameters(), lr=0.1)
    _step(net, optim, 3)
    with Checkpointer(net, optim, job="without", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    inner = torch.optim.AdamW(again.parameters(), lr=0.1)
    with Checkpointer(again, _Lookahead(inner), job="without",
                      **OPTIONS) as ck:
        assert ck.restore() == 1
    assert torch.equal(inner.state[again[0].weight]["exp_avg"],
                       optim.state[net[0].weight]["exp_avg"])
    assert not caplog.records, caplog.text
    with Checkpointer(again, inner, job="alone", **OPTIONS) as ck:
        assert ck.restore() is None
        _step(again, _Lookahead(inner), 1)
    assert "_Lookahead steps 0.weight, and was not given" in caplog.text


def test_a_parameter_of_two_optimizers(agent):
    def both(net: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
                torch.optim.Adam(net[0].parameters(), lr=0.2),
                torch.optim.SGD(net[0].parameters(), lr=0.3, momentum=0.4)]

    net = _net(True)
    optims = both(net)
    for o in optims:
        _step(net, o, 1)
    with Checkpointer(net, optims, job="two", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        for o in optims:
            _step(net, o, 1)
    again = _net(False)
    others = both(again)
    for o in others:
        o.param_groups[0]["lr"] = 8.0
    with Checkpointer(again, others, job="two", **OPTIONS) as ck:
        assert ck.restore() == 1
        for o in others:
            _step(again, o, 1)
    for (n, a), b in zip(again.named_parameters(), net.parameters()):
        assert torch.equal(a, b), n


def test_state_of_no_parameter(agent, caplog):
    net = _net(True)
    optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optim.state["rounds"] = {"n": 3, "mean": torch.tensor([1.5])}
    optim.state[net[0].weight]["note"] = "kept"
    lost = nn.Parameter(torch.zeros(2))
    optim.state[lost]["momentum_buffer"] = torch.zeros(2)
    with Checkpointer(net, optim, job="none", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        assert "do not hold the state of 1 tensors" in caplog.text
        del optim.state["rounds"]
        optim.state[net[0].weight]["note"] = "changed"
        assert ck.restore() == 1
    assert optim.state["rounds"]["n"] == 3
    assert optim.state["rounds"]["mean"].item() == 1.5
    assert optim.state[net[0].weight]["note"] == "kept"
    optim.state[3] = {}
    with Checkpointer(net, optim, job="none", **OPTIONS) as ck:
        with pytest.raises(TypeError, match="neither a parameter nor"):
            ck.snapshot(2)
        del optim.state[3]
        optim.state[net[0].weight][5] = torch.zeros(3)
        with pytest.raises(TypeError, match=r"0\.weight .* under 5"):
            ck.snapshot(2)


def _grown(net: nn.Module) -> torch.optim.Optimizer:
    optim = torch.optim.SGD(net[0].parameters(), lr=0.1, momentum=0.9)
    optim.state[net[0].weight]["step"] = 0
    return optim


def test_state_that_came_after_a_snapshot(agent):
    """A restore takes it back, as for a fresh optimizer."""
    net, other = _net(True), _net(True)
    optim, plain = _grown(net), _grown(other)
    with Checkpointer(net, optim, job="later", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        _step(net, optim, 1)
        ck.snapshot(2, wait=30)
        ck.wait()
        held = optim.state[net[0].weight]["momentum_buffer"]
        optim.add_param_group({"params": list(net[1].parameters())})
        _step(net, optim, 1)
        assert ck.restore(2) == 2
        assert optim.state[net[0].weight]["momentum_buffer"] is held
        assert net[1].weight not in optim.state
        assert ck.restore(1) == 1
    assert all(k == "step" for s in optim.state.values() for k in s)
    plain.add_param_group({"params": list(other[1].parameters())})
    _step(net, optim, 2)
    _step(other, plain, 2)
    for (n, a), b in zip(net.named_parameters(), other.named_parameters()):
        assert torch.equal(a, b[1]), n


def test_state_stays_where_a_restore_fails(agent):
    net = _net(True)
    optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Checkpointer(net, optim, job="stays", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
        _step(net, optim, 1)
        net.extra = nn.Parameter(torch.ones(2))
        with pytest.raises(Mismatch, match=r"model\.extra"):
            ck.restore()
        assert len(optim.state) == 6
        assert all(s["momentum_buffer"].any() for s in optim.state.values())


def test_names_that_an_optimizer_was_given(agent, caplog):
    """Who is in a group is the trainer's own to say."""
    net = _net(True)
    named = list(net.named_parameters())
    optim = torch.optim.SGD([{"params": named[:2]}, {"params": named[2:]}],
                            lr=2.0)
    with Checkpointer(net, optim, job="named", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    one = torch.optim.SGD(named, lr=1.0)
    with Checkpointer(net, one, job="named", **OPTIONS) as ck:
        assert ck.restore() == 1
    assert one.param_groups[0]["param_names"] == [n for n, _ in named]
    assert one.param_groups[0]["lr"] == 2.0 and "differed" not in caplog.text
    bare = torch.optim.SGD(net.parameters(), lr=1.0)
    with Checkpointer(net, bare, job="named", **OPTIONS) as ck:
        assert ck.restore() == 1
    assert "param_names" not in bare.param_groups[0]


def test_names_with_dots(agent):
    net = _net(True)
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    optim.state[net[0].weight]["a.b"] = torch.ones(5, 6)
    with Checkpointer(net, optim, job="dots", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.wait()
    fresh = torch.optim.SGD(net.parameters(), lr=0.1)
    with Checkpointer(net, fresh, job="dots", **OPTIONS) as ck:
        assert ck.restore() == 1
    assert torch.equal(fresh.state[net[0].weight]["a.b"], torch.ones(5, 6))


# ---- modules ----

class _Counting(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def get_extra_state(self) -> dict[str, Any]:
        return {"n": self.n, "half": torch.tensor(self.n / 2)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.n = state["n"]
        assert state["half"] == self.n / 2


def _extra_state(save: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Module()
    for i in range(rank, 4, world):
        model.add_module(f"part{i}", _Counting(10 + i if save else 0))
    with Checkpointer(model, job="counting", **OPTIONS) as ck:
        if save:
            assert ck.snapshot(1)
            ck.wait()
            return
        assert ck.restore() == 1
    for i in range(rank, 4, world):
        assert getattr(model, f"part{i}").n == 10 + i


def test_extra_state_of_modules(agent):
    run(2, _extra_state, True)
    run(2, _extra_state, False)
    run(3, _extra_state, False)
    run(1, _extra_state, False)


def test_extra_state_that_has_no_form(agent):
    model = nn.Sequential(_Counting(3))
    model[0].get_extra_state = lambda: None
    model[0].n = object()
    model[0].__class__ = type("Odd", (_Counting,), {
        "get_extra_state": lambda self: {"n": self.n}})
    del model[0].get_extra_state
    with Checkpointer(model, job="odd", **OPTIONS) as ck:
        with pytest.raises(TypeError, match=r"model.*0\._extra_state\.n"):
            ck.snapshot(1)


def test_what_a_state_dict_adds(agent, caplog):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def add(module: nn.Module, state: dict[str, Any], prefix: str,
            _: Any) -> None:
        state[prefix + "scale"] = torch.ones(1)

    model[1]._register_state_dict_hook(add)
    with Checkpointer(model, job="hooks", **OPTIONS) as ck:
        ck.snapshot(1)
        ck.snapshot(2, wait=10)
    said = [r.getMessage() for r in caplog.records
            if r.levelno >= logging.WARNING]
    assert said == ['job hooks: snapshots do not hold "1.scale" of the '
                    "model's state dict"]


# ---- a parameter that is one number ----

class _Scaled(nn.Module):
    """As CLIP's temperature under tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(distribute_tensor(
            torch.tensor(2.5), init_device_mesh("cpu", (1,)), [Replicate()]))


def _scaled(name: str, save: bool) -> None:
    model = _Scaled()
    optim = getattr(torch.optim, name)(model.parameters())
    with Checkpointer(model, optim, job=name, **OPTIONS) as ck:
        if save:
            model.scale.exp().backward()
            optim.step()
            assert ck.snapshot(1)
            ck.wait()
        else:
            assert ck.restore() == 1
    state = optim.state[model.scale]
    placed = {k for k, t in state.items() if isinstance(t, DTensor)}
    assert placed == {k for k in ("exp_avg", "exp_avg_sq", "ax")
                      if k in state}, state
    assert state["step"].item() == 1


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "ASGD"])
def test_state_of_a_number(name: str) -> None:
    run(1, _scaled, name, True)
    run(1, _scaled, name, False)
