# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of fsdp2.py: plot.py losses.csv losses.png"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rows = [(int(s), float(v), int(w)) for s, v, w in csv.reader(open(sys.argv[1]))]
parts: list[list[tuple[int, float, int]]] = []
for row in rows:
    before = parts[-1][-1] if parts else None
    if not before or before[2] != row[2] or row[0] != before[0] + 1:
        parts.append([])
    parts[-1].append(row)
plt.figure(figsize=(7, 4))
for part in parts:
    plt.plot([r[0] for r in part], [r[1] for r in part],
             label=f"{part[0][2]} ranks, from step {part[0][0]}")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend()
plt.tight_layout()
plt.savefig(sys.argv[2], dpi=120)
