"""Draws the pictures of docs/ again, from the JSON files beside them: make pictures.

What a benchmark or an experiment measured stays as it is; only how it is shown may have changed since.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from benchmarks.docs_tables import DOCS
from benchmarks.plots import draw_model_speeds, draw_speedups
from hf_efficient.experiments.budget_plot import plot_curves
from hf_efficient.experiments.energy_analysis import ENERGIES, TRADE_OFF, read_analysis
from hf_efficient.experiments.energy_plots import plot_energies, plot_trade_off
from hf_efficient.experiments.pictures import kept_patches, open_images


def pictures(results: Path = DOCS / "results") -> Iterator[tuple[Path, Image.Image]]:
    """Each file and what belongs into it."""
    yield results / "attention" / "benchmark.png", draw_speedups(read(results / "attention" / "benchmark.json"))
    models = [read(results / "models" / f"{name}.json") for name in ("models", "compressive_performer")]
    yield results / "models" / "speeds.png", draw_model_speeds(*models)
    yield results / "models" / "kept_patches.png", kept_patches(open_images(()), patch_size=16, keep=0.5)
    energy = read(results / "energy" / "report.json")
    for name, draw in ((ENERGIES, plot_energies), (TRADE_OFF, plot_trade_off)):
        yield results / "energy" / name, draw(read_analysis(energy), energy["arms"])
    for file in sorted((results / "recipes").glob("*.json")):
        if (picture := plot_curves(read(file))) is not None:
            yield file.with_suffix(".png"), picture


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    for file, picture in pictures():
        picture.save(file)
        print(f"Written: {file}")


if __name__ == "__main__":
    main()
