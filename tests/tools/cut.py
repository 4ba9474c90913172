#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cachectl where the agent ends before it answers, and another one is there.

What stands between the two passes on all messages but one: then both sides
see an end, before the agent has heard of it or when it has done it. A command
that looks says what it says else; one that changes something has done it once,
or says that nobody can tell. Arguments: shardkeepd, shardkeep-trainer,
cachectl.
"""
import array
import contextlib
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

AGENT, TRAINER, CACHECTL = sys.argv[1:]
BYTES = 576
HEAD = struct.Struct("<4sHH")
NAMES = {1: "hello", 9: "wait", 11: "list", 12: "open", 13: "close",
         14: "report", 15: "pin", 16: "unpin", 17: "evict", 18: "flush",
         19: "stats", 20: "stop", 22: "retain", 26: "status"}
ALWAYS = 1 << 30
# What the machine lacks may change meanwhile, by what else runs on it.
EITHER = {"status": (0, 7), "doctor": (0, 7, 8)}


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, control, _, _ = sock.recvmsg(BYTES, socket.CMSG_SPACE(16))
    except ConnectionError:
        return b"", []
    fds = array.array("i")
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[:len(content) // 4 * 4])
    return data, list(fds)


def send(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    rights = array.array("i", fds).tobytes()
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
    # Who has gone reads no more.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        sock.sendmsg([data], control)


def spoilt(fd: int) -> int:
    """A copy of an image whose last byte is another one."""
    size = os.fstat(fd).st_size
    copy = os.memfd_create("spoilt")
    os.pwrite(copy, os.pread(fd, size, 0), 0)
    os.pwrite(copy, bytes([os.pread(fd, 1, size - 1)[0] ^ 1]), size - 1)
    os.close(fd)
    return copy


class Between:
    """Passes messages on, from @path to @agent."""

    def __init__(self, path: str, agent: str) -> None:
        self.path, self.agent = path, agent
        self.lock = threading.Lock()
        self.begin()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(path)
        self.sock.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def begin(self, cut: str = "", at: int = 1, times: int = 1,
              done: bool = False, spoil: bool = False,
              last: bool = False,
              before: Callable[[], object] | None = None,
              then: Callable[[], object] | None = None) -> None:
        """From its @at-th message called @cut on, @times are cut; @done: when
        the agent has done it. @spoil: its reply arrives, of memory that others
        have written to since. @last: nobody is in its place. @before: nothing
        is cut; that is done before they are passed on. @then: is done when
        the agent has done it, and before anyone asks again."""
        with self.lock:
            self.cut, self.at, self.times = cut, at, times
            self.done, self.spoil, self.last = done, spoil, last
            self.before, self.then = before, then
            self.seen: dict[str, int] = {}

    def cuts(self, name: str) -> bool:
        with self.lock:
            n = self.seen[name] = self.seen.get(name, 0) + 1
            cut = name == self.cut and self.at <= n < self.at + self.times
        if cut and self.last:
            self.leave()
        if cut and self.before:
            self.before()
            return False
        return cut

    def leave(self) -> None:
        os.unlink(self.path)
        self.sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self.pass_on, args=(client,),
                             daemon=True).start()

    def pass_on(self, client: socket.socket) -> None:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with client, agent:
            agent.connect(self.agent)
            while self.is_asked(client, agent) and self.one(client, agent):
                pass

    @staticmethod
    def is_asked(client: socket.socket, agent: socket.socket) -> bool:
        """Whether there is a message, before the agent's end."""
        ready, _, _ = select.select([client, agent], [], [])
        return client in ready

    def one(self, client: socket.socket, agent: socket.socket) -> bool:
        data, fds = receive(client)
        if not data:
            return False
        cut = self.cuts(NAMES.get(HEAD.unpack_from(data)[2], "other"))
        if cut and not (self.done or self.spoil):
            return False
        send(agent, data, fds)
        reply, back = receive(agent)
        if cut and self.then:
            self.then()
        if cut and self.spoil:
            back[0] = spoilt(back[0])
        if reply and (not cut or self.spoil):
            send(client, reply, back)
        for fd in fds + back:
            os.close(fd)
        return bool(reply) and not cut


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"NO_COLOR": "1",
                                 "SHARDKEEP_SOCKET": str(folder / "a.sock")}
        self.env.pop("SHARDKEEP_STORE", None)
        self.agent = self.start()
        self.between = Between(self.env["SHARDKEEP_SOCKET"],
                               str(folder / "real.sock"))

    def start(self) -> subprocess.Popen[bytes]:
        agent = subprocess.Popen(
            [AGENT, "--socket", self.folder / "real.sock", "--store",
             self.folder / "store", "--memory", "256M", "--log-level",
             "error", "--ready-fd", "1"], stdout=subprocess.PIPE)
        assert agent.stdout is not None and agent.stdout.read(1)
        return agent

    def train(self, job: str, steps: int = 2) -> None:
        subprocess.run([TRAINER, "--mesh", "2", "--steps", str(steps),
                        "--flush-every", "1", "--job", job, "--log",
                        "/dev/null"], check=True, stdout=subprocess.DEVNULL,
                       env=self.env | {"SHARDKEEP_SOCKET":
                                       str(self.folder / "real.sock")})
        # Images on disk come while one looks, else.
        self.between.begin()
        for step in range(1, steps + 1):
            r = self.run("flush", "--wait", f"{job}/{step}")
            assert r.returncode == 0, r

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([CACHECTL, *args], check=False, text=True,
                              env=self.env, capture_output=True)

    def asked(self, *args: str) -> dict[str, int]:
        """Its messages when nobody ends."""
        self.between.begin()
        done = self.run(*args)
        assert done.returncode in (0, 7, 8), (args, done)
        return {n: k for n, k in self.between.seen.items() if n != "close"}


def each_cut(scene: Scene, *args: str) -> Iterator[str]:
    for name, n in scene.asked(*args).items():
        for at in range(1, n + 1):
            for done in (False, True):
                scene.between.begin(name, at, done=done)
                yield f"{args}: {name} {at} cut, done: {done}"


def shape(text: str) -> object:
    """What does not change from one second to the next."""
    doc = json.loads(text)
    return {k: len(v) if isinstance(v, list) and
            k not in ("degraded", "checks") else type(v)
            for k, v in doc.items()}


def check_looks(scene: Scene) -> None:
    for command in ("list", "show a", "verify a", f"export a {scene.folder}/x",
                    "status", "stats", "version", "retain a",
                    "retain a --last 3", "retain a --default", "pin a/1",
                    "unpin a/1", "flush --wait a", "doctor"):
        args = ("--json", *command.split())
        fine = scene.run(*args)
        for what in each_cut(scene, *args):
            done = scene.run(*args)
            well = EITHER.get(command, (fine.returncode,))
            assert done.returncode in well, (what, done)
            assert shape(done.stdout) == shape(fine.stdout), (what, done)
            assert not done.stderr, (what, done)


def check_evict(scene: Scene) -> None:
    """Once it is gone it is, whoever has done it."""
    fresh = (f"evict-{i}" for i in range(1000))
    for place in ("--memory", "--disk"):
        for done in (False, True):
            job = next(fresh)
            scene.train(job)
            scene.between.begin("evict", done=done)
            r = scene.run("evict", place, f"{job}/1")
            assert r.returncode == 0, (place, done, r)
            left = json.loads(scene.run("--json", "list", f"{job}/1").stdout)
            for s in left["snapshots"]:
                assert s[place[2:] + "_bytes"] == 0, (place, done, s)
        # What is not there was not evicted just now.
        r = scene.run("evict", place, f"{job}/1")
        assert r.returncode in (1, 4), r
    # A protected one stays, also by the second time.
    scene.between.begin("evict")
    r = scene.run("evict", "a")
    assert r.returncode == 1 and "newest" in r.stderr, r


def check_unpin(scene: Scene) -> None:
    """What was unpinned, and deleted as it was to stay no more, is unpinned."""
    def gone() -> None:
        until = time.monotonic() + 60
        while next(scene.folder.glob("store/pins/step-*1"), None):
            assert time.monotonic() < until, "it stays"
            time.sleep(0.01)

    scene.train("pins", 3)    # memory has two
    for words in ("pin pins/1", "retain pins --last 1"):
        r = scene.run(*words.split())
        assert r.returncode == 0, r
    scene.between.begin("unpin", done=True, then=gone)
    r = scene.run("unpin", "pins/1")
    assert r.returncode == 0 and "unpinned pins@1/1" in r.stdout, r
    # What is not there was not unpinned just now.
    r = scene.run("unpin", "pins/1")
    assert r.returncode == 4, r


def check_damaged(scene: Scene) -> None:
    """What others have written to since the agent ended is no damage."""
    for command in ("verify a", f"export a {scene.folder}/y"):
        for at in (1, 2):
            scene.between.begin("open", at, spoil=True)
            r = scene.run(*command.split())
            assert r.returncode == 0, (command, at, r)
            assert "BAD" not in r.stdout, (command, at, r)
    assert not list(scene.folder.glob("y/*.partial*")), "left over"
    # While it lives it is.
    scene.between.begin("nothing")
    assert scene.run("verify", "a").returncode == 0


def check_leaves(scene: Scene) -> None:
    """Of what leaves between two lists the rest is no whole export."""
    scene.train("leaves")
    assert scene.run("evict", "--memory", "leaves/1").returncode == 0
    assert scene.run("export", "leaves/1", f"{scene.folder}/z").returncode == 0
    shutil.rmtree(scene.folder / "z")
    image, = scene.folder.glob("store/leaves/step-*1/rank-00001-*")
    scene.between.begin("list", at=2, before=image.unlink)
    r = scene.run("export", "leaves/1", f"{scene.folder}/z")
    assert not image.exists(), "asked once"
    assert r.returncode == 4 and "went while" in r.stderr, r
    assert not list(scene.folder.glob("z/*")), "left over"


def check_always(scene: Scene) -> None:
    """Agents that end whenever they are asked are not asked for ever."""
    for command, name in (("list", "list"), ("status", "stats"),
                          ("show a", "open"), ("verify a", "list"),
                          ("pin a", "pin"), ("evict a/1", "evict"),
                          ("flush --wait a", "wait"), ("list", "hello"),
                          ("retain a", "retain"), ("stats", "stats")):
        scene.between.begin(name, times=ALWAYS)
        r = scene.run(*command.split())
        assert r.returncode == 3 and r.stderr, (command, r)
        assert r.stderr.startswith("cachectl: "), (command, r)
        assert not r.stdout, (command, r)


def check_gone(scene: Scene) -> None:
    """Where nobody is in its place, that is said: 3, never 1 or 4."""
    for command, name in (("flush --wait a", "wait"), ("list", "list"),
                          ("pin a", "pin"), ("show a", "open"),
                          ("stop --wait", "stop")):
        scene.between.begin(name, last=True)
        r = scene.run(*command.split())
        assert r.returncode == 3 and r.stderr, (command, r)
        scene.between = Between(scene.between.path, scene.between.agent)
    assert "nobody serves there by now" in r.stderr, r


def check_stop(scene: Scene) -> None:
    """Whose end it was nobody can tell; the next agent is left alone."""
    for wait in ([], ["--wait"]):
        scene.between.begin("stop")
        r = scene.run("stop", *wait)
        assert r.returncode == 3, r
        assert "another one serves there by now" in r.stderr, r
        assert scene.run("list").returncode == 0
    scene.between.begin()
    assert scene.run("stop", "--wait").returncode == 0
    assert scene.agent.wait(60) == 0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shardkeep-cut-") as d:
        scene = Scene(Path(d))
        try:
            scene.train("a")
            check_looks(scene)
            check_damaged(scene)
            check_leaves(scene)
            check_evict(scene)
            check_unpin(scene)
            check_always(scene)
            check_gone(scene)
            check_stop(scene)
        finally:
            scene.agent.kill()
            scene.agent.wait()


main()
