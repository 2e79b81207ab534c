"""What stands behind the page, without a browser and without Gradio."""

import math
import re

import pytest
import torch
from PIL import Image

import hf_efficient
from hf_efficient import image_processor_for, zoo
from hf_efficient.app import charts, checks, compare, cost, examples, leaderboard, look, markup, shelf, write
from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.errors import CommandError


@pytest.fixture(scope="module")
def shown():
    return shelf.load([])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A language model with compressed memory."""
    folder = tmp_path_factory.mktemp("models") / "small"
    memory = {"segment_length": 8, "memory_length": 8, "compressed_memory_length": 8, "compression_rate": 2}
    config = hf_efficient.CompressivePerformerConfig(
        vocab_size=256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, **memory
    )
    torch.manual_seed(0)
    hf_efficient.CompressivePerformerForCausalLM(config).save_pretrained(folder)
    build_tokenizer("byte").save_pretrained(folder)
    return shelf.load([str(folder)], with_zoo=False)["small"]


# The shelf


def test_the_shelf_holds_what_is_named_and_then_the_zoo(shown):
    assert list(shown) == zoo.list()
    assert shelf.for_tasks(shown, shelf.OF_TEXT) == ["transformer-xl-enwik8"]


def test_names_on_the_shelf_tell_no_paths(tmp_path):
    (tmp_path / "a/model").mkdir(parents=True)
    assert shelf.free_name(str(tmp_path / "a/model"), {}) == "model"
    assert shelf.free_name(str(tmp_path / "a/model"), {"model": None}) == "model (2)"
    assert shelf.free_name("me/vit", {}) == "me/vit"


def test_a_model_that_is_none_is_told(tmp_path):
    with pytest.raises(CommandError, match="can't be read as a model"):
        shelf.load([str(tmp_path)])


# Checks


@pytest.mark.parametrize("value", [0, 11, 2.5, math.nan, math.inf, None, "3", True])
def test_numbers_out_of_bounds_are_told(value):
    with pytest.raises(CommandError, match="Tokens must be a whole number from 1 to 10"):
        checks.within("Tokens", value, 1, 10)


def test_pictures_that_are_none_are_told_without_their_place(tmp_path, monkeypatch):
    (tmp_path / "text.png").write_bytes(b"no picture")
    examples.ship().save(whole := tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes(whole.read_bytes()[:2000])
    for name, said in (("text", "no image that can be read"), ("half", "damaged|can't be read"), ("none", "can't be")):
        with pytest.raises(CommandError, match=said) as told:
            checks.open_picture(tmp_path / f"{name}.png")
        assert str(tmp_path) not in str(told.value)
    monkeypatch.setattr(checks, "MOST_PIXELS", 1000)
    with pytest.raises(CommandError, match=r"65,536 pixels; 1,000 are the most"):
        checks.open_picture(whole)
    with pytest.raises(CommandError, match="no image yet"):
        checks.open_picture(None)


# Markup and charts


def test_what_a_model_says_is_text_and_not_markup():
    name = "<script>alert(1)</script>"
    made = markup.bars([markup.Bar(name, 2.0, name)], name) + markup.table([name], [[name]], name)
    made += markup.figures([(name, Image.new("RGB", (2, 2)))]) + markup.note(name) + markup.heading(name)
    made += charts.lines({name: [(1, 2), (2, 3)]}, name, name, name)
    made += charts.scatter([charts.Point(name, 1, 2)], name, name, name)
    assert "<script" not in made and "width:100.0%" in made


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("points", [[(1, 5)], [(1, 5), (2, 5)], [(0.001, 1e-6), (1e6, 1e9)]])
def test_points_lie_within_the_frame(points, log):
    drawn = charts.lines({"a": points}, "title", "x", "y", log=log)
    places = re.search(r'polyline points="([^"]*)"', drawn)[1].replace(",", " ").split()
    xs, ys = [float(x) for x in places[::2]], [float(y) for y in places[1::2]]
    assert all(charts.LEFT <= x <= charts.WIDTH - charts.RIGHT for x in xs)
    assert all(charts.TOP - 0.1 <= y <= charts.HEIGHT - charts.BOTTOM + 0.1 for y in ys)
    assert drawn.count("<text") >= 4


def test_ticks_are_round_and_few():
    axis = charts.Axis([0, 37], 0, 100, log=False, from_zero=True)
    assert axis.ticks() == [0, 10, 20, 30]
    assert charts.Axis([256, 4096], 0, 100, log=True).ticks() == [256, 512, 1024, 2048, 4096]
    assert [charts.short(x) for x in (0.5, 512, 20900, 3.1e6)] == ["0.5", "512", "20.9k", "3.1M"]


# Look


def test_every_heuristic_keeps_as_many_patches(shown):
    model = shown["hugginggreen-vit-cifar10"]
    seen = look.see(model, examples.airplane())
    rows, method = look.keep(model, seen, 16)
    everything, *kept = rows
    assert [row.name for row in rows] == ["all patches", "contrast", "variance", "entropy"]
    assert everything.cost.tokens == 65 and {row.cost.tokens for row in kept} == {17}
    assert all(0.2 < row.cost.gflops / everything.cost.gflops < 0.4 for row in kept)
    assert all(row.cost.milliseconds > 0 and row.cost.joules > 0 for row in rows)
    assert everything.answer == look.classify(model, examples.airplane())[0]
    assert "codecarbon" in method or "RAPL" in method
    whole, _ = look.keep(model, seen, 64)
    assert {row.answer.label for row in whole} == {everything.answer.label}
    with pytest.raises(CommandError, match="from 1 to 64"):
        look.keep(model, seen, 65)


def test_operations_are_counted_with_those_of_attention():
    q = torch.randn(1, 1, 8, 4)
    assert cost.flops(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)) == 2 * 2 * 8 * 8 * 4


def test_what_a_model_looked_at(shown):
    for name, titles in {
        "hugginggreen-vit-cifar10": ["attention rollout"],
        "mobilevit-v2-cifar10": ["context, a map of 4 x 4"],
    }.items():
        found = look.insights(shown[name], look.see(shown[name], examples.ship()))
        assert [title for title, _ in found] == titles and found[0][1].size == (256, 256)
    other = shown["mobilevit-v2-cifar10"]
    assert look.patch_grid(other, look.see(other, examples.ship())) is None


def test_boxes_and_masks(tmp_path):
    sizes = {"image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "aspp_out_channels": 16}
    config = hf_efficient.MobileViTv2Config(**sizes, id2label={0: "ant", 1: "bee"})
    torch.manual_seed(0)
    for task, head in (("object-detection", "ObjectDetection"), ("image-segmentation", "SemanticSegmentation")):
        getattr(hf_efficient, f"MobileViTv2For{head}")(config).save_pretrained(tmp_path / task)
        image_processor_for(config, task).save_pretrained(tmp_path / task)
    models = shelf.load([str(tmp_path / "object-detection"), str(tmp_path / "image-segmentation")], with_zoo=False)
    image = examples.truck().resize((120, 80))
    picture, found = look.detect(models["object-detection"], image, 0.0)
    assert picture.size == image.size and found and {row.label for row in found} <= {"ant", "bee"}
    assert look.detect(models["object-detection"], image, 1.0)[1] == []
    picture, _, shares = look.segment(models["image-segmentation"], image)
    assert picture.size == image.size and sum(row.score for row in shares) == pytest.approx(1, abs=1e-3)


# Write


def last(steps):
    *_, seen = steps
    return seen


def test_a_text_in_two_parts_is_the_text_in_one(small):
    session, whole = write.Session(), write.Session()
    last(write.write(small, session, "The", 20, 0, 0, False))
    parts = last(write.write(small, session, "", 20, 0, 0, False))
    assert parts.text == last(write.write(small, whole, "The", 40, 0, 0, False)).text
    assert parts.read == 42 and not parts.theirs and len(parts.ours) == 39


def test_the_memory_fills_and_then_keeps_its_size(small):
    session = write.Session()
    first = last(write.write(small, session, "a", 4, 0.8, 0, True))
    assert first.slots == [("open segment", 4, 8), ("recent memory", 0, 8), ("compressed memory", 0, 8)]
    later = last(write.write(small, session, "", 40, 0.8, 0, True))
    assert later.slots == [("open segment", 4, 8), ("recent memory", 8, 8), ("compressed memory", 8, 8)]
    latest = last(write.write(small, session, "", 40, 0.8, 0, True))
    assert latest.our_bytes == later.our_bytes and latest.their_bytes > later.their_bytes
    assert [read for read, _ in latest.ours] == [read for read, _ in latest.theirs]


def test_texts_do_not_disturb_one_another(small):
    alone = last(write.write(small, write.Session(), "One", 30, 0, 0, False)).text
    one, two = write.Session(), write.Session()
    for _ in range(3):
        first = last(write.write(small, one, "" if one.ids else "One", 10, 0, 0, False))
        last(write.write(small, two, "Another", 7, 1, 0, False))
    assert first.text == alone


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "x" * 4001}, "4,001 characters; 4,000 are the most"),
        ({"tokens": 10**9}, "from 1 to 4,000"),
        ({"temperature": math.nan}, "temperature must be a number from 0 to 2"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_what_cannot_be_written_is_told(small, given, said):
    asked = {"prompt": "a", "tokens": 3, "temperature": 1, "seed": 0, "beside": False, **given}
    with pytest.raises(CommandError, match=said):
        last(write.write(small, write.Session(), **asked))


def test_a_text_ends_where_gpt2_has_no_more_positions(small, monkeypatch):
    monkeypatch.setattr(write, "MOST_READ", 50)
    with pytest.raises(CommandError, match="51 tokens; 50 are the most"):
        last(write.write(small, write.Session(), "a", 50, 1, 0, False))


# Compare


def test_the_peak_counts_what_is_held_at_a_time():
    with compare.PeakBytes() as memory:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b.view(10, 100) * 2
        del b
    assert memory.peak == 8000 and memory.now == 4000 and c.numel() == 1000


def test_a_race(monkeypatch):
    monkeypatch.setattr(compare, "MOST_CALLS", 3)
    done = list(compare.race(["softmax", "linear_elu", "axial"], False, 512))
    assert [step.share for step in done] == sorted(step.share for step in done) and done[-1].share == 1
    assert {(row.name, row.length) for row in done[-1].measured} == {
        (name, length) for name in ("softmax", "linear_elu", "axial") for length in (256, 512)
    }
    assert all(row.milliseconds > 0 and row.peak_bytes > 256 * 128 * 4 for row in done[-1].measured)


def test_every_mechanism_can_be_measured():
    for causal in (False, True):
        for name in compare.mechanisms(causal):
            assert compare.measure(name, 64, causal).milliseconds > 0, name


def test_what_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(compare, "measure", lambda name, length, causal: compare.Measured(name, length, 900.0, 1))
    *_, done = compare.race(["softmax"], False, 1024)
    assert [row.length for row in done.measured] == [256] and len(done.left_out) == 2


@pytest.mark.parametrize(
    ("names", "longest", "said"),
    [([], 512, "at least one"), (["x"], 512, "Choose a mechanism"), (["softmax"], 10**9, "longest"),
     (["softmax", "axial", "fnet", "lsh", "dct", "xcit", "yoso"], 512, "at most 6")],
)  # fmt: skip
def test_races_that_cannot_be_are_told(names, longest, said):
    with pytest.raises(CommandError, match=said):
        list(compare.race(names, False, longest))


# The leaderboard


def row(name, value, joules, metric="test_accuracy"):
    return {"data": "d", "name": name, "metric": metric, "value": value, "joules": joules}


def test_the_front_is_what_no_other_beats():
    rows = [row("a", 0.8, 100), row("b", 0.7, 100.5), row("c", 0.9, 200), row("d", 0.85, 300), row("e", 0.5, None)]
    best = {point.name for point in leaderboard.points(rows) if point.is_best}
    assert best == {"a", "c"} and len(leaderboard.points(rows)) == 4
    bits = [row("a", 2.1, 100, "bits_per_byte"), row("b", 2.2, 100, "bits_per_byte")]
    assert [point.is_best for point in leaderboard.points(bits)] == [True, False]
    assert [r["name"] for r in leaderboard.of_board(bits, leaderboard.boards(bits)[0])] == ["a", "b"]
    assert [r["name"] for r in leaderboard.of_board(rows, leaderboard.boards(rows)[0])][:2] == ["c", "d"]


def test_a_leaderboard_is_sorted_by_any_column():
    rows = [row("a", 0.8, 100), row("b", 0.7, None), row("c", 0.9, 50)]
    assert [r["name"] for r in leaderboard.sorted_by(rows, "joules", False)] == ["c", "a", "b"]
    assert [r["name"] for r in leaderboard.sorted_by(rows, "joules", True)] == ["a", "c", "b"]
    assert leaderboard.cells(rows) == (
        ["model", "score", "joules (est.)"],
        [["a", "0.8000", "100"], ["b", "0.7000", "–"], ["c", "0.9000", "50"]],
    )


def test_the_packaged_leaderboard_can_be_shown():
    rows = leaderboard.read()
    assert rows and leaderboard.boards(rows)
    for board in leaderboard.boards(rows):
        header, cells = leaderboard.cells(leaderboard.of_board(rows, board))
        assert header[:2] == ["model", "score"] and all(len(line) == len(header) for line in cells)
