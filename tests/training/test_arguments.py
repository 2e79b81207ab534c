"""EfficientTrainingArguments: what follows from what, and what is not stored."""

import pickle

import pytest
from transformers.trainer_utils import SchedulerType

from hf_efficient.training.arguments import EfficientTrainingArguments


def arguments(**fields):
    return EfficientTrainingArguments(output_dir="results/x", **fields)


@pytest.mark.parametrize(
    ("metric", "mode"), [("accuracy", "max"), ("loss", "min"), ("perplexity", "min"), ("eval_bits_per_byte", "min")]
)
def test_plateaus_know_the_metrics_direction(metric, mode):
    found = arguments(lr_scheduler_type="reduce_lr_on_plateau", metric_for_best_model=metric)
    assert found.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
    assert found.lr_scheduler_kwargs == {"mode": mode} and found.greater_is_better is (mode == "max")
    own = arguments(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"mode": "max", "patience": 3})
    assert own.lr_scheduler_kwargs == {"mode": "max", "patience": 3}


def test_saving_follows_evaluation():
    found = arguments(eval_strategy="steps", eval_steps=7)
    assert (found.save_strategy, found.save_steps, found.load_best_model_at_end) == ("steps", 7, True)
    found = arguments(eval_strategy="no")
    assert (found.save_strategy, found.load_best_model_at_end) == ("epoch", False)
    found = arguments(eval_strategy="epoch", save_strategy="steps", save_steps=3)
    assert (found.save_steps, found.load_best_model_at_end) == (3, False)
    assert arguments(save_strategy="best", metric_for_best_model="accuracy").load_best_model_at_end


def test_pickles_know_no_secret():
    found = arguments(hub_token="hf_secret")
    assert found.hub_token == "hf_secret" and b"hf_secret" not in pickle.dumps(found)
    assert pickle.loads(pickle.dumps(found)).learning_rate == found.learning_rate
