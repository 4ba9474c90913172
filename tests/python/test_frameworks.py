# SPDX-License-Identifier: Apache-2.0
"""Lightning, the Hugging Face Trainer, torchtitan: where they install.

Each trains, is interrupted, is started again and must end with the weights of
a run that nobody interrupted. Who goes on is a process of its own, which has
done nothing but import the framework.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Nodes, private_agent
from ready import SAID, ready
from shardkeep.torch._callback import Callback

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(autouse=True)
def agent() -> Iterator[str]:
    with private_agent() as directory:
        yield directory


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None,
                              reason=f"{package} is not installed")


#: What each training ends with: the threads that frameworks leave behind, and
#: process groups that nobody destroys, may end the interpreter by abort().
LEAVE = """
import atexit, os, sys
sys.stdout.flush()
atexit._run_exitfuncs()
os._exit(0)
"""


#: What takes long to import, of each script.
IMPORTS = {"lightning": "torch,lightning",
           "transformers": "torch,transformers.trainer,"
                           "transformers.models.gpt2.modeling_gpt2",
           "torchtitan": "torchtitan.components.checkpoint,"
                         "torch.distributed.fsdp"}


def python(of: str, code: str, directory: str, *args: object, ranks: int = 1
           ) -> Any:
    """Runs it in that directory; what it prints last, as JSON."""
    env = {**os.environ, "PYTHONPATH": HERE, "OMP_NUM_THREADS": "1",
           "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
           "WANDB_DISABLED": "true"}
    script = os.path.join(directory, "script.py")
    with open(script, "w", encoding="utf-8") as f:
        f.write(textwrap.dedent(code) + LEAVE)
    codes = ready(IMPORTS[of]).run([script, *map(str, args)], env, directory,
                                   ranks)
    out, err = (_text(os.path.join(directory, x)) for x in SAID)
    assert codes == [0] * ranks, out[-3000:] + err[-6000:]
    assert "Exception in thread" not in err, err[-6000:]
    return json.loads(out.strip().splitlines()[-1])


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


LIGHTNING = """
    import json, os, sys, warnings
    warnings.filterwarnings("ignore")
    import logging
    logging.disable(logging.WARNING)
    import torch, lightning
    from shardkeep.torch.lightning import Snapshots

    devices = int(sys.argv[1])

    class Batches(lightning.Callback):
        seen = 0
        def on_train_batch_start(self, *_):
            self.seen += 1
        def state_dict(self):
            return {"seen": self.seen}
        def load_state_dict(self, state):
            self.seen = state["seen"]

    class Module(lightning.LightningModule):
        def __init__(self, stop, drop):
            super().__init__()
            torch.manual_seed(1)
            self.net = torch.nn.Linear(6, 3)
            # Whoever goes on with other generators ends with other weights.
            self.drop = torch.nn.Dropout(drop)
            self.register_buffer("seen", torch.zeros(()))
            self.steps, self.stop = 0, stop

        def training_step(self, batch, i):
            self.steps += 1
            self.seen += 1
            if self.trainer.global_step == self.stop:
                raise KeyboardInterrupt
            return self.net(self.drop(batch)).square().mean()

        def configure_optimizers(self):
            o = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [o], [{"scheduler": torch.optim.lr_scheduler.StepLR(
                o, 3, 0.5), "interval": "step"}]

    # Checkpoints of Lightning's own lie in that directory, if any.
    def train(job, stop=-1, own=None, ckpt_path=None, nodes=None,
              stateful=False, drop=0.3, **how):
        told = []
        if nodes:
            how["socket"] = nodes[int(os.environ.get("LOCAL_RANK", 0))]
        if own:
            logging.disable(logging.NOTSET)
            logging.getLogger("shardkeep").addFilter(
                lambda r: told.append(r.getMessage()))
        torch.manual_seed(3)
        data = torch.utils.data.DataLoader(
            torch.linspace(-1, 1, 6).expand(32, 6), batch_size=4 // devices)
        if stateful:
            from torchdata.stateful_dataloader import StatefulDataLoader
            data = StatefulDataLoader(
                torch.linspace(-1, 1, 192).view(32, 6), 4, shuffle=True)
        snapshots = Snapshots(job, flush_every=1000, raising=True, wait=100,
                              **how)
        batches = Batches()
        callbacks = [batches, snapshots]
        if own:
            callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(
                own, save_top_k=-1, every_n_train_steps=8))
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=devices, logger=False,
            strategy="ddp" if devices > 1 else "auto",
            enable_checkpointing=bool(own), enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks)
        module = Module(stop, drop)
        try:
            trainer.fit(module, data, ckpt_path=ckpt_path)
        except BaseException:
            if stop < 0:
                raise
        return trainer.global_rank == 0, {
            "weight": module.net.weight.tolist(), "seen": module.seen.item(),
            "steps": module.steps, "restored": snapshots.restored,
            "batches": batches.seen, "told": told,
            "global_step": trainer.global_step, "lr": trainer.optimizers[0]
            .param_groups[0]["lr"] if trainer.optimizers else None}

    # Importing all this takes longer than a training.
    told = [train(**json.loads(x)) for x in sys.argv[2:]]
    if told[-1][0]:
        print(json.dumps([result for _, result in told]))
"""


def lightning(directory: str, devices: int, *trainings: dict[str, Any]
              ) -> Any:
    """One after the other, in one process for each device."""
    return python("lightning", LIGHTNING, directory, devices, *map(json.dumps, trainings))


@pytest.mark.parametrize("every, error", [
    (0, "every_n_steps=0: 1 or more"), (-3, "every_n_steps=-3: 1 or more"),
    ("2", "every_n_steps='2': a whole number"), (1.5, "a whole number")])
def test_what_is_asked_of_a_callback_makes_sense(every: Any, error: str
                                                 ) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        Callback("job", every_n_steps=every)


@needs("lightning")
@pytest.mark.parametrize("devices", [1, 2])
def test_lightning(agent: str, devices: int) -> None:
    whole, _ = lightning(agent, devices, {"job": "whole"},
                         {"job": "cut", "stop": 11})
    assert whole["global_step"] == 16 and whole["restored"] is None
    again, = lightning(agent, devices, {"job": "cut"})
    assert again["restored"] == 11 and again["global_step"] == 16
    assert again["steps"] == 5, "what was done before is not done again"
    assert again["seen"] == 16
    assert again["batches"] == whole["batches"], "a callback's own state"
    assert again["weight"] == whole["weight"] and again["lr"] == whole["lr"]


@needs("lightning")
@needs("torchdata")
def test_lightning_with_a_loader_that_has_a_state(agent: str) -> None:
    """The data goes on where it was, within an epoch and at its end."""
    whole, *_ = lightning(agent, 1, {"job": "whole", "stateful": True}, *(
        {"job": f"cut-{at}", "stop": at, "stateful": True} for at in (8, 11)))
    told = lightning(agent, 1, *({"job": f"cut-{at}", "stateful": True}
                                 for at in (8, 11)))
    for at, again in zip((8, 11), told):
        assert again["restored"] == at and again["steps"] == 16 - at
        assert again["global_step"] == 16
        assert again["weight"] == whole["weight"]
        assert again["batches"] == whole["batches"]


@needs("lightning")
def test_lightning_from_the_beginning(agent: str) -> None:
    """Who does not resume begins another run; the next goes on with that."""
    _, anew = lightning(agent, 1, {"job": "anew", "stop": 11},
                        {"job": "anew", "stop": 4, "resume": False})
    assert anew["restored"] is None and anew["global_step"] == 4
    again, = lightning(agent, 1, {"job": "anew"})
    assert again["restored"] == 4 and again["global_step"] == 16
    assert again["steps"] == 12


@needs("lightning")
def test_a_checkpoint_of_lightnings_own(agent: str) -> None:
    """Who names one gets it, all of it, and none of a newer snapshot."""
    own = {"job": "own", "own": f"{agent}/own", "drop": 0}
    whole, _ = lightning(agent, 1, {"job": "whole", "drop": 0},
                         {**own, "stop": 11})
    again, = lightning(agent, 1, {
        **own, "ckpt_path": f"{agent}/own/epoch=0-step=8.ckpt"})
    assert again["restored"] is None and again["steps"] == 8
    assert again["weight"] == whole["weight"] and again["lr"] == whole["lr"]
    assert any("no snapshot is restored" in x for x in again["told"])


@needs("lightning")
def test_lightning_without_a_node(nodes: Nodes, agent: str) -> None:
    """Generators are lost with it, so nothing here draws from them."""
    job = {"job": "node", "nodes": list(nodes), "replicas": "node", "drop": 0}
    whole, _ = lightning(agent, 2, {"job": "whole", "drop": 0},
                         {**job, "stop": 11})
    nodes.restart(1, signal.SIGKILL, disk=False)
    again, = lightning(agent, 2, {**job, "lost_ok": True})
    assert again["restored"] == 11 and again["steps"] == 5
    assert again["weight"] == whole["weight"] and again["lr"] == whole["lr"]


TRAINER = """
    import json, sys, warnings
    warnings.filterwarnings("ignore")
    import torch, transformers
    transformers.utils.logging.set_verbosity_error()
    from shardkeep.torch.trainer import Snapshots

    held = []       # as a notebook does, whatever became of them

    def train(job, stop, accumulate):
        workers = 2 if job.startswith("workers") else 0
        drawn = job.startswith("drawn")
        class Stop(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **_):
                if state.global_step == stop:
                    raise KeyboardInterrupt

        # Dropout and data that is shuffled: whoever goes on elsewhere, or
        # with other generators, ends with other weights.
        config = transformers.GPT2Config(
            vocab_size=17, n_positions=8, n_embd=16, n_layer=2, n_head=2)
        torch.manual_seed(2)
        model = transformers.GPT2LMHeadModel(config)
        data = [{"input_ids": ids, "labels": ids} for ids in
                torch.randint(17, (24, 8), generator=torch.Generator()
                              .manual_seed(5))]
        if drawn:
            class Drawn(torch.utils.data.IterableDataset):
                def __iter__(self):
                    for _ in range(12):
                        yield from rows
            rows, data = data, Drawn()
        steps = []
        class Count(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                steps.append((state.global_step, round(state.epoch, 4)))

        args = transformers.TrainingArguments(
            "out", per_device_train_batch_size=4, num_train_epochs=2,
            gradient_accumulation_steps=accumulate,
            learning_rate=0.01, logging_strategy="no",
            save_strategy="steps" if job == "own" else "no", save_steps=3,
            report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            max_steps=12 if drawn else -1)
        snapshots = Snapshots(job, flush_every=1000, raising=True, wait=100)
        trainer = transformers.Trainer(model, args, train_dataset=data,
                                       callbacks=[Stop(), snapshots, Count()])
        if not workers:
            held.append(trainer)
        try:
            trainer.train(resume_from_checkpoint=job == "own" and stop < 0)
        except KeyboardInterrupt:
            # It leaves at once, and the last snapshot is to be there.
            snapshots.checkpointer.wait()
        return trainer.is_world_process_zero(), {
            "weight": model.transformer.wte.weight.tolist(),
            "restored": snapshots.restored, "step": trainer.state.global_step,
            "steps": steps, "epoch": trainer.state.epoch,
            "lr": trainer.optimizer.param_groups[0]["lr"]}

    # Importing all this takes longer than some trainings, one after another.
    told = []
    for job, stop in zip(sys.argv[2::2], sys.argv[3::2]):
        tells, result = train(job, int(stop), int(sys.argv[1]))
        told.append(result)
    if tells:
        print(json.dumps(told))
"""


@needs("transformers")
@needs("accelerate")
@pytest.mark.parametrize("ranks, accumulate, cuts", [
    (1, 1, [4, 8]), (1, 2, [4]), (2, 1, [5])])
def test_hugging_face_trainer(agent: str, ranks: int, accumulate: int,
                              cuts: list[int]) -> None:
    last = 12 // ranks // accumulate
    once = [x for cut in cuts for x in (f"cut-{cut}", -1)]
    whole, *_ = python("transformers", TRAINER, agent, accumulate, "whole", -1,
                       *(x for cut in cuts for x in (f"cut-{cut}", cut)),
                       ranks=ranks)
    assert whole["restored"] is None and whole["step"] == last
    # A finished run trains nothing more, however often it is started.
    told = python("transformers", TRAINER, agent, accumulate, *once, *once, ranks=ranks)
    done = told[len(cuts):]
    if len(cuts) > 1:
        done += python("transformers", TRAINER, agent, accumulate, *once, ranks=ranks)
    for cut, again in zip(cuts, told):
        assert again["restored"] == cut and again["step"] == last
        assert again["steps"] == whole["steps"][cut:], "and epochs"
        assert again["weight"] == whole["weight"]
        assert again["lr"] == whole["lr"]
    for d in done:
        assert d["restored"] == last and d["steps"] == []
        assert d["weight"] == whole["weight"]
        assert d["step"] == last and d["epoch"] == 2


@needs("transformers")
@needs("accelerate")
def test_trainers_of_one_process(agent: str) -> None:
    """One that an exception ended is not in the way of the next, which goes
    on at the beginning of an epoch with the generators that begin it; one
    that is told to take a checkpoint of the Trainer's own takes nothing of a
    newer snapshot."""
    whole, _, again, _, own = python(
        "transformers", TRAINER, agent, 1, "whole", -1, "cut", 6, "cut", -1, "own", 8, "own",
        -1)
    assert again["restored"] == 6 and again["weight"] == whole["weight"]
    assert again["steps"] == whole["steps"][6:]
    assert own["restored"] is None and own["weight"] == whole["weight"]
    assert own["steps"] == whole["steps"][6:]


@needs("transformers")
@needs("accelerate")
def test_a_trainer_with_workers_that_load(agent: str) -> None:
    """They are told of the batches that are left, and of none where nothing
    is; and they end without a word when the next training begins."""
    whole, _, again, *done = python(
        "transformers", TRAINER, agent, 1, "workers", -1, "workers-cut", 4, "workers-cut", -1,
        "workers-cut", -1, "workers-cut", -1)
    assert again["restored"] == 4 and again["step"] == 12
    assert again["weight"] == whole["weight"]
    assert again["steps"] == whole["steps"][4:]
    for d in done:
        assert d["restored"] == 12 and d["steps"] == []
        assert d["weight"] == whole["weight"]


@needs("transformers")
@needs("accelerate")
@pytest.mark.parametrize("ranks, accumulate", [(1, 1), (2, 1), (1, 2)])
def test_a_trainer_whose_data_is_drawn(agent: str, ranks: int,
                                       accumulate: int) -> None:
    """Of an iterable, what was trained is drawn again, and not trained."""
    whole, *_ = python("transformers", TRAINER, agent, accumulate, "drawn", -1, "drawn-cut", 4,
                       ranks=ranks)
    again, *done = python("transformers", TRAINER, agent, accumulate, "drawn-cut", -1,
                          "drawn-cut", -1, ranks=ranks)
    assert whole["step"] == again["step"] == 12 and again["restored"] == 4
    assert again["weight"] == whole["weight"] and again["lr"] == whole["lr"]
    assert again["steps"] == whole["steps"][4:], "and epochs"
    assert done[0]["restored"] == 12 and done[0]["steps"] == []


@needs("transformers")
@needs("accelerate")
def test_a_trainer_at_an_epochs_last_whole_step(agent: str) -> None:
    """Five batches are a step, and the sixth is left: it goes on with the
    next epoch, and does not end."""
    _, again = python("transformers", TRAINER, agent, 5, "cut", 1, "cut", -1)
    assert again["restored"] == 1 and again["step"] == 4
    assert again["steps"][0][0] == 2 and again["steps"][0][1] > 1


@needs("transformers")
@needs("accelerate")
def test_a_trainer_of_other_batches(agent: str) -> None:
    """What was trained of the data is not trained again."""
    python("transformers", TRAINER, agent, 2, "cut", 3)
    again, = python("transformers", TRAINER, agent, 1, "cut", -1)
    assert again["restored"] == 3
    assert again["steps"][0] == [4, 1.1667], "the second epoch's first batch"


TITAN = """
    import json, sys, warnings
    warnings.filterwarnings("ignore")
    import torch, torch.distributed as dist, torch.distributed.checkpoint
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from shardkeep.torch.titan import SnapshotManager

    job, steps, initial, keeps = [*sys.argv[1:], "", ""][:4]
    steps = int(steps)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5 if initial else 4)

    # Two stages of a pipeline on one rank, as torchtitan has them.
    class Stage(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.add_module(name, torch.nn.Linear(7, 7))
            self.name = name
        def forward(self, x):
            return self.get_submodule(self.name)(x).tanh()

    parts = [Stage("first"), Stage("second")]
    for p in parts:
        fully_shard(p, mesh=mesh)

    class Optimizers:
        optimizers = [torch.optim.AdamW(p.parameters(), lr=0.05)
                      for p in parts]

    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5)
                  for o in Optimizers.optimizers]

    class Schedulers:
        def state_dict(self):
            return schedulers[0].state_dict()
        def load_state_dict(self, state):
            for s in schedulers:
                s.load_state_dict(dict(state))

    class Loader:
        at = 0
        def state_dict(self):
            return {"at": self.at}
        def load_state_dict(self, state):
            self.at = state["at"]

    class Train:
        step = 0
        def state_dict(self):
            return {"step": self.step}
        def load_state_dict(self, state):
            self.step = state["step"]

    loader, train = Loader(), Train()
    config = SnapshotManager.Config(
        enable=True, job=job, interval=1, slot_wait=100,
        initial_load_path=initial or None)
    manager = config.build(
        dataloader=loader, model_parts=parts, optimizers=Optimizers(),
        lr_schedulers=Schedulers(), states={"train_state": train},
        sd_adapter=None, base_folder="") if hasattr(config, "build") else \\
        SnapshotManager(config, dataloader=loader, model_parts=parts,
                        optimizers=Optimizers(), lr_schedulers=Schedulers(),
                        states={"train_state": train})
    loaded = manager.load()
    if keeps:
        torch.distributed.checkpoint.save(
            {k: v for p in parts for k, v in p.state_dict().items()},
            checkpoint_id=keeps)
    while train.step < steps:
        train.step += 1
        x = torch.full((3, 7), float(loader.at % 5))
        loader.at += 1
        parts[1](parts[0](x)).square().sum().backward()
        manager.maybe_wait_for_staging()
        for o in Optimizers.optimizers:
            o.step()
            o.zero_grad()
        for s in schedulers:
            s.step()
        manager.save(train.step, last_step=train.step == 8)
    manager.maybe_wait_for_saving()
    weight = [p.full_tensor().tolist() for m in parts
              for p in m.parameters()]
    if dist.get_rank() == 0:
        print(json.dumps({"weight": weight, "loaded": loaded,
                          "at": loader.at, "lr": schedulers[1]
                          .get_last_lr()[0]}))
    manager.close()
    dist.barrier()
    dist.destroy_process_group()
"""


@needs("torchtitan")
def test_torchtitan_begins_with_what_it_is_given(agent: str) -> None:
    """A checkpoint, on a first run; a snapshot on those after it."""
    first = python("torchtitan", TITAN, agent, "first", 0, "", f"{agent}/first", ranks=2)
    again = python("torchtitan", TITAN, agent, "again", 0, f"{agent}/first", ranks=2)
    assert again["loaded"] is True and again["weight"] == first["weight"]
    begun = python("torchtitan", TITAN, agent, "again", 2, f"{agent}/first", ranks=2)
    assert begun["at"] == 2, "the model alone is loaded"
    after = python("torchtitan", TITAN, agent, "again", 2, f"{agent}/first", ranks=2)
    assert after["at"] == 2 and after["weight"] == begun["weight"]
    assert after["weight"] != first["weight"]


@needs("torchtitan")
@pytest.mark.parametrize("name, value, instead", [
    ("exclude_from_loading", ["dataloader"], "set anew"),
    ("last_save_in_hf", True, "cachectl export")])
def test_torchtitan_says_what_it_leaves_out(agent: str, name: str, value: Any,
                                            instead: str) -> None:
    from shardkeep.torch.titan import SnapshotManager
    config = SnapshotManager.Config(enable=True, **{name: value})
    with pytest.raises(ValueError, match=f"{name}.*{instead}"):
        SnapshotManager(config, dataloader=None, model_parts=[], optimizers=[],
                        lr_schedulers=None, states={})


@needs("torchtitan")
def test_torchtitan(agent: str) -> None:
    whole = python("torchtitan", TITAN, agent, "whole", 8, ranks=2)
    assert whole["loaded"] is False
    python("torchtitan", TITAN, agent, "cut", 5, ranks=2)
    again = python("torchtitan", TITAN, agent, "cut", 8, ranks=2)
    assert again["loaded"] is True and again["at"] == 8
    assert again["weight"] == whole["weight"] and again["lr"] == whole["lr"]
