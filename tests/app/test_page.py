"""The page in a browser, used as a person would: make app-test."""

import io
import os
import re
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("APP_SCREENSHOTS")  # the folder of docs/app.md's pictures
each_width = pytest.mark.parametrize(("width", "dark"), [(1400, False), (320, True)])


def picture(width: int = 60, height: int = 40) -> dict:
    file = io.BytesIO()
    Image.effect_noise((width, height), 80).convert("RGB").save(file, "PNG")
    return {"name": "noise.png", "mimeType": "image/png", "buffer": file.getvalue()}


def upload(page, file: dict) -> None:
    page.locator("input[type=file]").first.set_input_files(file)


def said(page) -> str:
    """The sentence of an error."""
    toast = page.get_by_test_id("toast-body").last
    toast.wait_for()
    return toast.inner_text()


@each_width
def test_look(visitor, width, dark):
    guest = visitor(width=width, dark=dark)
    page = guest.page
    guest.choose("Model", "hugginggreen-vit-cifar10")
    page.get_by_role("button", name="airplane").click()
    page.locator("#kept table").wait_for()
    assert page.locator("#answers .bar").count() == 5
    shares = [float(text.rstrip("%")) for text in page.locator("#answers .bar-text").all_inner_texts()]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 101
    captions = page.locator("#insights figcaption").all_inner_texts()
    assert captions == ["as the model sees it", "attention rollout"]
    rows = [row.split() for row in page.locator("#kept tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == ["all", "contrast", "variance", "entropy"]
    assert page.locator("#kept caption").inner_text().startswith("32 of 64 patches")
    assert page.locator("#kept img").count() == 3 and "codecarbon" in page.locator("#kept .note").inner_text()
    slider = page.get_by_role("slider", name="Patches kept")
    slider.focus()
    slider.press("Home")  # by the keyboard
    page.locator("#kept caption", has_text="1 of 64 patches").wait_for()
    assert " 2 " in f" {' '.join(page.locator('#kept tbody tr').nth(1).locator('td').all_inner_texts())} "
    guest.check()


def test_context_maps(visitor):
    guest = visitor()
    guest.choose("Model", "mobilevit-v2-cifar10")
    upload(guest.page, picture())
    guest.page.locator("#insights figcaption", has_text="context, a map of 4 x 4").wait_for()
    assert not guest.page.locator("#top_k").is_visible()  # it drops no patches
    guest.check()


@pytest.mark.parametrize(("model", "heading"), [("ObjectDetection", "found"), ("SemanticSegmentation", "where")])
def test_boxes_and_masks(visitor, model, heading):
    guest = visitor()
    guest.choose("Model", model)
    if model == "ObjectDetection":
        guest.page.get_by_label("Least score of a box").first.fill("0")
    upload(guest.page, picture())
    guest.page.locator("#answers h3", has_text=heading).wait_for()
    assert guest.page.locator("#answers .bar").count() >= 1
    assert "<b>" in guest.page.locator("#answers").inner_text()  # as a text
    assert guest.page.locator("#insights img").count() == (1 if model == "ObjectDetection" else 2)
    guest.check()


def test_what_is_no_image_is_told(visitor):
    guest = visitor()
    guest.page.get_by_role("button", name="Look", exact=True).click()
    assert "There is no image yet" in said(guest.page)
    upload(guest.page, {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"})
    guest.page.get_by_text("This is no image that can be read").wait_for()
    upload(guest.page, {**picture(), "buffer": picture(300, 300)["buffer"][:2000]})
    guest.page.get_by_text(re.compile("This image (is damaged|can't be read)")).wait_for()
    assert "Traceback" not in guest.page.content() and "/tmp" not in guest.page.inner_text("body")


@each_width
def test_write(visitor, width, dark):
    guest = visitor(width=width, dark=dark)
    page = guest.open("Write")
    guest.choose("Model", "memory")
    page.get_by_label("Tokens to write").first.fill("120")
    page.get_by_role("button", name="Write a new text").click()
    page.locator("#memory", has_text="134 tokens read").wait_for()  # 15 of the prompt, all but the last that it wrote
    rows = page.locator("#memory .bar").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == [
        *("open segment 6 of 16", "recent memory 16 of 16", "compressed memory 16 of 16")
    ]
    assert page.locator("#text textarea").input_value().startswith("The history of ")
    chart = page.locator("#times svg")
    assert {"this model", "GPT-2"} <= set(chart.locator("text").all_text_contents())
    assert chart.locator("polyline").count() == 2
    page.get_by_role("button", name="Go on").click()
    page.locator("#memory", has_text="254 tokens read").wait_for()
    guest.check()


def test_visitors_have_texts_of_their_own(visitor):
    first, second = visitor(), visitor()
    for guest, prompt in ((first, "One fish"), (second, "Two birds")):
        page = guest.open("Write")
        page.get_by_label("Prompt").fill(prompt)
        page.get_by_label("Tokens to write").first.fill("40")
        page.get_by_role("button", name="Write a new text").click()
    for guest, read in ((first, 47), (second, 48)):
        guest.page.locator("#memory", has_text=f"{read} tokens read").wait_for()
        guest.page.get_by_role("button", name="Go on").click()
    for guest, prompt, read in ((first, "One fish", 87), (second, "Two birds", 88)):
        guest.page.locator("#memory", has_text=f"{read} tokens read").wait_for()
        assert guest.page.locator("#text textarea").input_value().startswith(prompt)
        guest.check()


def test_an_empty_prompt_is_told(visitor):
    guest = visitor()
    page = guest.open("Write")
    page.get_by_label("Prompt").fill("")
    page.get_by_role("button", name="Write a new text").click()
    assert "The prompt is empty" in said(page)
    page.get_by_role("button", name="Go on").click()
    guest.page.get_by_text("The prompt is empty").last.wait_for()


def test_stop(visitor):
    guest = visitor()
    page = guest.open("Write")
    page.get_by_label("Tokens to write").first.fill("4000")
    page.get_by_role("button", name="Write a new text").click()
    page.locator("#memory .bar").first.wait_for()
    page.get_by_role("button", name="Stop").locator("visible=true").click()
    page.wait_for_timeout(1500)
    before = page.locator("#memory .note").inner_text()
    page.wait_for_timeout(1500)
    assert page.locator("#memory .note").inner_text() == before
    guest.check()


@each_width
def test_compare(visitor, width, dark):
    guest = visitor(width=width, dark=dark)
    page = guest.open("Compare")
    page.get_by_label("512", exact=True).check()
    page.get_by_role("button", name="Measure", exact=True).click()
    page.get_by_role("progressbar").wait_for()
    page.locator("#progress", has_text="measured").wait_for()
    for chart in ("#speed", "#bytes"):
        names = set(page.locator(f"{chart} text").all_text_contents())
        assert {"softmax", "linear_elu", "performer", "local", "256", "512"} <= names
    assert page.locator("#pareto circle").count() >= 2
    best = page.locator("#leaderboard tbody th").first
    first = best.inner_text()
    page.get_by_label("Largest first").uncheck()
    page.wait_for_function(
        "first => document.querySelector('#leaderboard tbody th').innerText !== first", arg=first
    )  # now the worst stands there
    page.get_by_label("Largest first").check()
    page.locator("#leaderboard tbody th").first.filter(has_text=first).wait_for()
    guest.check()


def test_other_leaderboards_and_mechanisms(visitor):
    guest = visitor()
    page = guest.open("Compare")
    guest.choose("Data, score and budget", "enwik8: test bits per byte, 16min of training")
    page.locator("#pareto figcaption", has_text="bits per byte").wait_for()
    page.get_by_label("Causal: later tokens are hidden").check()
    page.locator("#mechanisms label", has_text="fnet").wait_for(state="detached")
    for box in page.locator("#mechanisms input").all():
        box.uncheck()
    page.get_by_role("button", name="Measure", exact=True).click()
    assert "Pick at least one mechanism" in said(page)
    assert not guest.complaints or all("Pick" in text for text in guest.complaints)


def test_by_keyboard_alone(visitor):
    guest = visitor()
    guest.page.get_by_role("tab", name="Look").focus()
    guest.page.keyboard.press("Tab")
    guest.page.keyboard.press("Enter")
    box = guest.page.get_by_label("Prompt")
    for _ in range(12):
        guest.page.keyboard.press("Tab")
        if box.evaluate("element => element === document.activeElement"):
            break
    guest.page.keyboard.type("A cat")
    assert "A cat" in box.input_value()
    guest.check()


def test_everything_has_a_name(visitor):
    """For those who hear the page."""
    guest = visitor()
    nameless = """() => [...document.querySelectorAll('input, textarea, select, button, img')]
        .filter(e => e.offsetParent && !e.closest('[aria-hidden=true]'))
        .filter(e => !(e.getAttribute('aria-label') || e.labels?.length || e.title || e.alt || e.innerText?.trim()))
        .map(e => e.outerHTML.slice(0, 200))"""
    for tab in ("Look", "Write", "Compare"):
        page = guest.open(tab)
        page.wait_for_timeout(500)
        assert page.evaluate(nameless) == [], tab


def test_requests_that_no_page_makes(address):
    """Files, unknown models and numbers out of range, asked for past the page."""
    import httpx

    base = address.rstrip("/")
    for path in ("/etc/passwd", "pyproject.toml", "/proc/self/environ"):
        assert httpx.get(f"{base}/gradio_api/file={path}").status_code in (403, 404)
    config = httpx.get(f"{base}/config").json()
    assert not any(thing.get("api_visibility") == "public" for thing in config["dependencies"])
    ask(base, config, 7, [None, "../../etc", "x", 10**9, 0.8, 0, False], "not in the list of choices")
    for path in ("/etc/passwd", "https://example.com/cat.png", "http://127.0.0.1:22/"):
        image = {"path": path, "meta": {"_type": "gradio.FileData"}}
        ask(
            base,
            config,
            3,
            ["hugginggreen-vit-cifar10", image, 0.5],
            "addresses are not fetched" if "://" in path else "",
        )


def ask(base: str, config: dict, inputs: int, data: list, said: str) -> None:
    """Sends that to the first function with so many inputs, which must refuse it."""
    import httpx

    function = next(d["id"] for d in config["dependencies"] if d["targets"] and len(d["inputs"]) == inputs)
    body = {"data": data, "fn_index": function, "session_hash": f"session {data}"}
    joined = httpx.post(f"{base}/gradio_api/queue/join", json=body)
    assert joined.status_code == 200, joined.text
    query = {"session_hash": body["session_hash"]}
    events = httpx.get(f"{base}/gradio_api/queue/data", params=query, timeout=30).text
    assert '"success":false' in events and "Traceback" not in events and "root:" not in events and said in events


@pytest.mark.skipif(SHOTS is None, reason="APP_SCREENSHOTS=docs/app make app-test draws the pictures of docs/app.md")
def test_pictures_of_the_page(visitor):
    page = (guest := visitor(width=1100)).page
    guest.choose("Model", "hugginggreen-vit-cifar10")
    page.get_by_role("button", name="ship").click()
    page.locator("#kept table").wait_for()
    shoot(page, "look")
    guest.open("Write")
    guest.choose("Model", "transformer-xl-enwik8")
    page.get_by_label("Tokens to write").first.fill("2000")
    page.get_by_role("button", name="Write a new text").click()
    page.locator("#memory", has_text="2,014 tokens read").wait_for()
    shoot(page, "write")
    guest.open("Compare")
    page.get_by_role("button", name="Measure", exact=True).click()
    page.locator("#progress", has_text="measured").wait_for()
    shoot(page, "compare")


def shoot(page, name: str) -> None:
    page.wait_for_timeout(1000)
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    shot.quantize(128).save(Path(SHOTS) / f"{name}.png", optimize=True)
