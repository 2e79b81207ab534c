"""Energy: a measurement becomes one `EnergyReport`, which JSON, tables, plots and model cards read."""

from .carbon import find_grid, load_grids
from .measurement import EnergyMeter
from .options import EnergyOptions
from .report import EnergyReport

__all__ = ["EnergyMeter", "EnergyOptions", "EnergyReport", "find_grid", "load_grids"]
