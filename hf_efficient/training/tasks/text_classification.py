"""Train a classifier of texts, or of pairs of texts: any encoder of ours, or of transformers', on any labelled texts.

    hf-efficient train sst2_kerformer_text_small --learning_rate 1e-3
    hf-efficient train listops_kerformer_text_small --attention performer
    hf-efficient train sst2_kerformer_text_small --dataset reviews.csv --dataset.text_column review

Killed at any moment and started again by the same command, it goes on from its last checkpoint and ends as if nothing
had happened. Its output_dir is a model that pipeline("text-classification") takes, with the names of the classes.
"""

from typing import NamedTuple

from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_utils import PreTrainedModel

from ...data.classifier_tokenizer import classifier_tokenizer
from ...data.collators import take_batch
from ...data.labelled_texts import (
    LabelledTextOptions,
    LabelledTexts,
    TextSplits,
    default_level,
    load_labelled_texts,
)
from ...data.made_texts import MAKERS
from ...data.text_batches import TextBatches
from ...errors import told
from ...models.auto import FAMILIES
from ..build_model import build_model
from ..classification_trainer import ClassificationTrainer
from ..errors import RunError
from ..launch import train_and_report
from ..metrics.classification import METRICS
from ..run import Run, load_run

TASK = "text-classification"
SECTIONS = {"dataset": LabelledTextOptions}
DEFAULTS = {"training": {"metric_for_best_model": "accuracy"}}
AUTO = "AutoModelForSequenceClassification"


def main(argv: list[str] | None = None) -> dict:
    trainer, run = prepare(argv)
    parts = {"train": trainer.train_dataset, "validation": trainer.eval_dataset, "test": trainer.test_dataset}
    cut = {name: cut_texts(part) for name, part in parts.items() if part is not None}
    if trainer.is_world_process_zero():
        for name, found in cut.items():
            if said := describe_cut(name, found):
                print(said, flush=True)
    return train_and_report(trainer, run, "text", cut_texts=cut)


def prepare(argv: list[str] | None = None) -> tuple[ClassificationTrainer, Run]:
    """What trains a run, before it has begun."""
    run = load_run(argv, __doc__, SECTIONS, DEFAULTS, TASK, METRICS)
    return build_trainer(run), run


def build_trainer(run: Run) -> ClassificationTrainer:
    if run.training.length_schedule:
        raise RunError("training.length_schedule is for language models: leave it out.")
    with told("dataset", RunError):
        options = LabelledTextOptions(**run.dataset)
        texts = load_labelled_texts(options)
    tokenizer = find_tokenizer(run, options, texts.train)
    model = build_classifier(run, tokenizer, texts)
    with told("dataset", RunError):
        parts = texts._asdict()
        train, evaluation, test = (
            part and make_batches(model, tokenizer, options, part, name) for name, part in parts.items()
        )
    return ClassificationTrainer(
        model,
        run.training,
        data_collator=take_batch,
        train_dataset=train,
        eval_dataset=evaluation,
        test_dataset=test,
        processing_class=tokenizer,
    )


def find_tokenizer(run: Run, options: LabelledTextOptions, train: LabelledTexts) -> PreTrainedTokenizerBase:
    """The one that is named, or that of the pretrained model, or one that is fitted to the training split."""
    source = options.tokenizer or (None if options.level else run.model.get("pretrained"))
    if source is None:
        level = options.level or default_level(options.name)
        texts = [] if level == "byte" else [text for name in train.rows.column_names for text in train.rows[name][:]]
        first_token = run.model.get("model_type") not in FAMILIES  # by which others classify, and ours need not
        with told("dataset", RunError):
            return classifier_tokenizer(level, texts, options.vocab_size, options.min_count, first_token)
    return load_tokenizer(source)


def load_tokenizer(source: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    with told(f"dataset.tokenizer={source!r}", RunError):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        raise RunError(f"dataset.tokenizer={source!r} has no padding token: take another, or set dataset.level.")
    return tokenizer


def build_classifier(run: Run, tokenizer: PreTrainedTokenizerBase, texts: TextSplits) -> PreTrainedModel:
    names = texts.train.class_names
    facts = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {n: i for i, n in enumerate(names)},
    }
    if not run.model.get("pretrained"):
        facts |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if texts.train.has_pairs and (apart := reads_pairs_apart(run.model.get("model_type"))):
        facts["architectures"] = [apart]
    model = build_model(run.model, AutoModelForSequenceClassification, seed=run.training.seed, **facts)
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        known = model.get_input_embeddings().num_embeddings
        raise RunError(f"model.vocab_size={known}, but the tokenizer has {len(tokenizer)} tokens.")
    return model


def reads_pairs_apart(model_type: str | None) -> str | None:
    """The class of a family that reads each text of a pair for itself."""
    return FAMILIES[model_type].second_classes().get(AUTO) if model_type in FAMILIES else None


def make_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: LabelledTextOptions,
    texts: LabelledTexts,
    split: str,
) -> TextBatches:
    """A split as batches that the model can read; texts that are too long are cut, or refused."""
    length = tokens_of_a_text(model, options)
    tokenizer.model_max_length = length
    joined = type(model).__name__ != reads_pairs_apart(model.config.model_type)
    batches = TextBatches(texts, tokenizer, length, joined=joined, by_length=split != "train")
    if batches.cut and (options.long_texts == "refuse" or options.name in MAKERS):
        why = f"{options.name} can't be cut" if options.name in MAKERS else "long_texts='refuse'"
        raise ValueError(
            f"{batches.cut:,} of {len(batches):,} texts ({split}) are longer than {length} tokens, up to "
            f"{batches.longest:,}, and {why}: set model.max_position_embeddings to {batches.longest} or more."
        )
    return batches


def tokens_of_a_text(model: PreTrainedModel, options: LabelledTextOptions) -> int:
    """At most: as given, or what the model reads."""
    most = most_tokens(model)
    length = options.max_length or most
    if length is None:
        raise ValueError(f"max_length is missing: a {model.config.model_type} may be given any.")
    if most is not None and length > most:
        raise ValueError(f"max_length={length} is more than the {most} positions of the model.")
    return length


def most_tokens(model: PreTrainedModel) -> int | None:
    positions = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        is_table = name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
        if is_table and module.padding_idx is not None:  # RoBERTa's positions begin behind that of padding
            return module.num_embeddings - module.padding_idx - 1
    return positions


class Cut(NamedTuple):
    """How many texts of a split were cut, and how long the longest was."""

    cut: int
    texts: int
    max_length: int
    longest: int


def cut_texts(batches: TextBatches) -> dict[str, int]:
    return Cut(batches.cut, len(batches), batches.room + batches.frame.size, batches.longest)._asdict()


def describe_cut(split: str, found: dict[str, int]) -> str:
    """In words; nothing if none was cut."""
    if not found["cut"]:
        return ""
    share = found["cut"] / found["texts"]
    return (
        f"cut: {found['cut']:,} of {found['texts']:,} texts ({split}, {share:.1%}) are longer than "
        f"{found['max_length']:,} tokens, and only their beginning is read; the longest has {found['longest']:,}."
    )
