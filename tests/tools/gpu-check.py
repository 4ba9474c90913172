#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check on the simulation: packed, run from its folder, and what it
says of steps that fail or hang.

Arguments: the tool, the build directory.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(folder: Path, *options: str) -> tuple[int, dict]:
    r = subprocess.run([str(folder / "gpu-check"), "--simulate", "--short",
                        "--out", str(folder / "out"), *options], check=False)
    report = json.loads((folder / "out/gpu-check.json").read_text())
    return r.returncode, {s["step"]: s for s in report["steps"]}


def run_whole(folder: Path, *options: str) -> tuple[int, dict]:
    """With what the suite leaves out."""
    r = subprocess.run([str(folder / "gpu-check"), "--simulate", "--out",
                        str(folder / "out"), *options], check=False)
    report = json.loads((folder / "out/gpu-check.json").read_text())
    return r.returncode, {s["step"]: s for s in report["steps"]}


def replace(folder: Path, program: str, text: str) -> None:
    file = folder / "bin" / program
    file.write_text("#!/bin/sh\n" + text + "\n")
    file.chmod(0o755)


def check_figures(steps: dict) -> None:
    """Whatever they are here: each is there, with what it is compared with."""
    bars = {(f["tier"], f["of"], f["what"]) for f in steps["bars"]["facts"]
            if f["fact"] == "bar"}
    for tier, rate in (("host", "link"), ("device", "device")):
        for of in ("one tensor", "small tensors", "small tensors apart"):
            assert {what for t, o, what in bars if (t, o) == (tier, of)} == {
                "ms of the snapshot's call",
                "ms with a fence of the stream behind it",
                "ms until the stream goes on",
                "restored without checksums, of the same",
                f"safe to overwrite, of the {rate}'s rate",
                f"restored, of the {rate}'s rate",
                *(["restored by who has just begun, of the same"]
                  if tier == "host" else [])}
    by = {(f["way"], f["by"]) for f in steps["facts"]["facts"]
          if f["fact"] == "small copies"}
    assert by == {(way, by) for way in ("h2d", "d2h", "d2d")
                  for by in ("batch", "kernel")}
    passing = {f["threads"] for f in steps["bars"]["facts"]
               if f["fact"] == "passing by the CPU alone"}
    assert passing == {1, 2, 4, 8, 16}
    lots = {(f["by"], f["at_once"]) for f in steps["facts"]["facts"]
            if f["fact"] == "copies by lots"}
    assert {at_once for _, at_once in lots} == {1, 4, 16, 64, 256}
    assert {by for by, _ in lots} == {"batch", "kernel"}
    node = [f for f in steps["facts"]["facts"]
            if f["fact"] == "memory of a node"]
    assert [f["result"] for f in node if "to" in f] == [0, 0, 0]
    assert any("d2h_gb_per_s" in f for f in node)
    killed = [f for f in steps["facts of NCCL"]["facts"]
              if f["fact"] == "nccl of a killed peer"]
    assert killed[0]["abort_ms"] >= 0 and killed[0]["stream_free_ms"] >= 0


def check_lacks(folder: Path) -> None:
    """What is not there is said first, and the rest goes on without."""
    only = ["--only", "before", "--only", "conformance"]
    program = (folder / "bin/cachectl").read_bytes()
    replace(folder, "cachectl", "echo 'no such libc' >&2; exit 1")
    status, steps = run(folder, *only)
    assert status == 1
    lacks = {f["what"]: f["why"] for f in steps["before"]["lacks"]}
    assert lacks == {"cachectl": "no such libc"}
    assert steps["conformance"]["result"] == "passed"
    (folder / "bin/cachectl").write_bytes(program)

    (folder / "bin/vcuda.so.1").rename(folder / "away")
    status, steps = run(folder, *only)
    assert status == 1
    assert [f["what"] for f in steps["before"]["lacks"]] == ["driver"]
    assert steps["conformance"]["why"]
    (folder / "away").rename(folder / "bin/vcuda.so.1")
    check_loader(folder)


def check_loader(folder: Path) -> None:
    """A driver that is there, and that we do not take: on hardware all would
    be left out for want of one."""
    program = (folder / "bin/cachectl").read_bytes()
    (folder / "bin/real").write_bytes(program)
    (folder / "bin/real").chmod(0o755)
    replace(folder, "cachectl", f'VCUDA_AS_HARDWARE= VCUDA_MISSING=cuMemAlloc '
            f'exec "{folder}/bin/real" "$@"')
    status, steps = run(folder, "--only", "before")
    assert status == 1
    assert [f["what"] for f in steps["before"]["lacks"]] == ["our loader"]
    assert "cuMemAlloc" in steps["before"]["lacks"][0]["why"]
    (folder / "bin/cachectl").write_bytes(program)


def check_names(folder: Path) -> None:
    """Of a step that there is not it is not said that it passed."""
    r = subprocess.run([str(folder / "gpu-check"), "--simulate", "--out",
                        str(folder / "out"), "--only", "conformity"],
                       capture_output=True, text=True, check=False)
    assert r.returncode == 2 and "conformity" in r.stderr
    assert "conformance of sharing" in r.stderr     # what there is


def check_facts(folder: Path) -> None:
    """What cannot be taken is a failure of the step."""
    facts = str(folder / "bin/cuda-facts")
    env = os.environ | {"SHARDKEEP_LIBCUDA": str(folder / "bin/vcuda.so.1"),
                        "LD_LIBRARY_PATH": str(folder / "lib")}
    for fails, name in (("cuMemHostRegister", "page-locking"),
                        ("cuMemcpyDtoHAsync", "a copy returns at once")):
        r = subprocess.run([facts, "4", name], env=env |
                           {"VCUDA_FAILS": fails}, capture_output=True,
                           text=True, check=False)
        assert r.returncode == 1, (name, r)
        assert json.loads(r.stdout.splitlines()[-1])["ok"] is False


def check_unwritable(folder: Path) -> None:
    """As where there is no room: all is tried and told, and it is no
    success."""
    part = folder / "out/gpu-check.json.part"
    part.mkdir()
    r = subprocess.run([str(folder / "gpu-check"), "--simulate", "--out",
                        str(folder / "out"), "--only", "tables", "--only",
                        "checksums"], capture_output=True, text=True,
                       check=False)
    part.rmdir()
    assert r.returncode == 1 and "gpu-check.json" in r.stderr
    assert r.stdout.split() == ["passed", "tables", "passed", "checksums"]


def check_unheard(folder: Path) -> None:
    """Nobody reads what it says any more."""
    read, write = os.pipe()
    os.close(read)
    subprocess.run([str(folder / "gpu-check"), "--simulate", "--out",
                    str(folder / "out"), "--only", "tables", "--only",
                    "checksums"], stdout=write, stderr=subprocess.DEVNULL,
                   check=False)
    os.close(write)
    report = json.loads((folder / "out/gpu-check.json").read_text())
    assert [s["result"] for s in report["steps"]] == ["passed", "passed"]


# What passes having tested nothing, as pytest, Criterion and conformance
# programs say it; and beside something that was tested.
SKIPPED = {
    "test_x.py::test_a SKIPPED (no compiler)                [100%]\n"
    "=========== short test summary info ===========\n"
    "SKIPPED [2] test_x.py:2: no compiler\n"
    "============== 2 skipped in 0.47s ==============": "no compiler",
    "=========== 3 deselected in 0.02s ===========": "3 deselected",
    "[SKIP] lane::budgets: one device\n"
    "[====] Synthesis: Tested: 0 | Passing: 0 | Failing: 0 | Crashing: 0":
        "one device",
    "left out: a thing\nleft out: another": "all 2 items",
}
TESTED = [
    "SKIPPED [2] test_x.py:2: no compiler\n"
    "========= 1 passed, 2 skipped in 0.47s =========",
    "[====] Synthesis: Tested: 2 | Passing: 2 | Failing: 0 | Crashing: 0",
    "left out: a thing\nok: another",
]


def check_skipped(folder: Path) -> None:
    """A step of which all was skipped did not pass, and where no other one
    did there is no success."""
    program = (folder / "bin/test-cuda-table").read_bytes()
    (folder / "out/gpu-check.log").unlink(missing_ok=True)
    for said, why in SKIPPED.items():
        replace(folder, "test-cuda-table", f"cat <<'END'\n{said}\nEND")
        status, steps = run_whole(folder, "--only", "tables")
        assert status == 1, said
        assert steps["tables"]["result"] == "left out", said
        assert why in steps["tables"]["why"]
        assert why in (folder / "out/gpu-check.log").read_text()
        status, steps = run_whole(folder, "--only", "tables", "--only",
                                  "checksums")
        assert status == 0 and steps["checksums"]["result"] == "passed"
    for said in TESTED:
        replace(folder, "test-cuda-table", f"cat <<'END'\n{said}\nEND")
        status, steps = run_whole(folder, "--only", "tables")
        assert status == 0 and steps["tables"]["result"] == "passed", said
    (folder / "bin/test-cuda-table").write_bytes(program)


def check_untried(folder: Path) -> None:
    """The machine told of itself, and no test of ours ran."""
    kept = {}
    tried = [p for p in (folder / "bin").iterdir()
             if p.name.startswith(("cuda-", "client-", "nccl-", "restore-",
                                   "test-", "demo-", "shardkeep-bench"))]
    for p in tried:
        kept[p] = p.read_bytes()
        replace(folder, p.name, "echo 'there is none here'; exit 77")
    tool = folder / "gpu-check"
    kept[tool] = tool.read_bytes()
    tool.write_text(tool.read_text().replace(
        "def step_of_training(folder: Path, device: str) -> int:\n",
        "def step_of_training(folder: Path, device: str) -> int:\n"
        "    return LEFT_OUT\n"))
    status, steps = run(folder)
    assert steps["before"]["result"] == "passed"
    assert {s["result"] for n, s in steps.items() if n != "before"} == \
        {"left out"}
    assert status == 1
    for p, was in kept.items():
        p.write_bytes(was)


def is_gone(pid: int) -> bool:
    """Or is about to be."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] in "ZX"


def check_ended(folder: Path, number: int, status: int) -> None:
    """Ended in a step: what came before, and what that said, are there, and
    what it had begun is not."""
    (folder / "out/gpu-check.log").unlink(missing_ok=True)
    replace(folder, "cuda-conformance", "echo begun $$; exec sleep 99")
    with subprocess.Popen([str(folder / "gpu-check"), "--simulate", "--short",
                           "--out", str(folder / "out"), "--only", "before",
                           "--only", "conformance"]) as p:
        log = folder / "out/gpu-check.log"
        while not log.exists() or not re.search(r"begun \d+\n",
                                                log.read_text()):
            assert p.poll() is None
            time.sleep(0.05)
        p.send_signal(number)
        assert p.wait() == status
    begun = re.search(r"begun (\d+)", log.read_text())
    assert begun
    until = time.monotonic() + 60
    while not is_gone(int(begun[1])):
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.05)
    report = json.loads((folder / "out/gpu-check.json").read_text())
    assert report["running"] == "conformance"
    assert [s["result"] for s in report["steps"]] == ["passed"]


def check_torch_tests(folder: Path, sources: Path) -> None:
    """All that they import of ours is packed with them."""
    packed = {f.stem for f in (folder / "tests").glob("*.py")}
    assert {"test_cuda", "test_nodes", "test_dcp_nodes"} <= packed
    ours = {f.stem for f in sources.glob("*.py")}
    for f in sorted((folder / "tests").glob("*.py")):
        needs = set(re.findall(r"^(?:import|from) (\w+)", f.read_text(), re.M))
        assert needs & ours <= packed, (f, needs & ours - packed)


def main() -> None:
    # Whoever began this in the background may have had them ignored.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    tool, build = sys.argv[1:]
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d) / "folder"
        for _ in range(2):      # the second time into what is there
            subprocess.run([tool, "pack", build, str(folder)], check=True)
        # Nothing that fits one C library alone.
        for library in (folder / "lib").iterdir():
            assert b"GLIBC_PRIVATE" not in library.read_bytes(), library
        # All that a compiler there would need.
        assert (folder / "package/all.o").stat().st_size
        assert list((folder / "package/libclient/python/src").glob("*.c"))
        check_torch_tests(folder, Path(tool).parents[1] / "tests/python")

        status, steps = run(folder)
        bad = {n: s for n, s in steps.items()
               if s["result"] not in ("passed", "left out")}
        assert not bad and not status, (status, bad)
        for name, s in steps.items():
            assert s["result"] == "passed" or s["why"], name
        assert all(f["ok"] for f in steps["facts"]["facts"]
                   if f["fact"] == "taken")
        items = set(steps["conformance"]["items"].values())
        assert items == {"ok", "left out"}, items
        check_figures(steps)
        known = {f["what"]: f for f in steps["before"]["facts"]}
        assert known["driver"]["ok"] and known["NCCL"]["at"]
        assert known["devices"]["count"] and "lacks" not in steps["before"]
        assert os.path.getsize(folder / "out/gpu-check.log")

        check_lacks(folder)
        check_names(folder)
        check_facts(folder)
        check_skipped(folder)
        check_untried(folder)
        check_unwritable(folder)
        check_unheard(folder)
        # What fails and what hangs is told, and stops nothing.
        replace(folder, "cuda-conformance-share",
                "echo 'FAIL: a thing'; exit 3")
        replace(folder, "cuda-conformance", "echo begun; exec sleep 99")
        status, steps = run(folder, "--only", "conformance", "--only",
                            "conformance of sharing", "--only", "machine",
                            "--seconds", "7")
        assert status == 1
        assert steps["conformance of sharing"]["status"] == 3
        assert steps["conformance of sharing"]["items"] == {"a thing": "FAIL"}
        assert steps["conformance"]["result"] == "took too long"
        assert "begun" in steps["conformance"]["tail"]
        assert len(steps) == 3
        for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129),
                             (signal.SIGINT, 130)):
            check_ended(folder, number, code)


if __name__ == "__main__":
    main()
