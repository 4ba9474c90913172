#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Section 3 of the manual against the libraries and their headers.

Arguments: the directory of the pages, libshardkeep.so, libshardkeep.map, the
directories of the public headers, and --mpi libshardkeep-mpi.so where there is
one.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

failures = []


def check(good: bool, what: str) -> None:
    if not good:
        failures.append(what)


def plain(roff: str) -> str:
    text = re.sub(r"\\f[A-Z]", "", roff)
    return text.replace(r"\-", "-").replace(r"\&", "").replace(r"\e", "\\")


def section(roff: str, name: str) -> str:
    match = re.search(rf"^\.SH {name}\n(.*?)(?=^\.SH |\Z)", roff,
                      re.S | re.M)
    return plain(match[1]) if match else ""


def exported(library: str) -> set[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", library],
                         capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\bT (sk_\w+)", out))


def check_links(folder: Path) -> dict[str, str]:
    """The pages that are more than a link, by name."""
    pages = {}
    for file in sorted(folder.glob("sk_*.3")):
        text = file.read_text()
        link = re.fullmatch(r"\.so man3/(sk_\w+)\.3\n", text)
        if not link:
            pages[file.stem] = text
            continue
        target = folder / f"{link[1]}.3"
        check(target.exists() and file.stem in
              section(target.read_text(), "NAME").split(" - ")[0].split(", "),
              f"{file.name} leads to a page that is not its own")
    return pages


def check_functions(pages: dict[str, str], folder: Path,
                    symbols: set[str]) -> str:
    """Their prototypes, for a compiler to compare with the header's."""
    seen: dict[str, str] = {}
    prototypes = []
    for name, text in pages.items():
        for proto in re.findall(r"^[a-z][\w \*]*?\bsk_\w+\([^;]*\);",
                                section(text, "SYNOPSIS"), re.M):
            function = re.search(r"\b(sk_\w+)\(", proto)[1]
            check(function not in seen, f"{function} stands in {name} and in "
                  f"{seen.get(function)}")
            seen[function] = name
            prototypes.append(proto)
            check((folder / f"{function}.3").exists(),
                  f"{function} has no page of its name")
            check(f".SS {function}()\n" in text.split(".SH DESCRIPTION")[-1],
                  f"{function} is not described in {name}")
            check(f".SS {function}()\n.TP\n" in text.split(".SH ERRORS")[-1]
                  or f".SS {function}()\n.P\n" in
                  text.split(".SH ERRORS")[-1]
                  or not proto.startswith("int "),
                  f"{function} lists no errors in {name}")
    for missing in symbols - set(seen):
        check(False, f"{missing} is exported and in no page")
    for unknown in set(seen) - symbols:
        check(False, f"{unknown} has a page and is not exported")
    return "\n".join(prototypes)


def check_prototypes(prototypes: str, header: str, includes: list[str]
                     ) -> None:
    """Declared again beside the header: another signature is an error."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
        source.write(f"#include <{header}>\n{prototypes}\n")
        source.flush()
        r = subprocess.run(["cc", "-fsyntax-only", "-Werror", source.name,
                            *("-I" + i for i in includes)],
                           capture_output=True, text=True, check=False)
    check(r.returncode == 0, "signatures differ: " + r.stderr)


def check_text(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for function in re.findall(r"\.SS (sk_\w+)\(\)\n(?=\.S)", text):
            check(False, f"{function} has no text in {name}")
        for other in re.findall(r"\bsk_\w+(?=\(3\))", plain(text)):
            check(other in pages, f"{name} points to {other}(3)")
        if shutil.which("groff"):
            r = subprocess.run(["groff", "-man", "-Tutf8", "-z", "-ww"],
                               input=text, capture_output=True, text=True,
                               check=False)
            check(not r.stderr, f"{name}: {r.stderr}")


def main() -> int:
    folder, library, symbol_map = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    symbols = set(re.findall(r"^\s+(sk_\w+);", Path(symbol_map).read_text(),
                             re.M))
    check(exported(library) == symbols, "the library does not export what its "
          "map says: " + " ".join(sorted(exported(library) ^ symbols)))
    includes, header = sys.argv[4:], "shardkeep.h"
    if "--mpi" in includes:
        at = includes.index("--mpi")
        symbols |= exported(includes[at + 1])
        includes, header = includes[:at], "shardkeep-mpi.h"
    pages = check_links(folder)
    check(len(pages) > 5, "there are no pages")
    check_prototypes(check_functions(pages, folder, symbols), header, includes)
    check_text(pages)
    for what in failures:
        print("FAIL:", what, file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
