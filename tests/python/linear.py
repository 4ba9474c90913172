# SPDX-License-Identifier: Apache-2.0
"""A few linear layers, which all ranks begin and train alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64),
                         nn.Linear(64, 8))


def training(wrap: Callable[[nn.Module], nn.Module] = lambda model: model
             ) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model in what ``wrap`` puts around it, and its optimizer."""
    wrapped = wrap(model())
    return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=0.01)


def step(model: nn.Module, optim: torch.optim.Optimizer) -> float:
    """The loss before it."""
    optim.zero_grad()
    loss = model(torch.linspace(-1, 1, 64).expand(4, 64)).square().sum()
    loss.backward()
    optim.step()
    return float(loss)


def values(model: nn.Module, optim: torch.optim.Optimizer
           ) -> list[torch.Tensor]:
    """All that a snapshot has of them."""
    moments = [s[k] for s in optim.state.values()
               for k in ("exp_avg", "exp_avg_sq", "step")]
    return [*model.parameters(), *moments]


def kept_bytes() -> int:
    """Of parameters and two moments of each."""
    return 3 * 4 * sum(p.numel() for p in model().parameters())
