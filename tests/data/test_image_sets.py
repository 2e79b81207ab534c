"""Images by name or path: what is found, what is decoded, what is cached, and what is wrong is named."""

import io
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from image_files import CLASSES, as_bytes, as_tensor, photo, write_folder, write_splits, write_table
from PIL import Image

from hf_efficient.data import image_cache
from hf_efficient.data.folders import CACHE_FOLDER, DATA_FOLDER, cache_folder
from hf_efficient.data.image_cache import CorruptRow
from hf_efficient.data.image_sets import ImageSet, hold_out, load_images, load_objects
from hf_efficient.data.label_splits import rank_in_class

SHARED = Path(os.environ.get(DATA_FOLDER, Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def test_parquet(tmp_path):
    train, evaluation = load_images(write_splits(tmp_path / "set"))
    assert train.pixels.shape == (8, 3, 8, 8) and train.pixels.dtype == torch.uint8
    assert torch.equal(train.pixels[3], as_tensor(photo(3))) and torch.equal(
        evaluation.pixels[3], as_tensor(photo(103))
    )
    assert train.labels.tolist() == [0, 1] * 4 and train.labels.dtype == torch.int64
    assert train.class_names == CLASSES and train.kind == "label" and train.skipped == []


@pytest.mark.parametrize(("image", "label"), [("img", "label"), ("image", "fine_label"), ("img", "fine_label")])
def test_columns_are_found(tmp_path, image, label):
    train, _ = load_images(write_splits(tmp_path / "set", image=image, label=label, coarse_label=[0] * 8))
    assert train.labels.tolist() == [0, 1] * 4


def test_other_columns_can_be_named(tmp_path):
    folder = write_splits(tmp_path / "set", image="photograph", coarse_label=[0, 0, 1, 1] * 2)
    assert load_images(folder).train.labels.tolist() == [0, 1] * 4  # by its type
    coarse = load_images(folder, image_column="photograph", label_column="coarse_label").train
    assert coarse.labels.tolist() == [0, 0, 1, 1] * 2  # not what is cached for the other column
    with pytest.raises(ValueError, match="no column 'kind': its columns are label, coarse_label; set label_column"):
        load_images(folder, label_column="kind")
    with pytest.raises(ValueError, match="no column 'picture': its columns are photograph, label, coarse_label"):
        load_images(folder, image_column="picture")


def test_columns_that_are_missing_or_ambiguous(tmp_path):
    file = tmp_path / "bytes.parquet"
    pq.write_table(pa.table({"photograph": [as_bytes(photo(0))] * 8, "label": [0, 1] * 4}), file)
    with pytest.raises(ValueError, match=r"no column 'img' or 'image' or .*: its columns are photograph, label; set"):
        load_images(file)
    assert len(load_images(file, image_column="photograph").train) == 6
    folder = write_splits(tmp_path / "two", names=None, category=["a", "b"] * 4)
    with pytest.raises(ValueError, match="several columns that may be the label: label, category; set label_column"):
        load_images(folder)
    assert load_images(folder, label_column="category").train.class_names == ["a", "b"]


@pytest.mark.parametrize(("labels", "names"), [([0, 2] * 4, ["0", "1", "2"]), (["dog", "cat"] * 4, ["cat", "dog"])])
def test_classes_without_names(tmp_path, labels, names):
    file = write_table(tmp_path / "all.parquet", [photo(i) for i in range(8)], labels, names=None)
    train, evaluation = load_images(file)
    assert train.class_names == names and len(train) == 6 and len(evaluation) == 2


def test_splits_may_have_several_files_and_both_kinds_of_evaluation(tmp_path):
    for name, seed in (("train-0", 0), ("train-1", 1), ("test-0", 2), ("validation-0", 3)):
        write_table(tmp_path / "set" / "data" / f"{name}.parquet", [photo(seed)], [0])
    train, evaluation = load_images(tmp_path / "set")
    assert torch.equal(train.pixels, torch.stack([as_tensor(photo(0)), as_tensor(photo(1))]))
    assert torch.equal(evaluation.pixels[0], as_tensor(photo(3)))


def test_folder_of_images(tmp_path):
    for split in ("train", "val"):
        write_folder(tmp_path / "set" / split)
    train, evaluation = load_images(tmp_path / "set")
    assert len(train) == len(evaluation) == 8 and train.class_names == CLASSES
    assert torch.equal(train.pixels[0], as_tensor(photo(0))) and torch.equal(train.pixels[4], as_tensor(photo(1)))
    assert train.labels.tolist() == [0] * 4 + [1] * 4


def test_without_an_evaluation_split_a_quarter_of_each_class_is_held_out(tmp_path):
    train, evaluation = load_images(write_folder(tmp_path / "set", count=16))
    assert train.labels.bincount().tolist() == [6, 6] and evaluation.labels.bincount().tolist() == [2, 2]
    again = load_images(tmp_path / "set").evaluation
    assert torch.equal(again.pixels, evaluation.pixels)
    with pytest.raises(ValueError, match="too few for an evaluation split"):
        hold_out(ImageSet(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), ["a"]))


def test_digits():
    train, evaluation = load_images("digits")
    assert train.pixels.shape[1:] == (3, 8, 8) and len(train) + len(evaluation) == 1797
    assert train.pixels.max() == 255 and train.class_names == list("0123456789")
    shares = evaluation.labels.bincount() / (evaluation.labels.bincount() + train.labels.bincount())
    assert ((shares - 0.25).abs() < 0.01).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    image = photo(0, mode=mode)
    data = as_bytes(image, "TIFF")
    train, _ = load_images(write_table(tmp_path / "all.parquet", [data] * 8, [0, 1] * 4))
    assert torch.equal(train.pixels[0], as_tensor(image))


def test_sixteen_bit_grey_is_scaled(tmp_path):
    grey = np.array(photo(0, mode="L"))
    data = as_bytes(Image.fromarray(grey.astype(np.uint16) * 257))
    train, _ = load_images(write_table(tmp_path / "all.parquet", [data] * 8, [0, 1] * 4))
    assert torch.equal(train.pixels[0, 0], torch.from_numpy(grey))


def test_photographs_are_turned_as_their_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    stream = io.BytesIO()
    photo(0).save(stream, "PNG", exif=exif)
    train, _ = load_images(write_table(tmp_path / "all.parquet", [stream.getvalue()] * 8, [0, 1] * 4))
    assert torch.equal(train.pixels[0], as_tensor(photo(0)).flip(1, 2))


def test_limit_is_balanced(tmp_path):
    folder = write_folder(tmp_path / "set" / "train", count=12).parent
    write_folder(folder / "test", count=12)
    train, evaluation = load_images(folder, limit=4)
    assert train.labels.tolist() == [0, 0, 1, 1] and len(evaluation) == 4
    train, evaluation = load_images(folder, limit=5, evaluation_limit=100)
    assert len(train) == 5 and len(evaluation) == 12
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        load_images(folder, limit=0)
    assert rank_in_class(torch.tensor([1, 0, 1, 1, 0])).tolist() == [0, 0, 1, 2, 1]


def test_different_sizes(tmp_path, capsys):
    folder = write_folder(tmp_path / "set", size=lambda i: (8, 8) if i < 7 else (6, 10))
    for _ in range(2):  # the second time from what the cache knows
        with pytest.raises(ValueError, match=r"0.png is 8x8 pixels and .*7.png is 6x10: set image_size"):
            load_images(folder)
    assert "decoded into" not in capsys.readouterr().out
    train, evaluation = load_images(folder, image_size=12)
    assert train.pixels.shape == (6, 3, 12, 12) and evaluation.pixels.shape == (2, 3, 12, 12)
    assert load_images(folder, image_size=(12, 9)).train.pixels.shape == (6, 3, 12, 9)


def test_only_larger_images_are_resized(tmp_path, cache):
    folder = write_folder(tmp_path / "set")
    for size in (None, 8, 16):
        assert load_images(folder, image_size=size).train.pixels.shape[2:] == (8, 8)
    assert len([x for x in cache.iterdir() if x.is_dir()]) == 1
    small = load_images(folder, image_size=4).train.pixels
    assert small.shape[2:] == (4, 4)


def corrupt_images() -> dict[str, bytes | None]:
    jpeg = as_bytes(photo(0, (32, 32)), "JPEG")
    return {"truncated": jpeg[: len(jpeg) // 2], "text": b"not an image", "empty": b"", "missing": None}


@pytest.mark.parametrize("kind", corrupt_images())
def test_a_corrupt_image_is_named_or_skipped(tmp_path, kind):
    images = [photo(i, (32, 32)) for i in range(9)]
    images[5] = corrupt_images()[kind]
    file = write_table(tmp_path / "all.parquet", images, [0, 1] * 4 + [0])
    with pytest.raises(CorruptRow, match=r"all.parquet, row 5: "):
        load_images(file)
    train, evaluation = load_images(file, skip_corrupt=True)
    assert len(train) + len(evaluation) == 8 and "row 5" in train.skipped[0] and len(train.skipped) == 1
    with pytest.raises(CorruptRow, match="row 5"):  # although what is left is in the cache now
        load_images(file)


def test_a_corrupt_file_is_named(tmp_path):
    folder = write_folder(tmp_path / "set")
    (folder / "cat" / "0.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(CorruptRow, match=r"cat/0.png"):
        load_images(folder)


@pytest.mark.parametrize("label", [2, -1, None])
def test_a_label_out_of_range_is_named(tmp_path, label):
    labels = [0, 1, label, 1]
    file = write_table(tmp_path / "train.parquet", [photo(i) for i in range(4)], labels)
    with pytest.raises(ValueError, match=f"row 2: label {label} is not one of the 2 classes"):
        load_images(file)


def test_labels_of_images_in_memory_are_checked():
    with pytest.raises(ValueError, match="labels contains 2, but there are only 2 classes"):
        ImageSet(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.tensor([2]), CLASSES)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_file_is_named(tmp_path, share):
    folder = write_splits(tmp_path / "set")
    file = folder / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(ValueError, match=r"test-00000-of-00001.parquet can't be read as parquet"):
        load_images(folder)


def test_damage_inside_a_parquet_file_is_named(tmp_path):
    file = write_table(tmp_path / "train.parquet", [photo(i) for i in range(8)], [0, 1] * 4)
    data = bytearray(file.read_bytes())
    data[4:40] = b"\xff" * 36  # the first page, far from the footer
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"train.parquet can't be read as parquet"):
        load_images(file)


def test_an_empty_split_is_named(tmp_path):
    folder = write_splits(tmp_path / "set")
    table = pq.read_table(folder / "test-00000-of-00001.parquet")
    pq.write_table(table.slice(0, 0), folder / "test-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="test has no images"):
        load_images(folder, image_size=4)


def test_classes_of_the_splits_must_agree(tmp_path):
    folder = write_splits(tmp_path / "set")
    write_table(folder / "test-00000-of-00001.parquet", [photo(0)], [0], names=CLASSES[::-1])
    with pytest.raises(ValueError, match=r"test and train .*: class 0 is 'dog' in test and 'cat' in train"):
        load_images(folder)


def test_unknown_names_and_wrong_paths(tmp_path, monkeypatch):
    with pytest.raises(
        ValueError,
        match=r"'imagenet': there are cifar10, .*, bccd, camvid, digits, <owner>/<name>",
    ):
        load_images("imagenet")
    with pytest.raises(ValueError, match="has no images that could be used: it should hold <class>"):
        load_images(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a.txt must be one of .parquet, .csv"):
        load_images(tmp_path / "a.txt")
    write_table(tmp_path / "only" / "test.parquet", [photo(0)], [0])
    with pytest.raises(ValueError, match="no split 'train', only test"):
        load_images(tmp_path / "only")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=f"{DATA_FOLDER}='.*nowhere' is not a folder"):
        load_images("cifar10")


def test_what_is_neither_here_nor_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    with pytest.raises(
        ValueError, match=f"mnist is not in the folder .*{DATA_FOLDER}.* and ylecun/mnist can't be read"
    ):
        load_images("mnist")


def test_the_hub(tmp_path, monkeypatch):
    """Not the Hub itself, but what `datasets` makes of it."""
    import datasets

    folder = write_splits(tmp_path / "set", image="img")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "datasets"))
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: {"uoft-cs/cifar10": loaded}[name])
    train, evaluation = load_images("cifar10")
    assert torch.equal(train.pixels[3], as_tensor(photo(3))) and torch.equal(
        evaluation.pixels[3], as_tensor(photo(103))
    )
    assert train.class_names == CLASSES
    with pytest.raises(ValueError, match="no column 'objects'"):
        load_objects("cifar10")


def test_the_data_folder(tmp_path, monkeypatch):
    write_splits(tmp_path / "tiny_imagenet")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    assert len(load_images("tiny-imagenet").train) == 8


def test_decoded_once(tmp_path, monkeypatch):
    folder = write_splits(tmp_path / "set")
    first = load_images(folder).train
    monkeypatch.setattr(image_cache, "attempt", None)
    assert torch.equal(load_images(folder).train.pixels, first.pixels)


def test_changed_data_are_decoded_again(tmp_path):
    folder = write_splits(tmp_path / "set")
    load_images(folder)
    write_table(folder / "train-00000-of-00001.parquet", [photo(7)] * 8, [0, 1] * 4)
    assert torch.equal(load_images(folder).train.pixels[0], as_tensor(photo(7)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": ["cat", "dog", "cat"]}, "class_names has 'cat' twice"),
        ({"image_size": 0}, "image_size=0 must be a number of pixels"),
        ({"image_size": [8, 8, 3]}, r"image_size=\[8, 8, 3\] must be a number of pixels, or \[height, width\]"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        load_images("digits", **options)


def test_tables_are_read_without_a_bar_in_log_files(tmp_path, capsys):
    rows = [f"{file},{file.parent.name}" for file in sorted(write_folder(tmp_path / "photos").glob("*/*.png"))]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    load_images(tmp_path / "a.csv")
    assert capsys.readouterr().err == ""


def test_empty_cells_and_truths_as_labels(tmp_path):
    files = sorted(write_folder(tmp_path / "images", 12).glob("*/*.png"))
    rows = [f"{file},{i % 2 if i else ''}" for i, file in enumerate(files)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(CorruptRow, match=r"a.csv, row 0 .*: label None is not one of the 2 classes, 0, 1;"):
        load_images(tmp_path / "a.csv")
    assert len(load_images(tmp_path / "a.csv", skip_corrupt=True).train.skipped) == 1
    (tmp_path / "b.csv").write_text("\n".join(["path,label", *(f"{file},True" for file in files)]))
    with pytest.raises(ValueError, match="must be whole numbers from 0 on, or all of them text, got True in column"):
        load_images(tmp_path / "b.csv")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_changed_files_that_a_table_names_are_decoded_again(tmp_path, form):
    files = sorted(write_folder(tmp_path / "images").glob("*/*.png"))
    table = Dataset.from_dict({"path": [str(x) for x in files], "label": [0, 1] * 4})
    getattr(table, f"to_{form}")(tmp_path / f"table.{form}")
    load_images(tmp_path / f"table.{form}")
    for file in files:
        photo(7).save(file)
    assert torch.equal(load_images(tmp_path / f"table.{form}").train.pixels[0], as_tensor(photo(7)))


@pytest.mark.parametrize("damage", ["cut", "info", "labels"])
def test_a_damaged_cache_is_made_anew(tmp_path, cache, damage):
    folder = write_splits(tmp_path / "set")
    expected = load_images(folder).train.pixels.clone()
    for place in (x for x in cache.iterdir() if x.is_dir()):
        if damage == "cut":
            os.truncate(place / "pixels", 100)
        elif damage == "info":
            (place / "info.json").write_text("{")
        else:
            (place / "labels.npy").unlink()
    assert torch.equal(load_images(folder).train.pixels, expected)


def test_a_fault_while_decoding_leaves_nothing_behind(tmp_path, cache, monkeypatch):
    folder = write_splits(tmp_path / "set")
    monkeypatch.setattr(np, "save", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match=f"No space left. Set {CACHE_FOLDER} to another folder"):
        load_images(folder)
    assert [x for x in cache.iterdir() if x.is_dir()] == []


def test_two_processes_at_once(tmp_path, cache):
    folder = write_splits(tmp_path / "set", count=64)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:  # forked, they needn't import it all
        sums = list(pool.map(sum_of_pixels, [folder] * 2))
    assert sums == [sum(int(as_tensor(photo(i)).long().sum()) for i in range(64))] * 2
    assert len([x for x in cache.iterdir() if x.is_dir()]) == 2


def sum_of_pixels(folder: Path) -> int:
    return int(load_images(folder).train.pixels.sum())


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert cache_folder() == Path(os.environ[CACHE_FOLDER])
    monkeypatch.delenv(CACHE_FOLDER)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "hf_efficient"
    monkeypatch.delenv("HF_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hf_efficient"


@pytest.mark.skipif(not (SHARED / "tiny_imagenet").is_dir(), reason="../shared/data/tiny_imagenet is not here")
def test_tiny_imagenet(tmp_path, monkeypatch):
    """Labels are those of the images in both splits: a validation split read by folder gets them all wrong."""
    names = {}
    for split in ("train", "validation"):
        table = pq.read_table(SHARED / "tiny_imagenet" / f"{split}-00000-of-00001.parquet").slice(0, 200)
        names[split] = [image["path"] for image in table["image"].to_pylist()]
        (tmp_path / "tiny_imagenet").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "tiny_imagenet" / f"{split}.parquet")
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    objects = load_objects("tiny-imagenet").evaluation.labels
    train, evaluation = load_images("tiny-imagenet")
    assert train.pixels.shape == evaluation.pixels.shape == (200, 3, 64, 64)
    assert [Path(name).name.split("_")[0] for name in names["train"]] == [train.class_names[i] for i in train.labels]
    assert names["validation"][0].endswith("val_0.JPEG") and evaluation.class_names == train.class_names
    assert (
        evaluation.class_names[evaluation.labels[0]] == "n03444034"
    )  # val_annotations.txt: val_0 n03444034 0 32 44 62
    assert torch.equal(objects.classes, evaluation.labels) and objects.boxes[0].tolist() == [
        22.5 / 64,
        47.5 / 64,
        45 / 64,
        31 / 64,
    ]


def test_a_part_of_the_training_images_may_choose():
    whole = load_images("digits", limit=200)
    train, validation = load_images("digits", limit=200, validation=40)
    assert (len(train), len(validation)) == (160, 40) and len(whole.train) == 200
    assert validation.labels.bincount().tolist() == [4] * 10  # of every class the same
    both = torch.cat([train.pixels, validation.pixels]).flatten(1).unique(dim=0)
    assert torch.equal(both, whole.train.pixels.flatten(1).unique(dim=0))
    with pytest.raises(ValueError, match="validation=200 would leave nothing of 200"):
        load_images("digits", limit=200, validation=200)
