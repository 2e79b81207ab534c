"""The page of `hf-efficient app`: look at images, watch a language model write, compare mechanisms.

shelf          the models that the page shows
look           an image: answers, kept patches and what they spare, context, rollout, boxes, masks
write          a text: token by token, with the state of the memory and the time that each took
compare        mechanisms measured on this machine
leaderboard    what was published of trained models
markup charts  results as HTML and SVG
page/          where all of it stands, in Gradio; nothing else imports that
space          the same page as a repository of Hugging Face's Spaces
"""

from collections.abc import Sequence

from ..errors import CommandError
from ..extras import require
from . import shelf

MOST_UPLOAD = "20mb"


def launch(
    models: Sequence[str] = (),
    *,
    host: str | None = "127.0.0.1",
    port: int | None = None,
    share: bool = False,
    with_zoo: bool = True,
    block: bool = True,
) -> str:
    """Serves the page until the process is stopped; its address.

    Args:
        models: folders, repositories on the Hub or names in the zoo; the first of each kind is shown first.
        host: where to listen; None is what GRADIO_SERVER_NAME says, as on Spaces.
        port: by default the first free one from 7860 on.
        share: whether to open a tunnel through gradio.live, so that everybody on the internet can come.
        with_zoo: whether the zoo's models follow.
        block: wait here; otherwise it ends with the process.
    """
    require("app")
    shown = shelf.load(models, with_zoo)
    from .page import build, options  # Gradio is imported here

    page = build(shown)
    try:
        _, address, public = page.launch(
            server_name=host, server_port=port, share=share, max_file_size=MOST_UPLOAD, **options()
        )
    except OSError as error:
        raise CommandError(f"the page can't be served at {host}, port {port or '7860 to 7959'}: {error}") from error
    print(f"The page is at {public or address} (Ctrl-C ends it)", flush=True)
    if block:
        page.block_thread()
    return address
