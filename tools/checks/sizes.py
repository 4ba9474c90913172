#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes: lines of 80 columns, short functions, files that one can keep in mind.

Prints what is over a limit; with --report also the medians. Arguments: files
of C and Python, scripts.
"""

import ast
import statistics
import sys
from pathlib import Path

COLUMNS = 80
LITERAL_COLUMNS = 100   # of a line with a text in it that is better not cut
# Lines, of what is shipped and of tests. What is typical is far below:
# functions have 13 lines at the median, files about 200.
FUNCTION = {"tests": 100, "": 60}
FILE = {"tests": 2000, "": 800}
# What users read is one file, and most of it is said to them.
PUBLIC = {"libclient/shardkeep.h": 900}


def limit(table: dict[str, int], path: str) -> int:
    return table["tests" if path.startswith("tests/") else ""]


def functions_c(lines: list[str]) -> list[tuple[int, int]]:
    """Line and length: our braces of functions stand in the first column."""
    found, start = [], 0
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            found.append((start, number - start + 1))
            start = 0
    return found


def functions_python(text: str) -> list[tuple[int, int]]:
    return [(node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def main() -> int:
    bad, lengths, files = [], [], []
    for path in [a for a in sys.argv[1:] if a != "--report"]:
        text = Path(path).read_text(encoding="utf-8")
        lines = text.split("\n")
        is_c, is_python = path.endswith((".c", ".h")), path.endswith(".py")
        for number, line in enumerate(lines, 1):
            most = LITERAL_COLUMNS if '"' in line or "'" in line else COLUMNS
            if len(line.expandtabs(8)) > most:
                bad.append(f"{path}:{number}: more than {most} columns")
            if line != line.rstrip():
                bad.append(f"{path}:{number}: space at its end")
        if not (is_c or is_python):
            continue
        files.append(len(lines))
        longest = PUBLIC.get(path, limit(FILE, path))
        if len(lines) > longest:
            bad.append(f"{path}: {len(lines)} lines, more than "
                       f"{longest}")
        found = functions_c(lines) if is_c else functions_python(text)
        lengths += [n for _, n in found]
        bad += [f"{path}:{at}: a function of {n} lines, more than "
                f"{limit(FUNCTION, path)}" for at, n in found
                if n > limit(FUNCTION, path)]
    if "--report" in sys.argv:
        print(f"{len(lengths)} functions, {statistics.median(lengths):.0f} "
              f"lines at the median, {max(lengths)} at most; {len(files)} "
              f"files, {statistics.median(files):.0f} and {max(files)}")
    for what in bad:
        print(what, file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
