"""At most eight lines have colour and name; the pictures in docs/ can be drawn again from the JSON beside them."""

import pytest

from benchmarks import docs_pictures
from benchmarks.docs_tables import DOCS
from benchmarks.plots import MOST_LINES, colours_of, fastest, is_speed, labelled
from benchmarks.reports import DIRECTIONS, curves
from benchmarks.workloads import TRAINING
from hf_efficient.attention import list_attentions


def rows(*speedups: float, contender: str = "linear_elu") -> dict[int, dict]:
    """Of lengths 128, 256, ..."""
    each = {"contender": contender, "against": "SDPA"}
    return {128 * 2**i: {**each, "speedup": {"median": value}} for i, value in enumerate(speedups)}


def test_the_fastest_are_named_and_the_fastest_peer():
    found = {name: rows(1, speed) for speed, name in enumerate(list_attentions(), 1)} | {"peer m=64": rows(1, 0.1)}
    found["slower peer"] = rows(1, 0.05)
    assert fastest(found) == [*reversed(list_attentions()[-MOST_LINES + 1 :]), "peer m=64"]


def test_a_name_has_one_colour_in_all_panels():
    results = docs_pictures.read(DOCS / "results" / "attention" / "benchmark.json")
    colours = colours_of({direction: fastest(curves(results, direction, TRAINING)) for direction in DIRECTIONS})
    for panel in colours.values():
        assert len(set(panel.values())) == len(panel) <= MOST_LINES
    first, second = colours.values()
    assert all(first[name] == second[name] for name in first.keys() & second.keys())


def test_a_name_says_from_which_length_on_it_is_faster():
    assert labelled(rows(0.5, 2)) == "linear_elu [180]"
    assert labelled(rows(1.5, 2)) == labelled(rows(0.5, 0.6)) == "linear_elu"


def test_memory_and_lengths_are_no_speeds():
    found = docs_pictures.read(DOCS / "results" / "models" / "compressive_performer.json")["figures"]
    assert {row["group"] for row in found if is_speed(row)} == {
        *("decode through generate() over GPT-2", "prefill over GPT-2", "language model, training step")
    }


@pytest.mark.slow
def test_the_pictures_of_the_docs_are_drawn_from_their_figures():
    for file, picture in docs_pictures.pictures():
        assert picture.width > 600 and (not file.is_file() or picture.height < 1.2 * picture.width + 200)
