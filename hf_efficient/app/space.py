"""A Space of the Hub that shows one model: the page of `hf-efficient app` in a repository that runs by itself.

app.py            starts the page
requirements.txt  what it needs, hf_efficient excepted, which lies beside it
README.md         the Space's metadata
hf_efficient/     this package as it is here, without the zoo's models
model/            the model, unless it is named by its repository on the Hub
"""

import shutil
from pathlib import Path

import hf_efficient

from .. import zoo
from ..errors import CommandError, told
from ..hub import LEFT_OUT, Push, push
from ..hub.contents import list_files
from ..inference import locate, task_of
from .shelf import OF_IMAGES, OF_TEXT

PACKAGE = Path(hf_efficient.__file__).parent
GRADIO = "6.31.0"  # as in constraints.txt; the Hub installs it by the metadata
# As pyproject.toml has them, which a test compares.
REQUIREMENTS = ("torch>=2.13", "transformers>=5.18,<6", "tokenizers", "safetensors", "huggingface_hub", "pillow")
MARK = "Written by `hf-efficient space`"
APP = '''"""{mark}: the page of `hf-efficient app` with one model."""

{imports}
from hf_efficient.app import launch

MODEL = {model}
launch([MODEL], host=None, with_zoo=False)  # it listens where GRADIO_SERVER_NAME says, as the Hub sets it
'''
README = """---
title: {title}
emoji: 🌱
colorFrom: green
colorTo: blue
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
{models}---

{mark} of hf_efficient {version}. To run it here:

    pip install -r requirements.txt gradio=={gradio}
    python app.py
"""


def write(model: str, folder: Path, title: str | None = None) -> Path:
    """Writes the Space of a model: a folder, a repository on the Hub, or a name in the zoo."""
    folder, home = Path(folder), Path(locate(model))
    task = task_of(str(home) if home.is_dir() else model)
    if task not in (*OF_IMAGES, *OF_TEXT):
        raise CommandError(f"{model} is for {task}; the page shows models for {', '.join((*OF_IMAGES, *OF_TEXT))}.")
    refuse_other_peoples(folder)
    with told(f"{folder} can't be written"):
        copy_package(folder / "hf_efficient")
        if home.is_dir():
            name = home.resolve().name
            copy_model(home, folder / "model" / name)
            words = {"imports": "from pathlib import Path\n", "model": place_of(name)}
        else:
            name, words = model.rpartition("/")[2], {"imports": "", "model": quoted(model)}
        models = "" if home.is_dir() else f"models:\n- {model}\n"
        app = APP.format(mark=MARK, **words).replace('"""\n\n\n', '"""\n\n')
        about = README.format(
            title=quoted(title or name), gradio=GRADIO, models=models, mark=MARK, version=hf_efficient.__version__
        )
        (folder / "app.py").write_text(app, encoding="utf-8")
        (folder / "requirements.txt").write_text("\n".join(REQUIREMENTS) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(about, encoding="utf-8")
    return folder


def share(folder: Path, repo_id: str, private: bool | None = None, dry_run: bool = False) -> Push:
    """Sends a written Space to the Hub."""
    message = "Write the Space with hf_efficient"
    return push(folder, repo_id, kind="space", private=private, dry_run=dry_run, message=message)


def refuse_other_peoples(folder: Path) -> None:
    """Only what this command wrote is written over."""
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{folder} is a file: name a folder.")
    app = folder / "app.py"
    if folder.is_dir() and any(folder.iterdir()) and not (app.is_file() and MARK in app.read_text(encoding="utf-8")):
        raise CommandError(f"{folder} holds something else: name a new folder, or an empty one.")


def copy_package(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    models = [Path(zoo.path(name)).name for name in zoo.list()]
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", *models))


def copy_model(source: Path, target: Path) -> None:
    """What a push would share of it."""
    shutil.rmtree(target.parent, ignore_errors=True)
    for name, file in list_files(source, LEFT_OUT).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target / name)


def place_of(name: str) -> str:
    return f'str(Path(__file__).parent / "model" / {quoted(name)})'


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
