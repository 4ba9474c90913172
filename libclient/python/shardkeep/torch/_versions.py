# SPDX-License-Identifier: Apache-2.0
"""What versions of torch differ in, and all that is used of its insides.

Whatever has an underscore may be gone from the next version. Where one lacks
something, what is here does without, slower, or says what is needed; nothing
else in the package asks for a version. What every torch module and DTensor is
made of (``_parameters``, ``_local_tensor``, ``_spec``) is used where it is.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def _at(name: str) -> Any:
    """What torch has under a name with dots; None where it has nothing."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _imported(module: str, name: str) -> Any:
    """The same, of a module that may not be loaded."""
    try:
        return getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None


# ---- a tensor as such ----

#: A tensor's dispatch keys, which tell tensors apart at once.
KINDS = _at("_C._dispatch_keys")
#: The functions that show a tensor to C; 2.9 has none yet.
EXCHANGE = _at("Tensor.__dlpack_c_exchange_api__")
#: A CUDA device's current stream, as its number.
RAW_STREAM = _at("_C._cuda_getCurrentRawStream")
#: What a collective has yet to bring.
Async = _imported("torch.distributed._functional_collectives",
                  "AsyncCollectiveTensor") or ()
#: How FSDP2 over tensor parallelism cuts.
STRIDED = _imported("torch.distributed.tensor.placement_types",
                    "_StridedShard")
#: The type of a buffer, where that is another.
Buffer = _at("nn.Buffer") or torch.Tensor
#: Norms with statistics of batches.
OF_BATCHES = _at("nn.modules.batchnorm._NormBase") or tuple(
    getattr(torch.nn, f"{kind}Norm{n}d")
    for kind in ("Batch", "Instance") for n in (1, 2, 3))

_overlap = _at("_debug_has_internal_overlap")
_of_functions = [x for x in (_at("_C._functorch.is_functorch_wrapped_tensor"),
                             _at("_is_functional_tensor")) if x]
_flattens = _imported("torch.utils._python_dispatch",
                      "is_traceable_wrapper_subclass")
_copy_each = _at("_foreach_copy_")


def is_of_a_transformation(t: torch.Tensor) -> bool:
    """Whether it is what vmap and the like make of one."""
    return any(f(t) for f in _of_functions)


def flattens(t: torch.Tensor) -> bool:
    """Whether a subclass says which tensors have its values."""
    if _flattens:
        return bool(_flattens(t))
    return all(hasattr(t, f"__tensor_{x}flatten__") for x in ("", "un"))


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether it is what torch.compile() made of another one, which loads
    the compiler: nothing else needs it."""
    kind = getattr(sys.modules.get("torch._dynamo.eval_frame"),
                   "OptimizedModule", ())
    return isinstance(module, kind)


def is_scheduled(optim: Any) -> bool:
    """Whether a scheduler was made of an optimizer, as far as it shows."""
    return hasattr(getattr(optim, "step", None), "_wrapped_by_lr_sched")


def overlaps(t: torch.Tensor) -> bool:
    """Whether elements of it may share memory."""
    return bool(_overlap(t)) if _overlap else not t.is_contiguous()


def copy_each(into: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """Each from its own."""
    if _copy_each:
        _copy_each(into, of)
        return
    for a, b in zip(into, of):
        a.copy_(b)


def wrote_to(tensors: Iterable[torch.Tensor]) -> None:
    """Has autograd know what it did not see: who would go backward through
    values that are no more is refused, and not given wrong gradients."""
    found = list(tensors)
    try:
        torch.autograd.graph.increment_version(found)
    except (AttributeError, TypeError):     # older ones take one
        for t in found:
            torch.autograd.graph.increment_version(t)


# ---- ranks ----

def default_store() -> dist.Store:
    """Where all ranks of torch.distributed can write and read."""
    get: Any = getattr(dist.distributed_c10d, "_get_default_store", None)
    return get() if get else dist.group.WORLD.get_group_store()


def fsdp1() -> Any:
    """FSDP1's class; None of a torch that has none any more."""
    return _imported("torch.distributed.fsdp", "FullyShardedDataParallel")


# ---- distributed checkpoint ----

def load_alone(state: dict[str, Any], reader: Any) -> None:
    """``dcp.load()`` by this rank, whatever others do."""
    import torch.distributed.checkpoint as dcp
    if "no_dist" in inspect.signature(dcp.load).parameters:
        dcp.load(state, storage_reader=reader, no_dist=True)
        return
    old: Any = dcp.load_state_dict      # the one of 2.6 that takes it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old(state, reader, no_dist=True)


def safetensors_reader(path: str) -> Any:
    """Of the shards that distributed checkpoint writes as safetensors."""
    kind = _imported("torch.distributed.checkpoint",
                     "HuggingFaceStorageReader")
    if kind is None:
        raise ValueError(f"{path} holds shards in safetensors files, which "
                         f"torch {torch.__version__} cannot read itself: a "
                         "later one can")
    return kind(path)


def _of_states(name: str) -> Any:
    return _imported("torch.distributed._state_dict_utils", name)


def memory_for(state: Any) -> Any:
    """Memory on the CPU of the form of a state dict, not pinned; None where
    only torch itself knows how to make it."""
    make = _of_states("_create_cpu_state_dict")
    return make(state) if make else None


def staged(state: Any, type_check: bool) -> Any:
    """A copy of a state dict on the CPU; None where torch has other ways. Its
    own stager of 2.6 gives what is on the CPU as it is, not copied."""
    into, copy = memory_for(state), _of_states("_copy_state_dict")
    if into is None or copy is None:
        return None
    copy(state, into, type_check=type_check)
    return into
