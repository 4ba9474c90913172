# SPDX-License-Identifier: Apache-2.0
"""What is printed for readers, run as it is printed."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
import logging
import pathlib
import pydoc
import re
from typing import Any

import pytest
import shardkeep
import shardkeep.torch
import torch
from shardkeep.torch import Checkpointer
from shardkeep.torch.full import load_tensors

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _typed(module: Any) -> str:
    """What a reader types from help()."""
    text = pydoc.plain(pydoc.render_doc(module))
    examples = doctest.DocTestParser().get_examples(
        inspect.cleandoc("\n".join(line.removeprefix("    ")
                                   for line in text.splitlines())))
    return "".join(e.source for e in examples)


def _readme() -> str:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.S)
    assert found
    return found[1]


class _Trainer:
    """What the texts take for granted; each step changes the weights."""

    def __init__(self, last: int) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(3, 2)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.sched = torch.optim.lr_scheduler.StepLR(self.optim, 3, 0.5)
        self.last, self.steps = last, 0

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        self.steps += 1
        return model(torch.ones(4, 3)).square().sum()

    def run(self, text: str) -> torch.Tensor:
        exec(compile(text, "printed", "exec"), {
            "model": self.model, "optim": self.optim, "sched": self.sched,
            "last": self.last, "loss": self.loss})
        return self.model.weight.detach().clone()


@pytest.mark.parametrize("which", ["shardkeep", "shardkeep.torch", "README"])
def test_a_trainers_loop(agent, monkeypatch, which):
    text = {"shardkeep": lambda: _typed(shardkeep),
            "shardkeep.torch": lambda: _typed(shardkeep.torch),
            "README": _readme}[which]()
    assert "restore()" in text and "snapshot(" in text
    monkeypatch.setattr(Checkpointer, "snapshot", _patiently)
    first = _Trainer(5)
    before = first.run(text)
    assert first.steps == 5
    again = _Trainer(5)
    assert torch.equal(again.run(text), before), "the last one was not lost"
    assert again.steps == 0, "and nothing is repeated"
    more, whole = _Trainer(8), _Trainer(8)
    weights = more.run(text)
    assert more.steps == 3
    assert torch.equal(weights, whole.run(text.replace('"llama"',
                                                       '"another"')))


def _patiently(self: Checkpointer, step: int,
               real: Any = Checkpointer.snapshot) -> bool:
    """These steps are shorter than a flush."""
    assert real(self, step, wait=30, flush=False)
    return True


def test_distributed_checkpoint(agent, recwarn):
    import shardkeep.torch.dcp
    state = {"w": torch.arange(4.0)}
    exec(compile(_typed(shardkeep.torch.dcp), "printed", "exec"),
         {"state": state})
    assert torch.equal(load_tensors("llama", 100)["w"], torch.arange(4.0))


# ---- for the reader ----

def test_the_version():
    assert shardkeep.__version__ == shardkeep.version() == \
        importlib.metadata.version("shardkeep")


def test_help_names_all_arguments():
    text = inspect.getdoc(Checkpointer) or ""
    named = re.findall(r"^    (\w+): ", text, re.M)
    assert named == list(inspect.signature(Checkpointer).parameters)


def test_words_that_do_not_exist(agent):
    with Checkpointer(torch.nn.Linear(2, 2), job="words") as ck:
        assert ck.snapshot(1)
        with pytest.raises(ValueError, match='until=\'soon\'.*"sealed"'):
            ck.wait(until="soon")
        with pytest.raises(ValueError, match='source=.*"memory", "disk"'):
            ck.restore(source="tape")


def test_the_report(agent, caplog):
    model = torch.nn.Linear(20, 20)
    with Checkpointer(model, job="report", flush_every=1 << 30) as ck:
        assert ck.report is None
        with caplog.at_level(logging.INFO, logger="shardkeep"):
            assert ck.restore() is None
        assert not caplog.records
        assert ck.snapshot(7)
        ck.wait()
        with caplog.at_level(logging.INFO, logger="shardkeep"):
            assert ck.restore() == 7
        said = [r.getMessage() for r in caplog.records
                if r.name == "shardkeep"]
        report = ck.report
    assert re.fullmatch(
        r"<step 7 of run \d+, saved by 1 rank: \d+ tensors and objects, "
        r"\d+\.\d KiB from memory, \d+\.\d ms>", repr(report)), report
    assert said == [f"job report goes on after {report}"]
    assert report.step == report["step"] == 7 and report.world == 1
    with pytest.raises(AttributeError):
        report.step = 8
