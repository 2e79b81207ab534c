"""Every number among the training arguments has a range, and what lies outside is refused in one line."""

import dataclasses
import math
import re
import typing

import pytest

from hf_efficient.training.argument_ranges import RANGES
from hf_efficient.training.arguments import EfficientTrainingArguments

WITHOUT = {"local_rank"}  # set by whoever starts several processes
OUTSIDE = {
    "learning_rate": 1e39,
    "weight_decay": 1e39,
    "adam_beta1": 1.0,
    "decay_share": 1.5,
    "save_steps": 2.5,
    "seed": 2**32,
    "dataloader_num_workers": 10**9,
    "per_device_eval_batch_size": 10**12,
}


def numbers() -> dict[str, object]:
    """Fields of numbers, which are no true or false."""
    hints = typing.get_type_hints(EfficientTrainingArguments)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(EfficientTrainingArguments) if field.init}
    parts = {name: typing.get_args(kind) or (kind,) for name, kind in kinds.items()}
    return {name: kind for name, kind in parts.items() if {int, float} & set(kind) and not {bool, str} & set(kind)}


def test_every_number_has_a_range():
    assert set(numbers()) - WITHOUT == set(RANGES)


@pytest.mark.parametrize("name", RANGES)
def test_what_it_cannot_be_is_named(name):
    for value in (math.nan, math.inf, -math.inf, -7, OUTSIDE.get(name, -0.5)):
        with pytest.raises(ValueError, match=rf"^{name}={re.escape(str(value))} must be ") as error:
            EfficientTrainingArguments(output_dir="results/x", **{name: value})
        assert error.value.args[0] == f"{name}={value} must be {RANGES[name].words}."


ZERO_IS_FINE = {"weight_decay", "max_grad_norm", "warmup_steps", "adam_beta1", "adam_beta2", "ema_decay", "eval_delay"}
ZERO_IS_FINE |= {"label_smoothing_factor", "early_stopping_threshold", "seed", "data_seed", "dataloader_num_workers"}


@pytest.mark.parametrize("name", RANGES)
def test_zero_is_refused_where_it_means_nothing(name):
    assert RANGES[name].holds(0) is (name in ZERO_IS_FINE)


def test_defaults_are_in_range():
    EfficientTrainingArguments(output_dir="results/x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"report_to": "tensorbord"}, "report_to='tensorbord' is unknown or not installed; there are none, all"),
        ({"report_to": ["none", "abc"]}, "report_to='abc' is unknown"),
        ({"dataloader_persistent_workers": True}, "needs dataloader_num_workers of at least 1"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        EfficientTrainingArguments(output_dir="results/x", **given)
