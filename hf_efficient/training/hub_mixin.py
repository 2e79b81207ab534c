"""Trainer(push_to_hub=True) through `hf_efficient.hub`: with deadlines, checksums, and failures that are told.

transformers pushes in the background and forgets what goes wrong there. Here a push during training that fails is a
warning with the reason, and is repeated when training is over; training itself goes on. Only `push_to_hub`, which
is called to push, raises.

When training is over, all that is still to be pushed has one deadline: what failing pushes have used up is not given
to the next.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from transformers.trainer_utils import HubStrategy

from .. import hub
from ..model_card.card import DRAFT

logger = logging.getLogger(__name__)

AGAIN = "Training goes on; this will be tried again at its end."
STAGE = "_pushing"  # in output_dir; what begins with _ is not shared
# Of a checkpoint, what is for going on with the training.
FOR_RESUMING = (
    *("manifest.json", "trainer_state.json", "loop_*.json", "energy*.json"),
    *("ema.safetensors", "memory-*.safetensors"),
)


class HubMixin:
    """Goes before a Trainer among the bases of a class.

    Attributes:
        pushes_results: whether `push_to_hub` will be called after training, so that nothing need be made up for before
        push_failures: what went wrong with pushes during training that have not been made up for
    """

    pushes_results = False

    def __init__(self, *args, **kwargs):
        self.push_failures: list[str] = []
        self._pushing: threading.Thread | None = None
        self._unsent: Callable[[], object] | None = None
        self._skipped: str | None = None  # the last checkpoint that came while another was being pushed
        self._lost = 0.0  # seconds that training, which is over, has waited for pushes that failed
        super().__init__(*args, **kwargs)

    def init_hf_repo(self, token: str | None = None) -> None:
        """Makes the repository. A token that is not good enough stops the run now; a Hub that is away does not."""
        if not self.is_world_process_zero():
            return
        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        try:
            private, token = self.args.hub_private_repo, token or self.args.hub_token
            self.hub_model_id = hub.create(
                self.hub_model_id, private=private, token=token, timeout=self.args.hub_timeout
            )
        except hub.HubError as error:
            if not error.transient:
                raise
            logger.warning("%s Training goes on; pushes will try again.", error)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs,
    ) -> hub.Push | None:
        """Saves the model, writes its card and shares both; HubError if that fails.

        A card that a person or `model_card.write_card` wrote stays as it is.

        Args:
            blocking: False returns at once; what goes wrong is then a warning.
            kwargs: for `create_model_card`.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if not _is_written(Path(self.args.output_dir) / "README.md"):
            kwargs.setdefault("model_name", self.hub_model_id.split("/")[-1])
            kwargs.setdefault("tags", list(getattr(self.model, "model_tags", None) or []))
            # It may ask the Hub for the model that this one was made from.
            hub.Call("writing the model card", self.args.hub_timeout, token).run(
                lambda _: self.create_model_card(**kwargs)
            )
        self._make_up()
        folder, branch = self.args.output_dir, revision or self.args.hub_revision
        if not blocking:
            return self._push_in_background(lambda: self._push(folder, commit_message, branch=branch, token=token))
        try:
            pushed = self._push(folder, commit_message, branch=branch, token=token)
        finally:
            self._lost = 0.0
        self._forget_failures()
        return pushed

    def _push(self, folder: str | Path, message: str | None, token: str | None = None, **options) -> hub.Push:
        return hub.push(
            folder,
            self.hub_model_id,
            private=self.args.hub_private_repo,
            message=message or "Upload with hf_efficient",
            token=token or self.args.hub_token,
            timeout=self.args.hub_timeout,
            spent=self._lost,
            **options,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Shares a checkpoint's model in the background, and the checkpoint itself if `hub_strategy` says so."""
        strategy = HubStrategy(self.args.hub_strategy)
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        self._skipped = None
        if self._is_pushing():
            if not self.args.hub_always_push:
                self._skipped = checkpoint_folder
                return
            self._wait_for_push()
            self._lost = 0.0  # training is not over
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        stage, branch = self._stage(Path(checkpoint_folder)), self.args.hub_revision
        message = f"Training in progress, step {stage.name.rpartition('-')[2]}"

        def push() -> None:
            self._push(stage, message, branch=branch, left_out=(*hub.LEFT_OUT, *FOR_RESUMING))
            if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                name = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else stage.name
                self._push(stage, f"{message}, checkpoint", branch=branch, path_in_repo=name, left_out=())
            shutil.rmtree(stage.parent, ignore_errors=True)

        self._push_in_background(push)

    def _stage(self, checkpoint: Path) -> Path:
        """Links to a checkpoint's files, which stay when it is rotated away."""
        stage = Path(self.args.output_dir) / STAGE / checkpoint.name
        shutil.rmtree(stage.parent, ignore_errors=True)
        shutil.copytree(checkpoint, stage, copy_function=_link)
        return stage

    def _push_in_background(self, push: Callable[[], object], promise: str = AGAIN) -> None:
        self._unsent = push

        def run() -> None:
            try:
                push()
                self._forget_failures()
            except Exception as error:
                problem = hub.scrub(str(error), self.args.hub_token)
                self.push_failures.append(problem)
                logger.warning("%s %s", problem, promise)

        # A daemon: a run that is told to end does not wait for it. A commit is made whole or not at all.
        self._pushing = threading.Thread(target=run, daemon=True, name="push")
        self._pushing.start()

    def _is_pushing(self) -> bool:
        return self._pushing is not None and self._pushing.is_alive()

    def _wait_for_push(self) -> None:
        if self._is_pushing():
            logger.info("Waiting for a push to end.")
            start, failures = time.monotonic(), len(self.push_failures)
            self._pushing.join()
            if len(self.push_failures) > failures:
                self._lost += time.monotonic() - start

    def _forget_failures(self) -> None:
        self._unsent = None
        self.push_failures.clear()

    def _finish_current_push(self) -> None:
        """What transformers calls when training is over."""
        if not self.pushes_results:
            self._make_up()
            self._lost = 0.0

    def _make_up(self) -> None:
        """Waits, pushes the last checkpoint if it was skipped, and repeats what has failed."""
        self._wait_for_push()
        if self._skipped is not None and Path(self._skipped).is_dir():
            self._push_from_checkpoint(self._skipped)
            self._wait_for_push()
        if self._unsent is not None:
            self._push_in_background(self._unsent, "It was the last attempt; scripts/push_to_hub.py can make another.")
            self._wait_for_push()
        shutil.rmtree(Path(self.args.output_dir) / STAGE, ignore_errors=True)


def _is_written(card: Path) -> bool:
    """Whether there is a card, other than a draft of transformers' Trainer."""
    return card.is_file() and DRAFT not in card.read_text(encoding="utf-8")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # not on this file system
        shutil.copy2(source, target)
