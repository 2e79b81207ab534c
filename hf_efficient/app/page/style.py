"""How the page looks: Gradio's plain theme with fonts of the reader's system, and rules for what `markup` makes."""

import gradio as gr

SYSTEM = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def theme() -> gr.themes.Base:
    return gr.themes.Default(primary_hue="teal", neutral_hue="slate", font=SYSTEM, font_mono=MONO)


# Gradio keeps CSS to what is inside the page; its outermost margins are set here.
HEAD = """
<meta name="referrer" content="no-referrer">
<style>@media (max-width: 480px) { .gradio-container .main.app { padding: 8px 4px !important; } }</style>
"""

CSS = """
.gradio-container { max-width: 1180px !important; margin: auto; }
.gradio-container h1 { margin: 0.4rem 0 0; }
.bars { display: grid; gap: 6px; }
.bar { display: grid; grid-template-columns: minmax(6em, 11em) 1fr 7.5em; gap: 8px; align-items: center; }
.bar-name { overflow-wrap: anywhere; }
.bar-room { background: var(--neutral-200); border-radius: 4px; height: 14px; overflow: hidden; }
.dark .bar-room { background: var(--neutral-700); }
.bar-fill { display: block; height: 100%; background: #2a9d8f; }
.bar-text { font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 120px), 1fr)); gap: 12px; }
.figures figure { margin: 0; }
.figures img { width: 100%; max-width: 340px; height: auto; border-radius: 4px; image-rendering: pixelated; }
.figures figcaption, .chart figcaption { font-size: 0.9rem; overflow-wrap: anywhere; }
.chart { margin: 0; max-width: 620px; }
.chart svg { width: 100%; height: auto; }
/* Tables scroll in themselves instead of making the page wider. */
.wide { overflow-x: auto; width: 0; min-width: 100%; }
table.facts { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table.facts caption { text-align: left; padding-bottom: 4px; }
table.facts th, table.facts td { padding: 3px 10px; text-align: left; white-space: nowrap; }
table.facts thead th { border-bottom: 1px solid currentColor; }
.note { font-size: 0.9rem; opacity: 0.85; overflow-wrap: anywhere; }
.stack { display: grid; gap: 12px; }
@media (max-width: 480px) {
  .bar { grid-template-columns: 1fr auto; gap: 0 8px; }
  .bar-room { grid-column: 1 / 3; grid-row: 2; }
}
"""
