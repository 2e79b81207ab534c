"""A page that is served, and browsers that keep an account of what they are sent."""

import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 60_000  # milliseconds
ADDRESS = "The page is at "


def missing() -> str | None:
    """Why there is no browser test here."""
    if CHROMIUM is None:
        return "Chromium is not installed (Debian: apt install chromium)"
    for name in ("gradio", "playwright"):
        if find_spec(name) is None:
            return f"{name} is not installed: `make app-test` brings it"
    return None


def serve(words: list[str], folder: Path, **variables: str) -> tuple[subprocess.Popen, str, Path]:
    """A process that serves a page, its address, and what it prints."""
    log = folder / "log.txt"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **variables}
    with log.open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    for _ in range(600):
        said = log.read_text()
        if ADDRESS in said:
            return process, said.split(ADDRESS)[1].split()[0], log
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(log.read_text())


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
