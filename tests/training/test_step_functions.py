"""Settings that are piecewise constant functions of progress."""

import json

import pytest
from transformers import TrainerState

from hf_efficient.training import EfficientTrainingArguments
from hf_efficient.training.step_functions import PIXELS, SHARES, read_step_function, value_at


def test_values_hold_until_the_next_one():
    schedule = read_step_function("kept", {"0.75": 1, 0: 0.4, 0.5: 0.6}, SHARES)
    assert list(schedule.items()) == [(0.0, 0.4), (0.5, 0.6), (0.75, 1.0)]
    states = [TrainerState(global_step=step, max_steps=100) for step in (0, 49, 50, 74, 75, 100)]
    assert [value_at(schedule, state) for state in states] == [0.4, 0.4, 0.6, 0.6, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (0.4, r"patch_schedule=0.4 must be a mapping of progress"),
        ({0.5: 1.0}, r"patch_schedule=\{0.5: 1.0\} must say what holds from progress 0 on"),
        ({}, "must say what holds from progress 0 on"),
        ({0: 0.4, 1: 1.0}, "progress 1 must be a number from 0 to below 1"),
        ({0: 0.4, "late": 1.0}, "progress 'late' must be a number"),
        ({0: 0.0}, r"patch_schedule: 0.0, from 0 on, must lie in \(0, 1\]"),
        ({0: 40}, r"patch_schedule: 40, from 0 on, must lie in \(0, 1\]"),
        ({0: True}, "patch_schedule: True, from 0 on"),
        ({0: float("nan")}, "patch_schedule: nan, from 0 on"),
    ],
)
def test_what_is_no_schedule_is_named(schedule, message):
    with pytest.raises(ValueError, match=message):
        EfficientTrainingArguments(output_dir="x", patch_schedule=schedule)


def test_probabilities_may_be_zero():
    found = EfficientTrainingArguments(output_dir="x", patch_probability={0: 0, 0.5: 1})
    assert found.patch_probability == {0.0: 0.0, 0.5: 1.0} and json.loads(found.to_json_string())
    with pytest.raises(ValueError, match=r"patch_probability: 2, from 0 on, must lie in \[0, 1\]"):
        EfficientTrainingArguments(output_dir="x", patch_probability={0: 2})


def test_pixels_are_whole_numbers():
    assert read_step_function("sizes", {0: 16, 0.5: 32.0}, PIXELS) == {0.0: 16.0, 0.5: 32.0}
    for wrong in (0, 16.5, float("inf")):
        with pytest.raises(ValueError, match=f"sizes: {wrong}, from 0 on, must be a whole number of pixels"):
            read_step_function("sizes", {0: wrong}, PIXELS)
