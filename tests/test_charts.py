"""Names beside lines: apart, in order, as near to their lines as can be; figures become images."""

import pytest

from hf_efficient.charts import DPI, as_image, label_ends, new_figure, spread


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([0.0, 0.5, 1.0], [0.0, 0.5, 1.0]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.4, 0.5, 0.5, 0.9], [0.3667, 0.4667, 0.5667, 0.9]),
        ([], []),
    ],
)
def test_names_are_spread_around_where_they_want_to_be(wanted, places):
    assert spread(wanted, 0.1) == pytest.approx(places, abs=1e-4)


def test_labels_stand_at_the_ends_of_lines_on_a_logarithmic_axis_too():
    figure = new_figure(4, 3)
    axes = figure.subplots()
    axes.set(yscale="log", ylim=(1, 100))
    label_ends(axes, [(100, "high", "red"), (10, "middle", "blue"), (1, "low", "green")])
    assert [(text.get_text(), pytest.approx(text.xy[1])) for text in axes.texts] == [
        ("low", 0),
        ("middle", 0.5),
        ("high", 1),
    ]
    assert as_image(figure).size == (4 * DPI, 3 * DPI)
