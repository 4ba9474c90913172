#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A text as an array of C, with a NUL behind it: embed.py TEXT NAME OUTPUT."""

import sys
from pathlib import Path

text, name, output = sys.argv[1:]
data = Path(text).read_bytes() + b"\0"
with Path(output).open("w", encoding="ascii") as f:
    f.write("/* SPDX-License-Identifier: Apache-2.0 */\n"
            f"extern const char {name}[];\nconst char {name}[] = {{\n")
    for at in range(0, len(data), 16):
        f.write("".join(f"{b}," for b in data[at:at + 16]) + "\n")
    f.write("};\n")
