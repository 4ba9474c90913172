# SPDX-License-Identifier: Apache-2.0
"""What a model's own state dict holds beside its parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ._flat import pieces_of
from ._naming import namer


def _foreign(function: Any) -> bool:
    """Whether torch itself does not bring it."""
    function = getattr(function, "hook", function)
    function = getattr(function, "func", function)
    module = getattr(function, "__module__", None) or ""
    return module.startswith("torch.ao.") or not (
        module == "torch" or module.startswith("torch."))


def _says_otherwise(module: torch.nn.Module) -> bool:
    """Whether its state dict is not just its parameters and buffers."""
    kind = type(module)
    hooks = [*module._state_dict_hooks.values(),
             *module._state_dict_pre_hooks.values()]
    return any(map(_foreign, [kind.state_dict, kind._save_to_state_dict,
                              *hooks]))


def unsaved_of(model: torch.nn.Module, names: set[str], live: set[int]
                ) -> Iterator[str]:
    odd = [n for n, m in model.named_modules() if _says_otherwise(m)]
    if not odd:
        return
    if any(True for _ in pieces_of(model)):     # state_dict() would gather
        yield (f"what {odd[0] or 'the model'} adds to its state dict by "
               "itself")
        return
    fqn_of = namer(model)
    for key, t in model.state_dict(keep_vars=True).items():
        if fqn_of(key) not in names and id(t) not in live:
            yield f'"{key}" of the model\'s state dict'
