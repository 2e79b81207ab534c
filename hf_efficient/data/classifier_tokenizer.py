"""Tokenizers of classifiers: with padding, and with a first token for models that classify by it."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .tokenization import PADDING, UNKNOWN, build_tokenizer

FIRST, SEPARATOR = "<cls>", "<sep>"


def classifier_tokenizer(
    level: str, texts: Sequence[str], vocab_size: int = 8192, min_count: int = 2, first_token: bool = False
) -> PreTrainedTokenizerFast:
    """A tokenizer of a level.

    Args:
        level: one of `build_tokenizer`'s, or "symbol": what stands between spaces, whatever it is.
        texts: of the training split, and nothing else; bytes need none.
        first_token: <cls> comes before every text, as transformers' BERT and its like need it, and <sep> between the
            two of a pair.
    """
    if level == "symbol":
        tokenizer = symbol_tokenizer(texts, vocab_size, min_count)
    else:
        train = None if level == "byte" else "\n".join(texts).encode()
        tokenizer = build_tokenizer(level, train, vocab_size, min_count, padding=True)
    if first_token:
        tokenizer.add_special_tokens({"cls_token": FIRST, "sep_token": SEPARATOR})
        ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (FIRST, SEPARATOR)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{FIRST} $A", pair=f"{FIRST} $A {SEPARATOR} $B", special_tokens=ids
        )
    return tokenizer


def symbol_tokenizer(texts: Sequence[str], vocab_size: int, min_count: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_count, special_tokens=[UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        split_special_tokens=True,  # what a text says is text, though it be "<unk>"
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        unk_token=UNKNOWN,
        pad_token=PADDING,
    )
