"""`make docs`: what it fills in, what it says is out of date, and what a new mechanism changes."""

import pytest

from benchmarks import docs_pages
from hf_efficient.attention import registry
from hf_efficient.attention.linear_elu import LinearElu


@pytest.fixture
def page(tmp_path):
    """A page as `make docs` leaves it."""
    file = tmp_path / "page.md"
    parts = [f"<!-- generated: {name} -->\n<!-- end -->" for name in ("mechanisms", "mechanism_options", "headline")]
    file.write_text(docs_pages.fill("\n\n".join(["# Words stay", *parts])), encoding="utf-8")
    return file


@pytest.fixture
def new_mechanism(monkeypatch):
    """One that nobody has measured or written about."""
    monkeypatch.setitem(registry._MECHANISMS, "brand_new", type("BrandNew", (LinearElu,), {"name": "brand_new"}))


def test_fill_keeps_words_and_is_done_when_done(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Words stay\n") and "| `linear_elu` | Katharopoulos 2020 |" in text
    assert docs_pages.fill(text) == text
    assert not list(docs_pages.differences(page))


@pytest.mark.parametrize(
    ("right", "wrong"), [("| Katharopoulos 2020 |", "| Katharopoulos 2019 |"), ("x as fast", "y as fast")]
)
def test_what_was_changed_by_hand_is_named(page, right, wrong):
    page.write_text(page.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    changed = list(docs_pages.differences(page))
    assert any(line.startswith("-") and wrong in line for line in changed)
    assert any(line.startswith("+") and right in line for line in changed)


def test_a_row_of_a_mechanism_that_is_gone_is_named(page, monkeypatch):
    monkeypatch.delitem(registry._MECHANISMS, "xcit")
    assert all(line.startswith("-") and "`xcit`" in line for line in docs_pages.differences(page))
    assert list(docs_pages.differences(page))


def test_a_new_mechanism_makes_no_page_wrong(page, new_mechanism):
    assert not list(docs_pages.differences(page))
    rows = [line for line in docs_pages.fill(page.read_text(encoding="utf-8")).splitlines() if "`brand_new`" in line]
    assert len(rows) == 2 and rows[0].endswith("| not measured | not measured |")


def test_check_says_which_page_and_how(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(docs_pages, "ROOT", tmp_path)
    page = tmp_path / "README.md"
    page.write_text("<!-- generated: missed_floors -->\nold\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(docs_pages, "pages", lambda: [page])
    assert docs_pages.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert "README.md is out of date" in shown and "make docs" in shown and "-old" in shown
    assert docs_pages.main([]) == 0 and "old" not in page.read_text(encoding="utf-8")
    assert docs_pages.main(["--check"]) == 0
