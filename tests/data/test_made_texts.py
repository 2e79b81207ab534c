"""ListOps and Pathfinder, each held to its definition by code that knows nothing of how it was made."""

import hashlib
import statistics

import pytest

from hf_efficient.data import made_texts
from hf_efficient.data.listops import ListOps
from hf_efficient.data.made_texts import make_splits
from hf_efficient.data.pathfinder import Pathfinder

SMALL = {"shortest": 10, "longest": 60}


def evaluate(tokens: list[str]) -> int:
    """Recursive descent; takes what it has read off the list."""
    token = tokens.pop(0)
    if token.isdigit():
        return int(token)
    values = []
    while tokens[0] != "]":
        values.append(evaluate(tokens))
    tokens.pop(0)
    assert 2 <= len(values) <= 10
    ordered = sorted(values)
    middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) // 2
    return {"[MIN": ordered[0], "[MAX": ordered[-1], "[MED": middle, "[SM": sum(values) % 10}[token]


def depth_of(text: str) -> int:
    """Of the deepest digit; the outermost expression has depth 1."""
    depth = deepest = 1
    for token in text.split():
        deepest = max(deepest, depth)
        depth += token.startswith("[") - (token == "]")
    return deepest


@pytest.mark.parametrize("options", [{}, SMALL, {"shortest": 4, "longest": 30, "depth": 3, "most_arguments": 3}])
def test_values_of_listops_are_those_of_its_grammar(options):
    maker = ListOps(**options)
    for index in range(60):
        text, value = maker.sample("train", index)
        tokens = text.split(" ")
        assert maker.shortest <= len(tokens) <= maker.longest and depth_of(text) <= maker.depth
        assert evaluate(tokens) == value and not tokens


def test_listops_has_all_classes_and_operators():
    found = [ListOps(**SMALL).sample("train", index) for index in range(300)]
    assert {value for _, value in found} == set(range(10))
    assert {token for text, _ in found for token in text.split()} == {*"0123456789]", "[MIN", "[MAX", "[MED", "[SM"}


def flood(text: str, size: int) -> tuple[bool, int]:
    """Whether a walk over lit pixels, at most 2 rows and columns at a time, leads from marker to marker; and how far
    they are apart."""
    level = {divmod(at, size): character for at, character in enumerate(text)}
    bright = {place for place, character in level.items() if character == "f"}
    around = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    start, end = (p for p in bright if all((p[0] + y, p[1] + x) in bright for y, x in around))
    seen, waiting = {start}, [start]
    while waiting:
        y, x = waiting.pop()
        near = {(y + dy, x + dx) for dy in range(-2, 3) for dx in range(-2, 3)}
        new = {place for place in near - seen if level.get(place, "0") != "0"}
        seen |= new
        waiting += new
    return end in seen, max(abs(start[0] - end[0]), abs(start[1] - end[1]))


@pytest.mark.parametrize(
    ("options", "count"), [({}, 150), ({"contour_length": 14}, 12), ({"image_size": 16, "contour_length": 4}, 20)]
)
def test_a_flood_fill_finds_the_label_of_pathfinder(options, count):
    maker, distances, dashes = Pathfinder(**options), {0: [], 1: []}, {0: [], 1: []}
    for index in range(count):
        text, label = maker.sample("train", index)
        assert len(text) == maker.size**2 and set(text) <= {"0", "8", "f"}
        assert text.count("f") == 18  # two markers of 3x3 pixels
        joined, distance = flood(text, maker.size)
        assert joined == bool(label)
        distances[label].append(distance)
        dashes[label].append(text.count("8"))
    assert distances[0] and distances[1]
    if not options:  # neither the distance of the markers nor the number of lit pixels tells it
        for found in (distances, dashes):
            assert abs(statistics.mean(found[0]) - statistics.mean(found[1])) < 1.5


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        (ListOps(), "58eaf705a6f2ceb3"),
        (Pathfinder(), "45a56a6c7bd0a169"),
        (Pathfinder(contour_length=14), "a0e81b8ad7d3b186"),
    ],
)
def test_it_is_the_same_on_every_machine(maker, expected):
    found = "\n".join(f"{text} {label}" for i in range(5) for text, label in [maker.sample("test", i)])
    assert hashlib.sha256(found.encode()).hexdigest()[:16] == expected


def test_splits_are_made_once_and_kept(own_caches, monkeypatch):
    limits = {"train": 30, "validation": 8, "test": 8}
    first = make_splits("listops", SMALL, limits)
    assert {name: len(part) for name, part in first.items()} == limits
    assert first["train"].features["label"].names == [str(i) for i in range(10)]
    texts = [row["text"] for part in first.values() for row in part]
    assert len(set(texts)) > 40, "splits and samples differ"
    monkeypatch.setattr(ListOps, "sample", None)  # nothing is made again
    again = make_splits("listops", SMALL, limits)
    assert [row["text"] for part in again.values() for row in part] == texts
    with pytest.raises(TypeError):
        make_splits("listops", {**SMALL, "seed": 1}, limits)


def test_fewer_are_the_first_of_many(own_caches):
    few, many = (make_splits("pathfinder", {}, dict.fromkeys(("train", "validation", "test"), n)) for n in (3, 7))
    assert few["test"]["text"][:] == many["test"]["text"][:3]


def test_a_split_that_was_broken_off_is_made_again(own_caches, monkeypatch):
    def break_off(self, split, index):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ListOps, "sample", break_off)
        make_splits("listops", SMALL, {"train": 5})
    files = [file.suffix for file in (own_caches / "cache" / "made").iterdir()]
    assert ".arrow" not in files and ".partial" not in files
    assert len(make_splits("listops", SMALL, dict.fromkeys(("train", "validation", "test"), 5))["train"]) == 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "listops",
            {"size": 3},
            "options.size is unknown; listops has shortest, longest, depth, most_arguments, seed",
        ),
        ("listops", {"longest": "far"}, "options.longest='far' must be a whole number"),
        ("listops", {"shortest": 90, "longest": 50}, "options.shortest=90 and longest=50 must be at least 4, in this"),
        ("listops", {"depth": 2, "most_arguments": 3}, "no expression has more than 5 tokens"),
        (
            "pathfinder",
            {"contour_length": 60},
            "options.contour_length=60 must be between 4 and 16 with image_size=32",
        ),
        ("pathfinder", {"image_size": 4}, "options.image_size=4 must be between 16 and 512"),
        ("pathfinder", {"distractors": -1}, "options.distractors=-1 must not be negative"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_splits(name, options, {})


def test_every_maker_says_what_it_makes():
    for maker in made_texts.MAKERS.values():
        assert set(maker.sizes) == {"train", "validation", "test"} and len(maker.class_names) > 1
