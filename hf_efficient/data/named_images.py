"""Where the images that have names of their own are found, and what is known of them."""

import os
import re
from pathlib import Path

from .folders import DATA_FOLDER
from .image_files import Finder
from .image_sources import Source

FOLDERS = {
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "tiny-imagenet": "tiny_imagenet",
    "mnist": "mnist",
    "bccd": "bccd",
    "camvid": "camvid",
}
REPOSITORIES = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "mnist": "ylecun/mnist",
}
CAMVID = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign_symbol",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
# What the data themselves don't say.
FACTS = {
    "tiny-imagenet": {"box_format": "inclusive"},
    "camvid": {"class_names": CAMVID, "ignore_index": 11},
}


def find_sources(name: str, finder: Finder) -> dict[str, Source]:
    """The splits of a name, a path, or <owner>/<name> of the Hub."""
    if name in FOLDERS:
        return _named(name, finder)
    path = Path(name).expanduser()
    if path.exists():
        return finder.find(path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        return _on_hub(name, finder)
    known = ", ".join((*FOLDERS, "digits"))
    raise ValueError(
        f"unknown images {name!r}: there are {known}, <owner>/<name> of the Hub, or the path of a parquet, csv or "
        "json file, a folder of them, or a folder of images, as <path>/train/<class>/<image>.png."
    )


def _named(name: str, finder: Finder) -> dict[str, Source]:
    if DATA_FOLDER in os.environ:
        folder = Path(os.environ[DATA_FOLDER]).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{DATA_FOLDER}={str(folder)!r} is not a folder.")
        if (folder / FOLDERS[name]).is_dir():
            return finder.find(folder / FOLDERS[name])
    missing = (
        f"{name} is not in the folder that the variable {DATA_FOLDER} names "
        f"({os.environ.get(DATA_FOLDER, 'not set')}), which should hold it as {FOLDERS[name]}/*.parquet or "
        f"{FOLDERS[name]}/train/<class>/<image>.png"
    )
    if name not in REPOSITORIES:
        raise ValueError(f"{missing}.")
    try:
        return _on_hub(REPOSITORIES[name], finder)
    except ValueError as error:
        raise ValueError(f"{missing}, and {error}") from error


def _on_hub(repository: str, finder: Finder) -> dict[str, Source]:
    from datasets.exceptions import DatasetsError

    try:
        return finder.on_hub(repository)
    except (OSError, DatasetsError, ValueError) as error:
        raise ValueError(f"{repository} can't be read from the Hub: {error}") from error
