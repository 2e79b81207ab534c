"""An image under a model's eyes: plain data and PIL images, which `page/look_tab.py` puts on the page."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from .. import visualization
from ..errors import UNLOADABLE, told
from ..layers.patch_selection import HEURISTICS, PatchSelector
from . import cost
from .checks import within
from .shelf import Shown

TOP = 5
SIDE = 256  # pixels of a picture, at least
ALL = "all patches"
SELECTING = "hugginggreen_vit"


class Answer(NamedTuple):
    label: str
    score: float


class Kept(NamedTuple):
    """What a heuristic leaves of an image, and what the model says of that."""

    name: str
    picture: Image.Image
    answer: Answer
    cost: cost.Cost


class Seen(NamedTuple):
    """An image as a model gets it."""

    pixel_values: Tensor  # (1, C, H, W)
    picture: Image.Image  # the same, large enough to look at


def see(shown: Shown, image: Image.Image) -> Seen:
    processor = shown.pipe.image_processor
    pixel_values = processor(image, return_tensors="pt")["pixel_values"]
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in normalisation(processor))
    pixels = ((pixel_values[0] * std + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    picture = Image.fromarray(pixels.numpy() if pixels.shape[2] == 3 else pixels[..., 0].numpy()).convert("RGB")
    times = -(-SIDE // min(picture.size))
    enlarged = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    return Seen(pixel_values, enlarged)


def normalisation(processor) -> tuple[list[float], list[float]]:
    if getattr(processor, "do_normalize", False):
        return processor.image_mean, processor.image_std
    return [0.0], [1.0]


def classify(shown: Shown, image: Image.Image) -> list[Answer]:
    """The likeliest classes."""
    with told("This image can't be classified", causes=UNLOADABLE):
        return [Answer(row["label"], row["score"]) for row in shown.pipe(image, top_k=TOP)]


def detect(shown: Shown, image: Image.Image, threshold: float) -> tuple[Image.Image, list[Answer]]:
    """The image with boxes around what is found in it, and what that is."""
    threshold = within("The least score", threshold, 0, 1, whole=False)
    with told("No boxes can be found in this image", causes=UNLOADABLE):
        found = shown.pipe(image, threshold=threshold)
    names = sorted({row["label"] for row in found})
    boxes = [relative(row["box"], image.size) for row in found]
    classes = [names.index(row["label"]) for row in found]
    picture = visualization.draw_boxes(image, torch.tensor(boxes).view(-1, 4), classes, names)
    return picture, [Answer(row["label"], row["score"]) for row in found]


def relative(box: dict[str, float], size: tuple[int, int]) -> list[float]:
    """cx, cy, w, h as shares of the image"""
    (left, right), (top, bottom) = (
        (box["xmin"] / size[0], box["xmax"] / size[0]),
        (box["ymin"] / size[1], box["ymax"] / size[1]),
    )
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def segment(shown: Shown, image: Image.Image) -> tuple[Image.Image, Image.Image, list[Answer]]:
    """The image under its classes, what the colours mean, and each class's share of the pixels."""
    with told("This image can't be segmented", causes=UNLOADABLE):
        found = shown.pipe(image)
    classes, shares = torch.full((image.height, image.width), 255), []
    for index, row in enumerate(found):
        mask = torch.frombuffer(bytearray(row["mask"].convert("L").tobytes()), dtype=torch.uint8) > 127
        classes[mask.view(image.height, image.width)] = index
        shares.append(Answer(row["label"], mask.float().mean().item()))
    names = [row["label"] for row in found]
    return visualization.draw_classes(image, classes), visualization.draw_legend(names), shares


# Kept patches


def patch_grid(shown: Shown, seen: Seen) -> tuple[int, int] | None:
    """Rows and columns of the patches of a model that can drop some; None for others."""
    if shown.config.model_type != SELECTING or shown.task != "image-classification":
        return None
    rows, columns = (size // shown.config.patch_size for size in seen.pixel_values.shape[2:])
    return rows, columns


def keep(shown: Shown, seen: Seen, top_k: int) -> tuple[list[Kept], str]:
    """The image whole, and what each heuristic keeps of it; and how the costs are known."""
    rows, columns = patch_grid(shown, seen)
    count, prefix = rows * columns, shown.config.num_prefix_tokens
    top_k = within("The number of patches", top_k, 1, count)
    selectors = {name: selector(shown, name, top_k, count) for name in HEURISTICS}
    calls: dict[str, Callable[[int], object]] = {ALL: partial(look_at_all, shown, seen)}
    pictures, answers, tokens = {ALL: seen.picture}, {}, {ALL: count + prefix}
    everything = torch.arange(count)
    answers[ALL] = answer(shown, seen, everything)
    for name, choose in selectors.items():
        kept = everything if (chosen := choose(seen.pixel_values)) is None else chosen[0]
        pictures[name] = visualization.draw_kept_patches(seen.picture, kept, (rows, columns))
        answers[name], tokens[name] = answer(shown, seen, kept), len(kept) + prefix
        calls[name] = partial(look_at_kept, shown, seen, choose)
    measured = cost.measure(calls, tokens)
    kept = [Kept(name, pictures[name], answers[name], measured.costs[name]) for name in calls]
    return kept, measured.method


def selector(shown: Shown, heuristic: str, top_k: int, count: int) -> PatchSelector:
    config = shown.config
    mean, std = config.normalisation()
    options = {"select_at_eval": True, "image_mean": mean, "image_std": std}
    return PatchSelector(heuristic, config.patch_size, top_k, count, **options).eval()


def look_at_all(shown: Shown, seen: Seen, size: int) -> Tensor:
    pooled = shown.model.vit(repeated(seen, size), select_patches=False, pooled_only=True).pooler_output
    return shown.model.classifier(pooled)


def look_at_kept(shown: Shown, seen: Seen, choose: PatchSelector, size: int) -> Tensor:
    pixel_values = repeated(seen, size)
    kept = choose(pixel_values)  # None if that is all
    return look_at_all(shown, seen, size) if kept is None else shown.model(pixel_values, patch_indices=kept).logits


def repeated(seen: Seen, size: int) -> Tensor:
    return seen.pixel_values.expand(size, -1, -1, -1)


@torch.no_grad()
def answer(shown: Shown, seen: Seen, kept: Tensor) -> Answer:
    shares = shown.model(seen.pixel_values, patch_indices=kept.unsqueeze(0)).logits[0].softmax(-1)
    best = int(shares.argmax())
    return Answer(shown.config.id2label[best], float(shares[best]))


# What it looked at


def insights(shown: Shown, seen: Seen) -> list[tuple[str, Image.Image]]:
    """MobileViTv2's context maps, one for each stride; a ViT's attention rollout; nothing of others."""
    if shown.task != "image-classification":
        return []
    with torch.no_grad():
        try:
            attentions = shown.model(seen.pixel_values, output_attentions=True).attentions
        except (ValueError, TypeError):  # a mechanism without a matrix to show
            return []
    if not attentions:
        return []
    if shown.config.model_type == "mobilevit_v2":
        size = seen.pixel_values.shape[2]
        strides = sorted({round(size / scores.shape[2]) for scores in attentions})
        draw = visualization.draw_context_scores
        return [
            (f"context, a map of {size // stride} x {size // stride}", draw(shown.model, *seen, stride))
            for stride in strides
        ]
    try:
        return [("attention rollout", visualization.draw_rollout(shown.model, *seen))]
    except ValueError:
        return []


def describe(shown: Shown) -> str:
    """A line about the model."""
    config, count = shown.config, sum(p.numel() for p in shown.model.parameters())
    size = getattr(config, "image_size", None)
    said = f"{shown.name}: {type(shown.model).__name__}, {count:,} parameters"
    return f"{said}, images of {size} x {size} pixels." if isinstance(size, int) else f"{said}."
