"""Features that don't change in training: computed once, kept, found again, and never stale."""

import pytest
import torch

from hf_efficient import ImageSigConfig, ImageSigForImageClassification
from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet
from hf_efficient.training.tasks.image_classification import prepare

LOOKS = {"mean": 0.4, "std": 0.3}


class Means:
    """The mean of each channel, counting its images."""

    name, identity = "means", "means"

    def __init__(self):
        self.seen = 0

    def __call__(self, pixel_values):
        self.seen += len(pixel_values)
        return pixel_values.mean((2, 3))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    return tmp_path


def pictures(count=20, seed=0):
    pixels = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return ImageSet(pixels, torch.arange(count) % 5, list("abcde"))


def test_a_batch_holds_them_instead_of_pixels():
    images = pictures()
    batch = ImageBatches(images, **LOOKS, features=Means()).__getitems__([3, 0])
    pixels = ImageBatches(images, **LOOKS).__getitems__([3, 0])["pixel_values"]
    assert batch.keys() == {"means", "labels"} and batch["labels"].tolist() == [3, 0]
    torch.testing.assert_close(batch["means"], pixels.mean((2, 3)))


def test_they_are_computed_once():
    first, second = Means(), Means()
    images = pictures()
    values = ImageBatches(images, **LOOKS, features=first).features
    again = ImageBatches(images, **LOOKS, features=second).features
    assert torch.equal(values, again)
    assert first.seen == 21 and second.seen == 1  # one image says how many numbers there are


@pytest.mark.parametrize("change", ["pixels", "std", "size", "identity"])
def test_they_are_never_those_of_something_else(change):
    ImageBatches(pictures(), **LOOKS, features=Means())
    other = Means()
    other.identity = "others" if change == "identity" else "means"
    looks = {**LOOKS, **({"std": 0.2} if change == "std" else {}), **({"image_size": 8} if change == "size" else {})}
    ImageBatches(pictures(seed=int(change == "pixels")), **looks, features=other)
    assert other.seen == 21


def test_a_file_that_is_not_whole_is_written_again(cache):
    images = pictures()
    values = ImageBatches(images, **LOOKS, features=Means()).features.clone()
    (file,) = (file for file in (cache / "features").iterdir() if file.suffix != ".lock")
    file.write_bytes(file.read_bytes()[:-4])
    assert torch.equal(ImageBatches(images, **LOOKS, features=Means()).features, values)
    assert {x.suffix for x in (cache / "features").iterdir()} == {"", ".lock"}


@pytest.mark.parametrize(
    "changes", [{"flip": True}, {"crop": 2}, {"mixup": 0.2}, {"erase": 0.5}, {"randaugment": 2}, {"resized_crop": 0.3}]
)
def test_where_pixels_change_there_are_none(changes):
    features = Means()
    batches = ImageBatches(pictures(), **LOOKS, features=features, augmentation=Augmentation(**changes))
    assert "pixel_values" in batches.__getitems__([0, 1]) and not features.seen


def test_labels_may_be_smoothed():
    batches = ImageBatches(pictures(), **LOOKS, features=Means(), augmentation=Augmentation(label_smoothing=0.1))
    batch = batches.__getitems__([2, 4])
    assert batch.keys() == {"means", "labels"} and batch["labels"].shape == (2, 5)


def test_a_cache_that_can_not_be_written_is_named(cache):
    (cache / "features").write_text("no folder")
    with pytest.raises(OSError, match=r"means of .* can't be stored in .*HF_EFFICIENT_CACHE"):
        ImageBatches(pictures(), **LOOKS, features=Means())


def test_imagesig_trains_on_them(tmp_path, monkeypatch):
    """The script gives signatures, the same that the model computes of the pixels."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "digits_imagesig.yaml"
    run.write_text(
        "dataset: digits\nmodel: {model_type: imagesig, image_size: 32, signature_depth: 2}\n"
        "training: {max_steps: 2, per_device_train_batch_size: 8}\n"
    )
    trainer, _ = prepare([str(run)])
    batch = trainer.train_dataset.__getitems__([5, 6])
    trainer.train_dataset.features = None
    pixels = trainer.train_dataset.__getitems__([5, 6])["pixel_values"]
    torch.testing.assert_close(batch["signatures"], trainer.model.fixed_features(pixels))
    augmented, _ = prepare([str(run), "--flip", "true"])
    assert "pixel_values" in augmented.train_dataset.__getitems__([0]) and augmented.eval_dataset.features is not None
    trainer, _ = prepare([str(run)])
    assert trainer.train().training_loss > 0
    assert isinstance(trainer.model, ImageSigForImageClassification) and ImageSigConfig().signature_width == 120
