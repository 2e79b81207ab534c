"""Look: an image, what a model says of it, which patches it needs for that, and what they cost."""

from functools import partial

import gradio as gr

from ...errors import CommandError
from .. import look, markup
from ..checks import one_of, open_picture, within
from ..cost import BATCH
from ..examples import example_files
from ..shelf import Shown
from .files import path_of
from .told import on_page

NO_PATCHES = "This model computes all patches. Choose a HuggingGreenViT to see what it keeps."
NO_INSIGHTS = "This model has neither context scores nor an attention matrix to show."


def build(shown: dict[str, Shown], names: list[str]) -> None:
    first = shown[names[0]]
    with gr.Row():
        with gr.Column(min_width=280):
            model = gr.Dropdown(names, value=names[0], label="Model", interactive=True)
            about = gr.HTML(markup.note(look.describe(first)))
            image = gr.Image(
                label="Image", type="filepath", image_mode=None, sources=["upload", "webcam", "clipboard"], height=260
            )
            image.preprocess = path_of
            with gr.Row(elem_id="examples"):
                examples = {file: gr.Button(file.stem, icon=file, size="sm", min_width=96) for file in example_files()}
            threshold = gr.Slider(
                0, 1, value=0.5, step=0.05, label="Least score of a box", visible=first.task == "object-detection"
            )
            button = gr.Button("Look", variant="primary")
        with gr.Column(min_width=280, scale=2):
            answers = gr.HTML(markup.note("Choose an image, then Look."), elem_id="answers")
            insights = gr.HTML(elem_id="insights")
    with gr.Column(visible=grid_size(first) > 0) as selecting:
        top_k = gr.Slider(
            1,
            max(2, grid_size(first)),
            value=max(1, grid_size(first) // 2),
            step=1,
            label="Patches kept (top_k)",
            info="Each heuristic ranks the patches by their pixels; what it drops is never computed.",
            elem_id="top_k",
        )
        kept = gr.HTML(elem_id="kept")

    @on_page
    def chosen(name):
        model = shown[one_of("a model of images", name, names)]
        count = grid_size(model)
        return (
            markup.note(look.describe(model)),
            gr.update(visible=model.task == "object-detection"),
            gr.update(visible=count > 0),
            gr.update(maximum=max(2, count), value=max(1, count // 2)),
            "",
            "",
            "",
        )

    @on_page
    def seen_if_any(name, file, least):
        return seen(name, file, least) if file else ("", "")

    @on_page
    def seen(name, file, least):
        model = shown[one_of("a model of images", name, names)]
        return answers_of(model, open_picture(file), within("The least score", least, 0, 1, whole=False))

    @on_page
    def selected(name, file, count):
        model = shown[one_of("a model of images", name, names)]
        return kept_of(model, open_picture(file), count) if file and grid_size(model) else ""

    quiet = {"api_visibility": "private"}
    asked = {"inputs": [model, image, threshold], "outputs": [answers, insights], "show_progress_on": answers}
    moved = {"inputs": [model, image, top_k], "outputs": [kept], "show_progress_on": kept}
    button.click(seen, **asked, **quiet).success(selected, **moved, **quiet)
    for file, example in examples.items():
        chosen_example = example.click(partial(str, file), None, image, show_progress="hidden", **quiet)
        chosen_example.success(seen, **asked, **quiet).success(selected, **moved, **quiet)
    image.input(seen_if_any, **asked, **quiet).success(selected, **moved, **quiet)
    described = [about, threshold, selecting, top_k, answers, insights, kept]
    changed = model.change(chosen, model, described, show_progress="hidden", **quiet)
    changed.success(seen_if_any, **asked, **quiet).success(selected, **moved, **quiet)
    top_k.input(selected, **moved, trigger_mode="always_last", **quiet)


def grid_size(model: Shown) -> int:
    config = model.config
    return config.num_patches if config.model_type == look.SELECTING and model.task == "image-classification" else 0


def answers_of(model: Shown, image, least: float) -> tuple[str, str]:
    if model.task == "image-classification":
        found = look.classify(model, image)
        said = markup.bars([markup.Bar(x.label, x.score, f"{x.score:.1%}") for x in found], "The likeliest classes")
        pictures = look.insights(model, seen := look.see(model, image))
        shown = markup.figures([("as the model sees it", seen.picture), *pictures])
        return markup.heading("What it is") + said, shown + ("" if pictures else markup.note(NO_INSIGHTS))
    if model.task == "object-detection":
        picture, found = look.detect(model, image, least)
        said = markup.bars([markup.Bar(x.label, x.score, f"{x.score:.1%}") for x in found], "What was found")
        said = said if found else markup.note("Nothing was found with that score.")
        return markup.heading("What it found") + said, markup.figures([(f"{len(found)} boxes", picture)])
    picture, legend, shares = look.segment(model, image)
    said = markup.bars([markup.Bar(x.label, x.score, f"{x.score:.1%}") for x in shares], "Share of the pixels")
    return markup.heading("What is where") + said, markup.figures([("classes", picture), ("their colours", legend)])


def kept_of(model: Shown, image, count: int) -> str:
    if not grid_size(model):
        raise CommandError(NO_PATCHES)
    rows, method = look.keep(model, look.see(model, image), count)
    pictures = [(f"{row.name}: {row.answer.label} {row.answer.score:.0%}", row.picture) for row in rows[1:]]
    batched = rows[0].cost.in_batch is not None
    header = ["computed", "answer", "tokens", "GFLOPs", "ms", "joules (est.)"]
    header += [f"ms in a batch of {BATCH}"] if batched else []
    cells = [
        (
            row.name,
            f"{row.answer.label} {row.answer.score:.1%}",
            f"{row.cost.tokens}",
            f"{row.cost.gflops:.4f}",
            f"{row.cost.milliseconds:.2f}",
            f"{row.cost.joules:.4f}",
            *([f"{row.cost.in_batch:.2f}"] if batched else []),
        )
        for row in rows
    ]
    caption = f"{count} of {grid_size(model)} patches kept, against all of them"
    return markup.figures(pictures) + markup.table(header, cells, caption) + markup.note(method)
