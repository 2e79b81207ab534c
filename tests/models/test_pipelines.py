"""From a saved directory to `pipeline()`, with the processor that was saved beside the weights."""

import numpy as np
import pytest
from families import VISION, tiny_model
from PIL import Image
from transformers import AutoImageProcessor, pipeline

from hf_efficient import image_processor_for
from hf_efficient.models.auto import FAMILIES

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8))
families = pytest.mark.parametrize("family", VISION)
having = {
    auto: pytest.mark.parametrize("family", [name for name in VISION if auto in FAMILIES[name].models])
    for auto in ("AutoModelForObjectDetection", "AutoModelForSemanticSegmentation")
}


def saved(directory, family, auto):
    model = tiny_model(family, auto, id2label=dict(enumerate(["ant", "bee", "cat", "dog", "elk"])))
    model.save_pretrained(directory)
    image_processor_for(model.config).save_pretrained(directory)  # the architecture decides
    return model


@families
def test_image_classification(family, tmp_path):
    model = saved(tmp_path, family, "AutoModelForImageClassification")
    result = pipeline("image-classification", model=str(tmp_path), top_k=5)(PHOTO)
    pixels = AutoImageProcessor.from_pretrained(tmp_path)(PHOTO, return_tensors="pt")["pixel_values"]
    expected = model(pixels).logits.softmax(-1)[0]
    assert {row["label"]: row["score"] for row in result} == pytest.approx(
        {model.config.id2label[i]: p.item() for i, p in enumerate(expected)}, abs=1e-5
    )


@families
def test_image_feature_extraction(family, tmp_path):
    model = saved(tmp_path, family, "AutoModel")
    extract = pipeline("image-feature-extraction", model=str(tmp_path))
    pixels = AutoImageProcessor.from_pretrained(tmp_path)(PHOTO, return_tensors="pt")["pixel_values"]
    np.testing.assert_allclose(extract(PHOTO), model(pixels)[0].detach().numpy(), atol=1e-5)
    assert np.shape(extract(PHOTO, pool=True))[0] == 1


@having["AutoModelForObjectDetection"]
def test_object_detection(family, tmp_path, caplog):
    saved(tmp_path, family, "AutoModelForObjectDetection")
    found = pipeline("object-detection", model=str(tmp_path), threshold=0.0)(PHOTO)
    assert found
    for row in found:
        assert row["label"] in ("ant", "bee", "cat", "dog", "elk") and 0 <= row["score"] <= 1
        assert set(row["box"]) == {"xmin", "ymin", "xmax", "ymax"}
    assert "is not supported" not in caplog.text


@having["AutoModelForSemanticSegmentation"]
def test_image_segmentation(family, tmp_path, caplog):
    saved(tmp_path, family, "AutoModelForSemanticSegmentation")
    found = pipeline("image-segmentation", model=str(tmp_path))(PHOTO)
    assert found and all(row["mask"].size == PHOTO.size for row in found)
    total = sum(np.asarray(row["mask"]).astype(bool).astype(int) for row in found)
    assert (total == 1).all()  # every pixel has one label
    assert "is not supported" not in caplog.text


@families
@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1)])
def test_thin_images_are_classified(family, size, tmp_path):
    saved(tmp_path, family, "AutoModelForImageClassification")
    (best, *_) = pipeline("image-classification", model=str(tmp_path))(PHOTO.resize(size))
    assert np.isfinite(best["score"])
