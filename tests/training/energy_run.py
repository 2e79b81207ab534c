"""A run of twenty steps of a tenth of a second, with the real tracker, for tests that need processes."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_efficient.training.energy_callback import EnergyCallback, energy_report


class SlowModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x, labels):
        time.sleep(0.1)
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Killer(TrainerCallback):
    def __init__(self, folder: Path, step: int):
        self.folder, self.step = folder, step

    def on_train_begin(self, *_, **__):
        self.began = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            (self.folder / "took.txt").write_text(str(time.monotonic() - self.began))
            os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill_at", type=int)
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        str(options.folder),
        per_device_train_batch_size=4 // int(os.environ.get("WORLD_SIZE", 1)),
        max_steps=20,
        save_strategy="steps",
        save_steps=10,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    images = [{"x": torch.randn(4), "labels": index % 2} for index in range(80)]
    trainer = Trainer(SlowModel(), arguments, train_dataset=images)
    EnergyCallback({"country": "FRA", "interval": 0.25}).attach(trainer)
    if options.kill_at:
        trainer.add_callback(Killer(options.folder, options.kill_at))
    trainer.train(resume_from_checkpoint=True if list(options.folder.glob("checkpoint-*")) else None)
    if trainer.is_world_process_zero():
        print(json.dumps({"joules": energy_report(trainer).joules()}))


if __name__ == "__main__":
    main()
