"""Train a causal language model, with or without memory: any of ours, or of transformers', on any text.

    hf-efficient train pydocs_compressive_performer --learning_rate 1e-3
    torchrun --nproc_per_node 2 -m hf_efficient train enwik8_compressive_performer_small

Killed at any moment and started again by the same command, it goes on from its last checkpoint, memory included, and
ends as if nothing had happened. Its output_dir is a model that pipeline("text-generation") takes.
"""

import numpy as np
import torch
from transformers import AutoModelForCausalLM, pipeline, set_seed
from transformers.modeling_utils import PreTrainedModel

from ...data.text_streams import (
    EncodedText,
    LanguageData,
    RandomCrops,
    TextOptions,
    TextStreams,
    load_language_data,
)
from ...errors import told
from ..arguments import EfficientTrainingArguments
from ..build_model import build_model
from ..callbacks import without_bars
from ..errors import RunError
from ..launch import train_and_report
from ..memory_trainer import MemoryTrainer
from ..progress import quote
from ..run import Run, load_run

TASK = "text-generation"
SECTIONS = {"dataset": TextOptions}
DEFAULTS = {"training": {"metric_for_best_model": "bits_per_byte"}}
METRICS = ("nats_per_token", "bits_per_token", "perplexity", "bits_per_character", "bits_per_byte")
PROMPT, CONTINUATION = 128, 128  # tokens of the sample that is printed


def main(argv: list[str] | None = None) -> dict:
    trainer, run = prepare(argv)
    texts = {"train": trainer.train_dataset, "validation": trainer.eval_dataset, "test": trainer.test_dataset}
    sizes = {name: segments.text.bytes for name, segments in texts.items()}
    known = {"unknown_rate": trainer.test_dataset.text.unknown_rate, "bytes": sizes}
    results = train_and_report(trainer, run, "token", trainer.train_dataset.segment_length, **known)
    if trainer.is_world_process_zero():
        print_sample(trainer, run)
    trainer.wait()
    return results


def prepare(argv: list[str] | None = None) -> tuple[MemoryTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run, *load_data(run)), run


def load_data(run: Run) -> tuple[TextOptions, LanguageData]:
    with told("dataset", RunError):
        options = TextOptions(**run.dataset)
        return options, load_language_data(options)


def build_trainer(run: Run, options: TextOptions, data: LanguageData) -> MemoryTrainer:
    tokenizer, args = data.tokenizer, run.training
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = build_model(run.model, AutoModelForCausalLM, seed=args.seed, vocab_size=len(tokenizer), **special)
    if model.config.vocab_size < len(tokenizer):
        raise RunError(f"model.vocab_size={model.config.vocab_size}, but the tokenizer has {len(tokenizer)} tokens.")
    length = segment_length(options, model)
    streams = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    with told("dataset", RunError):
        if options.order == "random":
            train = RandomCrops(data.train, length, streams, options.segments_per_crop, args.seed)
        else:
            train = TextStreams(data.train, length, streams)
        train.skipped = data.skipped
        evaluation, test = (whole(text, length, args) for text in (data.validation, data.test))
    sets = {"train_dataset": train, "eval_dataset": evaluation, "test_dataset": test}
    return MemoryTrainer(model, args, **sets, processing_class=tokenizer)


def segment_length(options: TextOptions, model: PreTrainedModel) -> int:
    """Tokens per step: as given, or what the model reads at a time."""
    most = getattr(model.config, "max_position_embeddings", None)
    length = options.segment_length or getattr(model.config, "segment_length", None) or most
    if length is None:
        raise RunError(f"dataset.segment_length is missing: a {model.config.model_type} may be given any.")
    if most is not None and length > most:
        raise RunError(f"dataset.segment_length={length} is more than the {most} positions of the model.")
    return length


def whole(text: EncodedText, length: int, args: EfficientTrainingArguments) -> TextStreams:
    """All of a text, in as many streams as an evaluation's batches have rows."""
    return TextStreams(text, length, args.eval_batch_size * args.world_size, whole=True)


def print_sample(trainer: MemoryTrainer, run: Run) -> None:
    """How the saved model goes on from the test split's beginning, of which the last line is shown."""
    set_seed(run.training.seed)
    most = getattr(trainer.model.config, "max_position_embeddings", None) or PROMPT + CONTINUATION
    tokenizer = trainer.processing_class
    prompt = torch.from_numpy(trainer.test_dataset.text.tokens[: min(PROMPT, most // 2)].astype(np.int64))[None]
    with without_bars():  # of loading weights
        model = pipeline("text-generation", run.training.output_dir).model
    # Not by way of text: what is no UTF-8 would come back as three times the tokens.
    sampling = {"max_new_tokens": min(CONTINUATION, most - prompt.shape[1]), "do_sample": True, "temperature": 0.8}
    prompt = prompt.to(model.device)
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), **sampling)
    continuation = tokenizer.decode(found[0, prompt.shape[1] :])
    end_of_prompt = "".join(tokenizer.decode(prompt[0]).splitlines()[-1:])
    print(f"\nHow the saved model goes on after >>>:\n{quote(end_of_prompt + '>>>' + continuation)}", flush=True)
