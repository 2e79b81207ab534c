"""Images that are not stored: the same batches as of stored ones, in bounded memory, from any file or address."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from image_files import CLASSES, as_bytes, photo, write_folder, write_splits, write_table
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from hf_efficient.cli import main as command
from hf_efficient.data import image_cache, image_rows
from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.collators import take_batch
from hf_efficient.data.folders import cache_folder
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_files import Finder
from hf_efficient.data.image_rows import Blocks, RowReader
from hf_efficient.data.image_sets import ImageOptions, ImageSet, load_images, load_masks, load_objects
from hf_efficient.data.image_sources import Source, open_parquet
from hf_efficient.data.images_on_demand import ImagesOnDemand
from hf_efficient.training.loop import EpochSampler
from hf_efficient.training.tasks import train

LOOKS = {"mean": 0.5, "std": 0.5}


@pytest.fixture(autouse=True)
def caches(own_caches):
    """Nothing is left behind."""


def regroup(folder, rows: int):
    for file in folder.glob("*.parquet"):
        pq.write_table(pq.read_table(file), file, row_group_size=rows)
    return folder


@pytest.mark.parametrize("form", ["parquet", "folder"])
def test_batches_are_those_of_stored_images(tmp_path, form):
    path = regroup(write_splits(tmp_path / "set"), 3) if form == "parquet" else write_folder(tmp_path / "set", 16)
    stored, demanded = (load_images(path, image_size=8, streaming=x) for x in (False, True))
    augmentation = Augmentation(flip=True, crop=2, colour=0.2)
    for was, now in zip(stored, demanded, strict=True):
        assert isinstance(now, ImagesOnDemand) and now.class_names == CLASSES and torch.equal(was.labels, now.labels)
        was, now = (ImageBatches(x, **LOOKS, augmentation=augmentation, seed=1) for x in (was, now))
        rows = [len(was) - 1, 0, 2]
        for name, value in was.__getitems__(rows).items():
            assert torch.equal(value, now.__getitems__(rows)[name]), name
    assert demanded.train.sample().shape[1:] == (3, 8, 8)


def test_objects_and_masks(tmp_path):
    objects = [{"bbox": [[1, 1, 2, 3]] * i, "category": ["cell"] * i} for i in range(8)]
    table = write_table(tmp_path / "boxes.parquet", [photo(i) for i in range(8)], objects, None, label="objects")
    masks = [as_bytes(photo(i, mode="L").point(lambda x: x // 128)) for i in range(8)]
    columns = {"mask": [{"bytes": x, "path": None} for x in masks]}
    other = write_table(tmp_path / "masks.parquet", [photo(i) for i in range(8)], [0] * 8, None, **columns)
    for load, file, task in ((load_objects, table, "detection"), (load_masks, other, "segmentation")):
        options = {"image_size": 4, "class_names": ["cell"] if task == "detection" else ["a", "b"]}
        if task == "segmentation":
            options["label_column"] = "mask"
        was, now = (ImageBatches(load(file, **options, streaming=x).train, **LOOKS, task=task) for x in (False, True))
        was, now = was.__getitems__([5, 0]), now.__getitems__([5, 0])
        assert torch.equal(was["pixel_values"], now["pixel_values"])
        if task == "segmentation":
            assert torch.equal(was["labels"], now["labels"])
        else:
            assert all(
                torch.equal(x[key], y[key]) for x, y in zip(was["labels"], now["labels"], strict=True) for key in x
            )
    with pytest.raises(
        ValueError, match=r"class_names is missing: images of .* are not stored, since streaming is true"
    ):
        load_masks(other, image_size=4, streaming=True, label_column="mask")


def test_addresses_are_read_where_they_are(tmp_path):
    file = write_table(tmp_path / "a.parquet", [photo(i) for i in range(8)], [0, 1] * 4)
    pq.write_table(pq.read_table(file), file, row_group_size=3)
    source = Finder("label").at_addresses("train", [f"file://{file}"])
    reader = RowReader(source)
    assert source.class_names == CLASSES and len(source) == len(reader) == 8 and reader.starts == [0, 3, 6, 8]
    assert reader.read(7).image == as_bytes(photo(7)) and "file://" in reader.read(7).where
    with pytest.raises(ValueError, match=r"streaming=True needs parquet files, got hf://x/a\.tar"):
        Finder("label").at_addresses("train", ["hf://x/a.tar"])


def test_an_epoch_reads_each_row_group_once(tmp_path, monkeypatch):
    """And never holds more of them than it says."""
    folder = regroup(write_splits(tmp_path / "set", 40), 5)
    largest = max(group.bytes for group in load_images(folder, image_size=8, streaming=True).train.reader.groups)
    monkeypatch.setattr(image_rows, "HELD_BYTES", 2 * largest + 1)
    images = load_images(folder, image_size=8, streaming=True).train
    reader, read = images.reader, []
    assert reader.window == 2 and len(reader.groups) == 8 and reader.held_bytes == 2 * largest
    sampler = EpochSampler(len(images), 0, blocks=images.blocks)
    for index in sampler:
        before = set(reader._kept)
        images.take(torch.tensor([index]))
        assert len(reader._kept) <= 2
        read += set(reader._kept) - before
    assert sorted(read) == list(range(8))
    assert sorted(sampler) == list(range(40)) and list(sampler) != sorted(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != list(EpochSampler(len(images), 0, blocks=images.blocks))


def test_a_plain_trainer_reads_each_row_group_once(tmp_path, monkeypatch):
    """With our sampler; in its own random order, again and again."""
    monkeypatch.setattr(image_rows, "HELD_BYTES", 1)
    images = load_images(regroup(write_splits(tmp_path / "set", 40), 5), image_size=8, streaming=True).train
    opened = []
    monkeypatch.setattr(image_rows, "open_parquet", lambda *x: opened.append(x) or open_parquet(*x))
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = ViTForImageClassification(ViTConfig(**sizes, intermediate_size=8))

    class Ordered(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            return EpochSampler(len(self.train_dataset), seed=0, blocks=self.train_dataset.blocks)

    settings = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "use_cpu": True, "save_strategy": "no"}
    arguments = TrainingArguments(str(tmp_path), **settings, remove_unused_columns=False, report_to="none")
    for trainer in (Ordered, Trainer):
        opened.clear()
        trainer(model, arguments, take_batch, ImageBatches(images, **LOOKS)).train()
        assert len(opened) == 8 if trainer is Ordered else len(opened) > 20


def test_labels_are_read_once_for_all_parts(tmp_path, monkeypatch):
    """And once before, where they have to say what the classes are."""
    reads, labels = [], Source.labels
    monkeypatch.setattr(Source, "labels", lambda source: reads.append(source) or labels(source))
    file = write_table(tmp_path / "a.parquet", [photo(i) for i in range(24)], [0, 1, 1] * 8, None)
    train, evaluation = load_images(file, image_size=8, streaming=True, limit=12, evaluation_limit=4)
    assert len(train) == 12 and len(evaluation) == 4 and len(reads) == 2
    for part in (train, evaluation):
        assert torch.equal(part.labels, part.take(torch.arange(len(part)))[1])


def test_what_is_mixed_is_read_together():
    blocks, samples = Blocks(torch.tensor([0, 3, 10]), 1), torch.tensor([0, 2, 3, 9])
    near = blocks.near(samples, torch.tensor([7, 2, 0, 8]))
    assert near.tolist() == [1, 2, 3, 4]


def test_corrupt_rows_are_replaced_and_counted(tmp_path):
    images = [photo(i) for i in range(8)]
    images[2], images[3] = b"no image", None
    file = write_table(tmp_path / "a.parquet", images, [0, 1] * 4)
    with pytest.raises(ValueError, match=r"a.parquet, row 2: .*skip_corrupt=True leaves out"):
        load_images(file, image_size=8, streaming=True).train.take(torch.arange(6))
    train, evaluation = load_images(file, image_size=8, streaming=True, skip_corrupt=True)
    assert train.skipped == []
    for part in (train, evaluation):
        pixels, labels = part.take(torch.arange(len(part)))
        assert len(pixels) == len(labels) == len(part)
    assert len(train.skipped) == 2 and "row 2" in train.skipped[0] and "row 3" in train.skipped[1]


def test_what_does_not_fit_is_not_stored(tmp_path, monkeypatch, capsys):
    folder = write_splits(tmp_path / "set")
    found = load_images(folder, image_size=8, max_cache_gb=0).train
    assert isinstance(found, ImagesOnDemand) and not (cache_folder() / "images").exists()
    assert "8 images are decoded when they are needed, since they would take 1.54e-06 GB" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"image_size is missing: .* and max_cache_gb is 0"):
        load_images(folder, max_cache_gb=0)
    monkeypatch.setattr(image_cache, "MOST_OF_DISK", 0.0)
    assert isinstance(load_images(folder, image_size=8).train, ImagesOnDemand)
    assert "GB of the" in capsys.readouterr().out


def test_each_split_says_once_that_it_is_not_stored(tmp_path, capsys):
    write_splits(tmp_path).joinpath("test-00000-of-00001.parquet").rename(tmp_path / "validation.parquet")
    write_splits(tmp_path)
    options = ImageOptions(str(tmp_path), image_size=8, streaming=True)
    options.load(), options.load_test()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["train", "validation", "test"]


def test_the_cache_is_shown_and_cleared(tmp_path, capsys):
    folder = write_splits(tmp_path / "set")
    assert isinstance(load_images(folder).train, ImageSet) and "decoded into" in capsys.readouterr().out
    (cache_folder() / "mine").write_text("stays")
    assert command(["cache"]) == 0 and str(cache_folder()) in capsys.readouterr().out
    assert command(["cache", "--clear"]) == 0 and "removed 0.00 GB" in capsys.readouterr().out
    assert [x.name for x in cache_folder().iterdir()] == ["mine"]
    load_images(folder)
    assert json.loads(next(cache_folder().glob("images/*/info.json")).read_text())["shape"] == [8, 3, 8, 8]


def write_run(folder, data, **training) -> str:
    shape = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    sections = {
        "task": "image-classification",
        "dataset": {"name": str(data), "streaming": True, "image_size": 8},
        "model": {"model_type": "hugginggreen_vit", **shape},
        "training": {"max_steps": 9, "per_device_train_batch_size": 6, "eval_strategy": "no", **training},
        "energy": {"enabled": False},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(sections))
    return str(folder / "run.yaml")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fault", ["image", "file"])
def test_what_is_met_late_is_told_in_one_line(tmp_path, capsys, monkeypatch, workers, fault):
    data, images = tmp_path / "set", [photo(i) for i in range(40)]
    images[30] = b"no image" if fault == "image" else images[30]
    write_table(data / "train.parquet", images, [0, 1] * 20)
    write_table(data / "test.parquet", images[:8], [0, 1] * 4)
    regroup(data, 5)
    message = "train.parquet, row 30: cannot identify the format of the image."
    if fault == "file":
        content = bytearray((data / "train.parquet").read_bytes())
        start = pq.ParquetFile(data / "train.parquet").metadata.row_group(6).column(0).data_page_offset
        content[start : start + 40] = bytes(40)
        (data / "train.parquet").write_bytes(content)
        message = "train.parquet can't be read as parquet"
    monkeypatch.setattr(ImagesOnDemand, "sample", lambda images: images.take(torch.arange(8))[0])
    run = write_run(tmp_path, data, dataloader_num_workers=workers, output_dir=str(tmp_path / "out"))
    assert command(["train", run]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: dataset: ") and message in line and "Traceback" not in line
    if fault == "image":
        assert command(["train", run, "--skip_corrupt", "true", "--output_dir", str(tmp_path / "skipped")]) == 0
        assert f"left out    1 rows or objects, as {data}/train.parquet, row 30: cannot" in capsys.readouterr().out


def test_training_resumes_by_position(tmp_path):
    """In mid-epoch, to the same weights."""
    data = regroup(write_splits(tmp_path / "set", 40), 5)
    saves = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": None, "load_best_model_at_end": False}
    write_run(tmp_path, data, **saves)
    train(str(tmp_path / "run.yaml"), ["--output_dir", str(tmp_path / "whole")])
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "resumed" / "checkpoint-4")
    train(str(tmp_path / "run.yaml"), ["--output_dir", str(tmp_path / "resumed")])
    first, second = ((tmp_path / x / "checkpoint-4" / "model.safetensors").stat() for x in ("whole", "resumed"))
    assert first.st_mtime_ns == second.st_mtime_ns  # it was read, and not trained for once more
    weights = [(tmp_path / x / "model.safetensors").read_bytes() for x in ("whole", "resumed")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_two_processes_equal_one(preloaded, tmp_path):
    data = regroup(write_splits(tmp_path / "set", 40), 5)
    run = write_run(tmp_path, data, save_strategy="no", load_best_model_at_end=False, adam_epsilon=1e-3)
    train(run, ["--output_dir", str(tmp_path / "one"), "--per_device_train_batch_size", "12"])
    for done in preloaded.run_ranks(2, "-m", "hf_efficient", "train", run, "--output_dir", tmp_path / "two"):
        assert done.returncode == 0, done.stderr[-3000:]
    weights, expected = (load_file(tmp_path / x / "model.safetensors") for x in ("two", "one"))
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-4, msg=name)
