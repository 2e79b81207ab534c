"""Pictures to begin with, drawn here: simple scenes that a model of CIFAR-10's classes can be asked about."""

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

SIDE = 256


def ship() -> Image.Image:
    picture = sky((196, 218, 238), (120, 170, 214))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 160, SIDE, SIDE), fill=(28, 74, 118))
    for y in range(168, SIDE, 14):
        draw.line((0, y, SIDE, y + 4), fill=(58, 108, 152), width=2)
    draw.polygon([(30, 140), (226, 140), (200, 186), (58, 186)], fill=(70, 24, 24))
    draw.rectangle((78, 108, 176, 140), fill=(238, 238, 232))
    draw.rectangle((104, 84, 150, 108), fill=(226, 226, 222))
    draw.rectangle((118, 52, 134, 84), fill=(196, 62, 40))
    return soft(picture)


def truck() -> Image.Image:
    picture = sky((214, 224, 232), (178, 196, 210))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 176, SIDE, SIDE), fill=(96, 96, 98))
    draw.rectangle((24, 74, 164, 178), fill=(222, 222, 216))
    draw.polygon([(170, 104), (212, 104), (234, 142), (234, 178), (170, 178)], fill=(190, 40, 36))
    draw.polygon([(178, 112), (208, 112), (222, 140), (178, 140)], fill=(60, 84, 108))
    for x in (64, 120, 204):
        draw.ellipse((x - 22, 160, x + 22, 204), fill=(24, 24, 26))
        draw.ellipse((x - 9, 173, x + 9, 191), fill=(150, 150, 152))
    return soft(picture)


def airplane() -> Image.Image:
    picture = sky((88, 148, 214), (170, 206, 236))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((28, 112, 226, 146), fill=(236, 238, 242))
    draw.polygon([(104, 134), (148, 134), (96, 206), (76, 206)], fill=(176, 182, 192))
    draw.polygon([(112, 120), (146, 120), (126, 76), (112, 76)], fill=(200, 204, 212))
    draw.polygon([(36, 124), (66, 122), (44, 74), (26, 74)], fill=(40, 66, 130))
    return soft(picture)


def sky(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    grey = Image.linear_gradient("L").resize((SIDE, SIDE))
    return Image.composite(Image.new("RGB", (SIDE, SIDE), bottom), Image.new("RGB", (SIDE, SIDE), top), grey)


def soft(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(2))


def example_files() -> list[Path]:
    """The drawings as files, and two photographs where scikit-learn is installed."""
    folder = Path(tempfile.mkdtemp(prefix="hf_efficient_examples_"))
    for draw in (ship, truck, airplane):
        draw().save(folder / f"{draw.__name__}.png")
    try:
        from sklearn.datasets import load_sample_images

        samples = load_sample_images()
        for name, pixels in zip(samples.filenames, samples.images, strict=True):
            Image.fromarray(pixels).save(folder / Path(name).name)
    except ImportError:
        pass
    return sorted(folder.iterdir())
