"""Compare: mechanisms measured while one waits, and the published leaderboard."""

import gradio as gr

from .. import charts, compare, leaderboard, markup
from ..checks import one_of
from .told import on_page

SCORE = "score"


def build() -> None:
    gr.HTML(markup.heading("Speed and memory of attention mechanisms, measured now"))
    known = compare.mechanisms(False)
    with gr.Row():
        with gr.Column(min_width=280):
            names = gr.CheckboxGroup(
                known,
                value=[name for name in compare.FIRST if name in known],
                label="Mechanisms",
                elem_id="mechanisms",
            )
            causal = gr.Checkbox(False, label="Causal: later tokens are hidden")
            longest = gr.Radio(list(compare.LENGTHS), value=2048, label="Longest sequence, in tokens")
            with gr.Row():
                measure = gr.Button("Measure", variant="primary", min_width=80)
                stop = gr.Button("Stop", variant="stop", min_width=80)
        with gr.Column(min_width=280, scale=2):
            progress = gr.HTML(elem_id="progress")
            speed = gr.HTML(elem_id="speed")
            memory = gr.HTML(elem_id="bytes")
    left_out = gr.HTML(elem_id="left_out")
    gr.HTML(markup.note(compare.METHOD))

    @on_page
    def direction(causal, picked):
        fitting = compare.mechanisms(bool(causal))
        return gr.update(choices=fitting, value=[name for name in picked or [] if name in fitting])

    @on_page
    def race(picked, causal, longest):
        for done in compare.race(picked, bool(causal), longest):
            yield progress_of(done), *curves(done.measured), "".join(map(markup.note, done.left_out))

    causal.change(direction, [causal, names], names, api_visibility="private", show_progress="hidden")
    running = measure.click(
        race, [names, causal, longest], [progress, speed, memory, left_out], api_visibility="private",
        show_progress="hidden", concurrency_limit=1,
    )  # fmt: skip
    stop.click(None, cancels=[running], api_visibility="private")
    published()


def progress_of(done: compare.Done) -> str:
    said = "measured" if done.share == 1 else f"measuring, {done.share:.0%} done"
    width = f'style="width:{100 * done.share:.0f}%"'
    return (
        f'<div role="progressbar" aria-label="Measuring" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{100 * done.share:.0f}"><span class="bar-room" style="display:block">'
        f'<span class="bar-fill" {width}></span></span>{said}</div>'
    )


def curves(measured: list[compare.Measured]) -> tuple[str, str]:
    speed: dict[str, list] = {}
    memory: dict[str, list] = {}
    for row in measured:
        speed.setdefault(row.name, []).append((row.length, row.milliseconds))
        memory.setdefault(row.name, []).append((row.length, row.peak_bytes / 2**20))
    return (
        charts.lines(speed, "Time of one pass", "tokens", "milliseconds", log=True),
        charts.lines(memory, "Memory at its peak", "tokens", "MiB", log=True),
    )


def published() -> None:
    rows = leaderboard.read()
    gr.HTML(markup.heading("The published leaderboard"))
    if not rows:
        gr.HTML(markup.note("No leaderboard comes with this version."))
        return
    boards = leaderboard.boards(rows)
    board = gr.Dropdown(boards, value=boards[0], label="Data, score and budget", interactive=True)
    first = leaderboard.of_board(rows, boards[0])
    plot = gr.HTML(pareto(first), elem_id="pareto")
    with gr.Row():
        key = gr.Radio(list(leaderboard.columns(first)), value=SCORE, label="Sort by", elem_id="sort")
        downwards = gr.Checkbox(not leaderboard.lower_is_better(first[0]), label="Largest first")
    table = gr.HTML(table_of(first, boards[0]), elem_id="leaderboard")

    @on_page
    def chosen(name):
        picked = leaderboard.of_board(rows, one_of("a leaderboard", name, boards))
        keys = gr.update(choices=list(leaderboard.columns(picked)), value=SCORE)
        return pareto(picked), keys, not leaderboard.lower_is_better(picked[0]), table_of(picked, name)

    @on_page
    def ordered(name, title, largest_first):
        picked = leaderboard.of_board(rows, one_of("a leaderboard", name, boards))
        keys = leaderboard.columns(picked)
        return table_of(
            leaderboard.sorted_by(picked, keys[one_of("a column", title, keys)], bool(largest_first)), name
        )

    quiet = {"api_visibility": "private", "show_progress": "hidden"}
    board.change(chosen, board, [plot, key, downwards, table], **quiet)
    gr.on([key.input, downwards.input], ordered, [board, key, downwards], table, **quiet)


def table_of(rows: list[dict], caption: str) -> str:
    return markup.table(*leaderboard.cells(rows), caption)


def pareto(rows: list[dict]) -> str:
    metric = rows[0]["metric"].replace("_", " ")
    title = f"{metric} against the joules of training (estimated); coloured: none is better for as little"
    return charts.scatter(leaderboard.points(rows), title, "joules", metric)
