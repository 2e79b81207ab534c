"""The card itself: the Hub's metadata, and the template filled in."""

import re
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .text import about, comparison, limits
from .trained_model import ENGLISH, TrainedModel, metric_of, without_folders

TEMPLATE = "template.md"
EXAMPLE = "example.png"  # for people to try the model with, on the Hub
# What a training draws: shown where it lies beside the card, and so is pushed with it.
PICTURES = {
    "predictions.png": "What it says of some images",
    "confusion.png": "What it takes for what",
    "curves.png": "How it learned",
}
# A card with one of these was written by a program, the second by transformers' Trainer, and may be written again.
MARK = "<!-- Written by hf_efficient from the run's files. Without this line it stays as you make it. -->"
DRAFT = "generated automatically according to the information the Trainer had access to"


def render_card(
    folder: str | Path,
    *,
    repo_id: str | None = None,
    compare_with: Sequence[str | Path] = (),
    license: str | None = "apache-2.0",
    note: str | None = None,
    zoo_name: str | None = None,
    place: Path | None = None,
) -> ModelCard:
    """The card of the model in `folder`.

    Args:
        repo_id: what it is loaded by in the snippets; by default the run's name.
        compare_with: folders of other runs on the same data, told apart honestly.
        license: of the weights, as the Hub abbreviates it; None leaves it open.
        note: what else is to be known of the energy and the times.
        zoo_name: of a model that comes with the package.
        place: where the card will stand, by default in `folder`: pictures that lie there are shown.
    """
    place = Path(folder) if place is None else place
    model = TrainedModel.read(folder)
    others = [TrainedModel.read(other) for other in compare_with]
    template = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    card = ModelCard.from_template(
        metadata(model, license, zoo_name or model.name, place),
        template_str=template,
        mark=MARK,
        model=model,
        results=model.results,
        repo_id=repo_id or model.name,
        about=about(model),
        scores=[(metric_of(name).title, split, value) for split, name, value in model.scores()],
        comparison=comparison(model, others),
        pictures={file: alt for file, alt in PICTURES.items() if (place / file).is_file()},
        energy=model.energy and model.energy.to_card(),
        emissions=emissions(model),
        note=note,
        zoo_name=zoo_name,
        command=portable(model.results.get("command") or ""),
        settings=yaml.safe_dump(model.settings, sort_keys=False).strip() if model.settings else "",
        limits=limits(model),
    )
    return ModelCard(re.sub(r"\n{3,}", "\n\n", str(card)))  # what the template left empty


def portable(command: str) -> str:
    """A command without the folders of the machine that it ran on"""
    return without_folders(re.sub(r"\S*/(?=(scripts|configs)/)| --output[_-]dir[ =]\S+", "", command))


def write_card(folder: str | Path, output: str | Path | None = None, **options) -> Path | None:
    """Writes the card as README.md in the folder, or as `output`; None if a card is there that somebody wrote.

    Args:
        options: of `render_card`.
    """
    file = Path(output) if output is not None else Path(folder) / "README.md"
    if file.is_file() and not any(mark in file.read_text(encoding="utf-8") for mark in (MARK, DRAFT)):
        warnings.warn(f"{file} was not written by hf_efficient, so it stays as it is.", stacklevel=2)
        return None
    card = render_card(folder, place=file.parent, **options)
    file.parent.mkdir(parents=True, exist_ok=True)
    card.save(file)
    return file


def metadata(model: TrainedModel, license: str | None, name: str, place: Path) -> ModelCardData:
    """What the Hub reads."""
    data, dataset_name = model.dataset, model.dataset_name
    options = {key: value for key, value in model.settings.get("dataset", {}).items() if key != "name"}
    scores = [(split, metric_of(metric), value) for split, metric, value in model.scores()] if data else []
    return ModelCardData(
        license=license,
        language="en" if dataset_name in ENGLISH else None,
        library_name="transformers",
        pipeline_tag=model.task.name,
        tags=["hf_efficient", model.config.model_type] if model.is_ours else [model.config.model_type],
        datasets=[data.repository] if data and data.repository else None,
        metrics=list(dict.fromkeys(metric.kind for _, metric, _ in scores if metric.kind != "loss")) or None,
        base_model=model.base_model,
        co2_eq_emissions=emissions(model),
        widget=widget(model, place),
        model_name=name,
        eval_results=[
            EvalResult(
                task_type=model.task.name,
                dataset_type=data.repository or dataset_name,
                dataset_name=data.title,
                dataset_split=split,
                dataset_args=options or None,
                metric_type=metric.kind,
                metric_name=metric.title,
                metric_args=metric.arguments,
                metric_value=value,
            )
            for split, metric, value in scores
        ]
        or None,
    )


def widget(model: TrainedModel, place: Path) -> list[dict[str, str]] | None:
    """What people can try it with."""
    if model.task.text:
        return [{"text": model.task.text}]
    return [{"src": EXAMPLE, "example_title": "One of its images"}] if (place / EXAMPLE).is_file() else None


def emissions(model: TrainedModel) -> dict | None:
    """Grams of CO2e; None where it isn't known what electricity was used, as the world's average is nobody's."""
    report = model.energy
    given = model.settings.get("energy", {}).get("carbon_intensity") is not None
    if report is None or (report.country is None and not given):
        return None
    found = report.co2_eq_emissions("fine-tuning" if model.pretrained else "pre-training")
    if found and report.country is None:
        del found["geographical_location"]
    return found
