"""Length as a schedule: what it refuses, and how a block becomes shorter texts."""

import pytest
import torch

from hf_efficient.training import EfficientTrainingArguments
from hf_efficient.training.length_schedule import check_lengths, cut_rows


def test_lengths_are_whole_tokens():
    found = EfficientTrainingArguments(output_dir="x", length_schedule={"0.5": 128, 0: 64})
    assert found.length_schedule == {0.0: 64, 0.5: 128}
    for length in (0, 6.5):
        message = f"length_schedule: {length}, from 0 on, must be a whole number of tokens"
        with pytest.raises(ValueError, match=message):
            EfficientTrainingArguments(output_dir="x", length_schedule={0: length})


def test_lengths_divide_blocks():
    check_lengths({0.0: 16.0, 0.5: 64.0}, 64)
    with pytest.raises(ValueError, match="48 tokens don't divide segment_length=64"):
        check_lengths({0.0: 48.0, 0.5: 64.0}, 64)


def test_rows_are_cut_in_order():
    tokens = torch.arange(16).view(2, 8)
    batch = cut_rows({"input_ids": tokens, "shift_labels": tokens + 1, "use_cache": False}, 4)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert torch.equal(batch["shift_labels"], batch["input_ids"] + 1) and batch["use_cache"] is False
