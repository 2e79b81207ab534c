"""Units of language modelling."""

import math

import pytest

from hf_efficient.training.metrics import LanguageModelScores


def test_units_agree_with_each_other():
    scores = LanguageModelScores(nats=200.0, tokens=100, characters=400, bytes=500)
    assert scores.perplexity == pytest.approx(math.e**2) == pytest.approx(2**scores.bits_per_token)
    assert scores.bits_per_character * 400 == pytest.approx(scores.bits_per_byte * 500)
    assert scores.bits_per_token * 100 == pytest.approx(200 / math.log(2))


def test_a_uniform_model_of_bytes_needs_8_bits():
    scores = LanguageModelScores(nats=50 * math.log(256), tokens=50, characters=50, bytes=50)
    assert scores.bits_per_byte == pytest.approx(8) and scores.perplexity == pytest.approx(256)


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    fine = LanguageModelScores(nats=100.0, tokens=100, characters=90, bytes=100)
    coarse = LanguageModelScores(nats=100.0, tokens=20, characters=90, bytes=100)
    assert fine.bits_per_byte == coarse.bits_per_byte and fine.perplexity != coarse.perplexity


def test_unknown_words_are_charged_for():
    """A model that knows no word, and says so for nothing, has not read the text: it costs more than writing bytes."""
    scores = LanguageModelScores(nats=0.0, tokens=20, characters=90, bytes=100, spelled=120)
    assert scores.bits_per_byte == pytest.approx(1.2 * math.log2(257)) and scores.perplexity == 1
    assert (scores + scores).bits_per_byte == scores.bits_per_byte


def test_parts_add_up():
    a, b = LanguageModelScores(10.0, 5, 20, 25), LanguageModelScores(1.0, 5, 10, 10)
    assert (a + b).nats_per_token == pytest.approx(1.1)
    assert (a + b).as_dict()["bits_per_byte"] == pytest.approx(11 / math.log(2) / 35)


def test_a_hopeless_model_has_infinite_perplexity():
    assert LanguageModelScores(1e6, 1, 1, 1).perplexity == math.inf


@pytest.mark.parametrize("name", ["tokens", "characters", "bytes"])
def test_nothing_predicted_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        LanguageModelScores(**{"nats": 1.0, "tokens": 1, "characters": 1, "bytes": 1, name: 0})


def test_bytes_and_characters_are_not_swapped():
    with pytest.raises(ValueError, match="bytes=9 can't be less than characters=10"):
        LanguageModelScores(1.0, 5, 10, 9)
