"""Length as a schedule: what it says when, what it refuses, and how a block becomes shorter texts."""

import pytest
import torch

from hf_efficient.training.length_schedule import LengthSchedule, cut_rows


def test_lengths_hold_from_their_share_on():
    schedule = LengthSchedule({0: 64, "0.5": 128, 0.8: 256})  # JSON's keys are text
    assert [schedule.at(share) for share in (0, 0.49, 0.5, 0.79, 0.8, 1)] == [64, 64, 128, 128, 256, 256]
    schedule.check(512)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({}, "must begin with 0"),
        ({0.1: 64}, "must begin with 0"),
        ({0: 64, 0.8: 128, 0.5: 256}, "its shares rise"),
        ({0: 64, 1: 128}, "stay below 1"),
        ({0: 0}, "at least 1 token"),
        ({"soon": 64}, "must map shares of the run to tokens"),
        ({0: None}, "must map shares of the run to tokens"),
    ],
)
def test_what_is_wrong_is_named(lengths, message):
    with pytest.raises(ValueError, match=f"length_schedule=.*{message}"):
        LengthSchedule(lengths)


def test_lengths_divide_blocks():
    with pytest.raises(ValueError, match="48 tokens don't divide the data's segment_length=64"):
        LengthSchedule({0: 48, 0.5: 64}).check(64)


def test_rows_are_cut_in_order():
    tokens = torch.arange(16).view(2, 8)
    batch = cut_rows({"input_ids": tokens, "shift_labels": tokens + 1, "use_cache": False}, 4)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert torch.equal(batch["shift_labels"], batch["input_ids"] + 1) and batch["use_cache"] is False
