#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small faults, one at a time, and tells which the C suites notice.

    tools/coverage                          # who runs which line
    tests/plant/plant.py --seed 1 --count 500

Works in build/plant on copies of the tree, one per job. A fault is a flipped
comparison, a dropped statement, a swallowed error or a bound moved by one, in
cache/ and agent/, in an order that the seed gives and that changes elsewhere
leave as it is. Where the compiler makes the same code of it, or none, the next
one is taken. The tests that run its line then run until one fails, hangs or
the time for it is over: first those that promise to notice soonest, for they
are quick, run little else, or noticed others in that file. What is known is in
build/plant/SEED.jsonl: the same command goes on from there.

    tests/plant/plant.py --survivors --most-s 120   # what had no time
    tests/plant/plant.py --survivors --only --anew store/points,agent-each
    tests/plant/plant.py --survivors --only --anew base/os --of cache/base/os.c
    tests/plant/plant.py --survivors --sanitize

has those that lived meet other tests, or tests that have been changed, or the
sanitizers; but for those of which tests/plant/harmless.txt says why they may
live.
"""
import argparse
import collections
import ctypes
import hashlib
import json
import os
import random
import sys
import time

import sites
from suites import COVERAGE, PLANT, TOP, Odds, Place, known_tests

HARMLESS = TOP / "tests/plant/harmless.txt"
PR_SET_CHILD_SUBREAPER = 36

Fault = collections.namedtuple("Fault", "site line before after nth")


def key_of(fault):
    """What it is known by, wherever in its file it has come to stand."""
    return fault.site.file, fault.before, fault.after, fault.nth


def key_in(record):
    return (record["file"], record["before"], record["after"],
            record.get("nth", 0))


def described(site, source):
    line = source.count("\n", 0, site.start) + 1
    a = source.rfind("\n", 0, site.start) + 1
    b = source.find("\n", site.end)
    before = " ".join(source[a:b].split())
    after = " ".join((source[a:site.start] + site.text +
                      source[site.end:b]).split())
    return line, before, after


def faults_of(file):
    source = (TOP / file).read_text(encoding="utf-8")
    met = collections.Counter()
    for site in sorted(sites.sites_of(file, source)):
        line, before, after = described(site, source)
        yield Fault(site, line, before, after, met[before, after])
        met[before, after] += 1


def drawn(lines, seed):
    """All there are, each kind as often; who is where is for the seed and
    the fault alone to say."""
    def lot(fault):
        words = "\n".join(map(str, (seed, *key_of(fault))))
        return hashlib.sha256(words.encode()).digest()

    found = {kind: [] for kind in sites.KINDS}
    for file in sorted(lines):
        if file.startswith(("cache/", "agent/")) and (TOP / file).exists():
            for fault in faults_of(file):
                found[fault.site.kind].append(fault)
    for faults in found.values():
        faults.sort(key=lot, reverse=True)
    dice = random.Random(seed)
    while any(found.values()):
        kind = dice.choice([k for k in sites.KINDS if found[k]])
        yield found[kind].pop()


def is_asked_for(fault, of):
    """Of these files, or lines as they are now; of none: all are."""
    file, line = fault.site.file, fault.line
    return not of or file in of or f"{file}:{line}" in of


def who_runs(lines, file, line):
    """Statements of several lines count at their first."""
    of = lines.get(file, {})
    for n in range(line, max(0, line - 8), -1):
        if str(n) in of:
            return of[str(n)]
    return []


class Planter:
    """One job's."""

    def __init__(self, args, job, run, records):
        self.args, self.lines = args, run["lines"]
        self.place = Place(job, args.sanitize)
        self.place.set_up()
        self.tests, others = known_tests(run, self.place)
        named = [t for t in [*self.tests, *others]
                 if t and t.name in args.anew]
        missing = args.anew - {t.name for t in named}
        if missing:
            sys.exit(f"plant: no such tests: {', '.join(missing)}")
        self.anew = named
        self.odds = Odds(r for r in records if not r.get("void"))

    def candidates(self, fault, record, before):
        """Tests that may notice it and have not passed with it."""
        if self.args.only:
            return [t for t in self.anew if t.sound is not False]
        passed = set(before["names"]) - self.args.anew if before and \
            not self.args.sanitize else ()
        who = {self.tests[n] for n in who_runs(
            self.lines, fault.site.file, fault.line)} - {None}
        # What it runs by now, nobody knows yet.
        rooms = fault.site.file.split("/")[:-1]
        who |= {t for t in self.anew
                if not t.breadth or t.name.split("/")[0] in rooms}
        return sorted((t for t in who if t.sound is not False and
                       t.name not in passed),
                      key=lambda t: self.odds.cost(t, record))

    def run_tests(self, who, record):
        """Until one notices: that one."""
        until = time.monotonic() + self.args.most_s
        for i, test in enumerate(who):
            if time.monotonic() > until:
                record["left"] = len(who) - i
                return None
            if not self.place.ninja(*test.targets):
                sys.exit(f"plant: {test.name} does not link")
            record["ran"] += 1
            record["names"].append(test.name)
            record["killed"] = test.run()
            if record["killed"]:
                record["by"] = test.name
                return test
        return None

    def tried(self, fault, before):
        """Its record, or None where it is no fault."""
        site, ninja = fault.site, self.place.ninja
        path = self.place.tree / site.file
        source = path.read_text(encoding="utf-8")
        faulty = source[:site.start] + site.text + source[site.end:]
        objects = self.place.objects_of(site.file)
        if not objects or not ninja(*objects):
            return None
        as_is = self.digest(objects)
        while True:
            record = {"file": site.file, "line": fault.line,
                      "kind": site.kind, "before": fault.before,
                      "after": fault.after, "nth": fault.nth, "killed": None,
                      "by": None, "ran": 0, "left": 0, "names": []}
            who = self.candidates(fault, record, before)
            try:
                path.write_text(faulty, encoding="utf-8")
                if not ninja(*objects) or self.digest(objects) == as_is:
                    return None
                by = self.run_tests(who, record)
            finally:
                path.write_text(source, encoding="utf-8")
            if not by or by.is_sound():
                self.odds.learn(record)
                return record

    def digest(self, objects):
        return [hashlib.sha256((self.place.build / o).read_bytes())
                .hexdigest() for o in objects]


def renewed(record, before, args):
    """With what was known already."""
    if not before:
        return record
    record["names"] = sorted({*before["names"], *record["names"]})
    record["ran"] = len(record["names"])
    if args.only or args.sanitize:
        record["left"] = before["left"]
    if args.sanitize and record["by"]:
        record["by"] += ", sanitized"
    return record


def plant(args, job, run, path, known):
    """Each job has its share of them, in their order."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    planter = Planter(args, job, run, known.values())
    idle = harmless()
    until, n = time.monotonic() + args.minutes * 60, 0
    for i, fault in enumerate(drawn(run["lines"], args.seed)):
        if i % args.jobs != job:
            continue
        if n >= args.count / args.jobs or time.monotonic() > until:
            break
        before = known.get(key_of(fault))
        n += not (before or {}).get("void")
        if before and (not args.survivors or before.get("void") or
                       before["killed"]):
            continue
        if args.survivors and (not before or why_harmless(idle, before) or
                               not is_asked_for(fault, args.of)):
            continue
        record = planter.tried(fault, before)
        if record:
            record = renewed(record, before, args)
        elif before:
            continue
        else:
            record, n = {"void": True, "file": fault.site.file,
                         "before": fault.before, "after": fault.after,
                         "nth": fault.nth}, n - 1
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")


def harmless():
    """{(file, before, after, which of the same, "": all): why}"""
    known = {}
    if HARMLESS.exists():
        text = HARMLESS.read_text(encoding="utf-8")
        for block in text.split("\n\n"):
            rows = [r for r in block.split("\n") if r and r[0] != "#"]
            if len(rows) >= 4:
                file, _, nth = rows[0].partition(" ")
                known[file, rows[1], rows[2], nth] = " ".join(rows[3:])
    return known


def why_harmless(known, record):
    *fault, nth = key_in(record)
    return known.get((*fault, str(nth))) or known.get((*fault, ""))


def report(records):
    known, by_kind = harmless(), collections.Counter()
    killed, idle = collections.Counter(), 0
    for r in records:
        by_kind[r["kind"]] += 1
        killed[r["kind"]] += bool(r["killed"])
        if r["killed"]:
            continue
        why = why_harmless(known, r)
        idle += bool(why)
        print(f"{r['file']}:{r['line']}: {r['kind']}, {r['ran']} tests ran, "
              f"{r['left']} did not\n\t- {r['before']}\n\t+ {r['after']}\n"
              f"\t{'harmless: ' + why if why else 'not looked at'}")
    for kind in sites.KINDS:
        print(f"{kind:12} {killed[kind]:4} of {by_kind[kind]:4} noticed")
    n, k = sum(by_kind.values()), sum(killed.values())
    print(f"{'all':12} {k:4} of {n:4} noticed, {100 * k / max(n, 1):.1f} %; "
          f"{idle} harmless, of the others "
          f"{100 * k / max(n - idle, 1):.1f} %")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--most-s", type=int, default=60,
                        help="seconds of tests for one fault")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--survivors", action="store_true",
                        help="those that lived meet what had no time")
    parser.add_argument("--anew", default="", metavar="TEST,...",
                        help="and these tests, which have been changed")
    parser.add_argument("--only", action="store_true",
                        help="and no others, whoever runs the line")
    parser.add_argument("--of", default="", metavar="FILE[:LINE],...",
                        help="with --survivors: of these alone")
    parser.add_argument("--sanitize", action="store_true",
                        help="in a build with the sanitizers")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--report", action="store_true",
                        help="of what is known, nothing runs")
    args = parser.parse_args()
    args.anew = set(filter(None, args.anew.split(",")))
    args.of = set(filter(None, args.of.split(",")))
    return args


def read(path):
    """The last word on each."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as lines:
        return {key_in(r): r for r in map(json.loads, lines)}


def of_today(records):
    """Those that the tree still has, at the lines where they are now."""
    lines = {}
    for r in records:
        file = r["file"]
        if file not in lines:
            lines[file] = {key_of(f): f.line for f in faults_of(file)} \
                if (TOP / file).exists() else {}
        line = lines[file].get(key_in(r))
        if line:
            yield {**r, "line": line}


def main():
    args = arguments()
    path = PLANT / f"{args.seed}.jsonl"
    if not args.report:
        run = json.loads((COVERAGE / "tests.json").read_text(
            encoding="utf-8"))
        PLANT.mkdir(parents=True, exist_ok=True)
        jobs, known = [], read(path)
        for job in range(args.jobs):
            jobs.append(os.fork())
            if not jobs[-1]:
                plant(args, job, run, path, known)
                sys.stdout.flush()
                os._exit(0)
        for pid in jobs:
            os.waitpid(pid, 0)
    report(of_today(r for r in read(path).values() if not r.get("void")))


if __name__ == "__main__":
    main()
