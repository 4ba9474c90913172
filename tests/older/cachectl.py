#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cachectl, and a trainer, with agents of other versions of the wire.

Arguments: the agent of the version before, shardkeep-trainer, cachectl.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stranger import Stranger

AGENT, TRAINER, CACHECTL = sys.argv[1:]


def run(*args, code=0, env=None):
    done = subprocess.run([CACHECTL, *args], check=False, text=True, env=env,
                          capture_output=True)
    # The machine may lack something, which status says.
    well = (code, 7) if args[0] == "status" else (code,)
    assert done.returncode in well, (args, done)
    return done.stdout if code == 0 else done.stderr


def doctor(env):
    done = subprocess.run([CACHECTL, "--json", "doctor"], check=False,
                          text=True, env=env, capture_output=True)
    return next(c for c in json.loads(done.stdout)["checks"]
                if c["check"] == "agent")


def start(folder, env):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    agent = subprocess.Popen(
        [AGENT, "--socket", env["SHARDKEEP_SOCKET"], "--store",
         folder / "store", "--memory", "256M", "--ready-fd", str(write)],
        pass_fds=[write])
    os.close(write)
    assert os.read(read, 1), "the agent did not start"
    os.close(read)
    return agent


def test_before(folder, env):
    agent = start(folder, env)
    try:
        commands(folder, env)
        assert agent.wait(60) == 0
    finally:
        agent.kill()


def commands(folder, env):
    """Each does with it what it does with ours."""
    subprocess.run([TRAINER, "--mesh", "2", "--steps", "2", "--flush-every",
                    "1", "--job", "a", "--log", folder / "log"], check=True,
                   env=env, stdout=subprocess.DEVNULL)
    version = json.loads(run("--json", "version", env=env))
    assert version["agent_wire"] == version["spoken_wire"], version
    assert version["spoken_wire"] == version["wire"] - 1, version
    found = doctor(env)
    assert found["verdict"] == "warn", found
    assert "upgrade the agent" in found["remedy"], found
    steps = json.loads(run("--json", "list", env=env))["snapshots"]
    assert [s["step"] for s in steps] == [2, 1], steps
    for args in ("show a", "verify a", "pin a", "unpin a", "flush --wait a",
                 "status", "stats", "evict --disk a/1"):
        run(*args.split(), env=env)
    run("stop", "--wait", env=env)


def test_refused(env):
    socket, says = env["SHARDKEEP_SOCKET"], "speaks versions 98 and 99; this"
    ours = json.loads(run("--json", "version", env=env))["wire"]
    for stranger, words in (
            (dict(speaks=99, refuses=says), says),
            (dict(speaks=99), "speaks version 99 of the protocol"),
            (dict(speaks=2, hangs_up=True), "speaks version 2 of the"),
            (dict(speaks=ours - 2), "upgrade the agent")):
        agent = Stranger(socket, **stranger)
        assert words in run("list", env=env, code=1), stranger
        found = doctor(env)
        assert found["verdict"] == "fail" and words in found["found"], found
        agent.close()


def main():
    with tempfile.TemporaryDirectory() as d:
        env = dict(os.environ, SHARDKEEP_SOCKET=d + "/agent.sock",
                   NO_COLOR="1")
        test_before(Path(d), env)
        test_refused(env)


main()
