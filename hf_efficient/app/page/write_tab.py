"""Write: a language model goes on from a prompt; its memory and the time per token are shown as they are."""

import gradio as gr

from .. import charts, markup, write
from ..checks import one_of
from ..shelf import Shown
from .told import on_page

MEGABYTE = 1e6
VISITORS_AT_ONCE = 4
ABOUT = (
    "GPT-2 here has the same width, depth, heads and vocabulary, and random weights: that is enough for its time and "
    "memory, and its text is not shown. Each point is the median of several tokens; both models take turns."
)


def build(shown: dict[str, Shown], names: list[str]) -> None:
    session = gr.State(write.Session())
    with gr.Row():
        with gr.Column(min_width=280):
            model = gr.Dropdown(names, value=names[0], label="Model", interactive=True)
            prompt = gr.Textbox(
                "The history of ", label="Prompt", lines=3, max_lines=8, max_length=write.MOST_CHARACTERS
            )
            tokens = gr.Slider(10, write.MOST_TOKENS, value=1_000, step=10, label="Tokens to write")
            temperature = gr.Slider(0, 2, value=0.8, step=0.1, label="Temperature (0 takes the likeliest)")
            seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=2**32 - 1)
            beside = gr.Checkbox(True, label="Time a GPT-2 of the same size beside it")
            begin = gr.Button("Write a new text", variant="primary")
            with gr.Row():
                on = gr.Button("Go on", min_width=80)
                stop = gr.Button("Stop", min_width=80, variant="stop")
        with gr.Column(min_width=280, scale=2):
            text = gr.Textbox(label="Text", lines=8, max_lines=14, interactive=False, elem_id="text")
            memory = gr.HTML(elem_id="memory")
            times = gr.HTML(elem_id="times")
    gr.HTML(markup.note(ABOUT))

    @on_page
    def afresh(kept, name, prompt, *settings):
        kept.begin()
        yield from go_on(kept, name, prompt, *settings)

    @on_page
    def further(kept, name, *settings):
        yield from go_on(kept, name, "", *settings)

    def go_on(kept, name, prompt, *settings):
        chosen = shown[one_of("a language model", name, names)]
        for seen in write.write(chosen, kept, prompt, *settings):
            yield seen.text, memory_of(seen), times_of(seen)

    settings, outputs = [tokens, temperature, seed, beside], [text, memory, times]
    several = {"concurrency_limit": VISITORS_AT_ONCE, "concurrency_id": "write", "api_visibility": "private"}
    quiet = {**several, "show_progress": "hidden"}
    running = [
        begin.click(afresh, [session, model, prompt, *settings], outputs, **quiet),
        prompt.submit(afresh, [session, model, prompt, *settings], outputs, **quiet),
        on.click(further, [session, model, *settings], outputs, **quiet),
    ]
    stop.click(None, cancels=running, api_visibility="private")


def memory_of(seen: write.Seen) -> str:
    rows = [
        markup.Bar(
            slots.name,
            slots.filled / slots.room if slots.room else 0.0,
            f"{slots.filled:,} of {slots.room:,}" if slots.room else "none kept",
        )
        for slots in seen.slots
    ]
    said = f"{seen.read:,} tokens read. Memory: {seen.our_bytes / MEGABYTE:.2f} MB"
    if seen.their_bytes:
        said += f"; GPT-2's keys and values: {seen.their_bytes / MEGABYTE:.2f} MB"
    return markup.heading("What it remembers") + markup.bars(rows, "How full the memory is") + markup.note(f"{said}.")


def times_of(seen: write.Seen) -> str:
    series = {"this model": write.smoothed(seen.ours)}
    if seen.theirs:
        series["GPT-2"] = write.smoothed(seen.theirs)
    return charts.lines(series, "Milliseconds per token, as the text grows", "tokens read", "ms per token")
