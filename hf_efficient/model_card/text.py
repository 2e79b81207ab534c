"""What a card says in words: what the model is, its limits, how it compares."""

from collections.abc import Sequence

from ..energy.markdown import amount
from ..models.auto import FAMILIES
from .trained_model import TrainedModel, metric_of, without_folders

ABOUT = {
    "hugginggreen_vit": 'A Vision Transformer trained on the patches worth it (Limone & Iannotti, "HuggingGreen").',
    "kerformer_vit": "A Vision Transformer for linear attention (Kerformer, Gan et al. 2023).",
    "kerformer_text": "An encoder of texts with linear attention (Kerformer, Gan et al. 2023).",
    "mobilevit_v2": "Convolutions and separable self-attention (MobileViTv2, Mehta & Rastegari 2022).",
    "imagesig": "Signatures of an image's rows, and what little learns from them (ImageSig, Ibrahim & Lyons 2022).",
    "compressive_performer": "A causal language model that reads in segments and remembers earlier ones, the oldest "
    "compressed (Compressive Performer, Ragupathi et al. 2021).",
}


def about(model: TrainedModel) -> str:
    """What it is, in a few sentences."""
    config, results = model.config, model.results
    size = f" with {results['parameters']:,} parameters" if "parameters" in results else ""
    data = f", trained on {model.dataset.title}" if model.dataset else ""
    prefix = FAMILIES[config.model_type].prefix if model.is_ours else f"transformers' `{config.model_type}`"
    start = f", from the weights of `{without_folders(model.pretrained)}`" if model.pretrained else ""
    sentences = [
        f"{prefix} for {model.task.name.replace('-', ' ')}{size}{data}{start}.",
        ABOUT.get(config.model_type, ""),
    ]
    if getattr(config, "block", None) == "v1":
        sentences.append("Its blocks are those of the first version (MobileViT, Mehta & Rastegari 2021).")
    has_layers = getattr(config, "num_hidden_layers", 1) > 0
    if has_layers and isinstance(attention := getattr(config, "attention", None), str):
        sentences.append(f"Its attention is `{attention}`.")
    if config.model_type == "hugginggreen_vit" and config.heuristic != "none":
        sentences.append(selection(model))
    if pooling := getattr(config, "token_pooling", None):
        layers = ", ".join(map(str, pooling["after"]))
        sentences.append(f"Behind layer {layers} {pooling['keep']:.0%} of the tokens that came go on, as clusters.")
    if config.model_type == "compressive_performer":
        sentences.append(
            f"It reads {config.segment_length} tokens at a time and remembers the {config.memory_length} before them, "
            f"and of what is older {config.compressed_memory_length} compressed slots of {config.compression_rate} "
            "tokens each."
        )
    return " ".join(filter(None, sentences))


def selection(model: TrainedModel) -> str:
    """Which patches training and evaluation saw."""
    config, settings = model.config, model.settings
    chosen = f"{'drawn' if config.probabilistic else 'the best'} by {config.heuristic}"
    if config.heuristic == "random":
        chosen = "drawn at random"
    some = f"{config.num_kept_patches} of {config.num_patches} patches, {chosen}"
    if settings.get("model", {}).get("freeze_backbone"):  # which then is as in evaluation
        seen = f"kept {some}, always" if config.select_at_eval else "saw all patches"
        return f"Its backbone was frozen: training, like evaluation, {seen}."
    decay = "" if config.prob_schedule == "constant" else f" at first ({config.prob_schedule} schedule)"
    kept = f"{config.prob:.0%} of the batches{decay} keep {some}"
    if schedule := settings.get("training", {}).get("patch_schedule"):
        steps = (f"{share:.0%} from {float(start):.0%} of the steps on" for start, share in schedule.items())
        kept = f"batches keep a share ({', '.join(steps)}) of {config.num_patches} patches, {chosen}"
    then = "does the same, always" if config.select_at_eval else "sees all of them"
    return f"In training, {kept}; evaluation {then}."


def limits(model: TrainedModel) -> list[str]:
    """What to know before using it."""
    config, results, found = model.config, model.results, []
    if model.task.name == "image-classification":
        found.append(
            f"It knows {config.num_labels} classes and answers with one of them whatever it is shown. Its scores were "
            f"not calibrated. It was made for images of {config.image_size} pixels."
        )
    elif model.task.name == "text-classification":
        found.append(
            f"It knows {config.num_labels} classes and answers with one of them whatever it reads. Its scores were "
            "not calibrated."
        )
        cut = {name: part for name, part in results.get("cut_texts", {}).items() if part["cut"]}
        if cut:
            shares = ", ".join(f"{part['cut'] / part['texts']:.1%} of {name}" for name, part in cut.items())
            length = next(iter(cut.values()))["max_length"]
            found.append(f"It read only the first {length:,} tokens of long texts ({shares}).")
    elif model.task.name == "text-generation":
        found.append(
            "It goes on in the manner of the text that it was trained on. It knows no facts, follows no instructions, "
            "and repeats whatever that text holds."
        )
    if model.was_chosen and not any(name.startswith("test_") for name in results["metrics"]):
        found.append(
            f"The weights are those of the evaluation with the best {results['metric_for_best_model']} "
            f"(step {results['best_step']}), on the same {model.task.samples} that the table is about: its figures "
            "are a little better than they would be on others."
        )
    if results:
        found.append(f"It is one run, with seed {results.get('seed')}: another seed gives somewhat other figures.")
    options = [f"{key}={value}" for key, value in model.settings.get("dataset", {}).items() if "limit" in key]
    if options:
        found.append(f"Not all of the data was used: {', '.join(options)}.")
    if skipped := results.get("skipped"):
        found.append(f"{skipped['count']} rows or objects were left out of the data as corrupt.")
    found.append("Nobody has examined it for bias, or for use where a mistake does harm.")
    return found


def comparison(model: TrainedModel, others: Sequence[TrainedModel]) -> dict | None:
    """A table of the runs, and what it says in words, whether it pleases or not."""
    if not others:
        return None
    for other in (model, *others):
        if not other.results:
            raise ValueError(f"{other.folder} holds no results.json: only runs that ended can be compared.")
        if other.dataset_name != model.dataset_name or other.task != model.task:
            raise ValueError(
                f"{other.folder} is about {other.task.name} on {other.dataset_name}, {model.folder} about "
                f"{model.task.name} on {model.dataset_name}: they can't be compared."
            )
    metric, _ = model.main_score() or ("loss", None)
    return {
        "metric": metric_of(metric).title,
        "rows": [_row(run) for run in (model, *others)],
        "words": [_verdict(model, other) for other in others],
    }


def _row(run: TrainedModel) -> list[str]:
    score, joules = run.main_score(), run.energy and run.energy.joules()
    results = run.results
    cells = [f"{results['parameters']:,}", f"{results['steps']:,}", f"{results['train_seconds']:,.0f}"]
    return [run.name, *cells, f"{score[1]:.4f}" if score else "–", amount(joules)]


def _verdict(model: TrainedModel, other: TrainedModel) -> str:
    parts = []
    if (ours := model.main_score()) and (theirs := other.main_score()) and ours[0] == theirs[0]:
        metric, difference = metric_of(ours[0]), ours[1] - theirs[1]
        better = "better" if (difference > 0) == metric.higher_is_better else "worse"
        parts.append(f"{metric.title} {abs(difference):.4f} {better}" if difference else f"the same {metric.title}")
    spent, theirs = (run.energy and run.energy.joules() for run in (model, other))
    if spent and theirs:
        saving = "" if spent < theirs else ", so no saving"
        parts.append(f"{spent / theirs:.2f} of its energy ({spent:,.0f} J and {theirs:,.0f} J{saving})")
        if model.energy.components != other.energy.components:
            parts.append("with energies that are known in different ways, so that their ratio means little")
    parts.append(f"{model.results['train_seconds'] / other.results['train_seconds']:.2f} of its time")
    first, second = model.settings, other.settings
    differing = [
        f"{section}.{key}"
        for section in ("dataset", "augmentation", "training")
        for key in dict.fromkeys([*first.get(section, {}), *second.get(section, {})])
        if first.get(section, {}).get(key) != second.get(section, {}).get(key)
    ]
    differing += [key for key in ("device", "threads", "processes") if model.results[key] != other.results[key]]
    unlike = f" Besides the model, {', '.join(differing)} differ." if differing else ""
    return f"Against {other.name}: {', '.join(parts)}.{unlike}"
