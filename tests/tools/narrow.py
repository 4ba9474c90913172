#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cachectl on terminals of fewer than 80 columns, and on those that know no
escapes: what it prints has room, and so has the line that it draws over
itself while an agent keeps it waiting. Arguments: shardkeepd,
shardkeep-trainer, cachectl.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading

import terminal

AGENT, TRAINER, CACHECTL = sys.argv[1:]
JOB = "a-name-that-some-launcher-has-made-of-20261128-000001"


def on_terminal(env: dict[str, str], columns: int, *command: str,
                term: str = "xterm") -> str:
    code, said = terminal.run([CACHECTL, *command], env | {
        "TERM": term, "NO_COLOR": "1"}, 24, columns)
    # doctor and status tell of the machine that this runs on.
    assert code in (0, 7, 8), (command, said)
    return said.replace("\r\n", "\n")


def tables(env: dict[str, str]) -> None:
    for command in (["list"], ["list", "-v"], ["verify", JOB], ["show", JOB],
                    ["top", "-n", "1"]):
        for columns in (60, 40):
            said = on_terminal(env, columns, *command).split("\x1b[2J")[-1]
            # A name that stands alone, as a path does, stays in one piece.
            over = [s for s in said.split("\n")
                    if len(s) > columns and s != f"job     {JOB}"]
            assert not over, (command, columns, over)
    said = on_terminal(env, 40, "list")
    assert "\nRUN     1\nSTEP    3\n" in said, said
    assert said.startswith("JOB     a-") and "000001\n" in said, said
    # A pipe has rows, and so has a terminal that does not know how wide it is.
    for said in (subprocess.run([CACHECTL, "list"], env=env, check=True,
                                capture_output=True, text=True).stdout,
                 on_terminal(env, 0, "list")):
        assert said.startswith("JOB ") and " STEP " in said.split("\n")[0], said


def kept_waiting(env: dict[str, str], pid: int) -> None:
    """By an agent that is stopped for some seconds."""
    for columns, term in ((12, "xterm"), (80, "dumb")):
        os.kill(pid, signal.SIGSTOP)
        later = threading.Timer(3, os.kill, (pid, signal.SIGCONT))
        later.start()
        said = on_terminal(env, columns, "--json", "list", term=term)
        later.join()
        drawn = said[:said.index("{")]
        if term == "dumb":
            assert not drawn, drawn
            continue
        lines = drawn.replace("\x1b[K", "").split("\r")
        assert any(lines) and "\n" not in drawn, drawn
        assert all(len(line) < columns for line in lines), lines


with tempfile.TemporaryDirectory() as folder:
    env = os.environ | {"SHARDKEEP_SOCKET": f"{folder}/sock"}
    agent = subprocess.Popen([AGENT, "--socket", f"{folder}/sock", "--memory",
                              "256M", "--ready-fd", "1"],
                             stdout=subprocess.PIPE)
    try:
        assert agent.stdout and agent.stdout.read(1)
        subprocess.run([TRAINER, "--mesh", "2", "--steps", "3", "--job", JOB,
                        "--log", "/dev/null"], env=env, check=True,
                       stdout=subprocess.DEVNULL)
        tables(env)
        kept_waiting(env, agent.pid)
    finally:
        agent.terminate()
        agent.wait()
