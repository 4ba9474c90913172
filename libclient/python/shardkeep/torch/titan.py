# SPDX-License-Identifier: Apache-2.0
"""torchtitan's checkpoint manager on Shardkeep.

In a trainer's configuration, instead of the manager that it has:

>>> checkpoint = SnapshotManager.Config(enable=True, job="run7",
...                                     interval=1)

Every ``interval`` steps the state is copied to the node's memory; every
``flush_interval`` steps it goes to disk as well. Where there is no snapshot
yet, ``initial_load_path`` and ``initial_load_in_hf`` are what torchtitan's own
manager makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.checkpointer.base import BaseCheckpointManager

from .checkpointer import Checkpointer

#: What a run would be without, and not be told of.
_ELSEWHERE = {
    "exclude_from_loading": "all of a snapshot comes back; what is not to is "
                            "set anew after load()",
    "last_save_in_hf": "cachectl export writes the model as safetensors files",
}


class SnapshotManager(BaseCheckpointManager):
    """Loads from, and saves to, the node's agent."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        job: str = "torchtitan"
        """The name that snapshots are kept under."""

        flush_interval: int = 500
        """Steps between two snapshots that go to disk; the last one does."""

        keep_latest_k: int = 0
        """Complete snapshots that stay on disk; 0: as the agent is told."""

        slot_wait: float = 0
        """Seconds that a step may wait for a free slot; 0 skips the snapshot."""

        lost_ok: bool = False
        """As Checkpointer.restore() takes it, where a node is lost."""

    def __init__(self, config: Config, *, dataloader: Any,
                 model_parts: list[Any], optimizers: Any, lr_schedulers: Any,
                 states: dict[str, Any], sd_adapter: Any = None,
                 base_folder: str = "", **_: Any) -> None:
        self.enable = config.enable
        self.save_future = None
        if not self.enable:
            return
        for name, instead in _ELSEWHERE.items():
            if getattr(config, name, None):
                raise ValueError(f"{name}={getattr(config, name)!r} is not "
                                 f"what snapshots do: {instead}")
        self._config = config
        self._parts = {
            "dataloader": dataloader, "model_parts": model_parts,
            "optimizers": optimizers, "lr_schedulers": lr_schedulers,
            "states": dict(states), "sd_adapter": sd_adapter}
        self._state: dict[str, Any] = dict(states)
        if lr_schedulers is not None:
            self._state["lr_scheduler"] = lr_schedulers
        self.checkpointer = Checkpointer(
            list(model_parts), list(getattr(optimizers, "optimizers",
                                            optimizers)),
            job=config.job, extra=self._state,
            local={} if dataloader is None else {"dataloader": dataloader},
            flush_every=config.flush_interval,
            keep_last=config.keep_latest_k)

    def _load(self, step: int = -1) -> bool:
        done = self.checkpointer.restore(None if step == -1 else step,
                                         lost_ok=self._config.lost_ok)
        return done is not None or self._load_initial()

    def _load_initial(self) -> bool:
        """What a first run begins with, if it is told to."""
        c = self._config
        if not (c.initial_load_path or c.initial_load_in_hf):
            return False
        config = CheckpointManager.Config(
            enable=True, load_only=True, keep_latest_k=0,
            folder=f"no checkpoints of {c.job}",
            **{x: getattr(c, x) for x in (
                "initial_load_path", "initial_load_model_only",
                "initial_load_in_hf", "initial_load_in_hf_quantized")})
        own = CheckpointManager(config, **self._parts)
        try:
            return own.load()
        finally:
            own.close()

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        c = self._config
        first = curr_step == 1 and c.enable_first_step_checkpoint
        if c.load_only or not (last_step or first or
                               curr_step % c.interval == 0):
            return False
        if not last_step:
            return self.checkpointer.snapshot(curr_step, wait=c.slot_wait)
        done = self.checkpointer.snapshot(curr_step, flush=True, wait=300)
        if done:
            self.checkpointer.wait(until="durable", timeout=300)
        return done

    def _maybe_wait_for_staging(self) -> None:
        self.checkpointer.fence()

    def _wait_for_saving(self) -> None:
        """Nothing is pending: there is no future to await."""

    def _close(self) -> None:
        if hasattr(self, "checkpointer"):
            self.checkpointer.close()
