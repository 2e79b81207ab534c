"""Images that can't be read: the file is named, and skipped and counted only if that was asked for."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from hf_efficient.data.image_cache import CorruptRow
from hf_efficient.data.image_sets import load_images
from hf_efficient.data.images import to_rgb


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few bytes that says it has 3.6 billion pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def truncated() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "JPEG")
    return file.getvalue()[: file.tell() // 2]


DAMAGE = {
    "truncated": (truncated(), "truncated"),
    "no image": (b"not an image", "cannot identify"),
    "a bomb": (bomb(), r"3600000000 pixels\) exceeds"),
    "missing": (None, "there is no file"),
}


@pytest.fixture
def folder(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / label / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_no_image_is_named_or_skipped(folder, kind):
    content, reason = DAMAGE[kind]
    file = folder / "cat" / "9.jpg"
    file.write_bytes(content) if content is not None else file.symlink_to("nowhere.jpg")
    with pytest.raises(CorruptRow, match=f"cat/9.jpg: .*{reason}"):
        load_images(folder)
    train, evaluation = load_images(folder, skip_corrupt=True)
    assert len(train) + len(evaluation) == 8 and len(train.skipped) == 1 and "cat/9.jpg" in train.skipped[0]


def test_a_bomb_is_not_decoded():
    with pytest.raises(Image.DecompressionBombError):
        to_rgb(Image.open(io.BytesIO(bomb())))
