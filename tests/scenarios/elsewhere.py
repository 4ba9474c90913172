#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scenarios whose agent and cachectl lie where nobody would put them: what asks
them passes their paths on as they are. Arguments: the agent, cachectl, the
scenarios.
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    agent, cachectl, *scenarios = (pathlib.Path(x).resolve()
                                   for x in sys.argv[1:])
    with tempfile.TemporaryDirectory(
            prefix="-My \"Projects\" & $HOME `id` 100% ü's * ") as top:
        there = [pathlib.Path(top) / x.name for x in (agent, cachectl)]
        for link, to in zip(there, (agent, cachectl)):
            link.symlink_to(to)
        for scenario in scenarios:
            done = subprocess.run([scenario, *there], check=False,
                                  env=dict(os.environ, TMPDIR=top))
            assert done.returncode == 0, (scenario, done.returncode)
        assert sorted(pathlib.Path(top).iterdir()) == sorted(there)


if __name__ == "__main__":
    main()
