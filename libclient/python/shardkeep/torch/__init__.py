# SPDX-License-Identifier: Apache-2.0
"""Shardkeep for PyTorch.

>>> from shardkeep.torch import Checkpointer             # doctest: +SKIP
>>> ck = Checkpointer(model, optim, job="llama")         # doctest: +SKIP
>>> step = ck.restore() or 0                             # doctest: +SKIP
>>> for step in range(step, last):                       # doctest: +SKIP
...     loss(model).backward()
...     optim.step()        # fences by itself
...     ck.snapshot(step)
"""

from .checkpointer import Checkpointer

__all__ = ["Checkpointer"]
