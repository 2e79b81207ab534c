"""Masks: the class of each pixel, from folders and tables, moved with the image."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from image_files import as_bytes, photo
from PIL import Image

from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.folders import CACHE_FOLDER, DATA_FOLDER
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_cache import CorruptRow
from hf_efficient.data.image_sets import ImageSet, load_masks

SHARED = Path(os.environ.get(DATA_FOLDER, Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))


def mask(seed: int, size=(16, 8), values=(0, 1, 2), mode="L") -> Image.Image:
    numbers = np.random.default_rng(seed).choice(values, (size[1], size[0])).astype(np.uint8)
    return Image.fromarray(numbers).convert(mode) if mode != "P" else with_palette(numbers)


def with_palette(numbers: np.ndarray) -> Image.Image:
    image = Image.fromarray(numbers)
    image.putpalette([value for index in range(256) for value in (255 - index, index, 7)])
    return image


def write_masks(folder: Path, count: int = 8, size=(16, 8), ending="", **options) -> Path:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for i in range(count):
        photo(i, size).save(folder / "images" / f"{i}.jpg")
        mask(i, size, **options).save(folder / "masks" / f"{i}{ending}.png")
    return folder


@pytest.mark.parametrize(("mode", "ending"), [("L", ""), ("P", "_mask"), ("RGB", "")])
def test_folders_of_images_and_masks(tmp_path, mode, ending):
    for split in ("train", "val"):
        write_masks(tmp_path / "set" / split, mode=mode, ending=ending)
    train, evaluation = load_masks(tmp_path / "set")
    assert train.pixels.shape == (8, 3, 8, 16) and train.labels.shape == (8, 8, 16) and len(evaluation) == 8
    assert torch.equal(train.labels[3], torch.from_numpy(np.array(mask(3)))) and train.labels.dtype == torch.uint8
    assert train.class_names == ["0", "1", "2"] and train.kind == "mask"


def test_splits_may_be_inside(tmp_path):
    write_masks(tmp_path / "images_first")
    for name in ("images", "masks"):
        for split in ("training", "validation"):
            target = tmp_path / "set" / name / split
            target.mkdir(parents=True)
            for file in (tmp_path / "images_first" / name).iterdir():
                (target / file.name).write_bytes(file.read_bytes())
    train, evaluation = load_masks(tmp_path / "set", class_names=["sky", "road", "car"])
    assert len(train) == len(evaluation) == 8 and train.class_names == ["sky", "road", "car"]


def test_tables_and_a_quarter_held_out(tmp_path):
    images, masks = ([as_bytes(make(i)) for i in range(8)] for make in (lambda i: photo(i, (16, 8)), mask))
    columns = {
        name: [{"bytes": x, "path": None} for x in cells] for name, cells in (("scene", images), ("map", masks))
    }
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    with pytest.raises(ValueError, match="several columns that may be the image: scene, map; set image_column"):
        load_masks(tmp_path / "all.parquet")
    train, evaluation = load_masks(tmp_path / "all.parquet", image_column="scene")
    assert (len(train), len(evaluation)) == (6, 2)


def test_an_ignored_class_is_no_class(tmp_path):
    folder = write_masks(tmp_path / "set", values=(0, 1, 2, 3, 255))
    train, _ = load_masks(folder, ignore_index=1, class_names=["sky", "road", "car"])
    assert set(train.labels.unique().tolist()) == {0, 1, 2, 255}  # 2 and 3 are the second and third class
    with pytest.raises(CorruptRow, match=r"0.jpg: its mask holds 3, which is none of the classes"):
        load_masks(folder, class_names=["sky", "road", "car"])
    assert load_masks(folder).train.class_names == ["0", "1", "2", "3"]


def test_values_may_have_names(tmp_path):
    folder = write_masks(tmp_path / "set", values=(0, 255))
    with pytest.raises(ValueError, match="if 255 is a class, set class_names="):
        load_masks(folder)
    train, _ = load_masks(folder, class_names={0: "background", 255: "cell"})
    assert set(train.labels.unique().tolist()) == {0, 1} and train.class_names == ["background", "cell"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (mask(0, (8, 8)), "its mask is 8x8 pixels, and the image 16x8"),
        (photo(0, (16, 8)), r"its mask is a picture in colours \(RGB\): pixels must be numbers of classes"),
        (None, "there is no file .*masks/3.png"),
        (b"no image", "its mask has a format that can't be identified"),
    ],
)
def test_wrong_masks_are_named_or_left_out(tmp_path, wrong, message):
    folder = write_masks(tmp_path / "set")
    (folder / "masks" / "3.png").unlink()
    if wrong is not None:
        (folder / "masks" / "3.png").write_bytes(wrong if isinstance(wrong, bytes) else as_bytes(wrong))
    with pytest.raises(CorruptRow, match=rf"3.jpg: {message}"):
        load_masks(folder)
    train, evaluation = load_masks(folder, skip_corrupt=True)
    assert len(train) + len(evaluation) == 7 and "3.jpg" in train.skipped[0]


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"should hold images/<name>.png and masks/<name>.png"):
        load_masks(tmp_path)


def test_classes_that_training_never_saw_are_told(tmp_path):
    write_masks(tmp_path / "set" / "train")
    write_masks(tmp_path / "set" / "test", values=(0, 3))
    with pytest.warns(UserWarning, match="test has a class that is in no training image, as 'car'"):
        load_masks(tmp_path / "set", class_names=["sky", "road", "tree", "car"])
    with pytest.raises(ValueError, match="test has masks of class 3, and training has none above 2: set class_names"):
        load_masks(tmp_path / "set")


@pytest.mark.parametrize(("class_names", "message"), [(None, "no class but 0"), (["sky"], "no pixels that count")])
def test_masks_in_which_nothing_counts(tmp_path, class_names, message):
    with pytest.raises(ValueError, match=message):
        load_masks(write_masks(tmp_path / "set", values=(255,)), class_names=class_names)


def test_sizes_that_differ_are_resized_without_new_classes(tmp_path):
    folder = write_masks(tmp_path / "set", values=(0, 2))
    photo(9, (20, 20)).save(folder / "images" / "9.png")
    mask(9, (20, 20), (0, 2)).save(folder / "masks" / "9.png")
    train, _ = load_masks(folder, image_size=(6, 9))
    assert train.labels.shape[1:] == (6, 9) and set(train.labels.unique().tolist()) == {0, 2}


def scenes(count: int = 12, size: int = 32) -> ImageSet:
    """Where an image is white, its mask is 1, and where it is black, 0."""
    small = torch.randint(0, 2, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    large = small.repeat_interleave(size // 4, 2).repeat_interleave(size // 4, 3)
    return ImageSet((255 * large).expand(-1, 3, -1, -1), large[:, 0], ["black", "white"])


@pytest.mark.parametrize(
    "augmentation",
    [
        None,
        Augmentation(flip=True, crop=5),
        Augmentation(flip=True, resized_crop=0.3),
        Augmentation(vertical_flip=True, crop=2),
    ],
)
@pytest.mark.parametrize("size", [None, (48, 40)])
def test_masks_move_with_their_images(augmentation, size):
    images = scenes()
    batches = ImageBatches(images, mean=0, std=1, task="segmentation", augmentation=augmentation, image_size=size)
    batch = batches.__getitems__(list(range(12)))
    assert batch["labels"].shape == (12, *(size or (32, 32))) and batch["labels"].dtype == torch.int64
    grey, labels = batch["pixel_values"][:, 0], batch["labels"]
    sure = ((grey < 0.1) | (grey > 0.9)) & (labels != 255)  # edges are blurred, and what was outside is ignored
    assert sure.float().mean() > 0.6
    assert ((grey > 0.5) == (labels == 1))[sure].float().mean() > 0.99
    if augmentation and augmentation.crop:
        assert (labels == 255).any() and (grey[labels == 255] < 0.6).all()


def test_what_masks_can_not_have():
    with pytest.raises(ValueError, match="randaugment, mixup can't be used with task='segmentation'"):
        ImageBatches(scenes(), mean=0, std=1, task="segmentation", augmentation=Augmentation(randaugment=1, mixup=0.2))
    with pytest.raises(ValueError, match=r"masks are \(4, 4\) and images \(32, 32\)"):
        ImageSet(scenes().pixels, scenes().labels[:, :4, :4], ["a", "b"])


def test_classes_are_numbered_as_others_do():
    found = scenes().renumbered(["white", "grey", "black"])
    assert torch.equal(found.labels == 0, scenes().labels == 1) and torch.equal(
        found.labels == 2, scenes().labels == 0
    )


@pytest.mark.skipif(not (SHARED / "camvid").is_dir(), reason="../shared/data/camvid is not here")
def test_camvid(monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(SHARED))
    train, evaluation = load_masks("camvid", image_size=(72, 96))
    assert (len(train), len(evaluation)) == (367, 101) and train.class_names[10] == "bicyclist"
    assert set(train.labels.unique().tolist()) == {*range(11), 255}
