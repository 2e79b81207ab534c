"""Draws what the models look at, as contact sheets: make pictures ARGS="--help"."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from transformers import AutoModelForImageClassification

import hf_efficient
from hf_efficient import visualization
from hf_efficient.data.images import to_rgb
from hf_efficient.layers.patch_selection import HEURISTICS, PatchSelector

DESCRIPTION = """
Three contact sheets (PNG):

  kept_patches.png    what each heuristic of HuggingGreenViT keeps of an image
  context_scores.png  where MobileViTv2's context comes from, at output strides 8, 16 and 32
  rollout.png         attention rollout of a ViT, from CLS to the patches

Kept patches need no trained model. The other two show a model of yours (--mobilevit, --vit); without one, one with
random weights, which shows that drawing works and nothing else.
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", type=Path, help="default: two photographs of scikit-learn")
    parser.add_argument("--keep", type=float, default=0.5, help="share of the patches to keep (default: 0.5)")
    parser.add_argument("--patch-size", type=int, default=16, help="of images of 224 x 224 pixels (default: 16)")
    parser.add_argument("--mobilevit", metavar="DIR_OR_REPO", help="a MobileViTv2 for image classification")
    parser.add_argument("--vit", metavar="DIR_OR_REPO", help="a KerformerViT or HuggingGreenViT for classification")
    parser.add_argument("--output", type=Path, default=Path("results/pictures"), metavar="DIR")
    arguments = parser.parse_args()
    if not 0 < arguments.keep <= 1:
        parser.error(f"--keep {arguments.keep}: a share in (0, 1] is needed.")
    if arguments.patch_size < 1 or 224 % arguments.patch_size:
        parser.error(f"--patch-size {arguments.patch_size}: a divisor of 224 is needed.")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    images = load_images(arguments.images)
    arguments.output.mkdir(parents=True, exist_ok=True)
    sheets = {
        "kept_patches": kept_patches(images, arguments.patch_size, arguments.keep),
        "context_scores": context_scores(images, load_model(arguments.mobilevit, "MobileViTv2")),
        "rollout": rollout(images, load_model(arguments.vit, "KerformerViT")),
    }
    for name, sheet in sheets.items():
        file = arguments.output / f"{name}.png"
        sheet.save(file)
        print(f"written: {file}")


def load_images(paths: list[Path]) -> dict[str, Image.Image]:
    if paths:
        return {path.stem: to_rgb(Image.open(path)) for path in paths}
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


if __name__ == "__main__":
    main()
