#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check on the simulation: packed, run from its folder, and what it
says of steps that fail or hang.

Arguments: the tool, the build directory.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def run(folder: Path, *options: str) -> tuple[int, dict]:
    r = subprocess.run([str(folder / "gpu-check"), "--simulate", "--short",
                        "--out", str(folder / "out"), *options], check=False)
    report = json.loads((folder / "out/gpu-check.json").read_text())
    return r.returncode, {s["step"]: s for s in report["steps"]}


def replace(folder: Path, program: str, text: str) -> None:
    file = folder / "bin" / program
    file.write_text("#!/bin/sh\n" + text + "\n")
    file.chmod(0o755)


def main() -> None:
    tool, build = sys.argv[1:]
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d) / "folder"
        subprocess.run([tool, "pack", build, str(folder)], check=True)
        # All that a compiler there would need.
        assert (folder / "package/all.o").stat().st_size
        assert list((folder / "package/libclient/python/src").glob("*.c"))

        status, steps = run(folder)
        bad = {n: s for n, s in steps.items()
               if s["result"] not in ("passed", "left out")}
        assert not bad and not status, (status, bad)
        for name, s in steps.items():
            assert s["result"] == "passed" or s["why"], name
        assert all(f["ok"] for f in steps["facts"]["facts"]
                   if f["fact"] == "taken")
        assert set(steps["conformance"]["items"].values()) == {"ok"}
        assert os.path.getsize(folder / "out/gpu-check.log")

        # What fails and what hangs is told, and stops nothing.
        replace(folder, "cuda-conformance", "echo 'FAIL: a thing'; exit 3")
        replace(folder, "cuda-conformance-share", "echo begun; exec sleep 99")
        status, steps = run(folder, "--only", "conformance", "--only",
                            "conformance of sharing", "--only", "machine",
                            "--seconds", "7")
        assert status == 1
        assert steps["conformance"]["status"] == 3
        assert steps["conformance"]["items"] == {"a thing": "FAIL"}
        assert steps["conformance of sharing"]["result"] == "took too long"
        assert "begun" in steps["conformance of sharing"]["tail"]
        assert len(steps) == 3


if __name__ == "__main__":
    main()
