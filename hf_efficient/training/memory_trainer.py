"""Training of language models whose memory is carried from batch to batch.

Data are `TextStreams` or `RandomCrops`: each batch holds the next segment of some streams. Memory is kept for each of
them by the number of its first stream, so that it finds its rows again under gradient accumulation, on any number of
processes and after a resume. The optimizer steps after every segment; no gradient flows from one to the one before.
Models without memory (GPT-2, Llama) are trained on the same data without it, and so are all models as long as
`length_schedule` says less than a segment.
"""

import inspect
import math
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler

from ..data.collators import take_batch
from ..data.text_streams import IGNORED, Segments
from ..models.compressive_performer.cache import CompressiveMemory
from .length_schedule import check_lengths, cut_rows
from .metrics.language_model import LanguageModelScores
from .step_functions import value_at
from .trainer import EfficientTrainer


class MemoryTrainer(EfficientTrainer):
    """A trainer whose evaluation predicts the whole text and reports `LanguageModelScores`.

    What `loss` is the sum of, `lm_loss` and `auxiliary_loss`, is logged beside it. Evaluation begins with an empty
    memory and leaves that of training alone.
    """

    def __init__(self, model: nn.Module, args, **kwargs):
        if args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor} must be 0: bits are those of the true labels."
            )
        if getattr(model, "loss_type", "") is None:
            model.loss_type = "ForCausalLM"  # which GPT2LMHeadModel's name does not say
        args.remove_unused_columns = False  # `reset` and `stream` are for this class, not for the model
        cached = getattr(model.config, "use_cache", True)
        super().__init__(model, args, data_collator=take_batch, **kwargs)
        model.config.use_cache = cached  # of the model that is saved; in training each call says that it needs none
        if not self.model_accepts_loss_kwargs:
            raise ValueError(f"{type(model).__name__} must accept shift_labels, to predict across segments.")
        has_memory = "memory" in inspect.signature(model.forward).parameters
        self.carries_memory = has_memory and getattr(model.config, "has_memory", True)
        if self.carries_memory and args.n_gpu > 1:
            raise ValueError(f"with memory, each of the {args.n_gpu} GPUs needs its own process: use torchrun.")
        self.redrawing = [module for module in model.modules() if getattr(module, "redraw_interval", 0)]
        self.memories: dict[int, CompressiveMemory] = {}  # of training, by the first stream of a batch
        self.evaluation = Evaluation()
        self.totals = self.no_totals()

    # ---- data ----

    def _get_train_sampler(self, train_dataset: Segments | None = None) -> Sampler:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        args = self.args
        check_streams(dataset, self._train_batch_size, args.world_size, args.gradient_accumulation_steps)
        check_lengths(args.length_schedule or {}, dataset.segment_length)
        return SequentialSampler(dataset)

    def _get_eval_sampler(self, eval_dataset: Segments) -> Sampler:
        check_streams(eval_dataset, self.args.eval_batch_size, self.args.world_size)
        if not eval_dataset.whole:
            raise ValueError("eval_dataset must be TextStreams(..., whole=True): each token is predicted once.")
        return SequentialSampler(eval_dataset)

    # ---- steps ----

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        stream, schedule, block = inputs["stream"], self.args.length_schedule, inputs["input_ids"].shape[1]
        length = int(value_at(schedule, self.state)) if schedule else block
        carries_memory = self.carries_memory and length == block
        if carries_memory and schedule and stream not in self.memories:
            inputs = {**inputs, "reset": torch.ones_like(inputs["reset"])}  # from now on there is memory
        inputs = cut_rows(self.with_memory(inputs, self.memories, carries_memory), length)
        if stream >= self._train_batch_size * self.args.world_size:  # not the first batch of this step
            for module in self.redrawing:  # random features live for so many steps, however many batches a step has
                module.counter.add(module.forwards, -1)
        tokens = (inputs["shift_labels"] != IGNORED).sum()
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.memories.pop(stream, None)
        if carries_memory:
            self.memories[stream] = outputs.memory
        if outputs.get("lm_loss") is not None:
            items = tokens if num_items_in_batch is None else num_items_in_batch
            auxiliary = outputs.lm_loss.new_zeros(()) if outputs.auxiliary_loss is None else outputs.auxiliary_loss
            self.totals += torch.stack([outputs.lm_loss * items, auxiliary * tokens, tokens]).detach()
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        stream, labels = inputs["stream"], inputs["shift_labels"]
        tokens = (labels != IGNORED).sum()
        inputs = self.with_memory(inputs, self.evaluation.memories, self.carries_memory)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, num_items_in_batch=tokens.clamp(min=1))
        if self.carries_memory:
            self.evaluation.memories[stream] = outputs.memory
        loss = outputs.loss.detach()
        self.evaluation.add(loss.item() * tokens.item(), tokens.item())
        return (loss, None, None) if prediction_loss_only else (loss, outputs.logits, labels)

    def with_memory(
        self, inputs: dict[str, Tensor], memories: dict[int, CompressiveMemory], carries_memory: bool
    ) -> dict:
        """What the model is called with; `inputs` stay as they are."""
        inputs = {**inputs, "use_cache": False}
        stream, reset = inputs.pop("stream"), inputs.pop("reset")
        if carries_memory and not reset.all():
            if stream not in memories:
                raise ValueError(f"the streams from {stream} on continue a text, but their memory is missing.")
            inputs["memory"] = memories[stream]
            if reset.any():
                inputs["reset"] = reset
        return inputs

    # ---- evaluation ----

    def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
        text = dataloader.dataset.text
        with self.fresh_evaluation() as found:
            output = super().evaluation_loop(
                dataloader, description, *args, metric_key_prefix=metric_key_prefix, **kwargs
            )
            nats, tokens = map(sum, zip(*gather_object([(found.nats, found.tokens)]), strict=True))
        if tokens != len(text.tokens) - 1:
            raise RuntimeError(f"{tokens} tokens were predicted, but the text has {len(text.tokens) - 1}.")
        scores = LanguageModelScores(nats, tokens, text.characters, text.bytes, text.spelled)
        metrics = {**scores.as_dict(), "loss": scores.nats_per_token}
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    @contextmanager
    def fresh_evaluation(self):
        outer, self.evaluation = self.evaluation, Evaluation()
        try:
            yield self.evaluation
        finally:
            self.evaluation = outer

    # ---- logs ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            nats, auxiliary, tokens = self.accelerator.reduce(self.totals, "sum").tolist()
            self.totals = self.no_totals()
            if tokens:
                logs = {**logs, "lm_loss": nats / tokens, "auxiliary_loss": auxiliary / tokens}
        super().log(logs, start_time)

    def no_totals(self) -> Tensor:
        """Nats, weighted auxiliary loss and tokens since the last log, in float32: not every device has more."""
        return torch.zeros(3, device=self.args.device)

    # ---- rehearsal ----

    @property
    def warm_steps(self) -> int:
        """Until memory is full"""
        config = self.model.config
        if not self.carries_memory:
            return super().warm_steps
        remembered = config.memory_length + config.compressed_memory_length * config.compression_rate
        return 1 + math.ceil(remembered / self.train_dataset.segment_length)

    def running_state(self):
        return dict(self.memories), self.totals.clone()

    def restore_running_state(self, state) -> None:
        self.memories, self.totals = state

    # ---- checkpoints ----

    def save_extra(self, folder: str | Path) -> None:
        """Every process saves the memory of its own streams."""
        super().save_extra(folder)
        tensors = {"totals": self.totals}
        for stream, memory in self.memories.items():
            tensors |= {f"{stream}/{name}": x.clone() for name, x in memory.state_dict().items()}
        save_file(tensors, Path(folder) / f"memory-{self.args.process_index}.safetensors")

    def load_extra(self, folder: str | Path) -> None:
        """Takes all of them: streams may have moved to another process, since they don't depend on their number."""
        super().load_extra(folder)
        files = sorted(Path(folder).glob("memory-*.safetensors"))
        if not files:
            raise ValueError(f"{folder} has no memory: it was not saved by a MemoryTrainer.")
        self.memories, self.totals = {}, self.no_totals()
        for file in files:
            tensors = {name: x.to(self.args.device) for name, x in load_file(file).items()}  # it knows no "cpu:0"
            if file.stem == f"memory-{self.args.process_index}":
                self.totals += tensors["totals"]
            streams: dict[int, dict[str, Tensor]] = {}
            for name, x in tensors.items():
                if "/" in name:
                    stream, name = name.split("/")
                    streams.setdefault(int(stream), {})[name] = x
            for stream, parts in streams.items():
                if stream // self._train_batch_size % self.args.world_size == self.args.process_index:
                    self.memories[stream] = CompressiveMemory.from_state_dict(parts, self.model.config)


class Evaluation:
    """The memory and the counts of one evaluation."""

    def __init__(self):
        self.memories: dict[int, CompressiveMemory] = {}
        self.nats, self.tokens = 0.0, 0

    def add(self, nats: float, tokens: int) -> None:
        self.nats, self.tokens = self.nats + nats, self.tokens + tokens


def check_streams(dataset: Segments, batch_size: int, processes: int, accumulated: int = 1) -> None:
    """Raises unless each row of the batches belongs to one stream."""
    if not isinstance(dataset, Segments):
        raise ValueError(f"train_dataset must be TextStreams or RandomCrops, got {type(dataset).__name__}.")
    if dataset.streams != batch_size * processes * accumulated:
        raise ValueError(
            f"the text is cut into streams={dataset.streams}, but batches of {batch_size} rows on {processes} "
            f"processes, {accumulated} per step, need {batch_size * processes * accumulated}."
        )
