# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the tests: simulated ones ("vcuda"), or with SK_TORCH_DEVICE=cuda
real ones, and the same tests.

What :mod:`vcuda` or :mod:`hardware` do is had from here by name: ``begin``,
``Stream``, ``hold`` and the rest.
"""

from __future__ import annotations

import os
from typing import Any

import harness
import pytest

#: The type of their tensors' device.
KIND = os.environ.get("SK_TORCH_DEVICE", "vcuda")
SIMULATED = KIND == "vcuda"

if SIMULATED:
    import vcuda as _its
else:
    import hardware as _its

#: For what runs on them.
needed = pytest.mark.skipif(not _its.CAN_BUILD, reason="no compiler")
#: For what only a simulation has.
two = pytest.mark.skipif(not SIMULATED, reason="needs two GPUs")
#: The last of two, where there are two.
LAST = int(SIMULATED)

#: Of a GPU that is there from the start autograd knows, and a process that
#: starts anew imports for seconds.
run_anew = harness.run_anew if SIMULATED else harness.run


def __getattr__(name: str) -> Any:
    return getattr(_its, name)


def find(monkeypatch: pytest.MonkeyPatch, devices: int = 1) -> None:
    """Ranks that are started from here on find them."""
    for name, value in _its.variables(devices).items():
        monkeypatch.setenv(name, value)
