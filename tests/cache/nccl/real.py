#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our declarations and our table against the real NCCL, where one is.

real.py EXPORTS ROOT CC...: the program of exports.c, the top of the tree, the
C compiler. It is looked for in $NCCL_HOME, in the packages of this Python, and
in the system. 77: there is none. No GPU is needed.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

CUDA = ["/usr/local/cuda"]


def homes() -> list[Path]:
    packages = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    said = os.environ.get("NCCL_HOME")
    return [Path(p) for p in (said, packages, "/usr") if p]


def library(home: Path) -> Path | None:
    for folder in ("lib", "lib64", "lib/x86_64-linux-gnu"):
        file = home / folder / "libnccl.so.2"
        if file.is_file():
            return file
    return None


def cuda_headers(home: Path) -> Path | None:
    for cuda in [*home.parent.glob("cu*"), *map(Path, CUDA)]:
        if (cuda / "include" / "cuda_runtime.h").is_file():
            return cuda / "include"
    return None


def compiles(root: Path, cc: list[str], includes: list[Path],
             before: str = "") -> bool:
    """@before comes before our declarations."""
    with tempfile.TemporaryDirectory() as tmp:
        source = Path(tmp) / "check.c"
        source.write_text(
            before + f'#include "{root}/cache/nccl/abi-check.c"\n')
        return not subprocess.run(
            [*cc, "-std=gnu17", "-fsyntax-only", f"-I{root}/cache",
             *[f"-isystem{i}" for i in includes], str(source)],
            check=False, capture_output=bool(before)).returncode


def main() -> int:
    exports, root, cc = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    home = next((h for h in homes() if library(h)), None)
    if not home:
        print("there is no NCCL here")
        return 77
    env = {k: v for k, v in os.environ.items() if k != "SHARDKEEP_LIBNCCL"}
    if subprocess.run([exports, str(library(home))], env=env,
                      check=False).returncode:
        return 1
    cuda = cuda_headers(home)
    if not cuda or not (home / "include" / "nccl.h").is_file():
        print("there are no headers of it here")
        return 0
    includes = [home / "include", cuda]
    # That it can fail.
    if compiles(root, [*cc, "-w"], includes,
                "#define ncclCommDestroy ncclGroupStart\n"):
        print("a function of another kind was not noticed")
        return 1
    return 0 if compiles(root, cc, includes) else 1


if __name__ == "__main__":
    sys.exit(main())
