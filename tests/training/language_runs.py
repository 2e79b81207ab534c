"""Tiny runs for the tests of language models; as a script it makes one, which torchrun may share among processes and
which may kill itself:

    python language_runs.py <folder> '{"batch": 2, "accumulate": 2}' [step at which it is killed]
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import TrainerCallback

from hf_efficient import CompressivePerformerConfig, CompressivePerformerForCausalLM
from hf_efficient.data.text_streams import EncodedText, RandomCrops, TextStreams
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.memory_trainer import MemoryTrainer

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "segment_length": 8,
    "memory_length": 8,
    "compressed_memory_length": 8,
    "compression_rate": 2,
    "attention_options": {"redraw_interval": 3},
}
STEPS_PER_EPOCH = 16
DEFAULTS = {
    "max_steps": 12,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "eval_strategy": "no",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}


def text(count: int = 520, seed: int = 0) -> EncodedText:
    """Tokens that are most often one more than the last; they stand for 2 characters and 3 bytes each."""
    random = np.random.default_rng(seed)
    steps = random.integers(0, 32, count) * (random.random(count) < 0.2) + 1
    tokens = (np.cumsum(steps) % 32).astype(np.uint8)
    return EncodedText(tokens, np.array([0]), 2 * (count - 1), 3 * (count - 1), 0.0)


def make_model(**fields) -> CompressivePerformerForCausalLM:
    torch.manual_seed(0)
    return CompressivePerformerForCausalLM(CompressivePerformerConfig(**{**TINY, **fields}))


def make(
    folder, *callbacks, model=None, train=None, order="contiguous", batch=4, evaluated=3, accumulate=1, **options
):
    """A trainer with 4 streams, unless batch, accumulation and processes say otherwise; an epoch has 16 segments."""
    arguments = EfficientTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        per_device_eval_batch_size=evaluated,
        **{**DEFAULTS, **options},
    )
    streams = batch * accumulate * arguments.world_size
    if train is None:
        train = RandomCrops(text(), 8, streams, 3) if order == "random" else TextStreams(text(), 8, streams)
    return MemoryTrainer(
        make_model() if model is None else model,
        arguments,
        train_dataset=train,
        eval_dataset=TextStreams(text(100, seed=1), 8, evaluated * arguments.world_size, whole=True),
        callbacks=list(callbacks),
    )


class KillItself(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, options: str, kill_at: str | None = None) -> None:
    trainer = make(folder, *([KillItself(int(kill_at))] if kill_at else []), **json.loads(options))
    trainer.train(resume_from_checkpoint=True)
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        logs = [log for log in trainer.state.log_history if "loss" in log]
        Path(folder, "outcome.json").write_text(
            json.dumps({"logs": logs, "eval": metrics["eval_loss"]}, sort_keys=True)
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
