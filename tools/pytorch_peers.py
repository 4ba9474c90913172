# SPDX-License-Identifier: Apache-2.0
"""What bench-pytorch measures beside Shardkeep, each as its documentation
would have it used on the CPU; packages that are not installed are left out.

A peer saves in three steps: ``call`` is what the trainer calls, ``safe``
returns when the tensors may be written again, ``durable`` when what the peer
wrote is complete. Whoever measures syncs ``where(n)`` after that, for all.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import multiprocessing
import os
import signal
import sys
import time
import uuid
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Peer:
    """One contender of one rank; its name is what figures are called by."""

    name = ""
    package = ""            #: that has to be installed; "": torch has it
    loads = False           #: what a new rank loads is measured
    reshards = False        #: also if it has other parts
    memory = "page cache warm"      #: what its warm load reads
    steps = False           #: whether steps beside its saves are measured

    def __init__(self, tensors: dict[str, torch.Tensor], disk: str,
                 group: Any) -> None:
        self.tensors, self.disk, self.group = tensors, disk, group
        self.locals = {name: getattr(t, "_local_tensor", t)
                       for name, t in tensors.items()}
        self.rank = dist.get_rank()

    def where(self, n: int) -> str:
        return f"{self.disk}/{self.name.replace(' ', '-')}-{n}"

    def call(self, n: int) -> None:
        raise NotImplementedError

    def safe(self) -> None:
        """Nothing to wait for unless the copy goes on beside."""

    def durable(self) -> None:
        """Nothing to wait for unless it is written beside."""

    def load(self, n: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class DcpSave(Peer):
    name = "dcp.save"
    loads = reshards = True

    def call(self, n: int) -> None:
        dcp.save(self.tensors, checkpoint_id=self.where(n))

    def load(self, n: int) -> None:
        dcp.load(self.tensors, checkpoint_id=self.where(n))


class DcpAsync(Peer):
    """Staged in the call, into memory that it keeps."""

    name = "dcp.async_save"
    steps = True
    beside = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from torch.distributed.checkpoint.staging import (DefaultStager,
                                                          StagingOptions)
        # Pinning, and copying without waiting, need a GPU.
        self._stager = DefaultStager(StagingOptions(
            use_pinned_memory=False, use_shared_memory=False,
            use_async_staging=self.beside, use_non_blocking_copy=False))
        self._saving: Any = None

    def call(self, n: int) -> None:
        self._saving = dcp.async_save(
            self.tensors, checkpoint_id=self.where(n),
            process_group=self.group, async_stager=self._stager)

    def safe(self) -> None:
        if hasattr(self._saving, "staging_completion"):
            self._saving.staging_completion.result()

    def durable(self) -> None:
        getattr(self._saving, "upload_completion", self._saving).result()


class DcpStaged(DcpAsync):
    """Staged on a thread beside the trainer."""

    name = "dcp.async_save, staged beside"
    beside = True


class TorchSave(Peer):
    name = "torch.save"

    def where(self, n: int) -> str:
        return f"{self.disk}/plain-{n}-{self.rank}.pt"

    def call(self, n: int) -> None:
        torch.save(self.locals, self.where(n))


def _into(locals_: dict[str, torch.Tensor],
          loaded: dict[str, torch.Tensor]) -> None:
    """Where a peer gives new tensors, the live ones still want the values."""
    for name, t in locals_.items():
        if loaded[name] is not t:
            t.copy_(loaded[name])


class TorchCheckpointing(Peer):
    """Staged beside, into shared memory that it keeps, and written by a
    process of its own. Its O_DIRECT writes fail on ext4 (0.1.1): buffered.
    Without a resharder, which is its fast path; so for the same parts only.
    """

    name = "torch_checkpointing"
    package = "torch_checkpointing"
    loads = steps = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.checkpoint_process import \
            CheckpointProcessConfig
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.staging import CheckpointStagerConfig
        from torch_checkpointing.storage.filesystem import \
            LocalFileSystemStorageConfig
        self._manager = CheckpointManager(CheckpointManager.Config(
            save=AsyncCheckpointSaverConfig(
                staging_config=CheckpointStagerConfig(
                    use_pinned_memory=False, use_non_blocking_copy=False),
                process_config=CheckpointProcessConfig(
                    subprocess_init_timeout_secs=300)),
            storage_config=LocalFileSystemStorageConfig(
                use_direct_io=False)))
        self._written: Any = None

    def call(self, n: int) -> None:
        self._written = self._manager.save(self.where(n),
                                           {"state": self.locals})

    def safe(self) -> None:
        with self._manager.lock():
            pass

    def durable(self) -> None:
        self._written.result()

    def load(self, n: int) -> None:
        found = self._manager.load(self.where(n), into={"state": self.locals})
        _into(self.locals, found["state"])

    def close(self) -> None:
        self._manager.close()


class DLRover(Peer):
    """Its DDP engine with a shard per rank, the fastest of its engines: the
    call copies into shared memory, which a process that outlives the ranks
    owns and writes, as under dlrover-run. For the same parts only."""

    name = "dlrover"
    package = "dlrover"
    loads = steps = True
    memory = "memory"
    to_disk = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        os.environ.update({
            "LOCAL_RANK": str(self.rank), "RANK": str(self.rank),
            "LOCAL_WORLD_SIZE": str(dist.get_world_size()),
            "WORLD_SIZE": str(dist.get_world_size())})
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import \
            StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
        self._types = StorageType
        self._root = f"{self.disk}/dlrover"
        self._checkpointer = DdpCheckpointer(
            self._root, local_shard_num=dist.get_world_size(),
            global_shard_num=dist.get_world_size())
        self._n = 0

    def where(self, n: int) -> str:
        return f"{self._root}/{n + 1}"      # its steps begin at 1

    def call(self, n: int) -> None:
        self._n = n + 1
        self._checkpointer.save_checkpoint(
            self._n, self.locals, storage_type=self._types.DISK
            if self.to_disk else self._types.MEMORY)

    def durable(self) -> None:
        """Its own wait looks every three seconds."""
        if not self.to_disk:
            return
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                with open(f"{self._root}/dlrover_latest.txt",
                          encoding="ascii") as f:
                    if f.read().strip() == str(self._n):
                        return
            except FileNotFoundError:
                pass
            time.sleep(0.001)
        raise SystemExit(f"dlrover did not finish step {self._n}")

    def load(self, n: int) -> None:
        _into(self.locals, self._checkpointer.load_checkpoint())


PEERS: tuple[type[Peer], ...] = (DcpSave, DcpAsync, DcpStaged, TorchSave,
                                 TorchCheckpointing, DLRover)


def be_quiet() -> None:
    """Each call of theirs has several lines of log."""
    for name in ("", "torch_checkpointing", "dlrover"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.disable(logging.WARNING)


def installed(names: str | None) -> list[type[Peer]]:
    """Those that are here, of those that are asked for (comma between)."""
    wanted = None if names is None else [x for x in names.split(",") if x]
    unknown = set(wanted or ()) - {p.name for p in PEERS}
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there "
                         f"are {'; '.join(p.name for p in PEERS)}")
    return [p for p in PEERS if (wanted is None or p.name in wanted) and
            (not p.package or importlib.util.find_spec(p.package))]


def versions(peers: list[type[Peer]]) -> dict[str, str]:
    from importlib.metadata import version
    return {p.package or "torch": version(p.package or "torch")
            for p in peers}


# ---- what has to outlive the ranks ----

def end_with_parent() -> None:
    """The calling process ends when the one that began it does: nothing is
    left behind, and nobody waits for a pipe that it still has."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))     # PR_SET_PDEATHSIG


def end_in_order() -> None:
    """Who is told to end, or whose terminal is closed, cleans up; where that
    was to be ignored, as by nohup, it is."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda n, _: sys.exit(128 + n))


def _own_shared_memory() -> None:
    """DLRover's agent, as dlrover-run starts it."""
    from dlrover.python.elastic_agent.torch.ckpt_saver import \
        AsyncCheckpointSaver

    def end(*_: Any) -> None:
        saver = AsyncCheckpointSaver.get_ckpt_saver()
        if saver is not None:
            saver.close()
        os._exit(0)

    end_with_parent()
    signal.signal(signal.SIGTERM, end)
    AsyncCheckpointSaver.start_async_saving_ckpt()
    while True:
        signal.pause()


class Keeper:
    """The process that DLRover's ranks find; nothing where it is not asked
    for."""

    def __init__(self, peers: list[type[Peer]]) -> None:
        self._process: Any = None
        if DLRover not in peers:
            return
        os.environ.update({
            "TORCHELASTIC_RUN_ID": f"bench-{uuid.uuid4().hex[:12]}",
            "ROLE_NAME": "dlrover-trainer", "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "DLROVER_LOG_LEVEL": "ERROR"})
        self._process = multiprocessing.get_context("spawn").Process(
            target=_own_shared_memory)
        self._process.start()

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join(10)
            self._process.kill()
