#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What shardkeepd --metrics serves, and to whom.

Arguments: shardkeepd, cachectl, the demo's trainer.
"""

import http.client
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
import exposition  # noqa: E402

AGENT, CACHECTL, TRAINER = sys.argv[1:4]
CLIENTS = 16        # HTTP_CLIENTS of agent/metrics/http.h


class Agent:
    def __init__(self, folder: str, *options: str,
                 held: Sequence[int] = (), files: int = 0) -> None:
        self.socket = f"{folder}/agent.sock"
        self.log = open(f"{folder}/log", "w+", encoding="utf-8")
        ready, told = os.pipe()
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith("SHARDKEEP_")}
        self.process = subprocess.Popen(
            [*(["prlimit", f"--nofile={files}:{files}"] if files else []),
             AGENT, "--socket", self.socket, "--memory", "64M", "--ready-fd",
             str(told), *options], pass_fds=[told, *held], env=environment,
            stderr=self.log)
        os.close(told)
        assert os.read(ready, 1) == b"1", "the agent did not start"
        os.close(ready)

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def port(self) -> int:
        match = re.search(r"metrics at http://(?:127\.0\.0\.1|\[::1\]):(\d+)/",
                          self.text())
        assert match, f"no port in the log: {self.text()}"
        return int(match[1])

    def cachectl(self, *arguments: str) -> str:
        return subprocess.run([CACHECTL, "--socket", self.socket, *arguments],
                              check=True, capture_output=True,
                              text=True).stdout

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0, f"ended badly: {self.text()}"
        self.log.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def get(port: int, path: str = "/metrics",
        method: str = "GET") -> tuple[int, str, dict[str, str]]:
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request(method, path, body="x" * 100 if method == "POST" else None)
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, text, dict(r.getheaders())


def scrape(port: int) -> exposition.Reader:
    status, text, headers = get(port)
    assert status == 200, status
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return exposition.read(text)


def train(agent: Agent, job: str, steps: int) -> None:
    subprocess.run([TRAINER, "--mesh", "2", "--steps", str(steps),
                    "--flush-every", "2", "--job", job, "--log",
                    "/dev/null"],
                   env=os.environ | {"SHARDKEEP_SOCKET": agent.socket},
                   check=True, stdout=subprocess.DEVNULL)


def check_figures(agent: Agent) -> None:
    port = agent.port()
    before = scrape(port)
    assert exposition.value(before, "shardkeep_jobs") == 0
    train(agent, "llama", 4)
    seen = scrape(port)

    def of(name: str, **labels: str) -> float | None:
        return exposition.value(seen, "shardkeep_" + name, **labels)

    assert of("job_images_sealed_total", job="llama") == 8
    assert of("images_sealed_total") == 8
    assert of("job_copy_seconds_total", job="llama") > 0
    assert of("job_stall_seconds_total", job="llama") > 0
    assert of("stall_seconds_total") == \
        of("job_stall_seconds_total", job="llama")
    assert of("job_bytes_sealed_total", job="llama") == \
        of("bytes_sealed_total") > 0
    assert of("job_step", job="llama", state="sealed") == \
        of("job_step", job="llama", state="complete") == 4
    assert of("job_age_seconds", job="llama", state="sealed") >= 0
    assert of("job_snapshots_durable_total", job="llama") >= 1
    assert of("job_bytes_flushed_total", job="llama") > 0
    assert of("flush_seconds_total") > 0
    assert of("job_memory_bytes", job="llama", uid=str(os.getuid())) == \
        of("memory_used_bytes") > 0
    assert of("refusals_total", reason="busy") is not None
    # The same list, whoever prints it.
    told = exposition.read(agent.cachectl("stats", "--prometheus"))
    assert told.types == seen.types and told.helps == seen.helps
    for name, samples in seen.samples.items():
        assert samples.keys() == told.samples[name].keys(), name


def check_requests(port: int) -> None:
    assert get(port, "/")[0] == 404
    assert get(port, "/../../etc/passwd")[0] == 404
    status, text, _ = get(port, method="HEAD")
    assert (status, text) == (200, "")
    status, _, headers = get(port, method="POST")
    assert status == 405 and headers["Allow"] == "GET, HEAD"
    for request in (b"\0" * 5000, b"GET\r\n\r\n", b"\r\n" * 5000,
                    b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 20000,
                    b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
                    b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 100000,
                    b"GET /metrics HTTP/9.9\r\n\r\n"):
        with connect(port) as s:
            answer = b""
            try:
                s.sendall(request)
                s.shutdown(socket.SHUT_WR)
                while part := s.recv(65536):
                    answer += part
            except OSError:
                pass        # it hung up on us
            assert b" 200 " not in answer[:16], request[:40]
        scrape(port)


def check_loris(agent: Agent) -> None:
    """Those who never end their request keep nobody out, and what they are
    taken for is bounded."""
    port = agent.port()
    slow = []
    for i in range(3 * CLIENTS):
        slow.append(connect(port))
        slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-%d: " % i)
    scrape(port)
    # The first of them made room; that is waited for, not timed.
    assert slow[0].recv(1) == b""
    agent.cachectl("version")
    # The newest is still there.
    slow[-1].sendall(b"y\r\n\r\n")
    assert slow[-1].recv(16).startswith(b"HTTP/1.1 200")
    for s in slow:
        s.close()
    scrape(port)


def check_many(agent: Agent) -> None:
    """Many at once, beside a job."""
    port = agent.port()
    failed = []

    def many() -> None:
        try:
            for _ in range(30):
                scrape(port)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=many) for _ in range(8)]
    for t in threads:
        t.start()
    train(agent, "other", 6)
    for t in threads:
        t.join()
    assert not failed, failed
    one, two = scrape(port), scrape(port)
    for name, samples in one.samples.items():
        if one.types[name] == "counter":
            for key, value in samples.items():
                assert two.samples[name][key] >= value, name


def check_descriptors(folder: str) -> None:
    """An agent with many slots has more descriptors than the 1,024 that
    select() can wait for: figures are served by those beyond as well."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 4096:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, limits[1]))
    os.mkdir(f"{folder}/many")
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    agent = Agent(f"{folder}/many", "--metrics", "127.0.0.1:0", held=held)
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    scrape(agent.port())
    agent.end()


def check_refused(folder: str) -> None:
    """Connections beyond the limit are refused, and the log says by which,
    once for all of them: who is refused comes again at once."""
    os.mkdir(f"{folder}/few")
    agent = Agent(f"{folder}/few", files=64)
    socks = []
    for _ in range(40):
        socks.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        socks[-1].connect(agent.socket)
    assert any(s.recv(1) == b"" for s in socks[20:])
    # Who says hello hears why, and who is there when another goes is served.
    ask = [CACHECTL, "--socket", agent.socket, "list"]
    told = subprocess.run(ask, capture_output=True, text=True, check=False)
    assert told.returncode == 3, told
    assert "no descriptor left for another connection" in told.stderr, told
    waits = subprocess.Popen(ask, stdout=subprocess.DEVNULL)
    for s in socks:
        s.close()
    assert waits.wait() == 0
    said = re.findall("a connection is refused: .*ulimit -n", agent.text())
    assert len(said) == 1, agent.text()
    agent.end()


def refuses(*options: str) -> str:
    r = subprocess.run([AGENT, "--socket", "/nowhere/x", *options],
                       capture_output=True, text=True, check=False)
    assert r.returncode == 2, (options, r)
    return r.stderr


def check_addresses(folder: str) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "10.1.2.3:80"):
        assert "--metrics-public" in refuses("--metrics", address)
    for address in ("", "x", "127.0.0.1:", "127.0.0.1:70000", "example.org:80",
                    "1:2:3", "[::1:80", "/" + "x" * 200, "9477x", "-1"):
        assert "--metrics" in refuses("--metrics", address), address
    # One that may be reached from elsewhere, as was asked for.
    os.mkdir(f"{folder}/public")
    public = Agent(f"{folder}/public", "--metrics", "0.0.0.0:0",
                   "--metrics-public")
    port = re.search(r"http://0\.0\.0\.0:(\d+)/metrics", public.text())[1]
    scrape(int(port))
    public.end()


def check_two(folder: str, first: Agent) -> None:
    """Each finds a port that is free; one that is taken ends nobody, and is
    had when it is free."""
    os.mkdir(f"{folder}/second")
    second = Agent(f"{folder}/second", "--metrics", "127.0.0.1:0")
    assert second.port() != first.port()
    scrape(second.port())
    os.mkdir(f"{folder}/third")
    third = Agent(f"{folder}/third", "--metrics", str(second.port()))
    assert "degraded: metrics-port" in third.text()
    third.cachectl("version")
    port = second.port()
    second.end()
    while "metrics at http" not in third.text():
        third.cachectl("version")
        threading.Event().wait(0.1)
    assert third.port() == port
    assert exposition.value(scrape(port), "shardkeep_degraded",
                            state="metrics-port") == 0
    third.end()


def check_path(folder: str) -> None:
    os.mkdir(f"{folder}/path")
    path = f"{folder}/path/metrics.sock"
    # One that a dead agent left.
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
    agent = Agent(f"{folder}/path", "--metrics", path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while part := s.recv(65536):
            answer += part
    exposition.read(answer.decode().split("\r\n\r\n", 1)[1])
    agent.end()
    assert not os.path.exists(path)


def check_file(folder: str) -> None:
    os.mkdir(f"{folder}/file")
    path = f"{folder}/file/shardkeep.prom"
    agent = Agent(f"{folder}/file", "--metrics-file", path)
    while not os.path.exists(path):
        threading.Event().wait(0.05)
    seen = exposition.read(Path(path).read_text(encoding="utf-8"))
    assert exposition.value(seen, "shardkeep_memory_budget_bytes") == 64 << 20
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert not os.path.exists(path + ".new")
    # What is not any more is not told; what another one wrote stays.
    agent.end()
    assert not os.path.exists(path), "figures of nobody"
    agent = Agent(f"{folder}/file", "--metrics-file", path)
    while not os.path.exists(path):
        threading.Event().wait(0.05)
    Path(path + ".other").write_text("# another's\n", encoding="utf-8")
    os.rename(path + ".other", path)
    agent.end()
    assert os.path.exists(path), "another's figures"
    # Where it cannot be, the agent says so once and serves.
    agent = Agent(f"{folder}/file", "--metrics-file", f"{folder}/no/where")
    while "cannot write metrics" not in agent.text():
        threading.Event().wait(0.05)
    os.mkdir(f"{folder}/no")
    while "no longer degraded: metrics-file" not in agent.text():
        threading.Event().wait(0.1)
    exposition.read(Path(f"{folder}/no/where").read_text(encoding="utf-8"))
    agent.end()
    # What is no file, a device for one, is not replaced by one that goes again.
    os.mkfifo(path + ".fifo")
    agent = Agent(f"{folder}/file", "--metrics-file", path + ".fifo")
    while f"{path}.fifo is there, and no file" not in agent.text():
        threading.Event().wait(0.05)
    agent.end()
    assert stat.S_ISFIFO(os.stat(path + ".fifo").st_mode)


def main() -> None:
    exposition.check_itself()
    with tempfile.TemporaryDirectory(prefix="shardkeep-metrics-") as folder:
        agent = Agent(folder, "--metrics", "127.0.0.1:0", "--store",
                      f"{folder}/store")
        check_figures(agent)
        check_requests(agent.port())
        check_loris(agent)
        check_many(agent)
        check_two(folder, agent)
        agent.end()
        check_descriptors(folder)
        check_refused(folder)
        check_addresses(folder)
        check_path(folder)
        check_file(folder)


main()
