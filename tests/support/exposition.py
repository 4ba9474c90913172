# SPDX-License-Identifier: Apache-2.0
"""A strict reader of Prometheus' text exposition format, version 0.0.4.

What Prometheus itself would let pass is refused as well: a sample without HELP
and TYPE before it, lines of a metric that do not follow each other, a label or
a sample twice, a counter that does not end in _total, a value of one that is
negative.
"""

import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)\}})? (\S+)$")
TYPES = {"counter", "gauge"}


class Bad(Exception):
    pass


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def number(text: str) -> float:
    if not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
                        r"|[+-]?Inf|NaN", text):
        raise Bad(f"{text!r} is no number")
    return float(text)


def labels(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in re.findall(LABEL, text or ""):
        if key in found:
            raise Bad(f"the label {key} twice")
        found[key] = unescape(value)
    return found


class Reader:
    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[str, dict[frozenset, float]] = {}
        self.current = ""

    def comment(self, line: str) -> None:
        match = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
        if not match:
            raise Bad(f"{line!r} is neither HELP nor TYPE")
        what, name, text = match.groups()
        where = self.helps if what == "HELP" else self.types
        if name in where:
            raise Bad(f"{what} of {name} twice")
        if what == "TYPE" and (text not in TYPES or name != self.current):
            raise Bad(f"{line!r} says no type, or of another metric")
        if what == "HELP" and re.search(r"\\(?![\\n])", text):
            raise Bad(f"{line!r} has an escape that is none")
        where[name] = text
        self.current = name

    def sample(self, line: str) -> None:
        match = SAMPLE.fullmatch(line)
        if not match:
            raise Bad(f"{line!r} is no sample")
        name, said, value = match[1], labels(match[2]), number(match[7])
        if name != self.current or name not in self.types:
            raise Bad(f"{name} stands apart from its TYPE")
        if self.types[name] == "counter" and not (
                name.endswith("_total") and value >= 0):
            raise Bad(f"{line!r} is no counter")
        key = frozenset(said.items())
        if key in self.samples.setdefault(name, {}):
            raise Bad(f"{line!r} twice")
        if math.isnan(value):
            raise Bad(f"{line!r} is no value")
        self.samples[name][key] = value


def read(text: str) -> Reader:
    """Raises Bad."""
    if not text.endswith("\n"):
        raise Bad("the last line does not end")
    reader = Reader()
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            reader.comment(line)
        else:
            reader.sample(line)
    return reader


def value(reader: Reader, name: str, **said: str) -> float | None:
    """Of the one sample that has these labels, whatever else it has."""
    found = [v for key, v in reader.samples.get(name, {}).items()
             if said.items() <= dict(key).items()]
    if len(found) > 1:
        raise Bad(f"{name} {said}: {len(found)} samples")
    return found[0] if found else None


def check_itself() -> None:
    """It sees what is wrong."""
    good = ('# HELP a_total A.\n# TYPE a_total counter\n'
            'a_total{x="1\\n\\"\\\\",y="2"} 3\na_total 1e3\n')
    assert value(read(good), "a_total", y="2") == 3
    for old, new in [("counter", "number"), ("1e3\n", "1e3"), ("3\n", "x3\n"),
                     ("3\n", "-3\n"), ("a_total 1e3", "b_total 1e3"),
                     ("# TYPE a_total counter\n", ""), (',y="2"', ',x="2"'),
                     ('"2"}', "2}"), ("1e3", "NaN"), ('\\"', '"'),
                     ("a_total 1e3", "a_total 1 e3"), ("# HELP", "#HELP"),
                     ("a_total 1e3", "a_total 1\na_total 1"),
                     ("1e3\n", "1e3\n\n")]:
        assert old in good
        try:
            read(good.replace(old, new))
        except Bad:
            continue
        raise AssertionError(f"{new!r} for {old!r} is not seen")
