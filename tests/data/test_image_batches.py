"""Batches: what is in them, that it depends on seed, epoch and image alone, and that Trainers take them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_efficient.data.augmentation import Augmentation
from hf_efficient.data.balanced_sampler import BalancedSampler
from hf_efficient.data.collators import take_batch
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_sets import ImageSet
from hf_efficient.data.objects import Objects
from hf_efficient.training.losses import soft_cross_entropy

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
NORMAL = {"mean": MEAN, "std": STD}
ALL = Augmentation(
    flip=True, crop=2, resized_crop=0.3, randaugment=2, erase=0.5, mixup=0.2, cutmix=1.0, label_smoothing=0.1
)


def image_set(count: int = 40, classes: int = 5, size=(8, 8), boxes: bool = False) -> ImageSet:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=random)
    labels = torch.arange(count) % classes
    where = torch.rand(count, 4, generator=random) * 0.4 + 0.3
    return ImageSet(pixels, Objects.one_each(labels, where, size) if boxes else labels, list("abcdefgh")[:classes])


def same(a: dict, b: dict) -> bool:
    return torch.equal(a["pixel_values"], b["pixel_values"]) and torch.equal(a["labels"], b["labels"])


def test_a_batch():
    images = image_set()
    batch = ImageBatches(images, **NORMAL).__getitems__([3, 7, 3])
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    assert torch.allclose(batch["pixel_values"], (images.pixels[[3, 7, 3]] / 255 - mean) / std, atol=1e-6)
    assert batch["pixel_values"].dtype == torch.float32 and batch["labels"].tolist() == [3, 2, 3]
    assert len(ImageBatches(images, **NORMAL)) == 40


def test_one_image_is_an_example():
    batches = ImageBatches(image_set(), **NORMAL, augmentation=ALL)
    one, batch = batches[5], batches.__getitems__([5, 6])
    assert torch.equal(one["pixel_values"], batch["pixel_values"][0]) and torch.equal(
        one["labels"], batch["labels"][0]
    )


@pytest.mark.parametrize("size", [(16, 16), (4, 4), (12, 6)])
def test_resizing_is_pillows(size):
    """As the processor does it with which the trained model is used"""
    images = image_set(4)
    batch = ImageBatches(images, mean=0.0, std=1 / 255, image_size=size).__getitems__([0, 1, 2, 3])["pixel_values"]
    for image, result in zip(images.pixels, batch, strict=True):
        resized = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(resized).transpose(2, 0, 1) - result.numpy()).max() <= 1.01


@pytest.mark.parametrize("augmentation", [ALL, Augmentation(flip=True, crop=2)])
def test_an_image_looks_the_same_in_every_batch(augmentation):
    batches = ImageBatches(image_set(), **NORMAL, augmentation=augmentation, image_size=12, seed=3)
    batches.set_epoch(2)
    whole = batches.__getitems__(list(range(40)))
    order = torch.randperm(40).tolist()
    for some in (order[:7], order[7:8], order[8:]):
        part = batches.__getitems__(some)
        assert same(part, {name: value[some] for name, value in whole.items()})
    again = ImageBatches(image_set(), **NORMAL, augmentation=augmentation, image_size=12, seed=3)
    again.set_epoch(2)
    assert same(again.__getitems__(order), {name: value[order] for name, value in whole.items()})


def test_epochs_and_seeds_differ():
    batches = ImageBatches(image_set(), **NORMAL, augmentation=ALL)
    first = batches.__getitems__([0, 1, 2])
    batches.set_epoch(1)
    assert not same(batches.__getitems__([0, 1, 2]), first)
    batches.set_epoch(0)
    assert same(batches.__getitems__([0, 1, 2]), first)
    assert not same(ImageBatches(image_set(), **NORMAL, augmentation=ALL, seed=1).__getitems__([0, 1, 2]), first)


def test_evaluation_knows_no_epoch():
    for options in ({}, {"task": "detection", "mosaic": True}):
        batches = ImageBatches(image_set(boxes=bool(options)), **NORMAL, **options)
        first = batches.__getitems__([0, 1, 2])["pixel_values"]
        batches.set_epoch(1)
        assert torch.equal(batches.__getitems__([0, 1, 2])["pixel_values"], first)


def test_flip_and_crop_keep_values():
    """No drift: every pixel is one of the image's, or black, normalised."""
    images = image_set()
    batches = ImageBatches(images, mean=0.0, std=1 / 255, augmentation=Augmentation(flip=True, crop=3))
    levels = batches.__getitems__(list(range(40)))["pixel_values"]
    assert torch.allclose(levels, levels.round(), atol=1e-4)
    for image, result in zip(images.pixels, levels.round(), strict=True):
        assert set(result.unique().tolist()) <= {0.0, *image.unique().tolist()}


def test_mixed_labels_are_of_the_images_mixed():
    """Images of one colour per class: the mean of a mixed image is the mean of the labels' colours."""
    labels = torch.arange(40) % 5
    pixels = (labels * 50).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    images = ImageSet(pixels, labels, list("abcde"))
    for augmentation in (Augmentation(mixup=1.0), Augmentation(cutmix=1.0), Augmentation(mixup=0.2, cutmix=1.0)):
        batch = ImageBatches(images, mean=0.0, std=1 / 255, augmentation=augmentation).__getitems__(list(range(40)))
        expected = batch["labels"] @ (torch.arange(5) * 50.0)
        assert torch.allclose(batch["pixel_values"].mean((1, 2, 3)), expected, atol=1e-2)
        assert (batch["labels"] > 0).sum(1).max() == 2 and torch.allclose(batch["labels"].sum(1), torch.ones(40))


def test_detection():
    images = image_set(boxes=True)
    batch = ImageBatches(images, **NORMAL, task="detection").__getitems__([4, 9])
    assert [label["class_labels"].tolist() for label in batch["labels"]] == [[4], [4]]
    assert torch.equal(batch["labels"][1]["boxes"], images.labels.boxes[9:10])
    flipping = ImageBatches(images, **NORMAL, task="detection", augmentation=Augmentation(flip=True), image_size=16)
    flips = flipping.draws().flips
    for index, label in enumerate(flipping.__getitems__(list(range(40)))["labels"]):
        cx = images.labels.boxes[index, 0]
        assert label["boxes"][0, 0].item() == pytest.approx((1 - cx if flips[index] else cx).item(), abs=1e-6)
    assert flips.any() and not flips.all()


def test_objects_moved_out_of_the_image_are_gone():
    boxes = torch.tensor([[0.05, 0.5, 0.1, 0.5]]).expand(40, 4)
    objects = Objects.one_each(image_set().labels, boxes, (8, 8))
    images = ImageSet(image_set().pixels, objects, list("abcde"))
    batches = ImageBatches(images, **NORMAL, task="detection", augmentation=Augmentation(crop=4))
    counts = torch.tensor([len(label["boxes"]) for label in batches.__getitems__(list(range(40)))["labels"]])
    assert torch.equal(counts == 0, batches.draws().shifts[:, 1] < 0)


def test_mosaics():
    images = image_set(boxes=True)
    batches = ImageBatches(images, **NORMAL, task="detection", mosaic=True, augmentation=Augmentation())
    batch = batches.__getitems__([3, 8])
    assert batch["pixel_values"].shape == (2, 3, 16, 16)
    tiles = batches.draws().mosaics[3]
    assert tiles[0] == 3 and batch["labels"][0]["class_labels"].tolist() == images.labels.classes[tiles].tolist()
    plain = ImageBatches(images, **NORMAL, task="pixels").__getitems__(tiles.tolist())["pixel_values"]
    assert torch.equal(batch["pixel_values"][0, :, 8:, :8], plain[2])
    assert torch.allclose(
        batch["labels"][0]["boxes"][2, :2], (images.labels.boxes[tiles[2], :2] + torch.tensor([0, 1])) / 2
    )


def test_pixels_alone():
    assert set(ImageBatches(image_set(), **NORMAL, task="pixels").__getitems__([0])) == {"pixel_values"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "poetry"}, "task='poetry' must be one of classification, detection, segmentation, pixels"),
        ({"task": "detection"}, "task='detection' needs images with labels of kind objects, got label"),
        ({"mosaic": True}, "mosaic=True is for task='detection'"),
        ({"std": [0.2, 0.0, 0.1]}, r"std=.* must be positive"),
        ({"seed": -1}, "seed=-1 must not be negative"),
        ({"task": "pixels", "augmentation": Augmentation(mixup=0.2)}, "mixup can't be used with task='pixels'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        ImageBatches(image_set(), **{**NORMAL, **options})


def test_boxes_go_without_what_would_misplace_them():
    with pytest.raises(ValueError, match="randaugment, cutmix can't be used with task='detection'"):
        ImageBatches(
            image_set(boxes=True), **NORMAL, task="detection", augmentation=Augmentation(randaugment=2, cutmix=1.0)
        )


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="indices is empty"):
        ImageBatches(image_set(), **NORMAL).__getitems__([])


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders(workers):
    """Workers that live on see the next epoch too."""
    batches = ImageBatches(image_set(), **NORMAL, augmentation=ALL)
    loader = DataLoader(
        batches, batch_size=16, collate_fn=take_batch, num_workers=workers, persistent_workers=workers > 0
    )
    for epoch in range(2):
        batches.set_epoch(epoch)
        loaded = list(loader)
        assert [len(batch["labels"]) for batch in loaded] == [16, 16, 8]
        assert all(
            same(a, batches.__getitems__(range(i, min(i + 16, 40)))) for a, i in zip(loaded, (0, 16, 32), strict=True)
        )


class Recorder(nn.Module):
    """A classifier that remembers its batches."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 5)
        self.seen = []

    def forward(self, pixel_values, **kwargs):
        self.seen.append(pixel_values.clone())
        return {"logits": self.linear(pixel_values.flatten(1))}


def train(tmp_path, **options) -> tuple[Recorder, ImageBatches]:
    torch.manual_seed(0)
    batches = ImageBatches(image_set(), **NORMAL, augmentation=ALL)
    model = Recorder()
    arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "report_to": [], "use_cpu": True}
    arguments |= {"remove_unused_columns": False, "save_strategy": "no", "disable_tqdm": True, "seed": 0, **options}
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=str(tmp_path), **arguments),
        train_dataset=batches,
        data_collator=take_batch,
        compute_loss_func=soft_cross_entropy,
    )
    trainer.train()
    return model, batches


def test_a_trainer_takes_batches_as_they_are_and_tells_the_epoch(tmp_path):
    model, batches = train(tmp_path)
    assert [len(batch) for batch in model.seen] == [16, 16, 8] * 2
    for epoch in range(2):
        batches.set_epoch(epoch)
        expected = batches.__getitems__(list(range(40)))["pixel_values"]
        found = torch.cat(model.seen[3 * epoch : 3 * epoch + 3])
        order = torch.cdist(found.flatten(1), expected.flatten(1)).argmin(1)
        assert order.sort().values.tolist() == list(range(40))  # each image once, in the look of the epoch
        assert torch.equal(found, expected[order])


def test_accumulated_soft_losses_are_those_of_the_whole_batch(tmp_path):
    """The Trainer counts all entries of the labels; the loss must not become five times too small, or unequal."""
    whole, _ = train(tmp_path, per_device_train_batch_size=40, max_steps=1)
    parts, _ = train(tmp_path, per_device_train_batch_size=16, gradient_accumulation_steps=3, max_steps=1)
    assert torch.allclose(whole.linear.weight, parts.linear.weight, atol=1e-6)


def test_a_trainer_that_takes_batches_apart_is_told(tmp_path):
    with pytest.raises(TypeError, match="remove_unused_columns=False"):
        train(tmp_path, remove_unused_columns=True)


def test_balanced_batches():
    labels = torch.cat([torch.full((count,), i) for i, count in enumerate((30, 10, 25, 7))])
    sampler = BalancedSampler(labels, classes_per_batch=3, images_per_class=4, seed=1)
    order = torch.tensor(list(sampler))
    assert len(order) == len(sampler) == 6 * 12
    for batch in order.view(-1, 3, 4):
        assert (labels[batch] == labels[batch[:, :1]]).all() and labels[batch[:, 0]].unique().numel() == 3
        assert batch.unique().numel() == 12
    assert list(sampler) == order.tolist()
    sampler.set_epoch(1)
    assert list(sampler) != order.tolist()
    batches = list(
        DataLoader(
            ImageBatches(image_set(), **NORMAL),
            4,
            sampler=BalancedSampler(torch.arange(40) % 5, 2, 2),
            collate_fn=take_batch,
        )
    )
    assert all(batch["labels"].bincount().max() == 2 for batch in batches) and len(batches) == 10


@pytest.mark.parametrize(
    ("classes", "images", "message"),
    [
        (1, 2, "classes_per_batch=1"),
        (6, 2, "between 2 and 5, the number"),
        (2, 1, "images_per_class=1"),
        (2, 9, "between 2 and 8"),
    ],
)
def test_balance_that_is_not_possible(classes, images, message):
    with pytest.raises(ValueError, match=message):
        BalancedSampler(torch.arange(40) % 5, classes, images)
