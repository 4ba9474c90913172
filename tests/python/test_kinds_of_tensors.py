# SPDX-License-Identifier: Apache-2.0
"""Tensors whose values are not simply the bytes at their address: resolved,
or refused by name, never stored as something else."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed.checkpoint as dcp
from shardkeep.torch import Checkpointer
from shardkeep.torch._common import unfit
from shardkeep.torch.dcp import ShardkeepReader, ShardkeepWriter
from torch.distributed.checkpoint import CheckpointException

warnings.filterwarnings("ignore")


def _freed() -> torch.Tensor:
    t = torch.ones(3)
    t.untyped_storage().resize_(0)
    return t


def _shrunk() -> torch.Tensor:
    t = torch.ones(8)
    t.untyped_storage().resize_(4)
    return t


class _Wrapped(torch.Tensor):
    """Has its values in another tensor, as quantized weights do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape,
                                                   dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.is_pinned.default:
            return False
        raise NotImplementedError(func)


class _Named(torch.Tensor):
    """Has memory as any tensor, and a name of its own."""


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    "compressed": (lambda: torch.eye(3).to_sparse_csr(), "layout"),
    "quantized": (lambda: torch.quantize_per_tensor(
        torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
    "nested": (lambda: torch.nested.nested_tensor(
        [torch.zeros(2), torch.zeros(3)]), "nested"),
    "jagged": (lambda: torch.nested.nested_tensor(
        [torch.zeros(2), torch.zeros(3)], layout=torch.jagged), "nested"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)),
                   "transformation"),
    "wrapped": (lambda: _Wrapped(torch.ones(3)), "_Wrapped"),
    "zero": (lambda: torch._efficientzerotensor(3), "no memory"),
    "freed": (_freed, "no memory"),
    "shrunk": (_shrunk, "no memory"),
    "meta": (lambda: torch.ones(3, device="meta"), "meta"),
    "expanded": (lambda: torch.ones(1).expand(3), "expanded"),
    "nine": (lambda: torch.ones((1,) * 9), "9 dimensions, at most 8"),
}
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "conj": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "neg": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
}


@pytest.mark.parametrize("kind", [*REFUSED, *VIEWS])
def test_live_tensors(agent, kind):
    make, why = REFUSED.get(kind) or (VIEWS[kind], "conjugates or negates")
    model = torch.nn.Module()
    model.inner = torch.nn.Module()
    model.inner.register_buffer("odd", make())
    with Checkpointer(model, job="kinds") as ck:
        with pytest.raises(ValueError, match=rf"model\.inner\.odd\W.*{why}"):
            ck.snapshot(1)
        model.inner.odd = torch.ones(2)
        assert ck.snapshot(1)


@pytest.mark.parametrize("kind", [*REFUSED, *VIEWS])
def test_state_of_an_optimizer(agent, kind):
    """Where others of its type were stored before it."""
    make, why = REFUSED.get(kind) or (VIEWS[kind], "conjugates or negates")
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = optim.state[model.weight]
    mine["odd"] = torch.ones(3)
    mine["complex"] = torch.tensor([1 + 2j])
    with Checkpointer(model, optim, job="state") as ck:
        assert ck.snapshot(1)
        mine["odd"] = make()
        with pytest.raises(ValueError,
                           match=rf"optim\.state\.weight\.odd\W.*{why}"):
            ck.snapshot(2)
        mine["odd"] = torch.ones(2)
        assert ck.snapshot(3, wait=30)


@pytest.mark.parametrize("dtype, way", [
    ("uint4", "it.view(torch.uint8)"), ("bits16", "it.view(torch.uint8)"),
    ("complex128", "torch.view_as_real(it)")])
def test_a_dtype_that_has_no_place(agent, dtype, way):
    model = torch.nn.Module()
    it = torch.empty(4, dtype=getattr(torch, dtype))
    model.register_buffer("odd", it)
    with Checkpointer(model, job="dtype") as ck:
        with pytest.raises(TypeError, match=r"model\.odd: .*\(.*\) has"
                           ) as error:
            ck.snapshot(1)
        assert f"{way} has" in str(error.value)
        model.odd = eval(way)       # as it says
        assert ck.snapshot(1)


def test_a_lazy_module(agent):
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with Checkpointer(model, job="lazy") as ck:
        with pytest.raises(ValueError, match=r"model\.0\.weight .*not init"):
            ck.snapshot(1)
        model(torch.ones(2, 5))
        assert ck.snapshot(1)


@pytest.mark.parametrize("make", [
    lambda: torch.arange(4.).as_subclass(_Named),
    lambda: torch._lazy_clone(torch.arange(4.)),
    lambda: torch.arange(8.)[::2],
    lambda: torch.arange(6.).view(2, 3).t(),
    lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    lambda: torch.inference_mode()(lambda: torch.arange(4.))(),
    lambda: torch.tensor([True, False]),
    lambda: torch.tensor([1 + 2j]),
    lambda: torch.empty(0, 3),
    lambda: torch.tensor(5),
])
def test_tensors_with_memory_of_their_own(agent, make):
    model = torch.nn.Linear(2, 2)
    model.register_buffer("fine", make())
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = optim.state[model.weight]["fine"] = make()
    want = model.fine.clone()
    with Checkpointer(model, optim, job="fine", raising=True) as ck:
        assert ck.snapshot(1)
        ck.wait()
        with torch.inference_mode():
            model.fine.zero_()
            state.zero_()
        assert ck.restore() == 1
    assert torch.equal(model.fine, want)
    assert torch.equal(state, want)


@pytest.mark.parametrize("kind", VIEWS)
def test_views_are_resolved_by_distributed_checkpoint(agent, kind):
    value = VIEWS[kind]()
    want = value.clone().resolve_conj().resolve_neg()
    dcp.save({"v": value}, storage_writer=ShardkeepWriter("views/1"),
             no_dist=True)
    plain = {"v": torch.zeros_like(want)}
    dcp.load(plain, storage_reader=ShardkeepReader("views/1"), no_dist=True)
    assert torch.equal(plain["v"], want)
    base = torch.zeros(2, dtype=torch.complex64)
    view = {"v": base.conj() if kind == "conj" else base.conj().imag}
    assert view["v"].is_conj() or view["v"].is_neg()
    dcp.load(view, storage_reader=ShardkeepReader("views/1"), no_dist=True)
    assert torch.equal(view["v"], want)
    assert torch.equal(base.conj() if kind == "conj" else -base.imag, want)


@pytest.mark.parametrize("kind", ["sparse", "quantized", "wrapped", "freed",
                                  "nine"])
def test_distributed_checkpoint_refuses_by_name(agent, kind):
    with pytest.raises(CheckpointException, match="odd|Sparse|sparse"):
        dcp.save({"odd": REFUSED[kind][0]()}, no_dist=True,
                 storage_writer=ShardkeepWriter("refused/1"))


def test_in_objects(agent):
    model = torch.nn.Linear(2, 2)
    kept = {"t": VIEWS["conj"](), "n": VIEWS["neg"]()}
    want = {k: t.clone().resolve_conj().resolve_neg()
            for k, t in kept.items()}
    with Checkpointer(model, job="objects", extra={"k": kept}) as ck:
        assert ck.snapshot(1)
        ck.wait()
        kept.clear()
        assert ck.restore() == 1
        assert all(torch.equal(kept[k], t) for k, t in want.items())
        for kind in ("sparse", "wrapped", "meta", "nested"):
            kept["odd"] = REFUSED[kind][0]()
            with pytest.raises(TypeError, match=r"extra\.k\.odd is a"):
                ck.snapshot(2)


def _of_vmap(x):
    said = []
    torch.vmap(lambda row: said.append(unfit(row)) or row)(x)
    return said[0]


def _freed(x):
    x.untyped_storage().resize_(0)
    return unfit(x)


def _cut(x):
    x.untyped_storage().resize_(8)
    return unfit(x)


@pytest.mark.parametrize("look", [
    lambda x: unfit(x.to_sparse()), lambda x: unfit(x.to("meta")),
    lambda x: unfit(torch.complex(x, x).conj()),
    lambda x: unfit(torch.complex(x, x).conj().imag), _of_vmap,
    lambda x: unfit(torch._to_functional_tensor(x)), _freed, _cut,
    lambda x: unfit(torch.quantize_per_tensor(x, 1.0, 0, torch.qint8)),
    lambda x: unfit(torch.nested.nested_tensor([x, x]))],
    ids=["sparse", "meta", "conj", "neg", "vmap", "functional", "freed",
         "cut", "quantized", "nested"])
def test_what_is_known_of_one_kind_says_nothing_of_another(look):
    for dtype in (torch.float32, torch.complex64):
        assert unfit(torch.zeros(2, 3, dtype=dtype)) is None
        assert unfit(torch.zeros(2, 3, dtype=dtype).t()) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert look(torch.ones(2, 3)) is not None
