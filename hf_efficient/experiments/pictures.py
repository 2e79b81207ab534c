"""Contact sheets of what the models look at, as PNG files.

    kept_patches.png    what each heuristic of HuggingGreenViT keeps of an image
    context_scores.png  where MobileViTv2's context comes from, at output strides 8, 16 and 32
    rollout.png         attention rollout of a ViT, from CLS to the patches

Kept patches need no trained model. The other two show a model of yours; without one, one with random weights, which
shows that drawing works and nothing else.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageClassification

import hf_efficient

from .. import visualization
from ..data.images import to_rgb
from ..layers.patch_selection import HEURISTICS, PatchSelector


def draw_pictures(
    images: Sequence[Path] = (),
    *,
    keep: float = 0.5,
    patch_size: int = 16,
    mobilevit: str | None = None,
    vit: str | None = None,
    output: Path = Path("results/pictures"),
) -> list[Path]:
    """The files that were written.

    Args:
        images: files; by default two photographs of scikit-learn.
        keep: share of the patches to keep.
        patch_size: of images of 224 x 224 pixels.
        mobilevit: folder or repository of a MobileViTv2 for image classification.
        vit: of a KerformerViT or HuggingGreenViT.
        output: folder of the pictures.
    """
    torch.manual_seed(0)
    opened = open_images(images)
    sheets = {
        "kept_patches": kept_patches(opened, patch_size, keep),
        "context_scores": context_scores(opened, load_model(mobilevit, "MobileViTv2")),
        "rollout": rollout(opened, load_model(vit, "KerformerViT")),
    }
    output.mkdir(parents=True, exist_ok=True)
    files = [output / f"{name}.png" for name in sheets]
    for file, sheet in zip(files, sheets.values(), strict=True):
        sheet.save(file)
    return files


def open_images(paths: Sequence[Path]) -> dict[str, Image.Image]:
    if paths:
        return {path.stem: to_rgb(Image.open(path)) for path in paths}
    from sklearn.datasets import load_sample_images

    samples = load_sample_images()
    names = (Path(name).stem for name in samples.filenames)
    return {name: Image.fromarray(pixels) for name, pixels in zip(names, samples.images, strict=True)}


def load_model(source: str | None, family: str):
    if source is not None:
        return AutoModelForImageClassification.from_pretrained(source)
    print(f"{family}: no checkpoint given, so the weights are random")
    config = getattr(hf_efficient, f"{family}Config")()
    return getattr(hf_efficient, f"{family}ForImageClassification")(config)


def prepared(image: Image.Image, config) -> tuple[torch.Tensor, Image.Image]:
    """What the model sees, and the same as a picture"""
    processor = hf_efficient.image_processor_for(config)
    size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
    return processor(image, return_tensors="pt")["pixel_values"], image.resize((size, size))


def kept_patches(images: dict[str, Image.Image], patch_size: int, keep: float) -> Image.Image:
    side = 224 // patch_size
    top_k = max(1, round(keep * side**2))
    config = hf_efficient.HuggingGreenViTConfig(patch_size=patch_size)
    rows = []
    for name, image in images.items():
        pixel_values, picture = prepared(image, config)
        pictures = [picture]
        for heuristic in HEURISTICS:
            selector = PatchSelector(heuristic, patch_size, top_k, side**2, select_at_eval=True).eval()
            kept = selector(pixel_values)
            kept = torch.arange(side**2) if kept is None else kept[0]
            pictures.append(visualization.draw_kept_patches(picture, kept, (side, side)))
        rows.append((name, pictures))
    return visualization.contact_sheet(rows, [f"{top_k} of {side**2} patches", *HEURISTICS])


def context_scores(images: dict[str, Image.Image], model) -> Image.Image:
    strides, rows = (8, 16, 32), []
    for name, image in images.items():
        pixel_values, picture = prepared(image, model.config)
        drawn = [visualization.draw_context_scores(model, pixel_values, picture, stride) for stride in strides]
        rows.append((name, [picture, *drawn]))
    return visualization.contact_sheet(rows, ["image", *(f"output stride {stride}" for stride in strides)])


def rollout(images: dict[str, Image.Image], model) -> Image.Image:
    rows = []
    for name, image in images.items():
        pixel_values, picture = prepared(image, model.config)
        rows.append((name, [picture, visualization.draw_rollout(model, pixel_values, picture)]))
    return visualization.contact_sheet(rows, ["image", "attention rollout"])
