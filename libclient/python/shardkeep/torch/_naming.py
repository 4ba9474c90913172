# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a model and its optimizer are called: FQNs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._versions import is_compiled

#: Running statistics of one rank alone: DDP overwrites them with rank 0's
#: before a pass, FSDP leaves them apart. Of batch and instance norms, lazy
#: ones, and what libraries derive from them.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")

#: What has the module that it wraps as ``module``, under names of its own.
DATA_PARALLEL = (torch.nn.parallel.DistributedDataParallel,
                 torch.nn.DataParallel)


def _wrapped_as(module: torch.nn.Module) -> str:
    """What a wrapper has the module under, by its type: any module may have
    one of that name, or answer to it for another."""
    if isinstance(module, DATA_PARALLEL):
        return "module"
    return "_orig_mod" if is_compiled(module) else ""


def clean_name(name: str) -> str:
    """An FQN without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def namer(model: torch.nn.Module) -> Callable[[str], str]:
    """What makes FQNs of the names in a model: those that it would have if
    nothing in it were wrapped, as ``get_model_state_dict()`` does."""
    # Innermost first. The names of what is flattened are clean already.
    within = sorted(((clean_name(f"{name}." if name else ""), wrapped)
                     for name, m in model.named_modules()
                     if (wrapped := _wrapped_as(m))),
                    key=lambda x: len(x[0]), reverse=True)

    def fqn(name: str) -> str:
        name = clean_name(name)
        for at, wrapped in within:
            if name.startswith(f"{at}{wrapped}."):
                name = at + name.removeprefix(f"{at}{wrapped}.")
        return name
    return fqn


def is_statistic(name: str) -> bool:
    """Whether it may be a running statistic, which each rank has its own
    of."""
    return name.startswith("model.") and name.rpartition(".")[2] in STATISTICS


def is_state(name: str) -> bool:
    """Whether a tensor of that name is an optimizer's."""
    return name.startswith("optim.")


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module itself: compiling and DDP put it under names of theirs."""
    while wrapped := _wrapped_as(model):
        model = getattr(model, wrapped)
    return model


def split_label(label: str) -> tuple[str, str]:
    """Which of the optimizers that step it ("": the first), and the FQN."""
    nth, colon, fqn = label.partition(":")
    return (nth, fqn) if colon and nth.isdigit() else ("", label)


def state_name(label: str, key: Any) -> str:
    """The name of a tensor of an optimizer's state."""
    nth, fqn = split_label(label)
    if not isinstance(key, str):
        raise TypeError(f"the optimizer's state of {fqn} has a tensor under "
                        f"{key!r}, which is no string")
    return f"optim.{nth}.state.{fqn}.{key}" if nth else \
        f"optim.state.{fqn}.{key}"
