# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_step.py, where there is no GPU: that it runs, and what it says."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import vcuda

HERE = pathlib.Path(__file__).resolve().parent
TOOL = HERE.parents[1] / "tools/gpu_step.py"
ON = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
import vcuda
vcuda.begin()
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize("device", ["cpu", "vcuda"])
def test_it_says_what_a_step_takes_more(agent, monkeypatch, device):
    command = [sys.executable, str(TOOL)]
    if device == "vcuda":
        if not vcuda.CAN_BUILD:
            pytest.skip("no compiler")
        monkeypatch.setenv("SHARDKEEP_LIBCUDA", vcuda.build()["driver"])
        command = [sys.executable, "-c", ON, str(HERE), str(TOOL)]
    said = subprocess.run([*command, "--device", device, "--mib", "2",
                           "--side", "32", "--step", "0.002", "--seconds",
                           "0.5"], check=True, capture_output=True, text=True)
    fact = json.loads(said.stdout)
    assert fact["fact"] == "bar" and fact["bar"] == 1
    assert fact["met"] == (fact["value"] <= 1)
    assert fact["mib"] == 2 and fact["step_ms"] > 0
    assert 0 < fact["taken"] <= fact["asked"]


def test_without_a_snapshot_there_is_no_figure(agent):
    """A step is no longer than before where nothing was taken beside it."""
    never = ("import runpy, sys; from shardkeep.torch import Checkpointer; "
             "Checkpointer.snapshot = lambda *a, **k: False; "
             "runpy.run_path(sys.argv.pop(1), run_name='__main__')")
    said = subprocess.run([sys.executable, "-c", never, str(TOOL), "--device",
                           "cpu", "--mib", "2", "--side", "32", "--step",
                           "0.002", "--seconds", "0.1"], check=False,
                          capture_output=True, text=True)
    assert said.returncode == 1 and not said.stdout, said
    assert "no snapshot" in said.stderr
