"""Texts as tokens, and batches of them for classifiers."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from .labelled_texts import LabelledTexts
from .terminal_bars import bars_on_terminals
from .text_streams import is_byte_tokenizer


class Tokens(NamedTuple):
    """Texts, one after the other."""

    ids: np.ndarray  # (all tokens,)
    starts: np.ndarray  # (N + 1,), where each begins, and the end

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


class Frame(NamedTuple):
    """The special tokens around a text, or around and between the two of a pair."""

    before: list[int]
    between: list[int]
    after: list[int]

    @property
    def size(self) -> int:
        return sum(map(len, self))


def encode_texts(texts: LabelledTexts, column: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """The texts of a column, without special tokens; `datasets` keeps what it takes time to tokenize."""
    rows = texts.rows
    if getattr(tokenizer, "is_fast", False) and is_byte_tokenizer(tokenizer):
        encoded = [text.encode() for text in rows[column][:]]
        ids, lengths = np.frombuffer(b"".join(encoded), np.uint8), np.array([len(text) for text in encoded])
    else:
        ids, lengths = _tokenize(rows, column, tokenizer)
    if not lengths.all():
        row = int(np.argmin(lengths))
        raise ValueError(f"the text {rows[row][column]!r} has no tokens: leave it out, or choose another level.")
    return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]))


def _tokenize(rows, column: str, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    from datasets import Features, Sequence, Value

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": tokenizer(batch[column], add_special_tokens=False, verbose=False)["input_ids"]}

    backend = getattr(tokenizer, "backend_tokenizer", None)
    key = f"{rows._fingerprint} {column} {backend.to_str() if backend else repr(tokenizer)}"
    with bars_on_terminals():
        encoded = rows.map(
            encode,
            batched=True,
            remove_columns=rows.column_names,
            features=Features({"ids": Sequence(Value("uint16" if len(tokenizer) <= 2**16 else "int32"))}),
            new_fingerprint=hashlib.sha256(key.encode()).hexdigest()[:32],
            desc="tokenizing",
        )
    found = encoded.with_format("arrow")[:]["ids"].combine_chunks()
    return found.flatten().to_numpy(), pc.list_value_length(found).to_numpy()


def frame_of(tokenizer: PreTrainedTokenizerBase, pair: bool) -> Frame:
    """What a tokenizer puts around one text, or two."""
    given = tokenizer(*["a", "b"][: 1 + pair], return_special_tokens_mask=True)
    parts, special = [[]], True
    for token, is_special in zip(given["input_ids"], given["special_tokens_mask"], strict=True):
        if is_special and not special:
            parts.append([])
        special = bool(is_special)
        if special:
            parts[-1].append(token)
    parts += [[]] * (2 + pair - len(parts))
    return Frame(parts[0], parts[1] if pair else [], parts[-1])


class TextBatches(Dataset):
    """A set of texts whose `__getitems__(indices)` is a whole batch; `take_batch` is its collator.

    A batch holds `input_ids` (B, N) of its longest text, `labels` (B,), and, where texts are padded, on the right,
    `attention_mask`. Pairs are (B, 2, N), each text for itself, or with `joined` one sequence, with `token_type_ids`
    if the tokenizer has them.

    Args:
        max_length: at which texts are cut; of a joined pair the longer one first.
        joined: the two texts of a pair as one.
        by_length: the longest first, as evaluation does best.

    Attributes:
        lengths: (N,), by which a `LengthSampler` makes batches.
        cut: how many texts are longer than max_length.
        longest: tokens of the longest text, before it is cut.
    """

    def __init__(
        self,
        texts: LabelledTexts,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        joined: bool = False,
        by_length: bool = False,
    ):
        columns = ("text", "pair") if texts.has_pairs else ("text",)
        self.tokens = [encode_texts(texts, column, tokenizer) for column in columns]
        self.texts, self.labels, self.joined = texts, texts.labels, joined and texts.has_pairs
        self.frame = frame_of(tokenizer, self.joined)
        self.padding = tokenizer.pad_token_id
        self.has_types = self.joined and "token_type_ids" in tokenizer.model_input_names
        self.room = max_length - self.frame.size
        if self.room < len(columns):
            raise ValueError(f"max_length={max_length} leaves no room for a text between special tokens.")
        whole = [tokens.lengths for tokens in self.tokens]
        whole = np.stack([sum(whole)] if self.joined else whole)  # (1 or 2, N)
        self.cut, self.longest = int((whole > self.room).any(0).sum()), int(whole.max()) + self.frame.size
        lengths = np.minimum(whole, self.room).max(0) + self.frame.size
        self.order = np.argsort(-lengths, kind="stable") if by_length else np.arange(len(lengths))
        self.lengths = lengths[self.order]

    @property
    def skipped(self) -> list[str]:
        """What was left out of the data, and why."""
        return self.texts.skipped

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: x[0] for name, x in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        chosen = self.order[np.asarray(indices)]
        rows = [row for i in chosen for row in self.rows(i)]
        lengths = np.array([sum(map(len, row)) for row in rows])
        ids = np.full((len(rows), lengths.max()), self.padding or 0, np.int64)
        for row, parts in zip(ids, rows, strict=True):
            row[: sum(map(len, parts))] = np.concatenate(parts)
        batch = {"input_ids": ids}
        if lengths.min() < lengths.max():
            batch["attention_mask"] = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        if self.has_types:
            begins = np.array([sum(map(len, row[:3])) for row in rows])[:, None]
            columns = np.arange(lengths.max())
            batch["token_type_ids"] = ((columns >= begins) & (columns < lengths[:, None])).astype(np.int64)
        apart = len(self.tokens) == 2 and not self.joined
        shape = (len(chosen), 2, -1) if apart else (len(chosen), -1)
        return {name: torch.from_numpy(x).view(shape) for name, x in batch.items()} | {"labels": self.labels[chosen]}

    def rows(self, index: int) -> list[list[np.ndarray | list[int]]]:
        """The parts of each sequence of a sample: before, a text, and, if joined, between, the other, and after."""
        texts = [tokens.ids[tokens.starts[index] : tokens.starts[index + 1]] for tokens in self.tokens]
        before, between, after = self.frame
        if not self.joined:
            return [[before, text[: self.room], after] for text in texts]
        first, second = texts
        second = second[: max(self.room - len(first), self.room // 2)]
        return [[before, first[: self.room - len(second)], between, second, after]]
