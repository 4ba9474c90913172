#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small faults, one at a time, and tells which the C suites notice.

    tools/coverage                          # who runs which line
    tests/plant/plant.py --seed 1 --count 500

Works in build/plant on a copy of the tree. A fault is a flipped comparison, a
dropped statement, a swallowed error or a bound moved by one, drawn in cache/
and agent/ by the seed. Where the compiler makes the same code of it, or none,
another one is drawn. The tests that run its line then run until one fails,
hangs or the time for it is over: first those that promise to notice soonest,
for they are quick, run little else, or noticed others in that file. What is
known is in build/plant/SEED.jsonl: the same command goes on from there.

tests/plant/harmless.txt says of survivors why they may live.
"""
import argparse
import collections
import ctypes
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import sites

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
COVERAGE = TOP / "build/coverage"
PLANT = TOP / "build/plant"
TREE = PLANT / "tree"
BUILD = PLANT / "build"
HARMLESS = TOP / "tests/plant/harmless.txt"
SUITES = {"unit", "plain", "scenario", "fuzz", "soak"}
PR_SET_CHILD_SUBREAPER = 36


def copy_tree():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                            cwd=TOP, check=True, text=True,
                            capture_output=True).stdout.split("\n")
    for name in filter(None, listed):
        source, to = TOP / name, TREE / name
        if not source.is_file() or (to.exists() and
                                    to.read_bytes() == source.read_bytes()):
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)


def ninja(*targets):
    return subprocess.run(["ninja", "-C", BUILD, "-j2", *targets],
                          check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def set_up():
    copy_tree()
    if not (BUILD / "build.ninja").exists():
        # Quick to compile, and no line numbers in the code.
        subprocess.run(["meson", "setup", BUILD, TREE, "--buildtype=plain",
                        "-Dc_args=-O1 -g0"], check=True,
                       stdout=subprocess.DEVNULL)
    print("plant: building in build/plant", file=sys.stderr)
    if not ninja():
        sys.exit("plant: the tree does not build")


def absolute(word, build):
    """Files of a build are said from there, or from the root."""
    there = len(word) < 255 and word and (build / word).exists()
    return str(build / word) if there else word


class Test:
    """One of meson's, as it is in our build."""

    def __init__(self, info, ms):
        self.name, self.ms = info["name"], ms
        self.cmd = [absolute(str(c), BUILD) for c in info["cmd"]]
        self.env = info["env"]
        self.sound = None
        self.breadth = 0    # lines that it runs
        self.targets = sorted({
            os.path.relpath(c, BUILD)
            for c in [*self.cmd, *self.env.values()]
            if c.startswith(str(BUILD) + "/") and os.path.isfile(c)})
        # A script may start it by itself.
        if not any(t.startswith("tests/") for t in self.targets):
            self.targets = sorted({*self.targets, "agent/shardkeepd"})

    def run(self):
        """None where it passes, else how it fails."""
        where = tempfile.mkdtemp(prefix="plant-")
        env = dict(os.environ, TMPDIR=where, **self.env)
        process = subprocess.Popen(
            self.cmd, cwd=BUILD, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        try:
            status = process.wait(timeout=15 + 4 * self.ms / 1000)
            return None if status == 0 else f"status {status}"
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            end_all(process)
            shutil.rmtree(where, ignore_errors=True)


def end_all(process):
    """It, and what it left: orphans are ours then."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    while True:
        left = subprocess.run(["pgrep", "-P", str(os.getpid())], check=False,
                              text=True, stdout=subprocess.PIPE).stdout
        # pgrep itself has ended by now.
        pids = [int(p) for p in left.split()]
        alive = False
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                alive = True
            except (ProcessLookupError, ChildProcessError):
                pass
        if not alive:
            return


def known_tests(tests):
    """By number in tests.json; None: not for us."""
    listed = json.loads(subprocess.run(
        ["meson", "introspect", "--tests", BUILD], check=True, text=True,
        capture_output=True).stdout)
    ours = {}
    for info in listed:
        if not {s.split(":")[-1] for s in info["suite"]} & SUITES:
            continue
        ours[(info["env"].get("VCUDA_SCHED", ""),
              *(absolute(c, BUILD) for c in info["cmd"]))] = info
    found = []
    for t in tests:
        sched, *command = t["command"]
        key = [absolute(c, COVERAGE).replace(str(COVERAGE), str(BUILD))
               for c in command]
        key = [c.replace(str(TOP), str(TREE)) if str(BUILD) not in c else c
               for c in key]
        info = ours.get((sched, *key))
        found.append(Test(info, t["ms"])
                     if info and t["status"] == 0 else None)
    return found


class Odds:
    """How likely a test notices a fault in a file, by what was seen."""

    def __init__(self, records):
        self.ran, self.noticed = collections.Counter(), collections.Counter()
        for record in records:
            self.learn(record)

    def learn(self, record):
        for name in record.get("names", []):
            self.ran[name, record["file"]] += 1
        if record.get("by"):
            self.noticed[record["by"], record["file"]] += 1

    def cost(self, test, file):
        """Of noticing: what is to run first has the least."""
        key = (test.name, file)
        before = 1 / (1 + test.breadth / 500)
        likely = (self.noticed[key] + before) / (self.ran[key] + 1)
        return (test.ms + 150) / likely


def who_runs(lines, file, line):
    """Statements of several lines count at their first."""
    of = lines.get(file, {})
    for n in range(line, max(0, line - 8), -1):
        if str(n) in of:
            return of[str(n)]
    return []


def all_sites(lines):
    found = collections.defaultdict(list)
    for file in sorted(lines):
        if not file.startswith(("cache/", "agent/")):
            continue
        source = (TOP / file).read_text(encoding="utf-8")
        for site in sites.sites_of(file, source):
            found[site.kind].append(site)
    return found


def drawn(found, seed):
    dice = random.Random(seed)
    for kind in sites.KINDS:
        dice.shuffle(found[kind])
    while any(found.values()):
        kind = dice.choice([k for k in sites.KINDS if found[k]])
        yield found[kind].pop()


def objects_of(file):
    done = subprocess.run(["ninja", "-C", BUILD, "-t", "query",
                           os.path.relpath(TREE / file, BUILD)], check=False,
                          text=True, capture_output=True)
    return [line.strip() for line in done.stdout.splitlines()
            if line.strip().endswith(".o") and
            line.strip().startswith(("cache/", "agent/"))]


def digest(objects):
    return [hashlib.sha256((BUILD / o).read_bytes()).hexdigest()
            for o in objects]


def described(site):
    source = (TOP / site.file).read_text(encoding="utf-8")
    line = source.count("\n", 0, site.start) + 1
    a = source.rfind("\n", 0, site.start) + 1
    b = source.find("\n", site.end)
    before = " ".join(source[a:b].split())
    after = " ".join((source[a:site.start] + site.text +
                      source[site.end:b]).split())
    return line, before, after


def run_tests(who, most_s, record):
    """Until one notices: that one."""
    until = time.monotonic() + most_s
    record.update(killed=None, by=None, ran=0, left=0, names=[])
    for i, test in enumerate(who):
        if time.monotonic() > until:
            record["left"] = len(who) - i
            return None
        if not ninja(*test.targets):
            sys.exit(f"plant: {test.name} does not link")
        record["ran"] += 1
        record["names"].append(test.name)
        record["killed"] = test.run()
        if record["killed"]:
            record["by"] = test.name
            return test
    return None


def is_sound(test):
    """Whether it passes where nothing is planted."""
    if test.sound is None:
        test.sound = ninja(*test.targets) and test.run() is None
        if not test.sound:
            print("plant: without a fault fails", test.name,
                  file=sys.stderr)
    return test.sound


def tried(site, tests, lines, odds, most_s, known_to_pass=()):
    """Its record, or None where it is no fault."""
    line, before, after = described(site)
    path = TREE / site.file
    source = path.read_text(encoding="utf-8")
    faulty = source[:site.start] + site.text + source[site.end:]
    objects = objects_of(site.file)
    if not objects or not ninja(*objects):
        return None
    as_is = digest(objects)
    record = {"file": site.file, "line": line, "kind": site.kind,
              "before": before, "after": after}
    while True:
        who = [tests[n] for n in who_runs(lines, site.file, line)]
        who = sorted((t for t in who if t and t.sound is not False and
                      t.name not in known_to_pass),
                     key=lambda t: odds.cost(t, site.file))
        try:
            path.write_text(faulty, encoding="utf-8")
            if not ninja(*objects) or digest(objects) == as_is:
                return None
            by = run_tests(who, most_s, record)
        finally:
            path.write_text(source, encoding="utf-8")
        if not by or is_sound(by):
            odds.learn(record)
            return record


def harmless():
    """{(file, before, after): why}"""
    known = {}
    if HARMLESS.exists():
        text = HARMLESS.read_text(encoding="utf-8")
        for block in text.split("\n\n"):
            rows = [r for r in block.split("\n") if r and r[0] != "#"]
            if len(rows) >= 4:
                known[tuple(rows[:3])] = " ".join(rows[3:])
    return known


def report(records):
    known, by_kind = harmless(), collections.Counter()
    killed = collections.Counter()
    for r in records:
        by_kind[r["kind"]] += 1
        killed[r["kind"]] += bool(r["killed"])
        if r["killed"]:
            continue
        why = known.get((r["file"], r["before"], r["after"]))
        print(f"{r['file']}:{r['line']}: {r['kind']}, {r['ran']} tests ran, "
              f"{r['left']} did not\n\t- {r['before']}\n\t+ {r['after']}\n"
              f"\t{'harmless: ' + why if why else 'not looked at'}")
    for kind in sites.KINDS:
        print(f"{kind:12} {killed[kind]:4} of {by_kind[kind]:4} noticed")
    n = sum(by_kind.values())
    print(f"{'all':12} {sum(killed.values()):4} of {n:4} noticed, "
          f"{100 * sum(killed.values()) / max(n, 1):.1f} %")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--most-s", type=int, default=60,
                        help="seconds of tests for one fault")
    parser.add_argument("--survivors", metavar="JSONL",
                        help="those of another run meet the tests that "
                        "had no time")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--report", action="store_true",
                        help="of what is known, nothing runs")
    args = parser.parse_args()
    known = PLANT / f"{args.seed}.jsonl"
    if args.survivors:
        known = PLANT / "again.jsonl"
        known.unlink(missing_ok=True)
    records = [json.loads(t) for t in known.read_text().splitlines()] \
        if known.exists() else []
    if not args.report:
        plant(args, known, records)
    report(r for r in records if not r.get("void"))


def wanted(args, found):
    """Sites, by the seed, or the survivors of a run; which tests pass."""
    if not args.survivors:
        yield from ((site, ()) for site in drawn(found, args.seed))
        return
    text = pathlib.Path(args.survivors).read_text(encoding="utf-8")
    again = [json.loads(t) for t in text.splitlines()]
    again = {(r["file"], r["before"], r["after"]): r["names"] for r in again
             if not r.get("void") and not r["killed"]}
    files = {file for file, _, _ in again}
    for site in [s for v in found.values() for s in v if s.file in files]:
        _, before, after = described(site)
        if (site.file, before, after) in again:
            yield site, again[site.file, before, after]


def plant(args, known, records):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = json.loads((COVERAGE / "tests.json").read_text(encoding="utf-8"))
    PLANT.mkdir(parents=True, exist_ok=True)
    set_up()
    tests = known_tests(run["tests"])
    print("plant:", sum(bool(t) for t in tests), "tests", file=sys.stderr)
    for numbers in (n for of in run["lines"].values() for n in of.values()):
        for test in filter(None, (tests[n] for n in numbers)):
            test.breadth += 1
    odds = Odds(r for r in records if not r.get("void"))
    begin, done = time.monotonic(), len(records)
    n = sum(not r.get("void") for r in records)
    for i, (site, pass_it) in enumerate(
            wanted(args, all_sites(run["lines"]))):
        if n >= args.count or time.monotonic() - begin > args.minutes * 60:
            break
        if i < done:
            continue
        record = tried(site, tests, run["lines"], odds, args.most_s,
                       pass_it)
        n += record is not None
        records.append(record or {"void": True})
        with known.open("a", encoding="utf-8") as out:
            out.write(json.dumps(records[-1]) + "\n")


if __name__ == "__main__":
    main()
