"""A page that is served once for all tests."""

import sys
from pathlib import Path

import pytest
from browsing import ARGUMENTS, CHROMIUM, ROOT, Visitor, missing, serve


def pytest_collection_modifyitems(items):
    if reason := missing():
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """Of a page with the zoo's models, a detector, a segmenter and a model with compressed memory."""
    folder = tmp_path_factory.mktemp("page")
    names = make_models(folder)
    process, where, log = serve([sys.executable, "-m", "hf_efficient", "app", *names], folder, PYTHONPATH=str(ROOT))
    yield where
    process.terminate()
    process.wait(10)
    assert "a handler of the page failed" not in log.read_text()


def make_models(folder: Path) -> list[str]:
    """Of random weights: what they say is nothing, how it is shown is what is tested."""
    import torch

    import hf_efficient
    from hf_efficient import image_processor_for
    from hf_efficient.data.tokenization import build_tokenizer

    torch.manual_seed(0)
    sizes = {"image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "aspp_out_channels": 16}
    config = hf_efficient.MobileViTv2Config(**sizes, id2label={0: "<b>ant</b>", 1: "<b>bee</b>", 2: "<b>cat</b>"})
    for task, head in (("object-detection", "ObjectDetection"), ("image-segmentation", "SemanticSegmentation")):
        getattr(hf_efficient, f"MobileViTv2For{head}")(config).save_pretrained(folder / head)
        image_processor_for(config, task).save_pretrained(folder / head)
    memory = {"segment_length": 16, "memory_length": 16, "compressed_memory_length": 16}
    config = hf_efficient.CompressivePerformerConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, compression_rate=2, **memory
    )
    hf_efficient.CompressivePerformerForCausalLM(config).save_pretrained(folder / "memory")
    build_tokenizer("byte").save_pretrained(folder / "memory")
    return ["ObjectDetection", "SemanticSegmentation", "memory"]


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visitor(chromium, address):
    """A function that opens the page anew, in a browser that knows nothing of the others."""
    visitors = []

    def visit(**options) -> Visitor:
        visitors.append(Visitor(chromium, address, **options))
        return visitors[-1]

    yield visit
    for guest in visitors:
        guest.context.close()
