"""The page itself, in Gradio: one file per tab, each a caller of what stands beside this folder."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported, or it calls home

import gradio as gr

from ..shelf import OF_IMAGES, OF_TEXT, Shown, for_tasks
from . import compare_tab, look_tab, write_tab
from .files import only_uploads
from .style import CSS, HEAD, theme

KEEP_UPLOADS = (600, 3600)  # seconds: looked for this often, deleted when this old
AT_ONCE = 20  # visitors who may wait


def build(shown: dict[str, Shown]) -> gr.Blocks:
    page = gr.Blocks(title="hf_efficient", analytics_enabled=False, delete_cache=KEEP_UPLOADS, fill_width=False)
    with page:
        gr.HTML("<h1>hf_efficient</h1><p>Efficient transformers, on this machine: nothing leaves it.</p>")
        with gr.Tabs():
            if names := for_tasks(shown, OF_IMAGES):
                with gr.Tab("Look", id="look"):
                    look_tab.build(shown, names)
            if names := for_tasks(shown, OF_TEXT):
                with gr.Tab("Write", id="write"):
                    write_tab.build(shown, names)
            with gr.Tab("Compare", id="compare"):
                compare_tab.build()
    for block in page.blocks.values():
        only_uploads(block)
    return page.queue(max_size=AT_ONCE, api_open=False)


def options() -> dict:
    """Of `launch`: everything that could leave this machine is off."""
    return {
        "theme": theme(),
        "css": CSS,
        "head": HEAD,
        "footer_links": [],
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "show_error": False,
        "allowed_paths": [],
        "quiet": True,
        "prevent_thread_lock": True,
    }
