#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cachectl top on a window with fewer lines than there are jobs: its head
stays, and what has no room is counted. Arguments: shardkeepd,
shardkeep-trainer, cachectl.
"""
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios

AGENT, TRAINER, CACHECTL = sys.argv[1:]
JOBS = 9


def top(env: dict[str, str], rows: int) -> list[str]:
    """The lines of one look on a window of so many, without the CLEAR."""
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", rows, 100, 0, 0))
    with subprocess.Popen([CACHECTL, "top", "--count", "1"], stdout=other,
                          env=env | {"TERM": "xterm", "NO_COLOR": "1"}) as p:
        os.close(other)
        said = b""
        try:
            while part := os.read(terminal, 65536):
                said += part
        except OSError:     # the other end is closed
            pass
        assert p.wait() == 0
    os.close(terminal)
    return said.decode().split("\x1b[2J")[-1].replace("\r", "").split("\n")


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
