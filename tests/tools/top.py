#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cachectl top on a window with fewer lines than there are jobs: its head
stays, and what has no room is counted. Arguments: shardkeepd,
shardkeep-trainer, cachectl.
"""
import os
import subprocess
import sys
import tempfile

import terminal

AGENT, TRAINER, CACHECTL = sys.argv[1:]
JOBS = 9


def top(env: dict[str, str], rows: int) -> list[str]:
    """The lines of one look on a window of so many, without the CLEAR."""
    code, said = terminal.run([CACHECTL, "top", "--count", "1"], env | {
        "TERM": "xterm", "NO_COLOR": "1"}, rows, 100, both=False)
    assert code == 0
    return said.split("\x1b[2J")[-1].replace("\r", "").split("\n")


def check(env: dict[str, str]) -> None:
    all_lines = top(env, 200)
    jobs = [line for line in all_lines if line.startswith("job-")]
    head = all_lines[:all_lines.index(jobs[0])]
    assert len(jobs) == JOBS and not any("more" in s for s in all_lines)
    for rows in range(len(head) + 4, len(all_lines) + 2):
        lines = top(env, rows)
        seen = [line for line in lines if line.startswith("job-")]
        assert len(lines) <= rows, (rows, lines)
        assert len(lines[:lines.index(seen[0])]) == len(head), (rows, lines)
        left = JOBS - len(seen)
        assert (f"{left} more: " in "\n".join(lines)) == (left > 0), lines
    # A pipe has no lines that could be too few.
    text = subprocess.run([CACHECTL, "top", "--count", "1"], env=env,
                          check=True, capture_output=True, text=True).stdout
    assert text.count("\njob-") == JOBS


with tempfile.TemporaryDirectory() as folder:
    env = os.environ | {"SHARDKEEP_SOCKET": f"{folder}/sock"}
    agent = subprocess.Popen([AGENT, "--socket", f"{folder}/sock", "--memory",
                              "256M", "--ready-fd", "1"],
                             stdout=subprocess.PIPE)
    try:
        assert agent.stdout and agent.stdout.read(1)
        for i in range(JOBS):
            subprocess.run([TRAINER, "--mesh", "1", "--steps", "1", "--job",
                            f"job-{i}", "--log", "/dev/null"], env=env,
                           check=True, stdout=subprocess.DEVNULL)
        check(env)
    finally:
        agent.terminate()
        agent.wait()
