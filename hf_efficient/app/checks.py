"""What visitors send, checked: numbers within bounds, pictures that are pictures."""

import math
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from ..data.images import open_rgb
from ..errors import CommandError, told

MOST_PIXELS = 40_000_000
LONGEST_SIDE_TO_SHOW = 1600


def within(name: str, value, least: float, most: float, whole: bool = True) -> float:
    """The number, if it is one and in its range."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and least <= number <= most) or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise CommandError(f"{name} must be {kind} from {least:,} to {most:,}.")
    return int(number) if whole else float(number)


def one_of(name: str, value, known) -> str:
    if value not in known:
        raise CommandError(f"Choose {name}: there are {', '.join(known)}.")
    return value


def open_picture(file: str | Path | None) -> Image.Image:
    """A picture as the pipelines read it (transparency shows white, 16 bits are scaled, EXIF turns it upright)."""
    if not file:
        raise CommandError("There is no image yet: upload one, take one with the camera, or choose an example.")
    try:
        with told("This image can't be read"):
            with Image.open(file) as image:  # reads the header only
                pixels = image.width * image.height
            if pixels > MOST_PIXELS:
                raise CommandError(f"This image has {pixels:,} pixels; {MOST_PIXELS:,} are the most.")
            picture = open_rgb(file)
    except CommandError as error:
        if isinstance(error.__cause__, UnidentifiedImageError):  # its message has the name of a file of ours
            raise CommandError("This is no image that can be read. PNG, JPEG, WebP, BMP, GIF and TIFF can.") from error
        raise CommandError(str(error).replace(str(file), "the file")) from error
    except Exception as error:  # of what a decoder may raise there is no end
        raise CommandError(f"This image is damaged: its decoder says {type(error).__name__}.") from error
    picture.thumbnail((LONGEST_SIDE_TO_SHOW, LONGEST_SIDE_TO_SHOW))
    return picture
