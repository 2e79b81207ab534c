"""Texts as language models with memory read them: tokens cut into streams, and streams into segments.

contiguous   The text is cut into S streams of consecutive segments. One step of training reads one segment of each;
             the next step reads the ones that follow, so that memory may be carried from step to step. Memory is
             `reset` where an epoch or a document begins.
random       The paper's sampling: each stream reads a random crop of a few segments, then another one; memory is
             `reset` where a crop begins.

Datasets are ordered segment by segment: item t·S + s is segment t of stream s. Read in that order, in batches of B
rows, on W processes and with G batches per step of the optimizer, S must be B·W·G. Batch g of process r then always
holds the streams from (g·W + r)·B on, and one step reads the same tokens whether S = 16 are one batch of 16, two
batches of 8 that are accumulated, or two processes with 8 each: the gradients are the same.

Items hold T tokens and the T that follow them, so that tokens at borders of segments are predicted too: all of a text
but its very first.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import decoders
from torch.utils.data import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .folders import cache_folder
from .split_names import TRAINING_NAMES, VALIDATION_NAMES
from .text import character_start, decode, split_text
from .text_files import find_texts
from .tokenization import build_tokenizer, byte_alphabet, pieces

ORDERS = ("contiguous", "random")
IGNORED = -100  # a label that is no target
PIECES = 64  # given to the tokenizer at a time


class EncodedText(NamedTuple):
    """A text as tokens, with its length in characters and bytes."""

    tokens: np.ndarray  # (N,) uint8, uint16 or int32; may be a memory map
    documents: np.ndarray  # (n,) the tokens at which documents begin; the first is 0
    characters: int  # what all tokens but the first stand for, spaces that no token holds included
    bytes: int
    unknown_rate: float  # the share of <unk>
    spelled: int = 0  # bytes of what is <unk>, and an end for each: what it takes to write them out


@dataclass(frozen=True)
class TextOptions:
    """What is read, and how: the section `dataset` of a run.

    Args:
        name: "enwik8", "pydocs", a file or folder of texts, a pattern as "texts/*.txt", CSV, JSON lines or parquet
            with a column of texts, or a data set on the Hub.
        text_column: of tables; usual names are found.
        config: of a data set on the Hub that has several.
        skip_corrupt: leave out rows without a text, and say how many, rather than stop.
        level: of the tokens: "byte", "bpe" or "word".
        preset: how the text is cleaned and split, "paper" or "standard".
        order: "contiguous" or "random".
        segment_length: tokens per item; by default the model's.
        segments_per_crop: how many items follow one another in random order.
        limit: bytes of each split to read, from its start on; by default all.
        vocab_size, min_count: see `build_tokenizer`.
        tokenizer: a folder or repository to take it from, instead of fitting one to the training split.
        document_start: documents begin where this string does, as "<page>"; by default the text is one.
    """

    name: str
    level: str = "byte"
    preset: str = "paper"
    order: str = "contiguous"
    segment_length: int | None = None
    segments_per_crop: int = 4
    limit: int | None = None
    vocab_size: int = 8192
    min_count: int = 5
    tokenizer: str | None = None
    document_start: str | None = None
    text_column: str | None = None
    config: str | None = None
    skip_corrupt: bool = False

    def __post_init__(self):
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r} must be one of {', '.join(ORDERS)}.")
        for name in ("segment_length", "segments_per_crop", "limit", "vocab_size", "min_count"):
            if getattr(self, name) is not None and not 1 <= getattr(self, name) < 2e9:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1, below 2 billion.")


class LanguageData(NamedTuple):
    tokenizer: PreTrainedTokenizerFast
    train: EncodedText
    validation: EncodedText
    test: EncodedText
    skipped: list[str]  # what was left out of the data, and why


def load_language_data(options: TextOptions, cache: Path | None = None) -> LanguageData:
    """The splits as tokens; the tokenizer is fitted on the training split only."""
    found, skipped = find_texts(options.name, options.text_column, options.config, options.skip_corrupt)
    if options.limit is not None:
        found = {name: text[: character_start(text, options.limit)] for name, text in found.items()}
    train, own = separate(found, options.name)
    splits = split_text(train, options.level, options.preset, own)
    if options.tokenizer is not None:
        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    else:
        tokenizer = build_tokenizer(options.level, splits.train, options.vocab_size, options.min_count)
    encoded = (encode_text(part, tokenizer, options.document_start, cache) for part in splits)
    return LanguageData(tokenizer, *encoded, skipped)


def separate(texts: dict[str, bytes], where: str) -> tuple[bytes, dict[str, bytes]]:
    """The training split, and those named "validation", or so, and "test", where there are such."""
    train = next((texts[name] for name in TRAINING_NAMES if name in texts), None)
    if train is None:
        raise ValueError(f"{where} has no split 'train', only {', '.join(texts)}.")
    own = {"validation": next((texts[name] for name in VALIDATION_NAMES if name in texts), None)}
    own["test"] = texts.get("test")
    return train, {name: text for name, text in own.items() if text is not None}


def encode_text(
    text: bytes, tokenizer: PreTrainedTokenizerFast, document_start: str | None = None, cache: Path | None = None
) -> EncodedText:
    """A text as tokens; above bytes they are kept in a folder of `cache` (by default with the images) and mapped."""
    if is_byte_tokenizer(tokenizer):  # the text is its tokens: there is nothing to keep
        starts = [0] if document_start is None else _occurrences(text, document_start.encode())
        return _counted(text, np.frombuffer(text, np.uint8), np.array(starts), first_bytes=1)
    key = hashlib.sha256(text)
    key.update(f"{tokenizer.backend_tokenizer.to_str()}\0{document_start}\0{EncodedText._fields}".encode())
    folder = (cache or cache_folder() / "text") / key.hexdigest()[:32]
    if not folder.is_dir():
        _write(folder, _tokenize(text, tokenizer, document_start))
    counts = json.loads((folder / "counts.json").read_text())
    arrays = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "documents"))
    return EncodedText(*arrays, **counts)


def is_byte_tokenizer(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether tokens are bytes, and ids their values."""
    vocab = {token: i for token, i in tokenizer.get_vocab().items() if token not in tokenizer.all_special_tokens}
    return vocab == {character: byte for byte, character in enumerate(byte_alphabet())}


def _tokenize(text: bytes, tokenizer: PreTrainedTokenizerFast, document_start: str | None) -> EncodedText:
    whole = decode(text)
    cuts = [0] if document_start is None else _occurrences(whole, document_start)
    size = len(tokenizer)
    dtype = np.uint8 if size <= 2**8 else np.uint16 if size <= 2**16 else np.int32
    parts, starts, seen, spelled = [], [], 0, 0
    has_unknown = tokenizer.unk_token is not None
    options = {"add_special_tokens": False, "verbose": False, "return_offsets_mapping": has_unknown}
    for start, stop in zip(cuts, [*cuts[1:], len(whole)], strict=True):
        starts.append(seen)
        group = list(pieces(whole[start:stop]))
        for at in range(0, len(group), PIECES):
            encoded = tokenizer(group[at : at + PIECES], **options)
            for i, ids in enumerate(encoded["input_ids"]):
                parts.append(np.array(ids, dtype))
                seen += len(ids)
                if has_unknown:
                    unknown = parts[-1] == tokenizer.unk_token_id
                    spelled += _spelled(group[at + i], unknown, encoded["offset_mapping"][i])
    tokens = np.concatenate(parts)
    if not len(tokens):
        raise ValueError(f"a text of {len(text)} bytes has no tokens: it is all space.")
    unknown_rate = float(np.mean(tokens == tokenizer.unk_token_id)) if has_unknown else 0.0
    before = 0  # bytes of space that no token holds
    for first in pieces(whole):
        encoded = tokenizer(first, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        if encoded["input_ids"]:
            break
        before += len(first.encode())
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):  # one character stands for one byte
        first_bytes = len(tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]))
    else:
        first_bytes = len(first[: encoded["offset_mapping"][0][1]].encode())
    if tokens[0] == tokenizer.unk_token_id:  # the first is not predicted
        spelled -= first_bytes + 1
    return _counted(text, tokens, np.array(starts), before + first_bytes, unknown_rate, spelled)


def _spelled(piece: str, unknown: np.ndarray, offsets: list[tuple[int, int]]) -> int:
    """The bytes of a piece that stand behind unknown tokens, and an end for each of these."""
    spans = (offsets[i] for i in np.flatnonzero(unknown))
    return sum(len(piece[start:stop].encode()) + 1 for start, stop in spans)


def _counted(
    text: bytes, tokens, documents, first_bytes: int, unknown_rate: float = 0.0, spelled: int = 0
) -> EncodedText:
    """Of UTF-8, a character is every byte that does not continue one."""
    predicted = np.frombuffer(text, np.uint8)[first_bytes:]
    characters = int(np.count_nonzero(predicted & 0b1100_0000 != 0b1000_0000))
    return EncodedText(tokens, documents, characters, len(predicted), unknown_rate, spelled)


def _occurrences(text, part) -> list[int]:
    """Where a document begins: at 0, and wherever `part` does."""
    if not part:
        raise ValueError("document_start='' is everywhere: give the string that documents begin with, or null.")
    found, at = [0], text.find(part, 1)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _write(folder: Path, text: EncodedText) -> None:
    """Writes the whole file or nothing; of several processes the first one writes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        np.save(draft / "tokens.npy", text.tokens)
        np.save(draft / "documents.npy", text.documents)
        counts = {name: getattr(text, name) for name in ("characters", "bytes", "unknown_rate", "spelled")}
        (draft / "counts.json").write_text(json.dumps(counts))
        for file in draft.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class Segments(Dataset):
    """What both orders share: item t·S + s is segment t of stream s, and several items are one batch.

    A batch holds input_ids (B, T), labels = shift_labels (B, T), `reset` (B,), True where memory must be empty, and
    `stream`, the number of its first row. Batches with padding also hold an attention_mask.
    """

    whole = False  # whether all of the text is predicted, once

    def __init__(self, text: EncodedText, segment_length: int, streams: int):
        for name, value in (("segment_length", segment_length), ("streams", streams)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if len(text.tokens) < 2:
            raise ValueError(f"a text of {len(text.tokens)} tokens is too short: there is no token to predict.")
        self.text, self.segment_length, self.streams = text, segment_length, streams
        self.rounds = 0  # segments per stream

    def place(self, rounds: np.ndarray, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B,) each: the segments' first tokens, how many they have, and whether memory is reset."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.rounds * self.streams

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        return {name: x if name == "stream" else x[0] for name, x in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor | int]:
        rounds, streams = np.divmod(np.asarray(indices), self.streams)
        starts, lengths, reset = self.place(rounds, streams)
        columns = np.arange(self.segment_length + 1)
        at = np.minimum(starts[:, None] + columns, len(self.text.tokens) - 1)
        tokens = torch.from_numpy(self.text.tokens[at].astype(np.int64))  # (B, T + 1)
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        batch = {"input_ids": inputs, "reset": torch.from_numpy(reset), "stream": int(streams[0])}
        if (lengths < self.segment_length).any():
            real = torch.from_numpy(columns[:-1] < lengths[:, None])
            labels = labels.masked_fill(~real, IGNORED)
            if not self.whole:  # padding follows what is read, so that it disturbs the compression's loss only
                batch["attention_mask"] = real.long()
        return {**batch, "labels": labels, "shift_labels": labels}


class TextStreams(Segments):
    """Contiguous order.

    Args:
        text: what to read.
        segment_length: T.
        streams: S, see above.
        whole: read all of it, as evaluation must: streams that end early are padded. Otherwise what does not fill a
            last segment of every stream is left out.
    """

    def __init__(self, text: EncodedText, segment_length: int, streams: int, whole: bool = False):
        super().__init__(text, segment_length, streams)
        self.whole = whole
        ends = np.append(text.documents[1:], len(text.tokens) - 1)
        parts = [np.arange(start, end, segment_length) for start, end in zip(text.documents, ends, strict=True)]
        self.starts = np.concatenate(parts)
        self.lengths = np.concatenate(
            [np.minimum(end - part, segment_length) for part, end in zip(parts, ends, strict=True)]
        )
        self.begins = np.isin(self.starts, text.documents)
        count = len(self.starts)
        if not whole and self.lengths[-1] < segment_length:
            count -= 1
        each, more = divmod(count, streams)
        if not whole:
            more = 0
            if not each:
                raise ValueError(
                    f"a text of {len(text.tokens)} tokens is too short for {streams} streams of segments of "
                    f"{segment_length}: use smaller batches (streams = batch x processes x accumulation) or segments."
                )
        order = np.arange(streams)
        self.first, self.count = order * each + np.minimum(order, more), each + (order < more)
        self.rounds = each + bool(more)

    def place(self, rounds, streams):
        real = rounds < self.count[streams]
        at = np.where(real, self.first[streams] + rounds, 0)
        reset = (rounds == 0) | self.begins[at] | ~real
        return self.starts[at], np.where(real, self.lengths[at], 0), reset


class RandomCrops(Segments):
    """Random order; an epoch reads about as many tokens as the text has.

    Args:
        text, segment_length, streams: see `TextStreams`.
        segments_per_crop: after how many segments a stream goes on elsewhere.
        seed: of the crops, together with the epoch.
    """

    def __init__(
        self, text: EncodedText, segment_length: int, streams: int, segments_per_crop: int = 4, seed: int = 0
    ):
        super().__init__(text, segment_length, streams)
        self.segments_per_crop, self.seed = segments_per_crop, seed
        self.span = segments_per_crop * segment_length
        if len(text.tokens) <= self.span:
            raise ValueError(
                f"a text of {len(text.tokens)} tokens is too short for crops of {segments_per_crop} segments of "
                f"{segment_length} tokens."
            )
        self.crops = max(1, (len(text.tokens) - 1) // (self.span * streams))  # per stream
        self.rounds = self.crops * segments_per_crop
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        random = np.random.default_rng([self.seed, epoch])
        self.starts = random.integers(0, len(self.text.tokens) - self.span, self.crops * self.streams)

    def place(self, rounds, streams):
        crop, segment = np.divmod(rounds, self.segments_per_crop)
        starts = self.starts[crop * self.streams + streams] + segment * self.segment_length
        return starts, np.full_like(starts, self.segment_length), segment == 0
