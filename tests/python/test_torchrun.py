# SPDX-License-Identifier: Apache-2.0
"""Jobs that torchrun starts, and starts again: in place, on fewer nodes, and
on more."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import linear
import older
import pytest
import torch.distributed as dist
from harness import BOUND_S, Nodes
from older import needs_fsdp2

HERE = pathlib.Path(__file__).parent
DOCS = HERE.parents[1] / "docs"

needs_averages = pytest.mark.skipif(
    not (older.FSDP2_ON_CPU and older.AVERAGES),
    reason="FSDP2 trains otherwise on another number of ranks")


def _documented() -> tuple[dict[str, str], list[list[str]]]:
    """What docs/deploy.md exports, and its commands: of one node, of each of
    several."""
    text = (DOCS / "deploy.md").read_text()
    block = text.split("\n## torchrun\n\n")[1].split("\n\n")[0]
    lines = [shlex.split(x, comments=True)
             for x in block.replace("\\\n", " ").splitlines()]
    exported = dict(x.split("=", 1) for x in lines[0][1:])
    return exported, [x[1:] for x in lines[1:] if x[0] == "torchrun"]


def _deployed() -> tuple[dict[str, str], list[str]]:
    """What the job of kubernetes.yaml has and is."""
    text = (DOCS / "examples/deploy/kubernetes.yaml").read_text()
    found = re.search(r"command: \[torchrun, ([^]]*)\]", text)
    assert found
    return (dict(re.findall(r"{name: (\w+), value: \"?([^}\"]*)\"?}", text)),
            [x.strip() for x in found[1].split(",")])


def _args(command: list[str], *script: str, **other: object) -> list[str]:
    """The command with other options, and another script."""
    said = {f"--{k.replace('_', '-')}": v for k, v in other.items()}
    kept = [x for x in command[:-1] if x.partition("=")[0] not in said]
    assert command[-1] == "train.py" and len(kept) + len(said) >= len(
        command) - 1
    return [*kept, *(f"{k}={v}" for k, v in said.items()), *script]


class Torchrun:
    """One node's, whose ranks find that node's agent; its output in a
    file."""

    def __init__(self, log: pathlib.Path, socket: str, exported: dict[str, str],
                 args: list[str]) -> None:
        env = {**os.environ, **exported, "SHARDKEEP_SOCKET": socket,
               "PYTHONPATH": os.pathsep.join(filter(None, (
                   str(HERE), os.environ.get("PYTHONPATH")))),
               "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self._log = log
        with open(log, "ab") as out:
            self._it = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run",
                 "--monitor-interval=0.1", *args], env=env, stdout=out,
                stderr=subprocess.STDOUT, cwd=log.parent)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def runs(self) -> bool:
        return self._it.poll() is None

    def wait(self) -> int:
        return self._it.wait(BOUND_S)

    def lose(self) -> None:
        """The node: its ranks are killed, and the launcher leaves."""
        for pid in self._ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._it.terminate()
        self.wait()

    def _ranks(self) -> list[int]:
        of = pathlib.Path(f"/proc/{self._it.pid}/task").glob("*/children")
        return [int(x) for f in of for x in f.read_text().split()]

    def end(self) -> None:
        """Whatever became of it."""
        if self.runs():
            for pid in [*self._ranks(), self._it.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._it.wait()


class Job:
    """An elastic job on up to two nodes, whose launchers meet in a store of
    this process."""

    def __init__(self, directory: pathlib.Path, nodes: Nodes,
                 kind: str) -> None:
        self._at, self._nodes, self._kind = directory, nodes, kind
        self._store = dist.TCPStore("localhost", 0, is_master=True,
                                    wait_for_workers=False)
        self._of: dict[int, Torchrun] = {}

    def begin(self, node: int) -> None:
        exported, (_, of_several) = _documented()
        self._begin(node, exported, _args(
            of_several, *self._script(), nnodes="1:2",
            nproc_per_node=2,
            rdzv_endpoint=f"localhost:{self._store.port}",
            rdzv_conf="is_host=0,last_call_timeout=2",
            local_addr="localhost"))

    def begin_alone(self, exported: dict[str, str], command: list[str]
                    ) -> None:
        """On the first node, by itself."""
        self._begin(0, exported, _args(command, *self._script(),
                                       nproc_per_node=2))

    def _script(self) -> list[str]:
        return [str(HERE / "elastic.py"), str(self._at), self._kind]

    def _begin(self, node: int, exported: dict[str, str], args: list[str]
               ) -> None:
        self._of[node] = Torchrun(self._at / f"log-{node}", self._nodes[node],
                                  exported, args)

    def lose(self, node: int) -> None:
        """It, and all that its agent had."""
        self._of.pop(node).lose()
        self._nodes.restart(node, signal.SIGKILL, disk=False)

    def rows(self, name: str) -> list[list[str]]:
        path = self._at / name
        text = path.read_text() if path.exists() else ""
        return [x.split(" ", 2) for x in text.splitlines(True)
                if x.endswith("\n")]

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + BOUND_S
        while not what():
            assert time.monotonic() < end and all(
                x.runs() for x in self._of.values()), "\n".join(
                x.said()[-4000:] for x in self._of.values())
            time.sleep(0.05)

    def was_killed(self) -> bool:
        """And goes on: in the first life that trains a rank kills itself."""
        lives = self.rows("lives")
        return bool(lives) and lives[-1][0] != "None"

    def until_trained(self, world: int, steps: int) -> None:
        """By so many ranks, since the last life began."""
        self.until(lambda: len(self.rows("lives")) > 0 and
                   self.rows("lives")[-1][1] == str(world) and
                   len([x for x in self.rows("losses") if x[1] == str(world)
                        and int(x[0]) > self._since()]) >= steps)

    def _since(self) -> int:
        done = self.rows("lives")[-1][0]
        return -1 if done == "None" else int(done)

    def finish(self) -> None:
        (self._at / "end").touch()
        for x in self._of.values():
            assert x.wait() == 0, x.said()[-4000:]

    def end(self) -> None:
        for x in self._of.values():
            x.end()


@contextlib.contextmanager
def _job(directory: pathlib.Path, nodes: Nodes, kind: str) -> Iterator[Job]:
    job = Job(directory, nodes, kind)
    try:
        yield job
    finally:
        job.end()


def _uninterrupted(steps: int) -> list[str]:
    model, optim = linear.training()
    return [linear.step(model, optim).hex() for _ in range(steps)]


def _check(job: Job, worlds: list[str]) -> None:
    """There were such lives in this order, with others between where a
    launcher was late; each went on after the newest step of the one before,
    and all losses are those of a job that nothing happened to."""
    lives = job.rows("lives")
    left = iter([world for _, world, _ in lives])
    assert all(world in left for world in worlds), lives
    losses = [(int(step), loss.strip()) for step, _, loss in
              job.rows("losses")]
    want = _uninterrupted(losses[-1][0] + 1)
    assert [want[step] for step, _ in losses] == [x for _, x in losses]
    # A rank may have died between saving a step and telling of it.
    steps = [step for step, _ in losses]
    assert len(steps) == len(set(steps)), (steps, lives)
    untold = set(range(steps[-1] + 1)) - set(steps)
    assert {str(x) for x in untold} <= {done for done, _, _ in lives}
    assert {where.strip() for done, _, where in lives
            if done != "None"} == {"memory"}, lives


@needs_averages
def test_nodes_that_go_and_come(nodes, tmp_path):
    """A rank is killed, a node is lost, and comes back with nothing."""
    with _job(tmp_path, nodes, "hsdp") as job:
        job.begin(0)
        job.begin(1)
        job.until(job.was_killed)
        job.until_trained(4, 3)
        job.lose(1)
        job.until_trained(2, 3)
        job.begin(1)
        job.until_trained(4, 3)
        job.finish()
        _check(job, ["4", "4", "2", "4"])


@pytest.mark.parametrize("which", [lambda: (_documented()[0],
                                            _documented()[1][0]), _deployed])
def test_a_rank_that_is_killed(nodes, tmp_path, which):
    """Its node's are all started again, in place, as the documents have
    them."""
    with _job(tmp_path, nodes, "ddp") as job:
        job.begin_alone(*which())
        job.until(job.was_killed)
        job.until_trained(2, 5)
        job.finish()
        _check(job, ["2", "2"])


def _example(directory: pathlib.Path, nodes: Nodes, ranks: int, name: str,
             *args: str) -> Torchrun:
    """At another port than those that run beside it."""
    return Torchrun(directory / f"log-{ranks}", nodes[0], {}, [
        "--standalone", f"--nproc-per-node={ranks}",
        str(DOCS / "examples/pytorch" / name), *args])


@needs_fsdp2
def test_the_example_of_fsdp2(nodes, tmp_path):
    losses = tmp_path / "losses.csv"
    words = ["--steps=6", f"--losses={losses}"]
    killed = _example(tmp_path, nodes, 3, "fsdp2.py", "--kill-at=4", *words)
    assert killed.wait() and "SIGKILL" in killed.said(), killed.said()
    again = _example(tmp_path, nodes, 2, "fsdp2.py", *words)
    assert again.wait() == 0, again.said()
    assert "2 ranks go on after step" in again.said(), again.said()
    rows = [x.split(",") for x in losses.read_text().splitlines()]
    before = [int(step) for step, _, world in rows if world == "3"]
    after = [int(step) for step, _, world in rows if world == "2"]
    assert before == [0, 1, 2, 3] and after == list(range(after[0], 6)), rows
    assert 0 < after[0] <= 4


@needs_fsdp2
def test_the_example_of_async_save(nodes, tmp_path):
    it = _example(tmp_path, nodes, 2, "async_save.py")
    assert it.wait() == 0 and "the newest step is back" in it.said(), it.said()
