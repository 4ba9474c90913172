# SPDX-License-Identifier: Apache-2.0
"""Shardkeep for PyTorch.

>>> from shardkeep.torch import Checkpointer
>>> ck = Checkpointer(model, optim, job="llama")
>>> done = ck.restore()                 # None on the first run
>>> for step in range(0 if done is None else done + 1, last):
...     optim.zero_grad()
...     loss(model).backward()
...     optim.step()                    # fences by itself
...     ck.snapshot(step)               # returns at once
>>> ck.close()                          # waits for the last one
"""

from .checkpointer import Checkpointer

__all__ = ["Checkpointer"]
