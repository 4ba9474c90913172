#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store on a real filesystem that is too small, full, read-only, gone and
back: training goes on, status and doctor say what and what to do, and all is
well again without a restart.

Arguments: shardkeepd, cachectl, the demo's trainer; and where two agents are
to share the store, and nothing else is tried, the one of several nodes. Runs
in namespaces of its own, where it may mount; skipped where there are none to
be had.
"""

import contextlib
import glob
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

AGENT, CACHECTL, TRAINER = sys.argv[1:4]
ON_NODES = sys.argv[4] if len(sys.argv) > 4 else ""
MOST_S = 60
# Of a rank of four, on disk.
IMAGE = 590000
AGENTS: list[subprocess.Popen[bytes]] = []


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


class Agent:
    def __init__(self, folder: str, store: str) -> None:
        self.socket = f"{folder}/agent.sock"
        self.store = store
        self.log = f"{folder}/log"
        ready, told = os.pipe()
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [AGENT, "--socket", self.socket, "--store", store, "--memory",
                 "64M", "--ready-fd", str(told), "--metrics", "127.0.0.1:0"],
                pass_fds=[told], stderr=log)
        AGENTS.append(self.process)
        os.close(told)
        assert os.read(ready, 1) == b"1", "the agent did not start"
        os.close(ready)

    def cachectl(self, *arguments: str) -> tuple[int, str]:
        r = subprocess.run([CACHECTL, "--socket", self.socket, *arguments],
                           capture_output=True, text=True, check=False)
        return r.returncode, r.stdout

    def status(self) -> tuple[set[str], int]:
        code, text = self.cachectl("--json", "status")
        status = json.loads(text)
        for state in status["degraded"]:
            assert state["what"] and state["remedy"], state
        states = {s["state"] for s in status["degraded"]}
        assert code == (7 if states else 0), (code, states)
        return states, status

    def until(self, state: str, on: bool) -> None:
        end = time.monotonic() + MOST_S
        while (state in self.status()[0]) != on:
            assert time.monotonic() < end, (state, on, self.status())
            threading.Event().wait(0.1)

    def doctor(self) -> dict[str, str]:
        code, text = self.cachectl("--json", "doctor")
        said = json.loads(text)
        worst = {"ok": 0, "warn": 7, "fail": 8}[said["verdict"]]
        assert code == worst, (code, said)
        for check in said["checks"]:
            assert check["found"], check
            assert bool(check["remedy"]) == (check["verdict"] != "ok"), check
        return {c["check"]: c["verdict"] for c in said["checks"]}

    def metric(self, state: str) -> int:
        return self.figure(f'degraded{{state="{state}"}}')

    def figure(self, name: str) -> int:
        _, text = self.cachectl("stats", "--prometheus")
        return int(re.search(rf"^shardkeep_{name} (\d+)", text, re.M)[1])

    def train(self, job: str, steps: int = 3,
              how: tuple[str, ...] = ()) -> None:
        """Every step goes to memory whatever becomes of the disk."""
        subprocess.run([*(how or (TRAINER, "--mesh", "2")), "--steps",
                        str(steps), "--flush-every", "1", "--job", job,
                        "--log", "/dev/null"],
                       env=os.environ | {"SHARDKEEP_SOCKET": self.socket},
                       check=True, stdout=subprocess.DEVNULL)
        code, text = self.cachectl("--json", "list", job)
        newest = json.loads(text)["snapshots"][0]
        assert code == 0 and newest["step"] == steps, newest
        assert "complete" in newest["state"] or how, newest

    def durable(self, job: str, step: int = 3) -> None:
        end = time.monotonic() + MOST_S
        while True:
            _, text = self.cachectl("--json", "list", f"{job}/{step}")
            newest = json.loads(text)["snapshots"][0]
            if "durable" in newest["state"]:
                return
            assert time.monotonic() < end, newest
            threading.Event().wait(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0
        with open(self.log, encoding="utf-8") as log:
            self.said = log.read()


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Who writes and deletes meanwhile has other room than was measured."""
    living = [a.pid for a in AGENTS if a.poll() is None]
    for pid in living:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
    yield
    for pid in living:
        os.kill(pid, signal.SIGCONT)


def fill(store: str, room: int) -> None:
    path = f"{store}/others"
    has = os.statvfs(store)
    size = os.path.getsize(path) if os.path.exists(path) else 0
    with open(path, "wb") as others:
        others.write(b"x" * (size + has.f_bavail * has.f_frsize - room))


def leave(store: str, room: int) -> None:
    """Others fill the disk but for that."""
    with frozen():
        fill(store, room)


def spent_in(job: str) -> int:
    """What is tried just now has its room as well."""
    return sum(os.stat(f"{job}/{folder}/{name}").st_blocks * 512
               for folder in os.listdir(job) if folder.startswith("step-")
               for name in os.listdir(f"{job}/{folder}") if "rank-" in name)


def parts(agent: Agent, store: str) -> None:
    """What was written of a step before the disk was full, and is whole
    nowhere any more, takes no room from the steps that come after it."""
    step = f"{store}/full/step-000000000003"
    one, other = sorted(os.path.getsize(f"{step}/{name}")
                        for name in os.listdir(step)
                        if name.startswith("rank-"))

    # For one rank of the first step.
    leave(store, other + one // 3)
    agent.train("parts")
    agent.until("store-full", True)
    # For one of the two that are left in memory, and half a rank.
    with frozen():
        spent = spent_in(f"{store}/parts")
        assert spent >= one, "nothing was written"
        fill(store, one + other + one // 2 - spent)
    agent.durable("parts", 2)
    assert not glob.glob(f"{store}/parts/*01/rank-*"), "step 1 is there"
    os.unlink(f"{store}/others")
    agent.durable("parts")
    agent.until("store-full", False)


def pinned(agent: Agent, store: str) -> None:
    """What is pinned leaves no room for the next step: whose that is, what it
    takes and what to do is told, and each of these has it written."""
    def train_pinned(job: str) -> None:
        leave(store, IMAGE * 10)
        agent.train(job, 2)
        for step in (1, 2):
            agent.durable(job, step)
            assert agent.cachectl("pin", f"{job}/{step}")[0] == 0
        leave(store, IMAGE // 2)
        agent.train(job)
        agent.until("store-full", True)
        why = next(s["why"] for s in agent.status()[1]["degraded"]
                   if s["state"] == "store-full")
        assert re.match(rf'step 3 of job "{job}" needs [\d.]+ MiB, and '
                        r"[\d.]+ KiB are free", why), why
        assert agent.doctor()["room"] == "warn"

    train_pinned("unpinned")
    assert agent.cachectl("retain", "unpinned", "--last", "1")[0] == 0
    agent.until("store-full", True)
    assert agent.cachectl("unpin", "unpinned/1")[0] == 0
    agent.durable("unpinned")
    train_pinned("evicted")
    assert agent.cachectl("evict", "--disk", "--force", "evicted/1")[0] == 0
    agent.durable("evicted")
    os.unlink(f"{store}/others")
    agent.until("store-full", False)


def no_store(agent: Agent, store: str, on: bool) -> None:
    if on:
        subprocess.run(["umount", "-l", agent.store], check=True)
    else:
        mount("--bind", store, agent.store)
    agent.until("store-gone", on)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + MOST_S
    while not what():
        assert time.monotonic() < end, inspect.getsource(what)
        threading.Event().wait(0.1)


def parts_of_two(folder: str, store: str) -> None:
    """Of a job of two agents, what is left over of an agent's own makes room,
    and what another one has written into that step stays."""
    for name in ("nodes", "alone"):
        os.makedirs(f"{folder}/{name}/view")
        mount("--bind", store, f"{folder}/{name}/view")
        os.makedirs(f"{folder}/{name}/gpus")
    agent = Agent(f"{folder}/nodes", f"{folder}/nodes/view")
    other = Agent(f"{folder}/alone", f"{folder}/alone/view")
    nodes = (ON_NODES, "--mesh", "4", "--node", agent.socket, "--node",
             other.socket)

    def written(job: str) -> list[str]:
        return sorted(os.path.basename(name) for name in glob.glob(
            f"{store}/{job}/step-000000000001/rank-*"))

    def failures() -> int:
        return agent.figure("flush_errors_total")

    for job in ("known", "unknown"):
        # For one rank; then the other agent has room, and this one no store.
        no_store(other, store, True)
        leave(store, IMAGE + IMAGE // 3)
        agent.train(job, 1, nodes)
        until(lambda: len(written(job)) == 1)
        agent.until("store-full", True)
        no_store(agent, store, True)
        leave(store, IMAGE * 3)
        no_store(other, store, False)
        until(lambda: len(written(job)) == 3)
        leave(store, IMAGE // 3)
        no_store(agent, store, False)
        agent.train(job, 3, nodes)
        if job == "known":
            agent.cachectl("list", job)
        code, text = agent.cachectl("evict", "--force", f"{job}@1/1")
        assert code == 0, text
        before = failures()
        until(lambda: failures() > before + 2)
        assert len(written(job)) == 3, written(job)
        os.unlink(f"{store}/others")
        until(lambda: len(glob.glob(f"{store}/{job}/step-*3/rank-*")) == 4)

    # What it has written itself, of a job of which the other one writes
    # nothing, is of no use to anybody.
    no_store(other, store, True)
    leave(store, IMAGE + IMAGE // 3)
    agent.train("own", 3, nodes)
    until(lambda: bool(glob.glob(f"{store}/own/*/rank-*")))
    until(lambda: not written("own"))
    os.unlink(f"{store}/others")
    until(lambda: len(glob.glob(f"{store}/own/step-*3/rank-*")) == 2)
    no_store(other, store, False)
    for a in (agent, other):
        a.end()
        subprocess.run(["umount", a.store], check=True)


def check(folder: str) -> None:
    store = f"{folder}/store"
    os.mkdir(store)
    if ON_NODES:
        mount("-t", "tmpfs", "-o", "size=16M", "none", store)
        parts_of_two(folder, store)
        subprocess.run(["umount", store], check=True)
        return
    mount("-t", "tmpfs", "-o", "size=1M", "none", store)
    agent = Agent(folder, store)
    assert agent.status()[0] >= {"store-volatile"}
    assert agent.doctor()["store"] == "warn"

    # Full, and then there is room. Beside the word stands what is left now,
    # not what was before others filled it.
    with open(f"{store}/others", "wb") as others:
        others.write(b"x" * (900 << 10))
    agent.train("full")
    agent.until("store-full", True)
    left = agent.status()[1]["store_free_bytes"]
    assert left <= (124 << 10), f"full, with {left} bytes free"
    assert agent.metric("store-full") == 1
    assert agent.doctor()["store-full"] == "warn"
    mount("-o", "remount,size=64M", store)
    agent.until("store-full", False)
    agent.durable("full")
    assert agent.metric("store-full") == 0

    # Room for bytes and for no file, and then for files.
    has = os.statvfs(store)
    mount("-o", f"remount,nr_inodes={has.f_files - has.f_ffree}", store)
    assert agent.doctor()["room"] == "warn"
    agent.train("files")
    agent.until("store-full", True)
    mount("-o", "remount,nr_inodes=10000", store)
    agent.until("store-full", False)
    agent.durable("files")
    assert agent.doctor()["room"] == "ok"

    parts(agent, store)
    pinned(agent, store)

    # Read-only, as far as the path says, and then not.
    mount("--bind", store, store)
    mount("-o", "remount,bind,ro", store)
    agent.until("store-read-only", True)
    agent.train("read-only")
    subprocess.run(["umount", "-l", store], check=True)
    agent.until("store-read-only", False)
    agent.durable("read-only")

    # Another filesystem in its place: it is the store from then on.
    subprocess.run(["umount", "-l", store], check=True)
    os.rmdir(store)
    with open(store, "w", encoding="utf-8"):
        pass
    agent.until("store-gone", True)
    assert agent.doctor()["store"] == "fail"
    agent.train("gone")
    os.unlink(store)
    os.mkdir(store)
    mount("-t", "tmpfs", "-o", "size=64M", "none", store)
    agent.until("store-gone", False)
    agent.durable("gone")

    # A job's directory goes: who lists all jobs next sees that, and it is
    # written once more.
    written = f"{store}/gone/step-000000000003"
    shutil.rmtree(f"{store}/gone")
    _, text = agent.cachectl("--json", "list")
    newest = next(s for s in json.loads(text)["snapshots"]
                  if s["job"] == "gone")
    assert newest["step"] == 3, newest
    assert "durable" not in newest["state"] or os.path.exists(written), newest
    agent.durable("gone")

    # Nothing in its place but what it was mounted on: that is not the store.
    subprocess.run(["umount", "-l", store], check=True)
    agent.until("store-gone", True)
    agent.train("bare")
    threading.Event().wait(0.5)
    assert not os.listdir(store), os.listdir(store)
    assert agent.doctor()["store-gone"] == "warn"
    mount("-t", "tmpfs", "-o", "size=64M", "none", store)
    agent.until("store-gone", False)
    agent.durable("bare")
    agent.end()
    for state in ("store-full", "store-read-only", "store-gone"):
        assert f"degraded: {state}" in agent.said, state
        assert f"no longer degraded: {state}" in agent.said, state
    subprocess.run(["umount", store], check=True)


def main() -> None:
    if "SK_TEST_INSIDE" not in os.environ:
        inside = ["unshare", "--user", "--map-root-user", "--mount"]
        try:
            may = subprocess.run([*inside, "mount", "-t", "tmpfs", "none",
                                  "/mnt"], capture_output=True, check=False)
        except FileNotFoundError:
            sys.exit(77)
        if may.returncode != 0:
            sys.exit(77)
        os.environ["SK_TEST_INSIDE"] = "1"
        os.execvp(inside[0], [*inside, *sys.argv])
    with tempfile.TemporaryDirectory(prefix="shardkeep-disk-",
                                     ignore_cleanup_errors=True) as folder:
        try:
            check(folder)
        finally:
            for agent in AGENTS:
                agent.kill()


main()
