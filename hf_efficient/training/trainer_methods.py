"""Private methods of transformers' Trainer that our trainers stand on.

transformers may change them in any release. A method that has gone would leave ours uncalled, and a run would end
without checkpoints or without its last epoch; so it is an error before the run begins.
"""

import transformers
from transformers import Trainer

from .errors import RunError

SUPPORTED = "transformers>=5.18,<6"  # as in pyproject.toml

OVERRIDDEN = {  # method -> what ours does besides or instead
    # EfficientTrainer
    "_init_training_state": "knows whether a resumed run was over",
    "_load_callback_state": "keeps the callbacks, with what they had counted",
    "_prepare_for_training": "loads what else a checkpoint holds",
    "_run_epoch": "tells the epoch to data and model",
    "_get_train_sampler": "an order that is a function of seed and epoch",
    "_evaluate": "no evaluation on start after a resume",
    "_finalize_training": "leaves the averaged weights in the model",
    "_save_checkpoint": "writes a checkpoint whole or not at all",
    "_save": "keeps the model's own names of weights",
    "_load_from_checkpoint": "loads all weights or none",
    "_load_rng_state": "is sure that nothing vanished while it was loaded",
    "_load_best_model": "loads all weights or none, and their averages",
    # FiniteMixin
    "_get_grad_norm": "stops at NaN and infinity",
    # HubMixin
    "_push_from_checkpoint": "pushes in the background, and tells what goes wrong",
    "_finish_current_push": "repeats what has failed",
    # SegmentationTrainer
    "_get_num_items_in_batch": "leaves out pixels that are ignored",
    # MemoryTrainer
    "_get_eval_sampler": "rows of batches stay rows of streams",
}
CALLED = (
    "_prepare_inputs",
    "_save_optimizer_and_scheduler",
    "_save_rng_state",
    "_save_scaler",
)


def check_trainer_methods() -> None:
    """Raises if the installed transformers lacks one of them."""
    if missing := [name for name in (*OVERRIDDEN, *CALLED) if not hasattr(Trainer, name)]:
        raise RunError(
            f"transformers {transformers.__version__} has no Trainer.{', Trainer.'.join(missing)}, which this trainer "
            f'needs. Supported versions: pip install "{SUPPORTED}".'
        )
