"""The language model as two ONNX files, for whole segments and for single tokens, held to onnxruntime.

`models/compressive_performer/export.py` says what they take and give. onnx is imported when a model is exported.
"""

import logging
import warnings
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.export import Dim
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

from .errors import UNLOADABLE, CommandError, told
from .extras import require
from .models.compressive_performer.export import ExportedModel, SegmentReader, TokenWriter

TOLERANCE = 1e-3  # of the largest difference, relative to the largest logit


class ExportedLanguageModel(NamedTuple):
    files: tuple[Path, Path]
    segment_length: int
    difference: float  # between onnxruntime and PyTorch, at most


def files_of(file: str | Path) -> tuple[Path, Path]:
    """model.onnx -> model_segment.onnx, model_token.onnx"""
    file = Path(file)
    return tuple(file.with_name(f"{file.stem}_{part}{file.suffix}") for part in ("segment", "token"))


def export_language_model(model: str, file: str | Path, trust_remote_code: bool = False) -> ExportedLanguageModel:
    """Writes both files, for batches of any size, and compares what onnxruntime makes of a text with the model's.

    Args:
        model: a folder, or a repository on the Hub.
        file: the files' common name.
    """
    require("export")
    with told(model, causes=UNLOADABLE):
        network = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=trust_remote_code).eval()
    files = files_of(file)
    with told(f"{files[0]} can't be written"):
        files[0].parent.mkdir(parents=True, exist_ok=True)
    for function, path in zip((SegmentReader(network), TokenWriter(network)), files, strict=True):
        write(function, path)
    return ExportedLanguageModel(files, network.config.segment_length, compare(network, file))


@torch.no_grad()
def write(function: ExportedModel, file: Path) -> None:
    batch, rows = {1: Dim.DYNAMIC}, 2  # traced with two, so that any number will do
    memory, state = function.start(rows)
    names = function.names
    if isinstance(function, SegmentReader):
        tokens, where, tensors = torch.zeros(rows, function.lengths.segment).long(), torch.tensor(0), [*memory, *state]
        names, shapes = ["seen", *function.memories, *names], [batch for _ in tensors]
    else:
        tokens, where, names = torch.zeros(rows, 1).long(), torch.tensor([0]), ["place", *names]
        _, *before = function(tokens, where, *state)
        _, *tensors = function(tokens, where + 1, *before)
        shapes = [batch | dict.fromkeys(growing(x, y), Dim.DYNAMIC) for x, y in zip(before, tensors, strict=True)]
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # the exporters talk of themselves
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                function,
                (tokens, where, *tensors),
                dynamo=True,
                input_names=["input_ids", *names],
                output_names=["logits", *(f"{name}_after" for name in names[1:])],
                dynamic_shapes=({0: Dim.DYNAMIC}, {}, tuple(shapes)),
            )
        except torch.onnx.OnnxExporterError as error:
            mechanism = function.body.config.attention
            raise CommandError(f"torch.onnx can't translate a language model with {mechanism!r} attention.") from error
    with told(f"{file} can't be written"):
        program.save(file)


def growing(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """The dimensions of a state in which it grows with every token: that of a cache of keys, for one."""
    return [axis for axis, size in enumerate(before.shape) if size != after.shape[axis]]


class OnnxLanguageModel:
    """What `export_language_model` wrote, run by onnxruntime. A call goes on where the last one ended.

        writer = OnnxLanguageModel("model.onnx")
        logits = writer(tokens)  # (B, N) -> (B, N, vocab_size), NumPy

    Args:
        file: the files' common name.
    """

    def __init__(self, file: str | Path):
        import onnxruntime

        self.reader, self.writer = (
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in files_of(file)
        )
        self.segment = self.reader.get_inputs()[0].shape[1]
        self.names = [node.name for node in self.reader.get_inputs()[2:]]
        self.states = [node.name for node in self.writer.get_inputs()[2:]]
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self.seen, self.open, self.kept, self.state = 0, None, {}, {}

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        if not self.kept:
            self.begin(len(tokens))
        logits = []
        while tokens.shape[1]:
            room = self.segment - self.open.shape[1]
            if room == self.segment <= tokens.shape[1]:
                part, found = tokens[:, :room], self.read(tokens[:, :room])
            else:
                part = tokens[:, :1]
                found = self.write(part)
                self.open = np.concatenate([self.open, part], 1)
                if room == 1:
                    self.read(self.open)
            logits.append(found)
            tokens = tokens[:, part.shape[1] :]
        return np.concatenate(logits, 1)

    def begin(self, rows: int) -> None:
        kinds = {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int64)": np.int64}
        nodes = self.reader.get_inputs()[2:]
        self.kept = {
            node.name: np.zeros(
                [rows if axis == 1 else size for axis, size in enumerate(node.shape)], kinds[node.type]
            )
            for node in nodes
        }
        self.seen = -self.segment
        self.read(np.zeros((rows, self.segment), np.int64))

    def read(self, segment: np.ndarray) -> np.ndarray:
        logits, *after = self.reader.run(None, {"input_ids": segment, "seen": np.array(self.seen), **self.kept})
        self.seen, self.open = self.seen + self.segment, segment[:, :0]
        self.kept = dict(zip(self.names, after, strict=True))
        self.state = {name: self.kept[name] for name in self.states}
        return logits

    def write(self, token: np.ndarray) -> np.ndarray:
        place = np.array([self.open.shape[1]])
        logits, *after = self.writer.run(None, {"input_ids": token, "place": place, **self.state})
        self.state = dict(zip(self.states, after, strict=True))
        return logits


@torch.no_grad()
def compare(network: PreTrainedModel, file: str | Path) -> float:
    """The largest difference between onnxruntime's logits and PyTorch's, over a text of several segments of which some
    are read as a whole and some token by token."""
    config, ours = network.config, OnnxLanguageModel(file)
    length = config.segment_length
    text = torch.randint(config.vocab_size, (3, 4 * length + 3), generator=torch.Generator().manual_seed(0))
    truth = network(text).logits
    parts = text.numpy().astype(np.int64)
    cuts = [0, 2 * length, 2 * length + 3, 4 * length + 3]  # the last part begins within a segment
    found = np.concatenate([ours(parts[:, a:b]) for a, b in pairwise(cuts)], 1)
    difference = float(np.abs(found - truth.numpy()).max())
    if not difference <= TOLERANCE * max(1.0, truth.abs().max().item()):
        raise CommandError(f"{files_of(file)[0]} was written, but onnxruntime's logits differ by {difference:.2g}.")
    return difference
