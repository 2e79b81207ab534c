"""How the models of `hf_efficient.zoo` are made: a run that comes with the package, packed into a small folder.

A folder of the zoo has no code beside the weights, since the package is there, and half-precision weights that load as
float32: its config says so. Its card and `results.json` are those of the run.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .. import zoo
from ..errors import CommandError, told
from ..inference import task_of
from ..model_card import write_card
from ..model_card.card import portable
from ..models.base import is_finite
from ..training.tasks import train

MOST_BYTES = 5_000_000  # of a model
WEIGHTS = "model.safetensors"
# What a pipeline reads beside config and weights.
KEPT = ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
OF_THE_PACKAGE = ("auto_map", "model_module")  # of config.json: they point to code beside the weights

# Name -> the run that makes it: its config, and what is set besides.
MODELS = {
    "hugginggreen-vit-cifar10": ("cifar10_hugginggreen_vit_small",),
    "mobilevit-v2-cifar10": ("cifar10_mobilevit_v2_small",),
    "mobilevit-v2-tiny-imagenet": ("tiny_imagenet_mobilevit_v2_small",),
    "hugginggreen-vit-detector-tiny-imagenet": ("tiny_imagenet_hugginggreen_vit_detection_small",),
    "mobilevit-v2-detector-bccd": ("bccd_mobilevit_v2_small",),
    "mobilevit-v2-segmenter-camvid": ("camvid_mobilevit_v2_deeplabv3_small",),
    "transformer-xl-enwik8": ("enwik8_transformer_xl_small", "--ngrams", "0"),  # with their tables it is 22 MB
}


def build(name: str, run: Path | None = None, target: Path | None = None) -> Path:
    """Trains a model of the zoo, if it is not given as a finished `run`, and packs it.

    Args:
        run: the folder of a run of its config; by default results/zoo/<name>, where an interrupted run goes on.
        target: where to put it; by default its place in the package.
    """
    if name not in MODELS:
        raise CommandError(f"the zoo has no model {name!r}. There are {', '.join(MODELS)}.")
    config, *words = MODELS[name]
    if run is None:
        run = Path("results/zoo") / name
        train(config, ["--output_dir", str(run), *words])
    made_by = read_results(run).get("run")
    if made_by != config:
        raise CommandError(f"{run} is a run of {made_by}, and {name} is made by {config}.")
    return pack(run, target or zoo.FOLDER / name)


def read_results(run: Path) -> dict:
    with told(f"{run} is no finished run", causes=(OSError, ValueError)):
        return json.loads((run / "results.json").read_text(encoding="utf-8"))


def pack(run: Path, target: Path) -> Path:
    """A run's model in half precision, with what pipelines need and its card."""
    with told(f"{run} holds no model", causes=(OSError, ValueError)):
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        weights = {key: halved(x) for key, x in load_file(run / WEIGHTS).items()}
    if broken := [key for key, x in weights.items() if not is_finite(x)]:
        raise CommandError(f"{run}: {broken[0]} does not fit into half precision.")
    if (size := sum(x.nbytes for x in weights.values())) > MOST_BYTES:
        raise CommandError(f"{run}: {size:,} bytes of weights; a model of the zoo has at most {MOST_BYTES:,}.")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    (target / WEIGHTS).chmod(0o644)  # safetensors lets nobody else read it
    config = {key: value for key, value in config.items() if key not in OF_THE_PACKAGE}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in KEPT:
        if (run / name).is_file():
            shutil.copy(run / name, target / name)
    results = read_results(run)
    results["command"] = portable(results["command"])
    results["settings"].get("training", {}).pop("output_dir", None)
    (target / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    write_card(run, target / "README.md", zoo_name=target.name)
    return target


def halved(x: torch.Tensor) -> torch.Tensor:
    return x.half() if x.dtype == torch.float32 else x


def described() -> list[tuple[str, str, str, str]]:
    """Of all models that are there: name, task, what they score, size."""
    rows = []
    for name in zoo.list():
        folder = Path(zoo.path(name))
        results = read_results(folder)
        metric = (results["metric_for_best_model"] or "loss").removeprefix("eval_")
        score = f"{results['dataset']}: {metric.replace('_', ' ')} {results['metrics'][f'test_{metric}']:.4g}"
        rows.append((name, task_of(str(folder)), score, f"{(folder / WEIGHTS).stat().st_size / 1e6:.1f} MB"))
    return rows
