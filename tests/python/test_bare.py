# SPDX-License-Identifier: Apache-2.0
"""Where torch is, and nothing that it can be without: numpy, safetensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LACKING = ("numpy", "safetensors")


class _Without:
    """Another finder of modules, to which some packages are not there."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def find_spec(self, name: str, *args: Any) -> Any:
        return None if name.partition(".")[0] in LACKING else \
            self._other.find_spec(name, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


def _job(fill: float) -> tuple[Any, Any, dict[str, Any]]:
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(fill)
    extra = {"t": torch.full((2, 3), fill, dtype=torch.bfloat16),
             "none": torch.empty(0), "epoch": int(fill)}
    return model, torch.optim.AdamW(model.parameters()), extra


def _save(sockets: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from shardkeep.torch import Checkpointer
    model, optim, extra = _job(3)
    with Checkpointer(model, optim, job="bare", raising=True, extra=extra,
                      socket=sockets[dist.get_rank()], timeout=60) as ck:
        assert ck.restore() is None
        model(torch.ones(2, 4)).sum().backward()
        optim.step()
        ck.snapshot(1, wait=30)
        ck.wait()


def _load(sockets: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from shardkeep.torch import Checkpointer
    from shardkeep.torch.full import full_state_dict
    model, optim, extra = _job(5)
    with Checkpointer(model, optim, job="bare", raising=True, extra=extra,
                      socket=sockets[dist.get_rank()], timeout=60) as ck:
        assert ck.restore() == 1
    assert extra["epoch"] == 3 and not extra["none"].numel()
    assert torch.equal(extra["t"], torch.full((2, 3), 3,
                                              dtype=torch.bfloat16))
    assert float(optim.state[model[0].weight]["step"]) == 1
    full = full_state_dict("bare", socket=sockets[dist.get_rank()])
    assert dist.get_rank() or "0.weight" in full


def _distributed(directory: str, socket: str) -> None:
    """Without ranks: torch's own collectives of objects need numpy."""
    import torch
    import torch.distributed.checkpoint as dcp
    from shardkeep.torch import dcp as ours
    from shardkeep.torch.importer import import_checkpoint, main
    dcp.save({"a": torch.arange(5), "n": 7}, no_dist=True,
             storage_writer=ours.ShardkeepWriter("bare-dcp/1", socket=socket))
    state = {"a": torch.zeros(5, dtype=torch.int64), "n": 0}
    dcp.load(state, no_dist=True, storage_reader=ours.ShardkeepReader(
        "bare-dcp/1", socket=socket))
    assert state["a"].tolist() == [0, 1, 2, 3, 4] and state["n"] == 7
    dcp.save(state, checkpoint_id=directory + "/theirs", no_dist=True)
    assert import_checkpoint(directory + "/theirs", "theirs", 1,
                             socket=socket) == 1
    file = Path(directory) / "x.safetensors"
    file.touch()
    assert main([str(file), "--job", "x"]) == 1     # a sentence, no traceback


def scenario(directory: str, links: str) -> None:
    """In a process of its own, before which nothing was imported."""
    sys.meta_path[:] = map(_Without, sys.meta_path)     # type: ignore
    import os
    os.environ.update(SHARDKEEP_MEMORY="1G", SHARDKEEP_LINKS=links)
    from harness import Nodes, run
    for i in range(2):
        os.mkdir(f"{directory}/{i}")
    nodes = Nodes([f"{directory}/{i}" for i in range(2)])
    try:
        run(2, _save, nodes)
        run(2, _load, list(reversed(nodes)))
        _distributed(directory, nodes[0])
    finally:
        nodes.end()
    assert not [x for x in LACKING if sys.modules.get(x)]


@pytest.mark.parametrize("links", ["", "gloo"])
def test_all_of_it(tmp_path: Path, links: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); "
         "import test_bare; test_bare.scenario(*sys.argv[2:])",
         str(Path(__file__).parent), str(tmp_path), links],
        timeout=300, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "importer: " in done.stderr and "pip install" in done.stderr
