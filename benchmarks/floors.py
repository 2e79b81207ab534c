"""What must be reached: all bounds in one place, and the figure that is set beside one.

A floor is the least that a ratio of speed or memory may be; a ceiling (`at_most`) the most. The command line, the
tables and the JSON call both targets. They were set for float32 on two cores, and are kept where they are missed.
"""

from typing import NamedTuple

from benchmarks.ours import kernel, mechanism
from benchmarks.tables import significant
from benchmarks.timing import Ratio

# Attention, measured in attention_floors.py, forward+backward.
CAUSAL_FLOORS = {  # speed against causal SDPA, by length
    mechanism("linear_elu"): {512: 1.8, 1024: 3, 4096: 8, 16384: 28},
    kernel(256): {1024: 1.2, 4096: 3, 16384: 10},
    mechanism("performer", num_features=256): {4096: 2, 16384: 7},
}
PEER_FLOORS = {64: 15, 256: 30}  # speed against performer-pytorch's CPU path, by number of features
BIDIRECTIONAL_FLOOR = 1  # speed of linear mechanisms against SDPA
MEMORY_GROWTH = 2.2  # of peak memory, at most, per doubling of the length
MEMORY_FLOOR = 8  # peak memory of performer-pytorch over ours
STEP_GROWTH = 1.1  # of a recurrent step's time, at most, after many tokens

# Vision models, measured in models.py: speed against transformers' own.
MOBILEVIT_INFERENCE = {(32, 256): 2.2, (1, 256): 1.3, (32, 64): 1.15, (1, 64): 1.15}  # by batch and pixels
MOBILEVIT_TRAINING = 1.3
GREEN_FLOORS = {138: 1.4, 98: 2.0}  # by patches kept of 196
SCORING_SHARE = 0.03  # of a training step, at most, that scoring patches takes
KERFORMER_FLOORS = {128: 1.0, 224: 1.0, 320: 1.0, 512: 1.5}  # by pixels
SHORT_FLOOR = 1.0  # speed of linear mechanisms in a ViT of 65 tokens, against softmax attention in it
KERFORMER_AHEAD = 197  # tokens, at most, from which on it is faster than SDPA

# The language model, measured in language_model.py.
DECODE_FLOORS = {512: 1.3, 4096: 2.5, 8192: 4.5}  # speed against GPT-2, by tokens of context
TOKEN_GROWTH = 1.1  # of the time per token, at most, after many tokens
STATE_GROWTH = 1.0  # of the state, at most, once both memories are full
PREFILL_FLOOR = 2.0  # speed against GPT-2
TRAINING_FLOORS = {"compressive-transformer-pytorch": 2.0, "performer-pytorch": 3.0}  # speed of a training step
TRAINING_MEMORY_FLOORS = {"compressive-transformer-pytorch": 1.0, "performer-pytorch": 10.0}  # their peak over ours

# The training script, measured in training.py.
SCRIPT_STEP = 1.10  # its step over a bare loop's, at most
ENERGY_STEP = 1.02  # a step with the energy callback over one without, at most
IMAGES_PER_SECOND = 20_000

# Data, measured in data.py: a step with images decoded by two workers over one with stored images, at most.
ON_DEMAND_STEP = 1.05  # what keeps up does not wait
STREAMED_STEP = 1.10
CACHED_IMAGES_PER_SECOND = 172_000  # as on two cores of an AMD EPYC (AVX2)


class Figure(NamedTuple):
    """A measured figure and its bound; no value where it could not be measured."""

    group: str
    claim: str
    bound: float
    value: float | None
    at_most: bool = False
    note: str = ""

    @classmethod
    def of_ratio(cls, group: str, claim: str, bound: float, found: Ratio, at_most: bool = False) -> "Figure":
        return cls(group, claim, bound, found.median, at_most, found.quartiles)

    @classmethod
    def from_record(cls, record: dict) -> "Figure":
        return cls(**{field: record[field] for field in cls._fields})

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "pass" if (self.value <= self.bound if self.at_most else self.value >= self.bound) else "FAIL"

    def cells(self) -> list[str]:
        """what, of, measured, target, verdict, note"""
        value = "–" if self.value is None else significant(self.value)
        bound = f"{'≤' if self.at_most else '≥'} {self.bound:,g}"
        return [self.group, self.claim, value, bound, self.verdict, self.note]

    def record(self) -> dict:
        return {**self._asdict(), "verdict": self.verdict}


HEADER = ["what", "of", "measured", "target", "verdict", "note"]  # of `Figure.cells`
