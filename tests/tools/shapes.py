#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members and types of cachectl's JSON against those that were promised.

Arguments: the file of promises, a name in it, a document. Without a file's
entry of that name, prints what would be one.
"""

import json
import sys


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items()}
    if isinstance(value, list):
        shapes = []
        for member in value:
            if shape(member) not in shapes:
                shapes.append(shape(member))
        return shapes
    return {bool: "boolean", int: "integer", float: "number",
            str: "string", type(None): "null"}[type(value)]


def fits(have: object, want: object) -> bool:
    """A number may be whole, a list empty; no member is new or lacks."""
    if isinstance(want, list):
        return isinstance(have, list) and all(
            any(fits(h, w) for w in want) for h in have)
    if isinstance(want, dict):
        return isinstance(have, dict) and have.keys() == want.keys() and all(
            fits(have[key], want[key]) for key in want)
    return have == want or (have, want) == ("integer", "number")


def main() -> None:
    promises, name, document = sys.argv[1:4]
    with open(promises, encoding="utf-8") as f:
        promised = json.load(f)
    with open(document, encoding="utf-8") as f:
        have = shape(json.load(f))
    if name not in promised:
        sys.exit(f'nothing is promised: "{name}": {json.dumps(have)}')
    if not fits(have, promised[name]):
        sys.exit(f"{name} is {json.dumps(have)},\n"
                 f"not {json.dumps(promised[name])}")


if __name__ == "__main__":
    main()
