"""What measures speed and memory. It is no part of the wheel, since it needs the libraries that we compare with.

From a clone, in its top folder: `python -m benchmarks.attention --help`, and so on for each of `BENCHMARKS`.
"""

from importlib import import_module
from typing import NamedTuple


class Benchmark(NamedTuple):
    module: str
    help: str

    def main(self, argv: list[str] | None = None) -> int:
        """Runs it with these arguments; the exit code is 1 if a target was missed."""
        return import_module(self.module).main(argv)


BENCHMARKS = {
    "attention": Benchmark("benchmarks.attention", "every attention mechanism against PyTorch's softmax attention"),
    "models": Benchmark("benchmarks.models", "the models against transformers' own and against the peers"),
    "text": Benchmark("benchmarks.text", "classifiers of texts against transformers' BERT (the paper's Table 7)"),
    "training": Benchmark("benchmarks.training", "what the training script adds to a bare loop"),
    "data": Benchmark("benchmarks.data", "training steps with images decoded on demand against stored ones"),
    "processes": Benchmark("benchmarks.processes", "two processes against one: time, CPU, bytes"),
    "mechanisms": Benchmark("benchmarks.mechanisms", "every attention mechanism held to its formula and timed"),
}
