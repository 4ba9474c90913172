# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that others wrote, into the cache as snapshots.

    python -m shardkeep.torch.importer PATH --job llama --step 1000

PATH is a directory of ``torch.distributed.checkpoint``, a directory with
safetensors files, or one such file. Tensors become whole ones of one rank;
they are restored on any mesh from there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import FLUSH_NEVER, Client, Error, State, _core
from . import _objects
from ._common import (
    BYTES, check_local, check_name, dtype_of, milliseconds, step_of)
from ._versions import load_alone, safetensors_reader


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Any]:
    """A safetensors file; one that is damaged is refused by name."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as e:
        raise ValueError(f"reading {file} needs the package safetensors: "
                         "pip install safetensors") from e
    try:
        with safe_open(file, framework="pt") as f:
            yield f
    except SafetensorError as e:
        raise ValueError(f"{file} is no safetensors file, or damaged: {e}"
                         ) from e


def _safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    seen: dict[str, Path] = {}
    for file in files:
        with _whole(file) as f:
            sharded = "DCP_SHARDING_INFO" in (f.metadata() or {})
            if sharded:
                raise ValueError(f"{file} holds shards; give the directory "
                                 "of a distributed checkpoint")
            for name in f.keys():
                if name in seen:
                    raise ValueError(f"{name} stands in {seen[name]} and in "
                                     f"{file}")
                seen[name] = file
                yield name, f.get_tensor(name)


def _sharded_safetensors(path: Path) -> bool:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not files:
        return False
    with _whole(files[0]) as f:
        return "DCP_SHARDING_INFO" in (f.metadata() or {})


def _distributed(path: Path) -> Iterator[tuple[str, Any]]:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader: Any = safetensors_reader(str(path)) \
        if _sharded_safetensors(path) else FileSystemReader(path)
    metadata = reader.read_metadata()
    for name, m in metadata.state_dict_metadata.items():
        if isinstance(m, TensorStorageMetadata):
            t = torch.empty(m.size, dtype=m.properties.dtype, device="cpu")
            load_alone({name: t}, reader)
            yield name, t
        else:
            state: dict[str, Any] = {name: None}
            load_alone(state, reader)
            yield name, state[name]


def read(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """The tensors and objects of a checkpoint, one after the other."""
    where = Path(path)
    if not where.exists():
        raise FileNotFoundError(f"{where} does not exist")
    if (where / ".metadata").exists() or _sharded_safetensors(where):
        return _distributed(where)
    if where.suffix == ".safetensors" or any(where.glob("*.safetensors")):
        return _safetensors(where)
    raise ValueError(f"{where} is no distributed checkpoint and has no "
                     "safetensors files")


def import_checkpoint(path: str | os.PathLike[str], job: str, step: int, *,
                      prefix: str = "", flush: bool = True,
                      timeout: float = 600,
                      socket: str | None = None) -> int:
    """Makes a snapshot of a checkpoint; returns how many tensors it has.

    ``prefix`` goes before each name: "model." for ``Checkpointer``. Takes
    the memory of the checkpoint once, beside that of its slots.
    """
    step = step_of(step)
    described: list[Any] = []
    keep: list[Any] = []
    tensors = 0
    for name, value in read(path):
        check_name(prefix + name, isinstance(value, torch.Tensor))
        if isinstance(value, torch.Tensor):
            t = check_local(name, value.detach())
            name = prefix + name
            tensors += 1
        else:
            raw = bytearray(_objects.dumps(value, name))
            t = torch.frombuffer(raw, dtype=torch.uint8)
            name = BYTES + name
        keep.append(t)
        described.append((name, dtype_of(name, t), tuple(t.shape), None, (),
                          t.data_ptr() if t.numel() else 0,
                          t.stride() if t.numel() else None, None, None))
    client = Client(socket)
    try:
        state = State(client, job, 0, 1, flush_every=FLUSH_NEVER)
        try:
            state.tensors(described, keep)
            ms = milliseconds("timeout", timeout)
            state.snapshot(step, _core.SNAPSHOT_FLUSH if flush else 0, ms)
            state.fence()
            state.wait(step, _core.COMPLETE, ms)
        finally:
            state.close()
    finally:
        client.close()
    return tensors


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m shardkeep.torch.importer",
        description="Puts a checkpoint into the cache.")
    parser.add_argument("path", help="a distributed checkpoint, a directory "
                        "with safetensors files, or one file")
    parser.add_argument("--job", required=True)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--prefix", default="",
                        help='goes before each name, such as "model."')
    parser.add_argument("--memory-only", action="store_true",
                        help="do not write it to disk")
    parser.add_argument("--socket", help="of the agent")
    o = parser.parse_args(argv)
    try:
        n = import_checkpoint(o.path, o.job, o.step, prefix=o.prefix,
                              flush=not o.memory_only, socket=o.socket)
    except (Error, OSError, ValueError, TypeError) as e:
        sys.stderr.write(f"importer: {e}\n")
        return 1
    sys.stdout.write(f"{n} tensors are step {o.step} of job {o.job}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
