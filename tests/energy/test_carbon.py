import pytest

from hf_efficient.energy import EnergyOptions, carbon, find_grid, load_grids


def test_grids_come_with_codecarbon():
    grids = load_grids()
    assert len(grids) > 200
    assert grids["DEU"].name == "Germany" and 200 < grids["DEU"].grams_per_kwh < 600
    assert grids["NOR"].grams_per_kwh < grids["DEU"].grams_per_kwh < grids["IND"].grams_per_kwh


def test_no_country_is_the_world_and_says_so():
    grid = find_grid()
    assert grid.country is None and grid.name == "country not stated"
    assert grid.grams_per_kwh == 475 and "world's average" in grid.source


def test_an_intensity_of_ones_own_is_named_as_such():
    assert find_grid("FRA", 42)[2:] == (42.0, "as given by the user")


@pytest.mark.parametrize(
    ("code", "hint"), [("DE", "'DEU'"), ("deu", "'DEU'"), ("Germany", "'DEU'"), ("Quebec", ""), ("XXX", "")]
)
def test_a_wrong_country_is_named(code, hint):
    with pytest.raises(ValueError, match=f"energy.country='{code}'") as error:
        EnergyOptions(country=code)
    assert hint in str(error.value)


def test_without_codecarbon_a_country_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(carbon, "load_grids", dict)
    assert find_grid("DEU") == ("DEU", "DEU", None, "unknown without codecarbon")
    with pytest.raises(ValueError, match="'Germany'"):
        find_grid("Germany")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "room"}, "energy.scope='room' must be one of machine, process"),
        ({"interval": 0}, "energy.interval=0 must be a number, more than 0"),
        ({"idle_seconds": -1}, "energy.idle_seconds=-1 must be a number, at least 0"),
        ({"budget_kwh": "much"}, "energy.budget_kwh='much' must be a number"),
        ({"budget_kwh": 1, "budget_joules": 1}, "give one of them"),
        ({"enabled": "yes"}, "energy.enabled='yes' must be true or false"),
        ({"country": 276}, "energy.country=276"),
        ({"contry": "DEU"}, "energy has no key 'contry'. Its keys are enabled, country"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError) as error:
        EnergyOptions.of(options)
    assert message in str(error.value)


def test_budgets_are_joules():
    assert EnergyOptions(budget_kwh=0.5).budget == 1.8e6
    assert EnergyOptions(budget_joules=7).budget == 7
    assert EnergyOptions().budget is None
    assert EnergyOptions.of(EnergyOptions(scope="process").to_dict()).scope == "process"
