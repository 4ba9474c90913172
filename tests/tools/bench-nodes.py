#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shardkeep-bench --nodes: what has to pass between nodes is what it says, and
passes once. Nothing is said of its times. Arguments: paths of shardkeep-bench
and shardkeepd."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

TENSORS = 4
SPARE = 1.05                    # of what is needed
ALONE = ["columns for rows", "each rank on the next node"]
HASHED_ONCE = ["columns for rows", "each rank on the next node",
               "a node's columns on each of its ranks"]
SEVERAL = ["all of it on each node", "a node's columns on each of its ranks"]


def check(right: bool, what: str) -> None:
    if not right:
        raise SystemExit(f"bench-nodes: {what}")


def run(*options: str) -> dict:
    with tempfile.TemporaryDirectory() as d:
        text = subprocess.run(
            [sys.argv[1], "-a", sys.argv[2], "--dir", d, "--json", "-t",
             str(TENSORS), "-n", "2", *options], check=True,
            stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text)


def once(doc: dict, kinds: list[str]) -> dict[str, int]:
    """What each restore needed, and took without much more."""
    rows = {row["restore"]: row for row in doc["between_nodes"]}
    check(list(rows) == kinds, f"{list(rows)} and not {kinds}")
    for what, row in rows.items():
        check(row["needed"] <= row["received"] <= SPARE * row["needed"],
              f"{what}: received {row['received']} of {row['needed']}")
        check(row["sent"] == row["received"] and row["met"] == "yes",
              f"{what}: {row}")
        check(row["most"] <= row["sent"], f"{what}: {row}")
        # Whoever sends of a chunk verifies it for its own node as well, if
        # it wants of it; else another rank there does.
        spare = 1 if what in HASHED_ONCE else 2
        check(0.99 < row["hashed"] <= spare * 1.001, f"{what}: {row}")
    shown = [f["figure"].strip() for f in doc["figures"]]
    for what in kinds:
        check(any(name.endswith(what) for name in shown), f"{what}: {shown}")
    for figure in doc["figures"]:
        check(figure["ratio"] > 0, f"{figure}: beside what?")
    return {what: row["needed"] for what, row in rows.items()}


def even() -> None:
    """6 ranks, which cut all evenly, on 3 nodes."""
    model = 3276 * 240 * 4 * TENSORS
    need = once(run("--nodes", "3", "-b", "2M"), ALONE + SEVERAL)
    check(need == {
        "columns for rows": model * 2 // 3,
        "each rank on the next node": model,
        "all of it on each node": model * 2,
        "a node's columns on each of its ranks": model * 2 // 3,
    }, f"{need} of {model}")


def main() -> None:
    even()
    # A rank has a row less than the others, and no node has two.
    once(run("--nodes", "5", "--ranks", "5", "-b", "1M"), ALONE)
    doc = run("-p", "nodes", "--nodes", "2", "--ranks", "4", "-b", "1M")
    once(doc, ALONE + SEVERAL)
    check((doc["nodes"], doc["ranks"]) == (2, 4), f"{doc}")


if __name__ == "__main__":
    main()
