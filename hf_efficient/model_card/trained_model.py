"""What a run left in its folder, and what its words mean: tasks, metrics, data."""

import json
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig, PretrainedConfig

from ..energy.report import FILE, EnergyReport
from ..models.auto import FAMILIES


class Task(NamedTuple):
    name: str
    call: str | None  # how its pipeline is called; None where there is none
    samples: str = "images"  # what it is shown
    text: str | None = None  # for people to try it with, on the Hub


CLASSIFY = 'model("photo.png")'
BEGINNING = "The import statement"
CONTINUE = f'model("{BEGINNING}", max_new_tokens=100, do_sample=True)'
TASKS = {
    "ForImageClassification": Task("image-classification", CLASSIFY),
    "ForObjectDetection": Task("object-detection", CLASSIFY),
    "ForSemanticSegmentation": Task("image-segmentation", CLASSIFY),
    "ForMaskedImageModeling": Task("image-feature-extraction", 'model("photo.png", pool=True)'),
    "ForSequenceClassification": Task("text-classification", 'model("A film to see.")', "texts", "A film to see."),
    "ForSequencePairClassification": Task("text-classification", None, "texts"),
    "ForMaskedLM": Task("fill-mask", 'model("A <mask> to see.")', "texts", "A <mask> to see."),
    "ForCausalLM": Task("text-generation", CONTINUE, "texts", BEGINNING),
    "LMHeadModel": Task("text-generation", CONTINUE, "texts", BEGINNING),
    "Model": Task("image-feature-extraction", 'model("photo.png", pool=True)'),
}


class Metric(NamedTuple):
    kind: str  # what the Hub calls it
    title: str
    higher_is_better: bool
    arguments: dict[str, Any] | None = None


METRICS = {
    "accuracy": Metric("accuracy", "accuracy", True),
    "micro_f1": Metric("f1", "micro-F1", True, {"average": "micro"}),
    "macro_f1": Metric("f1", "macro-F1", True, {"average": "macro"}),
    "map": Metric("map", "mAP", True),
    "map_50": Metric("map_50", "mAP at IoU 0.5", True),
    "map_small": Metric("map_small", "mAP, objects below 32² pixels", True),
    "map_medium": Metric("map_medium", "mAP, objects of 32² to 96² pixels", True),
    "map_large": Metric("map_large", "mAP, objects above 96² pixels", True),
    "found_50": Metric("found_50", "objects found at IoU 0.5", True),
    "iou": Metric("iou", "IoU", True),
    "mean_iou": Metric("mean_iou", "mean IoU", True),
    "pixel_accuracy": Metric("accuracy", "pixel accuracy", True),
    "mean_accuracy": Metric("mean_accuracy", "mean accuracy of the classes", True),
    "bits_per_byte": Metric("bits_per_byte", "bits per byte", False),
    "bits_per_character": Metric("bits_per_character", "bits per character", False),
    "perplexity": Metric("perplexity", "perplexity per token", False),
    "loss": Metric("loss", "loss", False),
}


def metric_of(name: str) -> Metric:
    return METRICS.get(name, Metric(name, name.replace("_", " "), not name.endswith("loss")))


def plain(name: str) -> str:
    """To compare names, or to put them together."""
    return re.sub(r"[\W_]+", "-", Path(name).stem.lower()).strip("-")


def without_folders(value):
    """Text, or what holds texts, with the last part of each absolute path: the rest is of one machine."""
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    return ABSOLUTE.sub(r"\1", value) if isinstance(value, str) else value


class Dataset(NamedTuple):
    title: str
    repository: str | None  # on the Hub
    split: str  # that evaluation sees


DATASETS = {
    "cifar10": Dataset("CIFAR-10", "uoft-cs/cifar10", "test"),
    "cifar100": Dataset("CIFAR-100", "uoft-cs/cifar100", "test"),
    "tiny-imagenet": Dataset("Tiny ImageNet", "zh-plus/tiny-imagenet", "valid"),
    "mnist": Dataset("MNIST", "ylecun/mnist", "test"),
    "bccd": Dataset("BCCD", None, "validation"),
    "camvid": Dataset("CamVid", None, "validation"),
    "digits": Dataset("scikit-learn's digits", None, "a quarter held out"),
    "sst2": Dataset("SST-2", "stanfordnlp/sst2", "validation"),
    "imdb": Dataset("IMDB", "stanfordnlp/imdb", "test"),
    "listops": Dataset("ListOps, made by hf_efficient", None, "validation"),
    "pathfinder": Dataset("Pathfinder, made by hf_efficient", None, "validation"),
    "retrieval": Dataset("Long Range Arena's retrieval (ACL Anthology Network)", None, "validation"),
    "enwik8": Dataset("enwik8", "LTCB/enwik8", "validation"),
    "pydocs": Dataset("the documentation in CPython's pydoc_data.topics", None, "validation"),
}
ENGLISH = ("enwik8", "pydocs", "sst2", "imdb", "retrieval")
REPETITION = re.compile(r"seed_\d+")  # a folder of `hf-efficient compare` and `energy`
ABSOLUTE = re.compile(r"""(?<![\w.:/~-])(?:~|[A-Za-z]:)?[/\\](?:[^\s'",/\\]+[/\\])*([^\s'",/\\]+)""")
SMALLEST_ENWIK8 = 20_000_000  # bytes; no preset reads less of it


def read_energy(file: Path, results: dict) -> EnergyReport | None:
    """The report in a file, if there is one and it is of the run whose results these are."""
    if not file.is_file():
        return None
    report = EnergyReport.load(file)
    recorded = results.get("energy", {}).get("train_kwh")
    if recorded is not None and not math.isclose(report.kwh("train") or 0, recorded, rel_tol=1e-3):
        warnings.warn(f"{file} is left out: it is of another run than results.json beside it.", stacklevel=2)
        return None
    return report


@dataclass(frozen=True)
class TrainedModel:
    """A folder as training left it; results are empty and energy is None where it doesn't have them."""

    folder: Path
    config: PretrainedConfig
    results: dict
    energy: EnergyReport | None

    @classmethod
    def read(cls, folder: str | Path) -> "TrainedModel":
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no config.json: a card is written of a trained model's folder.")
        file = folder / "results.json"
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return cls(folder, AutoConfig.from_pretrained(folder), results, read_energy(folder / FILE, results))

    @property
    def name(self) -> str:
        """As the run was named by hand; else its folder's, with the data where that does not say them."""
        if given := self.results.get("settings", {}).get("training", {}).get("run_name"):
            return given
        folder, data = self.folder.resolve(), plain(self.dataset_name or "")
        name = f"{folder.parent.name}-{folder.name}" if REPETITION.fullmatch(folder.name) else folder.name
        return name if data in plain(name) else f"{name}-{data}"

    @property
    def pretrained(self) -> str | None:
        """What training began with."""
        return self.results.get("settings", {}).get("model", {}).get("pretrained")

    @property
    def base_model(self) -> str | None:
        """The same, if it is a repository on the Hub: a folder means nothing to others."""
        source = str(self.pretrained or "")
        return source if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) and not Path(source).exists() else None

    @property
    def is_ours(self) -> bool:
        return self.config.model_type in FAMILIES

    @property
    def task(self) -> Task:
        architecture = (self.config.architectures or ["Model"])[0]
        return next((task for end, task in TASKS.items() if architecture.endswith(end)), TASKS["Model"])

    @property
    def settings(self) -> dict[str, dict]:
        """Of the run, without what belongs to the machine that it ran on."""
        sections = {name: dict(section or {}) for name, section in self.results.get("settings", {}).items()}
        sections.get("training", {}).pop("output_dir", None)
        if "name" in sections.get("dataset", {}):
            sections["dataset"]["name"] = self.dataset_name
        return {name: without_folders(section) for name, section in sections.items() if section}

    @property
    def dataset_name(self) -> str | None:
        """As it was given; of a path its end."""
        name = self.results.get("dataset")
        return name if name in DATASETS or not name else Path(name).name

    @property
    def dataset(self) -> Dataset | None:
        name = self.dataset_name
        if name is None:
            return None
        size = sum(self.results.get("bytes", {}).values())
        if name == "enwik8" and 0 < size < SMALLEST_ENWIK8:
            # Its figures are not enwik8's, so it isn't called by that repository's name.
            return Dataset(f"the first {size / 1e6:.1f} MB of enwik8", None, "validation")
        found = DATASETS.get(name, Dataset(name, None, "evaluation"))
        if self.results.get("settings", {}).get("dataset", {}).get("validation"):
            return found._replace(split=f"held-out training {self.task.samples}")
        return found

    @property
    def was_chosen(self) -> bool:
        """Whether these weights were chosen by their score on the split that evaluation sees."""
        training = self.results.get("settings", {}).get("training", {})
        return bool(self.results.get("best_step")) and training.get("load_best_model_at_end", True)

    def scores(self) -> list[tuple[str, str, float]]:
        """Split, metric and value: the test split's first, losses last."""
        found = []
        for name, value in self.results.get("metrics", {}).items():
            prefix, _, metric = name.partition("_")
            if prefix in ("eval", "test") and isinstance(value, int | float):
                split = "test" if prefix == "test" or self.dataset is None else self.dataset.split
                found.append((metric.endswith("loss"), prefix == "eval", split, metric, value))
        return [(split, metric, value) for *_, split, metric, value in sorted(found, key=lambda score: score[:2])]

    def main_score(self) -> tuple[str, float] | None:
        """The metric that the run was judged by, and its value."""
        wanted = (self.results.get("metric_for_best_model") or "loss").removeprefix("eval_")
        return next(((metric, value) for _, metric, value in self.scores() if metric == wanted), None)
