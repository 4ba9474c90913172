# SPDX-License-Identifier: Apache-2.0
"""The programs that the package carries."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

BIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def path(name: str) -> str:
    """Where the program of that name lies."""
    return os.path.join(BIN, name)


def _run(name: str) -> NoReturn:
    os.execv(path(name), [name, *sys.argv[1:]])


def cachectl() -> NoReturn:
    """The operator's tool."""
    _run("cachectl")


def shardkeepd() -> NoReturn:
    """The agent."""
    _run("shardkeepd")
