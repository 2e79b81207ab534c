"""The common end of every training: go on where another process was killed, train, evaluate, save, report."""

import importlib.util
import json
import math
import platform
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers
import yaml
from transformers import EarlyStoppingCallback

import hf_efficient

from ..errors import told
from ..model_card import write_card
from ..tables import facts
from .checkpoints import list_checkpoints, replace_file
from .errors import RunError, TrainingError
from .history import COSTS
from .progress import header
from .provenance import code_version, peak_memory
from .run import Run
from .run_file import read_file
from .trainer import EfficientTrainer

# What may be another when a run goes on: it changes neither what is computed nor what is reported of it.
HARMLESS = {
    *("output_dir", "resume", "run_name", "report_to", "disable_tqdm", "verbose", "log_level", "show_images"),
    *("num_train_epochs", "max_steps", "load_best_model_at_end", "push_to_hub", "hub_model_id", "hub_strategy"),
    *("hub_always_push", "hub_revision", "hub_timeout", "save_total_limit"),
    *("hub_private_repo", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_persistent_workers", "early_stopping_patience", "project"),
}
SHOWN = 5  # of what was left out of the data, in results.json


def train_and_report(
    trainer: EfficientTrainer, run: Run, unit: str = "image", items_per_sample: float = 1, **known
) -> dict:
    """Trains and leaves in output_dir: the model and its processor or tokenizer as `from_pretrained` reads them,
    its card README.md, results.json, history.csv, curves.png, what the trainer draws (predictions.png and others),
    and, where codecarbon is installed, energy.json.

    Args:
        unit, items_per_sample: what energy is reckoned per, and how many of them a sample of the data has.
        known: what results.json is to say beside what is measured.

    Returns:
        what results.json holds.
    """
    with trainer.owning_folder():
        return train_in_folder(trainer, run, unit, items_per_sample, known)


def train_in_folder(trainer: EfficientTrainer, run: Run, unit: str, items_per_sample: float, known: dict) -> dict:
    claim_folder(run, trainer.is_world_process_zero())
    code_version()  # while the code that was imported is still what is checked out
    skipped = left_out(trainer)
    if trainer.is_world_process_zero():
        print(header(trainer, run.dataset.get("name", "")) + "\n", flush=True)
        if skipped:
            print(f"{skipped['count']} rows or objects are left out, as {skipped['first'][0]}\n", flush=True)
    trainer.wait()
    energy = attach_energy(trainer, run, unit, items_per_sample)
    trainer.energy_options, trainer.pushes_results = run.energy, run.training.push_to_hub
    trainer.train(resume_from_checkpoint=run.training.resume)
    trainer.remove_callback(EarlyStoppingCallback)  # which would look for its metric in the test split's
    with energy.phase("inference") if energy is not None else nullcontext():
        metrics = trainer.evaluate() if trainer.eval_dataset is not None else {}
    if trainer.test_dataset is not None:
        metrics |= trainer.evaluate(trainer.test_dataset, metric_key_prefix="test")
    with told(f"the model can't be written to {run.training.output_dir}, but its checkpoints are kept", TrainingError):
        trainer.save_model(_internal_call=True)  # pushed when the results are there too
    results = collect(trainer, run, metrics) | known
    if energy is not None and energy.meter is not None:
        results["energy"] = energy.meter.report().summary()
    if trainer.is_world_process_zero():
        with told(f"the results can't be written to {run.training.output_dir}", TrainingError):
            replace_file(Path(run.training.output_dir) / "results.json", json.dumps(results, indent=2) + "\n")
            for name, picture in trainer.pictures().items():
                if run.training.show_images or name == "confusion":
                    picture.save(Path(run.training.output_dir) / f"{name}.png")
            write_card(run.training.output_dir, repo_id=trainer.hub_model_id if run.training.push_to_hub else None)
        print("\n" + table(results), flush=True)
    trainer.wait()
    if run.training.push_to_hub:
        trainer.push_to_hub()
    return results


def claim_folder(run: Run, writes: bool = True) -> None:
    """Notes in output_dir what run it belongs to; one that was made by another is refused."""
    folder = Path(run.training.output_dir)
    file = folder / "run.yaml"
    if list_checkpoints(folder):
        if not run.training.resume:
            raise RunError(
                f"{folder} holds checkpoints of an earlier run, and resume is false: remove it or give another "
                "output_dir."
            )
        if file.is_file():
            refuse_another_run(read_before(file), run.given, folder)
    if writes:
        given = {"task": run.task} if run.task else {}
        given |= json.loads(json.dumps(run.given, default=str))
        with told(f"training.output_dir={run.training.output_dir} can't be written to", RunError):
            replace_file(file, yaml.safe_dump(given, sort_keys=False))


def read_before(file: Path) -> dict:
    """What run.yaml says of the run that left it."""
    try:
        return read_file(str(file))
    except RunError as error:
        raise RunError(
            f"{error.args[0].rstrip('.')}. So nothing tells whether {file.parent} belongs to this run: give another "
            "output_dir, or, if it does, remove that file."
        ) from error


def refuse_another_run(before: dict, now: dict, folder: Path) -> None:
    changes = []
    for section in ("dataset", "model", "augmentation", "training"):
        first, second = before.get(section) or {}, json.loads(json.dumps(now.get(section) or {}, default=str))
        changes += [
            f"{section}.{key} was {first.get(key, 'the default')} and is {second.get(key, 'the default')}"
            for key in dict.fromkeys([*first, *second])
            if first.get(key) != second.get(key) and key not in HARMLESS
        ]
    if changes:
        raise RunError(
            f"{folder} belongs to another run: {'; '.join(changes)}. Give this one another output_dir, or remove "
            "that folder."
        )


def attach_energy(trainer: EfficientTrainer, run: Run, unit: str, items_per_sample: float):
    """The EnergyCallback of a run, or None if it is switched off or codecarbon is missing."""
    if run.energy.get("enabled", True) is False:
        return None
    if importlib.util.find_spec("codecarbon") is None:
        warnings.warn(
            'energy is not measured: codecarbon is missing (pip install "hf-efficient[energy]").', stacklevel=3
        )
        return None
    from .energy_callback import EnergyCallback

    return EnergyCallback(run.energy, unit, items_per_sample).attach(trainer)


def collect(trainer: EfficientTrainer, run: Run, metrics: dict) -> dict:
    """What is known of a run when it is over."""
    state, model = trainer.state, trainer.model
    logged = [log["train_loss"] for log in state.log_history if "train_loss" in log]
    seconds = trainer.loop.seconds_trained
    samples = state.global_step * trainer.get_total_train_batch_size(trainer.args)
    return {
        "run": run.name,
        "task": run.task,
        "dataset": run.dataset.get("name"),
        "model": model.config.model_type,
        "metrics": {name: finite(value) for name, value in metrics.items() if not COSTS.search(name)},
        **({"iou_by_class": trainer.class_ious} if getattr(trainer, "class_ious", None) else {}),
        "train_loss": logged[-1] if logged else None,
        "best_metric": finite(state.best_metric),
        "best_step": state.best_global_step,
        "metric_for_best_model": trainer.args.metric_for_best_model,
        "steps": state.global_step,
        "epochs": state.epoch,
        "train_samples": len(trainer.train_dataset),
        **({"skipped": skipped} if (skipped := left_out(trainer)) else {}),
        "train_seconds": round(seconds, 3),
        "budget": None if trainer.plan is None else asdict(trainer.plan) | {"seconds_used": round(seconds, 3)},
        "train_samples_per_second": round(samples / seconds, 1) if seconds else None,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "seed": trainer.args.seed,
        "processes": trainer.args.world_size,
        "device": str(trainer.args.device),
        "threads": torch.get_num_threads(),
        "peak_memory": peak_memory(),
        "commit": code_version(),
        "versions": {
            "hf_efficient": hf_efficient.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "command": run.command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": json.loads(json.dumps(run.given, default=str)),
    }


def left_out(trainer: EfficientTrainer) -> dict:
    """How much of the data could not be used by any process, and the first of it."""
    parts = (trainer.train_dataset, trainer.eval_dataset, trainer.test_dataset)
    found = [[reason for part in parts for reason in getattr(part, "skipped", [])]]
    if trainer.args.world_size > 1:  # each knows what its own images met
        met, found = found[0], [None] * trainer.args.world_size
        torch.distributed.all_gather_object(found, met)
    found = list(dict.fromkeys(reason for process in found for reason in process))
    return {"count": len(found), "first": found[:SHOWN]} if found else {}


def finite(value):
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(results: dict) -> str:
    """The results that one looks at first."""
    evaluated, tested = (
        ", ".join(
            f"{name.removeprefix(split)} {shown(value)}"
            for name, value in results["metrics"].items()
            if name.startswith(split)
        )
        for split in ("eval_", "test_")
    )
    rows = {
        "training": f"{results['steps']} steps, {results['epochs'] or 0:.1f} epochs, {results['train_seconds']:.0f} s",
        "evaluation": evaluated,
        "test split": tested,
    }
    if rate := results.get("unknown_rate"):
        rows["test split"] += f"; {rate:.2%} of its tokens unknown"
    cut = {name: part for name, part in results.get("cut_texts", {}).items() if part["cut"]}
    rows["cut texts"] = ", ".join(f"{part['cut'] / part['texts']:.1%} of {name}" for name, part in cut.items())
    if plan := results["budget"]:
        spent = f"{plan['joules']:,.0f} J and " if plan["joules"] else ""
        rows["budget"] = f"{plan['budget']}: planned {plan['steps']} steps in {spent}{plan['seconds']:.0f} s"
    if results["best_step"]:
        metric = f"{results['metric_for_best_model']} {shown(results['best_metric'])}"
        rows["best"] = f"{metric}, step {results['best_step']}"
    if skipped := results.get("skipped"):
        rows["left out"] = f"{skipped['count']} rows or objects, as {skipped['first'][0]}"
    if kwh := results.get("energy", {}).get("kwh"):
        rows["energy"] = (
            f"{kwh * 3.6e6:,.0f} J ({kwh:.3g} kWh) for training and evaluation; energy.json says how known"
        )
    return facts({name: value for name, value in rows.items() if value})


def shown(value) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
