# SPDX-License-Identifier: Apache-2.0
"""What a restore did."""

from __future__ import annotations

import dataclasses
from typing import Any


def _bytes(n: int) -> str:
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What a restore did on this rank; also ``report["name"]``."""

    run: int                #: of the snapshot
    step: int
    world: int              #: ranks that saved it
    tensors: int            #: restored, objects included
    missing: int            #: left alone: not in the snapshot
    extra: int              #: in the snapshot, asked for by no rank
    damaged: int            #: images set aside for a bad checksum
    bytes_memory: int       #: from this node's memory
    bytes_remote: int       #: from other nodes' memory
    bytes_disk: int
    bytes_verified: int
    agree_ns: int           #: waiting for other ranks included
    plan_ns: int
    copy_ns: int
    total_ns: int
    bytes_sent: int         #: by this rank to other nodes
    bytes_passed: int       #: of those, what it had received itself
    bytes_received: int     #: by it from them, for all ranks of its own
    bytes_device: int       #: of those, from device to device
    bytes_device_slot: int  #: of bytes_memory, from device slots
    staging_bytes: int      #: of memory that they went through
    without_nccl: str = ""  #: why they did not, "" where nothing is wrong

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __repr__(self) -> str:
        places = [f"{_bytes(n)} from {where}" for n, where in (
            (self.bytes_memory, "memory"), (self.bytes_remote, "other nodes"),
            (self.bytes_disk, "disk")) if n] or ["0 B"]
        notes = [f"{n} {what}" for n, what in (
            (self.missing, "missing"), (self.extra, "not asked for"),
            (self.damaged, "images damaged")) if n]
        ranks = f"{self.world} rank{'s' * (self.world != 1)}"
        what = ", ".join([f"{self.tensors} tensors and objects", *places,
                          *notes])
        return (f"<step {self.step} of run {self.run}, saved by {ranks}: "
                f"{what}, {self.total_ns / 1e6:.1f} ms>")

    def __str__(self) -> str:
        return repr(self)[1:-1]
