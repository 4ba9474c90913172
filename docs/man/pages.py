#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages of section 3, from the comments of the public headers.

    pages.py list VERSION HEADER...       the names of the pages, one a line
    pages.py write VERSION HEADER... DIRECTORY    writes them

A page is a section of a header, "/* ---- title ---- */"; PAGES says what it is
called. Every function has a page of its own name that leads to its section's.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Section of the header: its page, and what that is in a line.
PAGES = {
    "errors and the version": ("sk_error", "why the last call failed"),
    "the agent": ("sk_open", "find, or start, this node's agent"),
    "meshes": ("sk_mesh_create", "meshes of a job's ranks"),
    "state": ("sk_state_create", "describe what a rank holds"),
    "snapshots": ("sk_snapshot", "take snapshots, and what became of them"),
    "restore": ("sk_restore", "bring tensors back from a snapshot"),
    "ranks that have MPI": ("sk_comm_mpi", "a comm of ranks that have MPI"),
    "what there is": ("sk_inspect", "list snapshots and what they hold"),
    "types": ("sk_types", "dtypes, placements and boxes"),
}

# A header whose functions are in a library of their own, if it was built.
LIBRARIES = {"shardkeep-mpi.h": r"libshardkeep\-mpi (\fB\-lshardkeep\-mpi\fP"
             r" beside \fIpkg\-config\fP shardkeep)"}

# What a code means where the header says no more.
PLAIN = {
    "-EINVAL": "An argument makes no sense; the sentence says which.",
    "-EIO": "A read or a write failed.",
    "-ENOMEM": "There is not enough memory.",
    "-EOWNERDEAD": "The handle was opened before a fork(2).",
    "-ETIMEDOUT": "The time is over.",
}

TOKEN = re.compile(r"""
      /\*\ ----\ (?P<section>.+?)\ -+\ \*/
    | (?P<comment>/\*\*.*?\*/)
    | ^(?P<define>\#define\ (?:[^\n]*\\\n)*[^\n]*)
    | ^(?P<type>(?:struct|enum)\ \w+\ \{.*?^\};)
    | ^(?P<opaque>struct\ \w+;)
    | ^(?P<function>[a-z][\w\s*]*?\bsk_\w+\([^;{]*?\);)
    """, re.X | re.S | re.M)


@dataclass
class Function:
    name: str
    prototype: str
    text: list[str]         # paragraphs
    errors: list[tuple[str, str]]       # "-ENOENT, -EIO", when


@dataclass
class Section:
    title: str
    functions: list[Function] = field(default_factory=list)
    types: list[str] = field(default_factory=list)      # as they stand there


def paragraphs(comment: str) -> list[str]:
    lines = [re.sub(r"^\s*\* ?", "", line).strip()
             for line in comment.strip()[3:-2].split("\n")]
    text = "\n".join(lines).strip()
    return [" ".join(p.split()) for p in re.split(r"\n\s*\n", text) if p]


def split_errors(text: str) -> list[tuple[str, str]]:
    """"-EIO; -ENOENT no such name; those of f()." by its semicolons."""
    items, depth = [""], 0
    for c in text.rstrip("."):
        depth += (c == "(") - (c == ")")
        if c == ";" and not depth:
            items.append("")
        else:
            items[-1] += c
    errors = []
    for item in items:
        match = re.match(r"((?:-E\w+,? ?)+)(.*)", item.strip())
        if match:
            errors.append((match[1].strip().rstrip(","), match[2]))
        else:
            errors.append(("", item.strip()))
    return errors


def make_function(prototype: str, comment: str) -> Function:
    text = paragraphs(comment)
    errors = []
    for p in [p for p in text if p.startswith("Errors: ")]:
        text.remove(p)
        errors = split_errors(p.removeprefix("Errors: "))
    name = re.search(r"\b(sk_\w+)\(", prototype)[1]
    return Function(name, prototype, text, errors)


def parse(header: str, title: str) -> list[Section]:
    """Its sections; @title is that of what stands before the first."""
    sections, comment = [Section(title)], ""
    for token in TOKEN.finditer(header):
        kind, text = token.lastgroup, token[token.lastgroup]
        if kind == "section":
            sections.append(Section(text))
        elif kind == "function":
            sections[-1].functions.append(make_function(text, comment))
        elif kind in ("define", "type") and not re.match(
                r"#define (SHARDKEEP_\w*H|\w+_)\b", text):
            sections[-1].types.append(comment + "\n" * bool(comment) + text)
        comment = text if kind == "comment" else ""
    return [s for s in sections if s.functions or s.types]


def chapter(header: str, name: str) -> list[str]:
    """A chapter of the comment that the header begins with."""
    start, end = rf"^ \* {name}\n \*\n", r"^ \* [A-Z]\w+\n \*\n|^ \*/"
    match = re.search(rf"{start}(.*?)(?={end})", header, re.S | re.M)
    return paragraphs("/**\n" + match[1] + "*/")


# ---- roff ----

def escape(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def markup(text: str) -> str:
    text = escape(text)
    text = re.sub(r"@(\w+)", r"\\fI\1\\fP", text)
    text = re.sub(r"(\\-E[A-Z]+)\b", r"\\fB\1\\fP", text)
    text = re.sub(r"\b(SK_\w+)", r"\\fB\1\\fP", text)
    text = re.sub(r"\*(ret_\w+)", r"\\fI*\1\\fP", text)
    return re.sub(r"\b(sk_\w+)\(\)", r"\\fB\1\\fP()", text)


def paragraph(text: str) -> list[str]:
    return [".P", markup(text)]


def verbatim(text: str) -> list[str]:
    text = re.sub(r"/\*\*<?", "/*", text)
    return [".EX", escape(text.expandtabs(8)), ".EE"]


def error_list(function: Function) -> list[str]:
    out = []
    for code, when in function.errors:
        out += [".TP", ".B " + escape(code)] if code else [".P"]
        out.append(markup(when[:1].upper() + when[1:] + "." if when
                          else PLAIN[code]))
    return out


def page(section: Section, version: str, header: str, file: str,
         others: list[str]) -> str:
    name, what = PAGES[section.title]
    functions = section.functions
    names = [f.name for f in functions] or [name]
    out = [r'.\" SPDX-License-Identifier: Apache-2.0',
           r'.\" Made from %s: mend it there.' % file,
           f'.TH {name.upper()} 3 "" "Shardkeep {version}"',
           ".SH NAME",
           ", ".join(names) + r" \- " + escape(what),
           ".SH LIBRARY", LIBRARIES.get(
               file, r"libshardkeep (\fIpkg\-config\fP shardkeep)"),
           ".SH SYNOPSIS", ".nf", f"\\fB#include <{file}>\\fP"]
    for f in functions:
        out += ["", "\n".join(rf"\fB{line}\fP" for line in
                              escape(f.prototype.expandtabs(8)).split("\n"))]
    out += [".fi"]
    if functions:
        out.append(".SH DESCRIPTION")
    for f in functions:
        out += [f".SS {f.name}()"]
        for p in f.text:
            out += paragraph(p)
    if section.types:
        out.append(".SH TYPES AND CONSTANTS")
        for text in section.types:
            out += [".P", *verbatim(text)]
    if functions:
        out.append(".SH RETURN VALUE")
        for p in chapter(header, "Errors"):
            out += paragraph(p)
    if any(f.errors for f in functions):
        out.append(".SH ERRORS")
    for f in functions:
        if f.errors:
            out += [f".SS {f.name}()", *error_list(f)]
    if functions:
        for title in ("Threads", "Memory"):
            out.append(f".SH {title.upper()}")
            for p in chapter(header, title):
                out += paragraph(p)
    out.append(".SH SEE ALSO")
    out.append(", ".join(rf"\fB{p}\fP(3)" for p in ["shardkeep", *others]
                         if p != name))
    return "\n".join(out) + "\n"


def make(version: str, headers: list[str]) -> dict[str, str]:
    """File name to text."""
    pages = {}
    main = Path(headers[0]).read_text()
    parts = {Path(file).name: parse(Path(file).read_text(), "types")
             for file in headers}
    titles = {s.title for sections in parts.values() for s in sections}
    others = [name for title, (name, _) in PAGES.items() if title in titles]
    for file, sections in parts.items():
        for section in sections:
            name = PAGES[section.title][0]
            pages[name + ".3"] = page(section, version, main, file, others)
            for f in section.functions:
                pages.setdefault(f.name + ".3", f".so man3/{name}.3\n")
    return pages


def main() -> int:
    command, version, args = sys.argv[1], sys.argv[2], sys.argv[3:]
    if command == "list":
        print("\n".join(sorted(make(version, args))))
        return 0
    for name, text in make(version, args[:-1]).items():
        (Path(args[-1]) / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
