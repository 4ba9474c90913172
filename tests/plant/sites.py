# SPDX-License-Identifier: Apache-2.0
"""Where in a C source a small fault can be planted, and what it is then.

Four kinds: a comparison is flipped, a statement dropped, an error swallowed,
a bound moved by one. Not in asserts, in words for the log, in declarations
and directives; locks are left to ThreadSanitizer.
"""
import collections
import re

Site = collections.namedtuple("Site", "file start end text kind")

KINDS = ("flipped", "dropped", "swallowed", "off-by-one")

FLIPPED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=",
           "<=": ">", "&&": "||", "||": "&&"}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
COMPARISON = re.compile(r"(?<![-<>=!+*/&|^%])(==|!=|<=|>=|<|>|&&|\|\|)"
                        r"(?![<>=&|])")
NOT = re.compile(r"(?<=[(\s])!(?=[\w(*])")
STEP = re.compile(r"(?<=[\w)\]]) ([+-]) 1\b(?![.\w])")
FIRST = re.compile(r"(?<=\bi = )0(?=;)|(?<=\bn = )0(?=;)")
FAILS = re.compile(r"\bif \((\w+ < 0|!\w+|r|status|error)\)$", re.M)
RETURNS = re.compile(r"\breturn (?!0;|NULL;|true;|false;|;)[^;]*;")
STATEMENT = re.compile(r"(?<=[;{}):])\s*\n(\t+)((?:[^\n;{}]|\n(?!\n))*?;)"
                       r"(?=\s*\n)")
TYPES = ("const", "static", "unsigned", "struct", "enum", "union", "int",
         "char", "bool", "void", "double", "float", "long", "size_t",
         "ssize_t", "typedef", "extern", "cpu_set_t")
LEFT = ("return", "break", "continue", "goto", "case", "default", "else",
        "if", "for", "while", "do", "switch", "_exit", "pthread_mutex_")
WORDS = re.compile(r"\b(assert|static_assert|_Static_assert|log_\w+)\s*\(")


def masked(text):
    """The same length, with comments, strings and directives blank."""
    blank = re.compile(
        r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|"
        r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.S | re.M)

    def space(match):
        return re.sub(r"[^\n]", " ", match.group())

    text = blank.sub(space, text)
    for match in list(WORDS.finditer(text)):
        depth, end = 0, match.end() - 1
        while end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
            if not depth:
                break
        text = text[:match.start()] + re.sub(
            r"[^\n]", " ", text[match.start():end]) + text[end:]
    return text


def bodies(text):
    """Where functions are: between a brace in column one and its end."""
    for match in re.finditer(r"^\{\n.*?^\}", text, re.S | re.M):
        if text[max(0, match.start() - 2)] == ")":
            yield match.start(), match.end()


def balanced(text):
    return text.count("(") == text.count(")")


def sites_of(file, source):
    text = masked(source)
    found = []

    def site(start, end, by, kind):
        found.append(Site(file, start, end, by, kind))

    for a, b in bodies(text):
        body = text[a:b]
        for m in COMPARISON.finditer(body):
            op = m.group()
            site(a + m.start(), a + m.end(), FLIPPED[op], "flipped")
            if op in MOVED:
                site(a + m.start(), a + m.end(), MOVED[op], "off-by-one")
        for m in NOT.finditer(body):
            site(a + m.start(), a + m.end(), "", "flipped")
        for m in STEP.finditer(body):
            site(a + m.start(), a + m.end(), f" {m.group(1)} 0",
                 "off-by-one")
        for m in FIRST.finditer(body):
            site(a + m.start(), a + m.end(), "1", "off-by-one")
        for m in FAILS.finditer(body):
            site(a + m.start(1), a + m.end(1), "0", "swallowed")
        for m in RETURNS.finditer(body):
            said = source[a + m.start():a + m.end()]
            if "-E" in said or "err" in said or said in (
                    "return r;", "return status;", "return error;"):
                site(a + m.start(), a + m.end(), "return 0;", "swallowed")
        for m in STATEMENT.finditer(body):
            said = m.group(2)
            if not re.match(r"[\w(*]", said) or \
                    said.startswith(LEFT) or not balanced(said) or re.match(
                    rf"(?:{'|'.join(TYPES)}|u?int\d+_t)\b", said):
                continue
            site(a + m.start(2), a + m.end(2), ";", "dropped")
    return found
