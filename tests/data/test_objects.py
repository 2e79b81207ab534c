"""Objects: any number of boxes in an image, from tables, COCO's files and folders, moved with their image."""

import json
import os
from pathlib import Path

import pytest
import torch
from image_files import as_bytes, photo, write_table

from hf_efficient.data.augmentation import Augmentation, resized_crop_boxes
from hf_efficient.data.folders import CACHE_FOLDER, DATA_FOLDER
from hf_efficient.data.image_batches import ImageBatches
from hf_efficient.data.image_cache import CorruptRow
from hf_efficient.data.image_sets import ImageSet, load_images, load_objects
from hf_efficient.data.objects import Objects

SHARED = Path(os.environ.get(DATA_FOLDER, Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


def three_images() -> Objects:
    """Two objects, none, one"""
    boxes = torch.tensor([[0.5, 0.5, 1, 1], [0.25, 0.5, 0.5, 1], [0.75, 0.75, 0.5, 0.5]])
    sizes = torch.tensor([[8, 16], [8, 8], [4, 4]])
    return Objects(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1]), boxes, sizes)


def test_objects_are_taken_by_image():
    objects = three_images()
    assert objects.counts.tolist() == [2, 0, 1] and objects.owners.tolist() == [0, 0, 2]
    some = objects[torch.tensor([2, 1, 0, 0])]
    assert some.classes.tolist() == [1, 0, 1, 0, 1] and some.offsets.tolist() == [0, 1, 1, 3, 5]
    assert torch.equal(some.boxes[0], objects.boxes[2]) and some.sizes.tolist()[:2] == [[4, 4], [8, 8]]
    labels = objects.as_labels()
    assert [label["class_labels"].tolist() for label in labels] == [[0, 1], [], [1]]
    assert labels[1]["boxes"].shape == (0, 4) and labels[0]["orig_size"].tolist() == [8, 16]
    assert objects.rarest().tolist() == [0, -1, 1]
    gone = objects.moved(objects.boxes * torch.tensor([[1.0], [0.0], [1.0]]))
    assert gone.offsets.tolist() == [0, 1, 1, 2] and gone.classes.tolist() == [0, 1]
    with pytest.raises(ValueError, match="2 classes and boxes"):
        Objects(objects.offsets, objects.classes[:2], objects.boxes, objects.sizes)


def boxed(folder: Path, *boxes, categories=None) -> Path:
    """A table of images of 16x8 pixels with these boxes"""
    objects = [{"bbox": [list(map(float, box)) for box in some], "category": [0] * len(some)} for some in boxes]
    if categories:
        for record, names in zip(objects, categories, strict=True):
            record["category"] = names
    images = [photo(i, (16, 8)) for i in range(len(objects))]
    for split in ("train", "validation"):
        write_table(folder / f"{split}.parquet", images, [0] * len(images), names=None, objects=objects)
    return folder


def test_box_formats(tmp_path):
    folder = boxed(tmp_path / "set", [(0, 0, 15, 7)], [(4, 2, 5, 3)])
    found = {name: load_objects(folder, box_format=name).train.labels.boxes for name in ("xywh", "xyxy", "inclusive")}
    assert found["xywh"].tolist() == pytest.approx(
        torch.tensor([[7.5 / 16, 3.5 / 8, 15 / 16, 7 / 8], [6.5 / 16, 3.5 / 8, 5 / 16, 3 / 8]])
    )
    assert found["xyxy"][1].tolist() == [4.5 / 16, 2.5 / 8, 1 / 16, 1 / 8]
    assert found["inclusive"].tolist() == [[0.5, 0.5, 1, 1], [5 / 16, 3 / 8, 2 / 16, 2 / 8]]
    assert torch.equal(load_objects(folder).train.labels.boxes, found["xywh"])
    assert load_images(folder).train.kind == "label"


def test_any_number_of_boxes_and_words_as_categories(tmp_path):
    names = [["dog", "cat"], [], ["cat"]]
    folder = boxed(tmp_path / "set", [(0, 0, 1, 1), (1, 1, 3, 2)], [], [(0, 0, 16, 8)], categories=names)
    train, evaluation = load_objects(folder)
    assert train.class_names == ["cat", "dog"] and train.labels.classes.tolist() == [1, 0, 0]
    assert train.labels.counts.tolist() == [2, 0, 1] and len(evaluation) == 3
    assert train.labels.sizes.tolist() == [[8, 16]] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((3, 2, 0, 1), r"box \[3.0, 2.0, 0.0, 1.0\], read as box_format=xywh, has no area"),
        ((3, 2, -2, 1), "has no area"),
        ((10, 0, 7, 2), "is not inside the image of 16x8 pixels; there are also xyxy, inclusive"),
        ((20, 0, 2, 2), "is not inside the image"),
        ((float("nan"), 0, 2, 2), "must be four numbers"),
        ((1, 2, 3), "must be four numbers"),
    ],
)
def test_wrong_boxes_are_named_or_left_out_and_counted(tmp_path, wrong, message):
    folder = boxed(tmp_path / "set", [(0, 0, 1, 1)], [(0, 0, 2, 2), wrong, (1, 1, 2, 2)])
    with pytest.raises(CorruptRow, match=f"train.parquet, row 1: object 1: .*{message}"):
        load_objects(folder)
    train, _ = load_objects(folder, skip_corrupt=True)
    assert train.labels.counts.tolist() == [1, 2] and len(train.skipped) == 1 and "row 1: object 1" in train.skipped[0]


def test_what_reaches_less_than_a_pixel_beyond_is_cut_off(tmp_path):
    train, _ = load_objects(boxed(tmp_path / "set", [(-0.5, 0, 16.9, 8)]))
    assert train.labels.boxes.tolist() == [[0.5, 0.5, 1, 1]]


def test_unknown_categories_and_objects_of_another_shape(tmp_path):
    folder = boxed(tmp_path / "set", [(0, 0, 1, 1)], categories=[["cat"]])
    write_table(
        folder / "validation.parquet", [photo(0)], [0], None, objects=[{"bbox": [[0.0, 0, 1, 1]], "category": ["fox"]}]
    )
    with pytest.raises(CorruptRow, match=r"validation.parquet, row 0: object 0: label 'fox' is not one of"):
        load_objects(folder)
    for number, (objects, message) in enumerate(
        [
            ({"bbox": [[0.0, 0, 1, 1]], "category": [0, 1]}, "there are 1 boxes and 2 categories"),
            (
                {"rectangle": [[0.0, 0, 1, 1]], "category": [0]},
                "objects need one of bbox, .* have rectangle",
            ),
        ]
    ):
        file = write_table(tmp_path / f"{number}.parquet", [photo(0)], [0], None, objects=[objects])
        with pytest.raises(ValueError, match=message):
            load_objects(file)


def test_objects_in_csv(tmp_path):
    """As JSON; a cell that is none is named, or left out."""
    cells = ['"{""bbox"": [[0, 0, 2, 2]], ""category"": [""cell""]}"'] * 8
    for i in range(8):
        photo(i).save(tmp_path / f"{i}.png")
    for cells[3], message in (("{bbox", r"row 3 .*column 'objects': '\{bbox' is not JSON"), ("5", "row 3 .*, got 5")):
        rows = [f"{i}.png,{cell}" for i, cell in enumerate(cells)]
        (tmp_path / "a.csv").write_text("\n".join(["file_name,objects", *rows]))
        with pytest.raises(CorruptRow, match=message):
            load_objects(tmp_path / "a.csv")
        train, evaluation = load_objects(tmp_path / "a.csv", skip_corrupt=True)
        assert len(train) + len(evaluation) == 7 and train.class_names == ["cell"]


def write_coco(folder: Path, count: int = 4, **changes) -> Path:
    """Images of different sizes; image i has i boxes."""
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for i in range(count):
        photo(i, (16 + i, 8)).save(folder / "images" / f"{i}.png")
        images.append({"id": 10 + i, "file_name": f"{i}.png", "width": 16 + i, "height": 8})
        annotations += [
            {"id": len(annotations) + j, "image_id": 10 + i, "category_id": 7 if j % 2 else 3, "bbox": [j, 0, 2, 4]}
            for j in range(i)
        ]
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        **changes,
    }
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder / "annotations.json"


def test_coco_files(tmp_path):
    file = write_coco(tmp_path / "coco", count=8)
    train, evaluation = load_objects(file, image_size=(8, 16))
    assert train.class_names == ["cat", "dog"] and len(train) + len(evaluation) == 8
    assert train.pixels.shape[2:] == (8, 16)
    counts = torch.cat([train.labels.counts, evaluation.labels.counts])
    assert sorted(counts.tolist()) == list(range(8))
    row = train.labels.counts.argmax()
    last = train.labels[row[None]]
    wide, many = int(last.sizes[0, 1]), int(last.counts[0])
    assert last.boxes[-1].tolist() == pytest.approx([many / wide, 2 / 8, 2 / wide, 4 / 8])
    assert last.classes.tolist() == [i % 2 for i in range(many)]


def test_images_may_be_in_a_folder_of_their_own(tmp_path, monkeypatch):
    """Named from where one stands, or as a whole path."""
    write_coco(tmp_path / "coco", count=8).rename(tmp_path / "boxes.json")
    monkeypatch.chdir(tmp_path)
    for folder in ("coco/images", tmp_path / "coco" / "images"):
        assert load_objects("boxes.json", image_size=8, image_folder=str(folder)).train.class_names == ["cat", "dog"]


def test_coco_folders_have_splits(tmp_path):
    write_coco(tmp_path / "set" / "train")
    write_coco(tmp_path / "set" / "valid", count=3)
    train, evaluation = load_objects(tmp_path / "set", image_size=8)
    assert (len(train), len(evaluation)) == (4, 3)
    with pytest.raises(ValueError, match="is a COCO file of boxes: they are for task: object-detection"):
        load_images(tmp_path / "set")


def test_crowds_are_left_out_and_counted(tmp_path):
    crowd = {"id": 1, "image_id": 10, "category_id": 3, "bbox": [0, 0, 16, 8], "iscrowd": 1}
    one = {"id": 2, "image_id": 11, "category_id": 3, "bbox": [0, 0, 16, 8]}
    train, evaluation = load_objects(write_coco(tmp_path / "set", annotations=[crowd, one] * 2), image_size=8)
    assert int(train.labels.counts.sum() + evaluation.labels.counts.sum()) == 2
    assert "2 boxes of crowds" in train.skipped[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": {}}, "has no list 'categories'"),
        ({"images": []}, "has no images|none that it lists"),
        (
            {"images": [{"id": 10, "file_name": "a.png"}], "annotations": []},
            "is in none of .*set image_folder",
        ),
        ({"images": [{"id": 10, "file_name": "0.png"}] * 2}, "the same id twice"),
        ({"categories": [{"id": 3, "name": "cat"}]}, r"annotations\[2\].category_id=7 is none that it lists"),
        ({"annotations": [{"image_id": 99, "category_id": 3}]}, r"annotations\[0\].image_id=99 is none"),
        ({"annotations": [{"image_id": 10, "category_id": 3}]}, r"annotations\[0\].bbox=None must be four"),
        (
            {"annotations": [{"image_id": 10, "category_id": 3, "bbox": ["a", 1, 2, 3]}]},
            r"annotations.json: annotations\[0\].bbox=\['a', 1, 2, 3\] must be four numbers",
        ),
        (
            {"annotations": [{"image_id": [10], "category_id": 3}]},
            r"annotations\[0\].image_id=\[10\] must be a number",
        ),
        ({"annotations": [5]}, r"annotations\[0\]=5 must be an object with keys"),
        ({"images": [{"id": 10}]}, r"images\[0\].file_name=None must be text"),
        ({"images": [{"file_name": "0.png"}]}, r"images\[0\].id=None must be a number"),
        ({"categories": [{"id": 3}]}, r"categories\[0\].name=None must be text"),
        ({"categories": [{"id": [3], "name": "cat"}]}, r"categories\[0\].id=\[3\] must be a number"),
        ({"categories": [{"id": 3, "name": x} for x in ("cat", "dog")]}, "categories have the same name or id twice"),
        ({"annotations": []}, "annotations.json has no objects: there is nothing to learn or to score"),
    ],
)
def test_wrong_coco_files(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_objects(write_coco(tmp_path / "set", **changes), image_size=8)


def test_a_file_that_is_missing_is_named(tmp_path):
    file = write_coco(tmp_path / "set", count=6)
    (tmp_path / "set" / "images" / "2.png").unlink()
    with pytest.raises(CorruptRow, match=r"there is no file .*2.png"):
        load_objects(file, image_size=8)
    train, evaluation = load_objects(file, image_size=8, skip_corrupt=True)
    assert len(train) + len(evaluation) == 5 and "2.png" in train.skipped[0]


def test_metadata_with_objects_beside_the_images(tmp_path):
    for split in ("train", "test"):
        folder = tmp_path / "set" / split
        folder.mkdir(parents=True)
        lines = []
        for i in range(3):
            photo(i, (16, 8)).save(folder / f"{i}.png")
            boxes = {"bbox": [[0, 0, 4, 4]] * i, "category": ["cell"] * i}
            lines.append(json.dumps({"file_name": f"{i}.png", "objects": boxes}))
        (folder / "metadata.jsonl").write_text("\n".join(lines))
    train, evaluation = load_objects(tmp_path / "set")
    assert train.labels.counts.tolist() == [0, 1, 2] and train.class_names == ["cell"] and len(evaluation) == 3


def test_boxes_go_where_their_objects_go():
    """White squares on black: wherever augmentation takes them, the box is around what is white."""
    generator = torch.Generator().manual_seed(0)
    count, size = 30, 32
    pixels, boxes, classes = torch.zeros(count, 3, size, size, dtype=torch.uint8), [], []
    for i in range(count):
        for _ in range(i % 2 + 1):  # of two, one may cover the other
            y, x = torch.randint(0, size - 8, (2,), generator=generator).tolist()
            pixels[i, len(classes) % 3, y : y + 8, x : x + 8] = 255
            boxes.append([(x + 4) / size, (y + 4) / size, 8 / size, 8 / size])
            classes.append(len(classes) % 3)
    counts = torch.arange(count) % 2 + 1
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    sizes = torch.tensor([[size, size]]).expand(count, 2)
    objects = Objects(offsets, torch.tensor(classes), torch.tensor(boxes), sizes)
    images = ImageSet(pixels, objects, ["red", "green", "blue"])
    turned = Augmentation(flip=True, vertical_flip=True)
    for augmentation in (Augmentation(flip=True, crop=6), Augmentation(flip=True, resized_crop=0.3), turned):
        batches = ImageBatches(images, mean=0, std=1, task="detection", augmentation=augmentation)
        batch = batches.__getitems__(list(range(count)))
        seen = 0
        for image, label in zip(batch["pixel_values"], batch["labels"], strict=True):
            for kind, (cx, cy, w, h) in zip(label["class_labels"], label["boxes"].tolist(), strict=True):
                rows, columns = (image[kind] > 0.5).nonzero().T
                if len(rows) == 0 or w * h * size**2 < 4:
                    continue
                expected = [(columns.min() + columns.max() + 1) / 2, (rows.min() + rows.max() + 1) / 2]
                assert [cx * size, cy * size] == pytest.approx([float(x) for x in expected], abs=1.5)
                seen += 1
        assert seen > 30


def test_a_crop_keeps_objects_whose_centre_is_in_it():
    boxes = torch.tensor([[0.25, 0.25, 0.5, 0.5], [0.9, 0.9, 0.1, 0.1]])
    parts = torch.tensor([[0.0, 0.0, 0.5, 0.5]]).expand(2, 4)  # the upper left quarter
    found = resized_crop_boxes(boxes, parts)
    assert found[0].tolist() == [0.5, 0.5, 1, 1] and found[1, 2] == 0


def test_parts_of_a_set_are_balanced_by_the_rarest_class(tmp_path):
    boxes = [[(0, 0, 1, 1)] * 3] * 12
    categories = [["red", "red", "white" if i % 6 == 0 else "red"] for i in range(12)]
    train, _ = load_objects(boxed(tmp_path / "set", *boxes, categories=categories), limit=4)
    assert (train.labels.classes == 1).sum() == 2  # both images with a white one


@pytest.mark.skipif(not (SHARED / "bccd").is_dir(), reason="../shared/data/bccd is not here")
def test_bccd(monkeypatch):
    monkeypatch.setenv(DATA_FOLDER, str(SHARED))
    train, evaluation = load_objects("bccd", image_size=(60, 80))
    assert (len(train), len(evaluation)) == (205, 87) and train.class_names == ["RBC", "WBC", "Platelets"]
    assert train.pixels.shape[2:] == (60, 80) and train.labels.sizes[0].tolist() == [480, 640]
    assert train.labels.classes.bincount().tolist() == [2381, 214, 209]
    assert train.labels.boxes[0].tolist() == pytest.approx([177 / 640, 397.5 / 480, 218 / 640, 165 / 480])


def test_images_in_json_are_told_apart_from_coco(tmp_path):
    """A list of records is rows."""
    (tmp_path / "a.png").write_bytes(as_bytes(photo(0)))
    record = {"image": "a.png", "objects": json.dumps([{"bbox": [0, 0, 2, 2], "label": "cell"}])}
    (tmp_path / "all.json").write_text(json.dumps([record] * 8))
    train, evaluation = load_objects(tmp_path / "all.json")
    assert len(train) == 6 and train.class_names == ["cell"]
