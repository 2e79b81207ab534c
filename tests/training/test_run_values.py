"""Values of a run, as YAML has them and as their keys want them."""

import pytest

from hf_efficient.training.errors import RunError
from hf_efficient.training.run_values import convert, read_yaml


def test_numbers_are_numbers():
    assert read_yaml("[1e-3, 1E5, -2e+3, 5e1, .5e-1, 1e, e5]", "x") == [0.001, 1e5, -2000.0, 50.0, 0.05, "1e", "e5"]


def test_types_are_checked_and_converted():
    assert convert(1, float, "x") == 1.0 and isinstance(convert(1, float, "x"), float)
    assert convert(1, float | int, "x") == 1 and isinstance(convert(1, float | int, "x"), int)
    assert convert(None, int | None, "x") is None
    assert convert([1], list[int] | None, "x") == [1]
    for value, kind in ((True, int), ("1", int), (float("inf"), int), (1, str), ({}, list), (None, str)):
        with pytest.raises(RunError, match="x="):
            convert(value, kind, "x")
