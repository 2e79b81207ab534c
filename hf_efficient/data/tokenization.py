"""Tokenizers at three levels, fitted on the training split only, as `PreTrainedTokenizerFast`s.

byte   256 tokens, one per byte: any text, no training, and the id is the byte
bpe    byte-level byte-pair encoding: any text
word   words and marks that occur often enough (`word_tokenizer.py`); what does not is <unk>, so say how often
       (`unknown_rate`)
"""

from collections.abc import Iterable
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .text import LEVELS, decode
from .word_tokenizer import UNKNOWN, word_tokenizer

PADDING, MASK = "<pad>", "<mask>"
PIECE = 1 << 16  # characters handed to the trainers at a time
LONG_WORD = r"\S{128}|\s{128}"  # cut off from what follows: learning from a word takes the square of its length


def build_tokenizer(
    level: str,
    train: bytes | None = None,
    vocab_size: int = 8192,
    min_count: int = 5,
    padding: bool = False,
    mask: bool = False,
) -> PreTrainedTokenizerFast:
    """A tokenizer of a level.

    Args:
        train: the training split, and nothing else; bytes need none.
        vocab_size: of "bpe", and at most of "word".
        min_count: how often a word must occur to be known.
        padding: own a <pad> token, for batches of texts of different lengths.
        mask: own a <mask> token, for masked language models. A text can then name special tokens: "The <mask> sat."
    """
    if level not in LEVELS:
        raise ValueError(f"level={level!r} must be one of {', '.join(LEVELS)}.")
    if level == "byte":
        return _wrap(_byte_tokenizer(), padding, mask and AddedToken(MASK, special=True))
    if not train:
        raise ValueError(f"train is empty: a tokenizer of level {level!r} learns from the training split.")
    text = decode(train, "train")
    mask_token = mask and AddedToken(MASK, lstrip=True, special=True)  # it stands for " cat", its space included
    if level == "bpe":
        return _wrap(_bpe_tokenizer(text, vocab_size), padding, mask_token)
    return _wrap(word_tokenizer(pieces(text), vocab_size, min_count), padding, mask_token, unk_token=UNKNOWN)


def unknown_rate(tokenizer: PreTrainedTokenizerFast, text: str) -> float:
    """The share of tokens that are <unk>; perplexities of words can't be compared without it."""
    if tokenizer.unk_token_id is None:
        return 0.0
    ids = [i for piece in pieces(text) for i in tokenizer(piece)["input_ids"]]
    if not ids:
        raise ValueError("text is empty: it has no tokens.")
    return ids.count(tokenizer.unk_token_id) / len(ids)


def pieces(text: str) -> Iterable[str]:
    """The text in pieces that end at line ends, or within lines that are longer: what tokenizers take at a time."""
    piece, size = [], 0
    for line in text.splitlines(keepends=True):
        for part in (line[at : at + PIECE] for at in range(0, len(line), PIECE)):
            piece.append(part)
            size += len(part)
            if size >= PIECE:
                yield "".join(piece)
                piece, size = [], 0
    if piece:
        yield "".join(piece)


def byte_alphabet() -> list[str]:
    """The character by which byte-level models write each byte: printable ones themselves, the others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _byte_tokenizer() -> Tokenizer:
    vocab = {character: byte for byte, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    if vocab_size < 256:
        raise ValueError(f"vocab_size={vocab_size} must be at least 256, the number of bytes.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LONG_WORD), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(pieces(text), trainer)
    return tokenizer


def _wrap(
    tokenizer: Tokenizer, padding: bool, mask: AddedToken | Literal[False], **special
) -> PreTrainedTokenizerFast:
    if padding:
        special["pad_token"] = PADDING
    if mask:
        special["mask_token"] = mask
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        split_special_tokens=not mask,  # what a text says is text, though it be "<unk>"
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )
