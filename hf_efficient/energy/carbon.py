"""How much CO2e a kilowatt-hour stands for, by country: the yearly averages that come with codecarbon."""

import importlib.util
import json
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class Grid(NamedTuple):
    """Where electricity comes from."""

    country: str | None  # three-letter ISO code; None = not stated
    name: str
    grams_per_kwh: float | None  # of CO2e; None = unknown
    source: str


@lru_cache(maxsize=1)
def load_grids() -> dict[str, Grid]:
    """By ISO code; empty without codecarbon."""
    mixes = _read_data("global_energy_mix.json")
    return {
        code: Grid(code, mix["country_name"], mix["carbon_intensity"], f"codecarbon's table, average of {mix['year']}")
        for code, mix in mixes.items()
        if mix.get("carbon_intensity") is not None
    }


def _read_data(name: str) -> dict:
    package = importlib.util.find_spec("codecarbon")  # found, not imported: that takes a while
    if package is None or not package.submodule_search_locations:
        return {}
    file = Path(package.submodule_search_locations[0]) / "data" / "private_infra" / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def find_grid(country: str | None = None, carbon_intensity: float | None = None) -> Grid:
    """The grid of a country, or the world's; `carbon_intensity` (g/kWh) replaces its average."""
    grids = load_grids()
    if country is None:
        world = _read_data("carbon_intensity_per_source.json").get("world_average")
        grid = Grid(None, "country not stated", world, "codecarbon's table, the world's average")
    elif country in grids:
        grid = grids[country]
    elif grids or len(country) != 3 or not country.isupper():
        raise ValueError(f"energy.country={country!r} is not a three-letter ISO code of a country.{_suggest(country)}")
    else:
        grid = Grid(country, country, None, "unknown without codecarbon")
    if carbon_intensity is not None:
        return grid._replace(grams_per_kwh=float(carbon_intensity), source="as given by the user")
    return grid


def _suggest(country: str) -> str:
    names = {grid.name.lower(): code for code, grid in load_grids().items()}
    known = {code.lower(): code for code in load_grids()} | names
    if country.lower() in known:
        return f" Did you mean {known[country.lower()]!r}?"
    starts = [code for code in load_grids() if len(country) == 2 and code.startswith(country.upper())]
    close = starts or [known[match] for match in get_close_matches(country.lower(), known, n=3)]
    return f" Did you mean {' or '.join(map(repr, close[:4]))}?" if close else ""
