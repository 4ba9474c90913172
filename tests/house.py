#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house: which room may include which.

A file includes its own room and those below it, in its own house and in the
houses that its own stands on; never a room above, and never another room's
private header. Every header compiles alone, and no two are included by one
name. Comments and documents name no source that is not there. First the test
shows that it sees each of these broken.

Arguments: the root of the tree, the C compiler, a folder with the headers that
are made from NAME.h.in when it is built.

What runs in a trainer's process does not follow the trainer's locale, which may
have commas for points and an "I" that is no capital "i".
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Rooms, lowest first: folders, or the files of one that lie in no deeper one.
HOUSES = {
    "cache": ["cache/*", "cache/base/", "cache/tensor/", "cache/bytes/",
              "cache/cuda/", "cache/nccl/", "cache/layout/",
              "cache/memory/", "cache/io/", "cache/store/",
              "cache/catalogue/", "cache/wire/"],
    "agent": ["agent/loop/", "agent/keeper/", "agent/worker/", "agent/*.h",
              "agent/memory/", "agent/disk/",
              "agent/session/", "agent/metrics/", "agent/calls/",
              "agent/revive/", "agent/*.c"],
    "libclient": ["libclient/*", "libclient/conn/", "libclient/state/",
                  "libclient/snapshot/", "libclient/comm/",
                  "libclient/restore/", "libclient/inspect/",
                  "libclient/python/"],
    # Programs: none is above another, but what cachectl formats with.
    "tools": ["tools/cachectl/", "tools/bench/", "tools/trainer/"],
    "tests": ["tests/"],
}

# What a house stands on.
STANDS_ON = {
    "cache": [],
    "agent": ["cache"],
    "libclient": ["cache"],
    "tools": ["libclient", "cache"],
    "tests": ["agent", "libclient", "tools", "cache"],
}

# Folders that quoted includes are looked up in, beside the file's own.
ROOTS = {
    "cache": ["cache"],
    "agent": ["agent", "cache"],
    "libclient": ["libclient", "libclient/python/src", "cache"],
    "tools": ["tools/cachectl", "libclient", "cache"],
    "tests": ["tests", "tests/support", "libclient", "cache", "agent",
              "tools/cachectl", "tools/trainer"],
}

# Their names are looked up by all of the house or by others: each once.
SHARED_ROOTS = ["cache", "agent", "libclient"]

# Sources and headers; text that a test has made of a document is neither.
COMMENT = re.compile(r"/\*.*?\*/", re.S)
SOURCE = re.compile(r"(?<![\w./*<-])[a-z][a-z0-9_/-]*\.[ch]\b")
DOCUMENTS = ["*.md", "docs/*.md"]

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+\.[ch])"', re.M)


def house_of(path: str) -> str:
    return path.split("/")[0]


def in_room(path: str, room: str) -> bool:
    if room.endswith("/"):
        return path.startswith(room)
    folder, _, pattern = room.rpartition("/")
    return Path(path).parent == Path(folder) and Path(path).match(pattern)


def room_of(path: str) -> int | None:
    """Its floor in its house."""
    for floor, room in enumerate(HOUSES[house_of(path)]):
        if in_room(path, room):
            return floor
    return None


def sources(root: Path) -> list[str]:
    return sorted(str(f.relative_to(root)) for house in HOUSES
                  for pattern in ("*.[ch]", "*.h.in")
                  for f in (root / house).rglob(pattern))


def resolve(root: Path, path: str, name: str) -> str | None:
    folders = [str(Path(path).parent), *ROOTS[house_of(path)]]
    for folder in folders:
        for suffix in ("", ".in"):      # one that is made has its room too
            file = root / folder / (name + suffix)
            if file.is_file():
                return str(file.resolve().relative_to(root.resolve()))
    return None


def private(path: str) -> bool:
    return Path(path).stem.split("-")[-1] == "private"


def wrong_include(path: str, target: str) -> str | None:
    """Why @path must not include @target."""
    mine, other = house_of(path), house_of(target)
    if mine == "tests":
        return None
    if other != mine:
        if other not in STANDS_ON[mine]:
            return f"{mine} does not stand on {other}"
        return "it is another room's own" if private(target) else None
    floor, below = room_of(path), room_of(target)
    if floor is None or below is None or floor == below:
        return None         # a file in no room is told of once
    if below > floor:
        return "that room is above"
    return "it is another room's own" if private(target) else None


def check_includes(root: Path) -> list[str]:
    bad = []
    for path in sources(root):
        if room_of(path) is None:
            bad.append(f"{path} is in no room that the table knows")
        for name in INCLUDE.findall((root / path).read_text()):
            if name.endswith(".inc"):       # made from text, of no room
                continue
            target = resolve(root, path, name)
            why = wrong_include(path, target) if target else "nobody has it"
            if why:
                bad.append(f'{path} includes "{name}": {why}')
    return bad


def check_names(root: Path) -> list[str]:
    seen: dict[str, str] = {}
    bad = []
    for folder in SHARED_ROOTS:
        for file in sorted((root / folder).rglob("*.h")):
            name = str(file.relative_to(root / folder))
            if name in seen:
                bad.append(f"{folder} and {seen[name]} both have {name}")
            seen[name] = folder
    return bad


def named(root: Path) -> list[tuple[str, str]]:
    """Files, and the sources that they speak of."""
    texts = [(path, " ".join(COMMENT.findall((root / path).read_text())))
             for path in sources(root)]
    texts += [(str(file.relative_to(root)), file.read_text())
              for pattern in DOCUMENTS for file in root.glob(pattern)]
    return [(path, name) for path, text in texts
            for name in SOURCE.findall(text)]


def check_named(root: Path) -> list[str]:
    there = ["/" + path.removesuffix(".in") for path in sources(root)]
    return [f"{path} speaks of {name}: there is none"
            for path, name in named(root)
            if not name.startswith("include/")      # another project's
            and not any(t.endswith("/" + name) for t in there)]


# Of the C library, and of printf().
LOCALE = re.compile(r"\b(?:strto(?:d|f|ld)|atof|strcasecmp|strncasecmp|"
                    r"is(?:alpha|alnum|print|punct|upper|lower|space)|"
                    r"toupper|tolower|strftime)\s*\(|"
                    r'"[^"\n]*%[-+ #0]*[0-9.*]*l?[aefgAEFG][^"\n]*"')


def check_locale(root: Path) -> list[str]:
    return [f"{path} follows the trainer's locale: {found.strip()}"
            for path in sources(root)
            if path.startswith(("cache/", "libclient/"))
            for found in LOCALE.findall(
                COMMENT.sub("", (root / path).read_text()))]


def compiles(root: Path, path: str, cc: list[str]) -> str | None:
    """@cc is the compiler, and where it finds the headers that are made."""
    includes = ["-I" + str(root / r) for r in ROOTS[house_of(path)]]
    r = subprocess.run([*cc, "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra",
                        "-Werror", "-fsyntax-only", "-x", "c", *includes,
                        str(root / path)],
                       capture_output=True, text=True, check=False)
    if r.returncode == 0:
        return None
    return f"{path} does not compile alone:\n{r.stderr}"


def check_headers(root: Path, cc: list[str]) -> list[str]:
    # Python's own headers may not be there.
    headers = [p for p in sources(root) if p.endswith(".h")     # not made
               and not p.startswith(("libclient/python/", "tests/"))]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda p: compiles(root, p, cc), headers)
        return [f for f in found if f]


def check(root: Path, cc: list[str]) -> list[str]:
    return (check_includes(root) + check_names(root) + check_named(root)
            + check_locale(root) + check_headers(root, cc))


# ---- that it can fail ----

# What is planted, as file and text; and a word of the complaint.
PLANTS = [
    ("cache/base/planted.c", '#include "wire/message.h"\n', "above"),
    ("cache/io/planted.c", '#include "store/store.h"\n', "above"),
    ("agent/loop/planted.c", '#include "agent.h"\n', "above"),
    ("agent/calls/planted.c", '#include "store/private.h"\n', "own"),
    ("cache/store/planted.c", '#include "layout/private.h"\n', "own"),
    ("agent/planted.c", '#include "../libclient/shardkeep.h"\n', "stand"),
    ("cache/wire/planted.c", '#include "nothing.h"\n', "nobody"),
    ("cache/attic/planted.c", "int attic;\n", "no room"),
    ("libclient/store/store.h", "int twice;\n", "both have"),
    ("cache/bytes/planted.c", "/* As in bytes/gone.c. */\n", "speaks"),
    ("cache/tensor/planted.c", 'x = "%.1f s";\n', "locale"),
    ("libclient/conn/planted.c", "x = atof (y);\n", "locale"),
    ("cache/tensor/planted.h", "sk_unknown planted(void);\n", "alone"),
]


def self_test(root: Path, cc: list[str]) -> list[str]:
    bad = []
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp)
        for path in sources(root):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, copy / path)
        for path, text, word in PLANTS:
            file = copy / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            found = check_includes(copy) + check_names(copy)
            found += check_named(copy) + check_locale(copy)
            if file.suffix == ".h":
                found.append(compiles(copy, path, cc) or "")
            if not any("planted" in f and word in f or word == "both have"
                       and word in f for f in found):
                bad.append(f"not noticed: {path} with {text.strip()}")
            file.unlink()
    return bad


def main() -> int:
    root, cc = Path(sys.argv[1]), shlex.split(sys.argv[2])
    cc += ["-I" + made for made in sys.argv[3:]]
    bad = self_test(root, cc) + check(root, cc)
    for what in bad:
        print("FAIL:", what, file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
