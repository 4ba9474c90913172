#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/demo in a checkout whose path has spaces: all of it; what it says of
numbers that it cannot do; and that whoever ends it, at a terminal too, has
nothing of it left: no process, no file.
Arguments: the source, the agent, cachectl, the trainer, the one with GPUs.
"""
import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

source, agent, cachectl, trainer, on_gpus = map(pathlib.Path, sys.argv[1:])
# Ends where it is asked for the reference, and else hangs and says so.
HANGS = """#!/bin/sh
case "$*" in
*--no-snapshots*) ;;
*) echo >"$SK_TEST_HANGS"; exec sleep 1000 ;;
esac
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def checkout(top, train, train_on_gpus):
    """All is built there already: setting up and building are no matter here."""
    for name in "setup", "build":
        program(top / "tools" / name, "#!/bin/sh\n")
    for name in "demo", "together":
        shutil.copy(source / "tools" / name, top / "tools")
    shutil.copytree(source / "tests/demo", top / "tests/demo")
    build = top / "build/demo"
    for name, there in {
        "agent/shardkeepd": agent,
        "tools/cachectl/cachectl": cachectl,
        "tools/trainer/shardkeep-trainer": train,
        "tests/demo-gpus": train_on_gpus,
        "tests/sim/vcuda.so.1": on_gpus.parent / "sim/vcuda.so.1",
        "tests/sim/vnccl.so.2": on_gpus.parent / "sim/vnccl.so.2",
    }.items():
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).symlink_to(there.resolve())
    return top / "tools/demo"


def processes(mark):
    """That have @mark in their environment, but us."""
    for each in pathlib.Path("/proc").iterdir():
        try:
            if (each.name.isdigit() and int(each.name) != os.getpid()
                    and mark in (each / "environ").read_bytes().split(b"\0")):
                yield int(each.name), (each / "cmdline").read_bytes()
        except OSError:
            pass


def nothing_left(temporary):
    assert not list(temporary.iterdir()), list(temporary.iterdir())
    # What it has killed, but not waited for, is gone in a moment.
    end = time.monotonic() + 30
    while left := list(processes(b"TMPDIR=" + bytes(temporary))):
        if time.monotonic() > end:
            for pid, _ in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind: {left}")
        time.sleep(0.05)


def read_while(fd, process):
    """Until it has ended: whoever writes to a terminal waits for its reader."""
    while process.poll() is None:
        if select.select([fd], [], [], 0.05)[0]:
            try:
                os.read(fd, 65536)
            except OSError:
                process.wait()


def ends(demo, options, temporary, number, status):
    """Killed while a trainer hangs, with an agent beside it."""
    hangs = temporary.parent / "hangs"
    os.mkfifo(hangs)
    env = dict(os.environ, TMPDIR=str(temporary), SK_TEST_HANGS=str(hangs))
    ours, its = pty.openpty()
    with subprocess.Popen([demo, *options], env=env, stdin=its, stdout=its,
                          stderr=its, start_new_session=True) as process:
        os.close(its)
        with open(hangs):
            pass
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        read_while(ours, process)
    os.close(ours)
    assert process.returncode == status, (options, number, process.returncode)
    nothing_left(temporary)
    hangs.unlink()


def refuses(demo, temporary):
    for options, said in {
        ("--nodes",): "--nodes takes a number from 1 to 16",
        ("--nodes", "0"): "--nodes takes a number from 1 to 16",
        ("--gpus", "1x"): "--gpus takes a number from 1 to 16",
        ("--gpus", "2", "--nodes", "17"): "--nodes takes a number",
        ("--nodes", "5"): "5 nodes of 4 GPUs each are more than 16 GPUs",
        ("--else",): "--nodes N --gpus M",
    }.items():
        done = subprocess.run([demo, *options], capture_output=True, text=True,
                              env=dict(os.environ, TMPDIR=str(temporary)))
        assert done.returncode == 2, (options, done)
        assert said in done.stdout + done.stderr, (options, done)
    nothing_left(temporary)


def does(demo, options, temporary):
    done = subprocess.run([demo, *options], text=True,
                          env=dict(os.environ, TMPDIR=str(temporary)),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0 and " steps are equal\n" in done.stdout, done
    nothing_left(temporary)


def says_who_was_killed(top):
    """The trainer, of a rank that cannot say anything itself."""
    with subprocess.Popen([trainer, "--no-snapshots", "--steps", "1000000000",
                           "--log", top / "loss"], stderr=subprocess.PIPE,
                          text=True) as process:
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}"
                                "/children")
        while len(ranks := children.read_text().split()) < 4:
            time.sleep(0.01)
        os.kill(int(ranks[2]), signal.SIGKILL)
        said = process.stderr.read()
    assert process.returncode == 1, process.returncode
    assert said == "shardkeep-trainer: rank 2 was killed: Killed\n", said


def is_done(top):
    """The trainer, of a job that has nothing to do any more."""
    socket = top / "agent.sock"
    ready, its = os.pipe()
    with subprocess.Popen([agent, "--socket", socket, "--memory", "64M",
                           "--store", top / "kept", "--log-level", "error",
                           "--ready-fd", str(its)],
                          pass_fds=[its]) as serves:
        os.close(its)
        try:
            assert os.read(ready, 1)
            for _ in range(2):
                subprocess.run([trainer, "--mesh", "2", "--steps", "2",
                                "--log", top / "loss"], check=True, env=dict(
                                    os.environ, SHARDKEEP_SOCKET=str(socket)),
                               stdout=subprocess.DEVNULL, timeout=60)
        finally:
            serves.terminate()
            os.close(ready)


def main():
    # Whoever began this in the background may have had them ignored.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="demo of ") as top:
        top = pathlib.Path(top)
        temporary = top / "temporary"
        temporary.mkdir()
        program(top / "hanging", HANGS)
        hanging = checkout(top / "a checkout", top / "hanging", top / "hanging")
        refuses(hanging, temporary)
        for options in (), ("--nodes", "2", "--gpus", "1"):
            for number, status in {signal.SIGTERM: 143, signal.SIGINT: 130,
                                   signal.SIGHUP: 129}.items():
                ends(hanging, options, temporary, number, status)
        says_who_was_killed(top)
        is_done(top)
        whole = checkout(top / "another checkout", trainer, on_gpus)
        does(whole, (), temporary)
        does(whole, ("--nodes", "8", "--gpus", "1"), temporary)


if __name__ == "__main__":
    main()
