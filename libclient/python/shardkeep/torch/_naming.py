# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a model and its optimizer are called: FQNs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Running statistics of one rank alone: DDP overwrites them with rank 0's
#: before a pass, FSDP leaves them apart. Of batch and instance norms, lazy
#: ones, and what libraries derive from them.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.",
             "_fsdp_wrapped_module.")

#: What has the module that it wraps as ``module``, under names of its own.
DATA_PARALLEL = (torch.nn.parallel.DistributedDataParallel,
                 torch.nn.DataParallel)


def clean_name(name: str) -> str:
    """An FQN without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def namer(model: torch.nn.Module) -> Callable[[str], str]:
    """What makes FQNs of the names in a model: those that it would have if
    nothing in it were wrapped, as ``get_model_state_dict()`` does."""
    # Innermost first.
    within = sorted((f"{name}." for name, m in model.named_modules()
                     if name and isinstance(m, DATA_PARALLEL)),
                    key=len, reverse=True)

    def fqn(name: str) -> str:
        for at in within:
            if name.startswith(at + "module."):
                name = at + name.removeprefix(at + "module.")
        return clean_name(name)
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
    while True:
        inner = getattr(model, "_orig_mod", model)
        if isinstance(inner, DATA_PARALLEL):
            inner = inner.module
        if inner is model:
            return model
        model = inner


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
