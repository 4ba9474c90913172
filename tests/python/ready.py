# SPDX-License-Identifier: Apache-2.0
"""Processes that have imported already what takes long to import.

Frameworks take some eight seconds of a core each time. So one process has
imported one of them, does nothing else, and forks for each script: what that
runs in is a process that has done nothing yet, as if it had been started.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from typing import Any


SAID = ("script.out", "script.err")


class Ready:
    """Of one process that has imported ``modules``."""

    def __init__(self, modules: str) -> None:
        # A fork takes one thread along, so there is to be one.
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
               "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
               "WANDB_DISABLED": "true"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, modules], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, **one})
        atexit.register(self._end)

    def run(self, argv: list[str], env: dict[str, str], directory: str,
            ranks: int) -> list[int]:
        """How each of so many ranks ended; what they print, and what they say
        of errors, is in the files SAID of the directory."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps([argv, env, directory, ranks]), flush=True,
              file=self._process.stdin)
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


@functools.cache
def ready(modules: str) -> Ready:
    return Ready(modules)


# ---- within it ----

def _free_port() -> str:
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def _places(ranks: int) -> list[dict[str, str]]:
    """As a launcher says it."""
    if ranks == 1:
        return [{}]
    all_say = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(),
               "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [{**all_say, "RANK": str(r), "LOCAL_RANK": str(r)}
            for r in range(ranks)]


def _become(argv: list[str], env: dict[str, str], directory: str) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for fd, name in zip((1, 2), SAID):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    sys.argv[:] = argv
    runpy.run_path(argv[0], run_name="__main__")


def _fork(argv: list[str], env: dict[str, str], directory: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become(argv, env, directory)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(modules: str) -> None:
    asked, told = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in modules.split(","):
        importlib.import_module(module)
    for line in asked:
        request: list[Any] = json.loads(line)
        argv, env, directory, ranks = request
        for name in SAID:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(directory, name))
        pids = [_fork(argv, {**env, **place}, directory)
                for place in _places(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                 for pid in pids]
        print(json.dumps(codes), flush=True, file=told)


if __name__ == "__main__":
    _serve(sys.argv[1])
