# SPDX-License-Identifier: Apache-2.0
"""Agents of other versions of the protocol: whoever opens a client hears both
versions and what to do."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shardkeep import Client, Error
from shardkeep._tools import path as program

sys.path.append(str(Path(__file__).parent.parent / "older"))
from stranger import Stranger  # noqa: E402


@pytest.mark.parametrize("how, words", [
    (dict(speaks=99, refuses="versions 98 and 99; upgrade the client"),
     "versions 98 and 99; upgrade the client"),
    (dict(speaks=99), "speaks version 99 of .* upgrade the client"),
    (dict(speaks=3, hangs_up=True), "speaks version 3 of .* the agent"),
])
def test_refused(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    agent = Stranger(str(tmp_path / "agent.sock"), **how)
    with pytest.raises(Error, match=words) as e:
        Client(agent.path, start=False)
    assert e.value.errno == errno.EPROTO
    agent.close()


def test_one_step_older(tmp_path: Path) -> None:
    ours = json.loads(subprocess.check_output(
        [program("cachectl"), "--json", "--socket", "/nowhere", "version"],
        text=True))["wire"]
    agent = Stranger(str(tmp_path / "agent.sock"), speaks=ours - 1)
    Client(agent.path, start=False).close()
    agent.close()
