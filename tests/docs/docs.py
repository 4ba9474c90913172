#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the documentation says, against what is there.

Options, commands and exit codes of the programs and their pages; counters,
messages, environment, paths and functions that the prose names.

Arguments: the root of the sources, shardkeepd, cachectl, shardkeep-bench.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

failures = []


def check(good, what: str) -> None:
    if not good:
        failures.append(what)


def helps(program: str, *arguments: str) -> str:
    return subprocess.run([program, *arguments, "--help"], check=True,
                          capture_output=True, text=True).stdout


def long_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def page(root: Path, name: str) -> str:
    return (root / "docs/man" / f"{name}.scd").read_text()


def section(text: str, name: str) -> str:
    match = re.search(rf"^# {name}\n(.*?)(?=^# |\Z)", text, re.S | re.M)
    return match[1] if match else ""


def check_options(name: str, help_text: str, text: str) -> None:
    spoken, written = long_options(help_text), long_options(text)
    silent = {"--help", "--version"}
    for option in sorted(spoken - written - silent):
        check(False, f"{name} does not know {option} of --help")
    for option in sorted(written - spoken - silent):
        check(False, f"{name} knows {option}, --help does not")


def check_cachectl(root: Path, cachectl: str) -> None:
    text = page(root, "cachectl.1")
    commands = [line.split("\t")[0] for line in subprocess.run(
        [cachectl, "--complete", ""], check=True, capture_output=True,
        text=True).stdout.splitlines()]
    check(commands, "cachectl has no commands")
    everything = helps(cachectl)
    listed = section(text, "COMMANDS")
    for command in commands:
        own = helps(cachectl, command)
        everything += own
        heading = re.search(rf"^.*\*{command}\*.*$", listed, re.M)
        check(heading, f"cachectl(1) has no command {command}")
        common = {"--socket", "--json", "--help"}
        usage = own.split("\nfor example")[0]
        offered = set(re.findall(r"^ +(?:-\w,)? *(--[a-z-]+)", usage, re.M))
        for option in offered - common:
            brief = re.search(rf"-(\w), {option}\b", own)
            check(option in heading[0] or
                  (brief and f"-{brief[1]}*" in heading[0]),
                  f"cachectl(1): {command} takes {option}")
    check_options("cachectl(1)", everything, text)
    # "0 fine, 1 refused ..." and the page's table.
    codes = re.search(r"exit codes: (.*)", everything.replace("\n", " "))[1]
    known = set(re.findall(r"\*(\d)\*", section(text, "EXIT STATUS")))
    check(known == set(re.findall(r"(?:^|, )(\d) ", codes.split("  ")[0])),
          f"exit codes: {known} in the page, \"{codes[:160]}\" in --help")


def sources(root: Path) -> str:
    text = ""
    for room in ("cache", "agent", "libclient", "tools"):
        for path in (root / room).rglob("*.[ch]"):
            text += path.read_text()
    for path in (root / "libclient/python").rglob("*.py"):
        text += path.read_text()
    return text


def literals(code: str) -> str:
    """All string literals; those that the compiler joins are one."""
    code = re.sub(r"\" PRI([du])64\s*\"", r"%\1", code)
    code = re.sub(r"\"\s*\n\s*\"", "", code)
    return code.replace('\\"', '"')


def check_messages(root: Path, code: str) -> None:
    """Quoted sentences of failures.md: their words are in the code. "...",
    figures and names of calls stand for what differs."""
    text = (root / "docs/failures.md").read_text()
    said = literals(code)
    differs = r"\.\.\.|\d[\d.]*(?: [KMGT]?i?B\b)?|\w+\(\)"
    for sentence in re.findall(r'"([^"|\n]{12,})"', text):
        for part in re.split(differs, sentence):
            words = part.strip(" :;,\"")
            check(len(words) < 8 or words in said,
                  f"failures.md quotes \"{words}\", nobody says that")


def counters_of(root: Path) -> set[str]:
    """Of the agent's list, without their common beginning."""
    text = (root / "agent/metrics/list.c").read_text()
    counters = set()
    for kind, name in re.findall(r'(\w+)\(\w+,\s+(?:\w+,\s+)?"(\w+)"', text):
        job = "job_" if kind.startswith("JOB_") else ""
        end = {"GAUGE": "", "SECONDS": "_seconds_total",
               "JOB_SECONDS": "_seconds_total"}.get(kind, "_total")
        counters.add(job + name + end)
    return counters


def check_names(root: Path, code: str, documents: dict[str, str]) -> None:
    environment = set(re.findall(r'getenv\("(SHARDKEEP_\w+)"\)', code))
    pages = "".join(text for name, text in documents.items()
                    if name.endswith(".scd"))
    for name in sorted(environment):
        check(name in pages, f"no page names the variable {name}")
    counters = counters_of(root)
    header = "".join(p.read_text() for p in
                     sorted((root / "libclient").glob("*.h")))
    functions = set(re.findall(r"^[\w ]+?\*?\b(sk_\w+)\(", header, re.M))
    for name, text in documents.items():
        for variable in re.findall(r"\bSHARDKEEP_[A-Z]+\b", text):
            check(variable in code, f"{name}: there is no {variable}")
        for counter in re.findall(r"\bshardkeep_(\w+)", text):
            check(counter in counters, f"{name}: no counter {counter}")
        for function in re.findall(r"\b(sk_\w+)\*?\(\)", text):
            check(function in functions, f"{name}: no {function}()")


def check_stats(root: Path, agent: str, cachectl: str) -> None:
    """What the list has is what an agent tells, each with its words; what is
    of a GPU or a job alone is told where there is one."""
    with tempfile.TemporaryDirectory() as tmp:
        sock = f"{tmp}/agent.sock"
        with subprocess.Popen([agent, "--socket", sock, "--memory", "64M",
                               "--no-keeper", "--ready-fd", "1",
                               "--log-level", "error"],
                              stdout=subprocess.PIPE) as p:
            assert p.stdout and p.stdout.read(1)
            text = subprocess.run([cachectl, "--socket", sock, "stats",
                                   "--prometheus"], check=True,
                                  capture_output=True, text=True).stdout
            p.terminate()
    told = set(re.findall(r"^# HELP shardkeep_(\w+) \w", text, re.M))
    known = counters_of(root)
    for name in sorted(told ^ known):
        check(name in known and re.match("job_|device_memory_used", name),
              f"{name} is in the agent's list or in what it tells, not both")


def check_rules(path: Path, scrape: Path, states: set[str]) -> None:
    """Rules go by labels that there are, and by the scrape that we show."""
    text, how = path.read_text(), scrape.read_text()
    names = re.findall(r"- alert: (\w+)", text)
    check(len(names) == len(set(names)), f"{path.name} has a rule twice")
    for labels in re.findall(r"\bon \(([^)]*)\)", text):
        check(set(labels.split(", ")) <= {"instance", "job", "uid"},
              f"{path.name} joins on {labels}")
    for state in ("sealed", "durable"):
        for what in ("age", "never"):
            check(state in states and re.search(
                rf'{"unless" if what == "never" else "expr"}[^#]*?'
                rf'job_age_seconds\{{state="{state}"', text),
                f"no rule for {what} of {state}")
    for job in re.findall(r'up\{job="(\w+)"', text):
        check(f"job_name: {job}\n" in how, f"{scrape.name} scrapes no {job}")
    check("honor_labels: true" in how, f"{scrape.name} loses the label job")
    check(path.name in how, f"{scrape.name} has no rules")


def check_monitoring(root: Path) -> None:
    """Dashboard and alert rules name metrics, states, reasons and tiers that
    the agent has."""
    known = counters_of(root)
    states = set(re.findall(r'\] = \{ "([a-z-]+)",',
                            (root / "agent/degraded.c").read_text()))
    states |= {"sealed", "complete", "durable"}
    folder = root / "tools/monitoring"
    for path in (folder / "alerts.yml", folder / "dashboard.json"):
        text = path.read_text()
        names = set(re.findall(r"\bshardkeep_(\w+)", text))
        check(len(names) > 5, f"{path.name} names next to nothing")
        for name in sorted(names - known):
            check(False, f"{path.name}: there is no shardkeep_{name}")
        for state in re.findall(r'state=\\?"([\w-]+)', text):
            check(state in states, f"{path.name}: there is no state {state}")
    check_rules(folder / "alerts.yml", folder / "prometheus.yml", states)
    json.loads((folder / "dashboard.json").read_text())
    if shutil.which("promtool"):
        r = subprocess.run(["promtool", "check", "rules",
                            folder / "alerts.yml"], capture_output=True,
                           text=True, check=False)
        check(r.returncode == 0, f"promtool: {r.stdout}{r.stderr}")


def check_paths(root: Path, documents: dict[str, str]) -> None:
    rooms = {p.name for p in root.iterdir() if p.is_dir()}
    for name, text in documents.items():
        here = (root / name).parent
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            check((here / target).exists(), f"{name} links to {target}")
        for path in re.findall(r"`([a-z]+/[\w/.-]+)`", text):
            check(path.split("/")[0] not in rooms or (root / path).exists(),
                  f"{name} names {path}")


def check_tests(documents: dict[str, str]) -> None:
    """Of a build, which is where tests run: meson passes over others. One that
    leaves a feature out has not all of them."""
    options = {o["name"]: o["value"] for o in json.loads(
        Path("meson-info/intro-buildoptions.json").read_text())}
    if "disabled" in (options["cuda"], options["metrics"], options["mpi"]):
        return
    there = {t["name"] for t in json.loads(
        Path("meson-info/intro-tests.json").read_text())}
    named = 0
    for name, text in documents.items():
        for command in re.findall(r"`meson test ([^`]+)`", text):
            words = shlex.split(command.replace("-C build/test", ""))
            named += len(words)
            for word in words:
                check(word in there, f"{name} names a test {word}")
    check(named > 10, f"{named} tests are named")


def check_roff(root: Path) -> None:
    """A line that begins with a dot is a request, and is not seen."""
    for path in (root / "docs/man").glob("*.scd"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            check(not re.match(r"\s*[.']", line),
                  f"{path.name}:{number} begins with a dot")


def check_huge_pages(documents: dict[str, str]) -> None:
    """Who says what gives huge pages says from which kernel on it is not
    needed."""
    for name, text in documents.items():
        check("shmem_enabled" not in text or "6.1" in text,
              f"{name} asks for a setting that Linux 6.1 does not need")


def check_completions(root: Path, help_text: str) -> None:
    for path in sorted((root / "tools/bench/completions").iterdir()):
        said = path.read_text()
        for option in sorted(long_options(help_text)):
            check(f"--{option[2:]}" in said or f"-l {option[2:]} " in said,
                  f"{path.name} does not know {option}")


def main() -> None:
    root, agent, cachectl, bench = sys.argv[1:5]
    root = Path(root)
    documents = {str(path.relative_to(root)): path.read_text()
                 for path in [root / "README.md",
                              *sorted((root / "docs").glob("*.md")),
                              *sorted((root / "docs/man").glob("*.scd"))]}
    code = sources(root)
    check_cachectl(root, cachectl)
    check_options("shardkeepd(8)", helps(agent), page(root, "shardkeepd.8"))
    check_options("shardkeep-bench(1)", helps(bench),
                  page(root, "shardkeep-bench.1"))
    check_completions(root, helps(bench))
    check_messages(root, code)
    check_names(root, code, documents)
    check_paths(root, documents)
    check_tests(documents)
    check_roff(root)
    check_huge_pages(documents)
    check_monitoring(root)
    check_stats(root, agent, cachectl)
    for failure in failures:
        print(f"FAIL: {failure}", file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
