#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What README, guides and pages have operators type, typed as it stands.

Every command line of cachectl and shardkeepd in them: cachectl's to an agent
that has a job of that name, shardkeepd's with --check-config. Names that stand
for others are given: a tensor, a step, a directory.

Arguments: the root of the sources, shardkeepd, cachectl, the demo's trainer.
"""

import json
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, AGENT, CACHECTL, TRAINER = (Path(arg).resolve()
                                  for arg in sys.argv[1:5])
STANDS_FOR = {"layers.0.wq": "model.layers.0.weight", "llama/1200": "llama/2",
              "JOB": "llama", "N": "3"}
# Nobody's node is without a flaw.
CODES = {"status": {0, 7}, "doctor": {0, 7, 8}}
failures = []


def check(good, what: str) -> None:
    if not good:
        failures.append(what)


def typed(program: str) -> dict[str, str]:
    """Each line of a block, and each in backquotes, by the document that has
    it; without comment, and what it is piped to."""
    lines: dict[str, str] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
                 *sorted((ROOT / "docs/man").glob("*.scd"))]:
        text = path.read_text(encoding="utf-8").replace("++\n", "\n")
        found = re.findall(rf"^(?:\t| {{4}}|)({program} [^\n]+)$", text, re.M)
        found += re.findall(rf"`({program}\s[^`]+)`", text)
        for line in found:
            if line.startswith(f"{program} - "):
                continue        # a page's name
            plain = re.split(r"\s[|#]|\s\.\.\.", " ".join(line.split()))[0]
            lines.setdefault(plain, path.name)
    return lines


def words(line: str) -> list[str]:
    return [STANDS_FOR.get(word, word) for word in shlex.split(line)[1:]]


def train(folder: str, job: str) -> None:
    subprocess.run([TRAINER, "--mesh", "2", "--steps", "3", "--flush-every",
                    "1", "--job", job, "--log", f"{folder}/{job}.log"],
                   check=True, stdout=subprocess.DEVNULL)


def run(folder: str, line: str, where: str) -> None:
    args = words(line)
    command = next((a for a in args if not a.startswith("-")), "")
    if command == "top":
        args += ["-n", "1"]
    r = subprocess.run([CACHECTL, *args], cwd=folder, capture_output=True,
                       text=True, check=False)
    check(r.returncode in CODES.get(command, {0}),
          f"{where}: {line}: {r.returncode}: {r.stderr}")
    check(r.stdout, f"{where}: {line}: prints nothing")
    if "--json" in args and r.stdout:
        json.loads(r.stdout)


def watch(folder: str, line: str, where: str) -> None:
    with subprocess.Popen([CACHECTL, *words(line)], cwd=folder,
                          stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout
        is_told = False
        for number in range(60):    # it begins some time
            train(folder, f"watched-{number}")
            is_told = bool(select.select([p.stdout], [], [], 0)[0])
            if is_told:
                break
        seen = p.stdout.readline() if is_told else ""
        check(seen, f"{where}: {line}: no event")
        if "--json" in line and seen:
            check("event" in json.loads(seen), f"{where}: {line}: {seen}")
        p.kill()


def try_cachectl(folder: str) -> None:
    lines = typed("cachectl")
    check(len(lines) > 10, f"few lines of cachectl: {lines}")
    last = [x for x in lines if words(x)[0] == "stop"]
    for line, where in lines.items():
        # What a sentence calls by its name alone has no arguments there.
        if line in last or words(line) in (["export"], ["retain"]):
            continue
        if words(line)[0] == "watch":
            watch(folder, line, where)
        else:
            run(folder, line, where)
    run(folder, "cachectl stop --wait", "the end")


def try_agent(folder: str) -> None:
    lines = typed("shardkeepd")
    check(len(lines) > 3, f"few lines of shardkeepd: {lines}")
    for line, where in lines.items():
        args = shlex.split(line.replace("DIR", folder))[1:]
        if len(args) < 2:
            continue
        r = subprocess.run([AGENT, "--check-config", *args],
                           capture_output=True, text=True, check=False)
        check(r.returncode == 0 or "without libmicrohttpd" in r.stderr,
              f"{where}: {line}: {r.stderr}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="shardkeep-typed-") as folder:
        for name in [n for n in os.environ if n.startswith("SHARDKEEP_")]:
            del os.environ[name]
        os.environ["SHARDKEEP_SOCKET"] = f"{folder}/agent.sock"
        with subprocess.Popen([AGENT, "--socket", f"{folder}/agent.sock",
                               "--store", f"{folder}/store", "--memory",
                               "256M", "--no-keeper", "--ready-fd", "1",
                               "--log-level", "error"],
                              stdout=subprocess.PIPE) as agent:
            try:
                assert agent.stdout and agent.stdout.read(1)
                train(folder, "llama")
                try_cachectl(folder)
                try_agent(folder)
                check(agent.wait(timeout=60) == 0, "the agent ended badly")
            finally:
                agent.kill()
    for line in failures:
        print("FAIL:", line, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
