"""What data cost a step, in the smallest size: both sides train on the same images, and all figures are written."""

import json

import pytest
import torch

from benchmarks import data
from benchmarks.data import CASES, batches_of, main
from hf_efficient.data import image_rows
from hf_efficient.data.folders import CACHE_FOLDER
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import load_images


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """What a run changes in its process."""
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(image_rows, "HELD_BYTES", image_rows.HELD_BYTES)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_run_writes_its_figures(tmp_path, monkeypatch, capsys):
    sides, take = [], data.Side.take
    monkeypatch.setattr(data.Side, "take", lambda side, *x, **y: sides.append(side) or take(side, *x, **y))
    smallest = ["--rounds", "1", "--steps", "1", "--batch", "2", "--images", "8", "--default-allocator"]
    main([*smallest, "--output", str(tmp_path)])
    results = json.loads((tmp_path / "data.json").read_text())
    assert results["environment"]["clock"] == "wall"
    *ratios, speed = results["figures"]
    assert [figure["bound"] for figure in ratios] == [case.bound for case in CASES.values()]
    assert all(figure["value"] > 0 and "waits for the batch" in figure["note"] for figure in ratios)
    assert speed["value"] > 0 and "32x32 pixels" in capsys.readouterr().out
    turns = [side.streaming for side in sides]
    assert turns == [False, True, True, False] * 2 and len(sides[0].taken) == 1, (
        "they take turns; the first is no time"
    )


def test_images_are_those_of_large_data(tmp_path):
    """Row groups don't all stay in memory, and both sides see the same pixels."""
    file = data.write_images(tmp_path / "a.parquet", (32, 48), 8 * data.GROUP)
    sets = [load_images(file, image_size=24, class_names=data.CLASSES, streaming=x).train for x in (False, True)]
    rows = torch.tensor([5, 0, 100])
    assert torch.equal(sets[0].take(rows)[0], sets[1].take(rows)[0])
    assert 2 <= sets[1].reader.window < len(sets[1].reader.groups)
    batches = batches_of(ImageBatches(sets[1], mean=0.5, std=0.5), 7)
    first = [index for _ in range(len(sets[1]) // 7) for index in next(batches)]
    assert len(set(first)) == len(first), "an epoch has each image once"
    assert len(next(batches)) == 7
