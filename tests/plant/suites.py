# SPDX-License-Identifier: Apache-2.0
"""The trees that faults are planted in, and the tests that run there."""
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
COVERAGE = TOP / "build/coverage"
PLANT = TOP / "build/plant"
SUITES = {"unit", "plain", "scenario", "fuzz", "soak"}
# As tools/test --sanitize does.
SANITIZED = {"ASAN_OPTIONS": "detect_leaks=0:log_path=%s/asan",
             "UBSAN_OPTIONS": "halt_on_error=1"}


def copied(tree):
    """What is tracked, and what git does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                            cwd=TOP, check=True, text=True,
                            capture_output=True).stdout.split("\n")
    for name in filter(None, listed):
        source, to = TOP / name, tree / name
        if not source.is_file() or (to.exists() and
                                    to.read_bytes() == source.read_bytes()):
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)


class Place:
    """A copy of the tree and its build, one per job."""

    def __init__(self, job, sanitize):
        self.sanitize = sanitize
        self.tree = PLANT / f"tree-{job}"
        self.build = PLANT / f"{'sanitize' if sanitize else 'build'}-{job}"

    def set_up(self):
        copied(self.tree)
        if not (self.build / "build.ninja").exists():
            # Quick to compile, and no line numbers in the code.
            more = ["-Db_sanitize=address,undefined", "-Db_lundef=false"]
            if shutil.which("ld.lld"):
                # Each fault has many programs linked anew.
                more = [*more, "-Dc_link_args=-fuse-ld=lld"]
            subprocess.run(["meson", "setup", self.build, self.tree,
                            "--buildtype=plain", "-Dc_args=-O1 -g0",
                            *(more if self.sanitize else more[2:])],
                           check=True,
                           stdout=subprocess.DEVNULL)
        print("plant: building in", self.build.relative_to(TOP),
              file=sys.stderr)
        if not self.ninja():
            sys.exit("plant: the tree does not build")

    def ninja(self, *targets):
        return subprocess.run(["ninja", "-C", self.build, "-j2", *targets],
                              check=False, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

    def objects_of(self, file):
        of = os.path.relpath(self.tree / file, self.build)
        done = subprocess.run(["ninja", "-C", self.build, "-t", "query", of],
                              check=False, text=True, capture_output=True)
        return [line.strip() for line in done.stdout.splitlines()
                if line.strip().endswith(".o") and
                line.strip().startswith(("cache/", "agent/"))]


def absolute(word, build):
    """Files of a build are said from there, or from the root."""
    there = len(word) < 255 and word and (build / word).exists()
    return str(build / word) if there else word


class Test:
    """One of meson's, as it is in a build of ours."""

    def __init__(self, info, ms, place):
        self.name, self.ms, self.place = info["name"], ms, place
        self.cmd = [absolute(str(c), place.build) for c in info["cmd"]]
        self.env = info["env"]
        self.sound = None
        self.breadth = 0    # lines that it runs
        self.takes_memory = any(
            b"sk_fault_alloc_fail" in pathlib.Path(c).read_bytes()
            for c in self.cmd if "/tests/" in c and os.path.isfile(c))
        self.targets = sorted({
            os.path.relpath(c, place.build)
            for c in [*self.cmd, *self.env.values()]
            if c.startswith(str(place.build) + "/") and os.path.isfile(c)})
        # A script may start it by itself.
        if not any(t.startswith("tests/") for t in self.targets):
            self.targets = sorted({*self.targets, "agent/shardkeepd"})

    def run(self):
        """None where it passes, else how it fails."""
        where = tempfile.mkdtemp(prefix="plant-")
        env = dict(os.environ, TMPDIR=where)
        if self.place.sanitize:
            env.update((k, v.replace("%s", where))
                       for k, v in SANITIZED.items())
        env.update(self.env)
        slower = (4 if self.place.sanitize else 1) * crowd()
        process = subprocess.Popen(
            self.cmd, cwd=self.place.build, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        try:
            status = process.wait(timeout=slower *
                                  (15 + 4 * self.ms / 1000))
            if status:
                return f"status {status}"
            # Criterion may pass what a sanitizer has ended.
            told = any(pathlib.Path(where).glob("asan*"))
            return "sanitizer" if told else None
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            end_all(process)
            shutil.rmtree(where, ignore_errors=True)

    def is_sound(self):
        """Whether it passes where nothing is planted."""
        if self.sound is None:
            self.sound = self.place.ninja(*self.targets) and \
                self.run() is None
            if not self.sound:
                print("plant: without a fault fails", self.name,
                      file=sys.stderr)
        return self.sound


def crowd():
    """How many want each core: beside other work a test takes longer."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(1, load), 5)


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


def known_tests(run, place):
    """By number in tests.json (None: not for us), and those it lacks."""
    listed = json.loads(subprocess.run(
        ["meson", "introspect", "--tests", place.build], check=True,
        text=True, capture_output=True).stdout)
    ours = {}
    for info in listed:
        if not {s.split(":")[-1] for s in info["suite"]} & SUITES:
            continue
        ours[(info["env"].get("VCUDA_SCHED", ""),
              *(absolute(c, place.build) for c in info["cmd"]))] = info
    found = []
    for t in run["tests"]:
        sched, *command = t["command"]
        key = [absolute(c, COVERAGE).replace(str(COVERAGE), str(place.build))
               for c in command]
        key = [c.replace(str(TOP), str(place.tree))
               if str(place.build) not in c else c for c in key]
        info = ours.pop((sched, *key), None)
        found.append(Test(info, t["ms"], place)
                     if info and t["status"] == 0 else None)
    for numbers in (n for of in run["lines"].values() for n in of.values()):
        for test in filter(None, (found[n] for n in numbers)):
            test.breadth += 1
    return found, [Test(info, 1000, place) for info in ours.values()]


def sort_of(record):
    """Its kind, and whether it is about memory that is not to be had: few
    tests take that away, whatever else they run."""
    memory = "ENOMEM" in record["before"] or "if (!" in record["before"]
    return record["kind"] + (", memory" if memory else "")


class Odds:
    """How likely a test notices a fault in a file, by what was seen."""

    def __init__(self, records):
        self.ran, self.noticed = collections.Counter(), collections.Counter()
        for record in records:
            self.learn(record)

    def learn(self, record):
        for of in record["file"], sort_of(record):
            for name in record["names"]:
                self.ran[name, of] += 1
            if record["by"]:
                self.noticed[record["by"], of] += 1

    def cost(self, test, record):
        """Of noticing: what is to run first has the least."""
        key, sort = (test.name, record["file"]), (test.name, sort_of(record))
        before = 1 / (1 + test.breadth / 500)
        usual = (self.noticed[sort] + 0.3) / (self.ran[sort] + 1)
        if test.takes_memory and sort[1].endswith("memory"):
            usual *= 20
        # Units of the room itself.
        if test.name.split("/")[0] in record["file"].split("/")[:-1]:
            usual *= 10
        likely = (self.noticed[key] + 3 * before * usual) / \
            (self.ran[key] + 1)
        return (test.ms + 150) / likely
