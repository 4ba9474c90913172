#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-format as the judge of what it can judge.

It has no setting for tables, long conditions and trailing comments as they
are set here by hand, so that its whole opinion would be noise. Where it
breaks a line in the same places, though, indentation and spaces have to be
its own. Arguments: C files.
"""

import difflib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def words(line: str) -> str:
    return re.sub(r"\s+", "", line)


def code(line: str) -> str:
    """Without a comment at its end, which hand-set tabs may precede."""
    line = re.sub(r"\s*/\*.*", "", line).rstrip()
    line = re.sub(r"; (?=[;)])", ";", line)     # of a for without some part
    return line.replace("delete (", "delete(")  # it takes C for C++


def begins(lines: list[str], at: int) -> bool:
    """A statement begins here: the line does not go on from the one above."""
    above = code(lines[at - 1]) if at else ""
    return not above.strip() or above[-1] in ";{}"


def by_hand(lines: list[str], at: int) -> bool:
    """Macros, choices, and rows of a table."""
    return (lines[at].endswith("\\") or lines[max(at - 1, 0)].endswith("\\")
            or "?" in lines[at] or "= {" in lines[at]
            or lines[at].lstrip()[:1] in ("{", ".", '"'))


# Walks within walks share one indentation: to clang-format, the outer one is
# said to be a statement.
NESTED = re.compile(r"^(\s*sk_link_each\(.*\))$(?=\n\s*sk_link_each\()", re.M)


def judge(path: str) -> list[str]:
    with open(path, encoding="utf-8") as f:
        text = f.read()
    ours = text.split("\n")
    theirs = subprocess.run(["clang-format", "--assume-filename", path],
                            input=NESTED.sub(r"\1;", text),
                            capture_output=True, text=True,
                            check=True).stdout.split("\n")
    match = difflib.SequenceMatcher(None, [words(x) for x in ours],
                                    [words(x) for x in theirs],
                                    autojunk=False)
    bad = []
    for block in match.get_matching_blocks():
        for k in range(block.size):
            at = block.a + k
            mine, other = code(ours[at]), code(theirs[block.b + k])
            if not begins(ours, at):
                mine, other = mine.lstrip(), other.lstrip()
            if mine == other or by_hand(ours, at):
                continue
            bad.append(f"{path}:{at + 1}: clang-format has it as\n"
                       f"{theirs[block.b + k]}\ninstead of\n{ours[at]}")
    return bad


def main() -> int:
    with ThreadPoolExecutor() as pool:
        bad = [b for found in pool.map(judge, sys.argv[1:]) for b in found]
    for what in bad:
        print(what, file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
