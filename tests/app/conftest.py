"""A page that is served once for all tests, and a browser that keeps an account of what it is sent."""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 20_000  # milliseconds


def missing() -> str | None:
    """Why there is no browser test here."""
    if CHROMIUM is None:
        return "Chromium is not installed (Debian: apt install chromium)"
    for name in ("gradio", "playwright"):
        if find_spec(name) is None:
            return f"{name} is not installed: `make app-test` brings it"
    return None


def pytest_collection_modifyitems(items):
    if reason := missing():
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=reason))


def serve(words, folder: Path, address_after: str = "The page is at "):
    """A process that serves a page, and its address."""
    log = folder / "log.txt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    for _ in range(600):
        said = log.read_text()
        if address_after in said:
            return process, said.split(address_after)[1].split()[0], log
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(log.read_text())


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """Of a page with the zoo's models, a detector, a segmenter and a model with compressed memory."""
    folder = tmp_path_factory.mktemp("page")
    names = make_models(folder)
    process, where, log = serve([sys.executable, "-m", "hf_efficient", "app", *names], folder)
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


class Visitor:
    """A browser of one's own, and everything that it asked for or complained about."""

    def __init__(self, chromium, address: str, width: int = 1400, dark: bool = False):
        scheme = "dark" if dark else "light"
        self.context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.context.set_default_timeout(PATIENCE)
        self.page, self.requests, self.complaints = self.context.new_page(), [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("response", lambda r: self.complaints.append(f"{r.status} {r.url}") if r.status > 399 else None)
        self.page.goto(address)
        self.page.get_by_role("tab", name="Look").wait_for()

    def open(self, tab: str):
        self.page.get_by_role("tab", name=tab).click()
        return self.page

    def choose(self, label: str, option: str):
        self.page.get_by_label(label, exact=True).locator("visible=true").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def check(self):
        """What holds of every visit."""
        far = [url for url in self.requests if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
        assert self.requests and not far, far
        assert not self.complaints, self.complaints
        width = self.page.evaluate("document.documentElement.scrollWidth")
        assert width <= self.page.viewport_size["width"]


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
