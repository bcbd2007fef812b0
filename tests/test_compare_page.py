"""The page of two records held against each other: the answer in words, verdicts, a picture that follows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from minicnn import cli
from minicnn.compare import compare
from minicnn.report import compare as comparison_page
from test_export import hostile_record, record_of
from test_html import FIGURE, data_of, in_browser, opened, text_of
from tools.make_pictures import Browser

pytest.importorskip("bokeh", reason="the page needs bokeh")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def comparison_text(before, after) -> str:
    return comparison_page.html_text(compare(before, after), before, after)


def slower_record(**attributes):
    record = record_of(repetitions=40, warmup=0, **attributes)
    record.time_us[:, 1] *= 1.5
    record.plain_us[:] = record.time_us.sum(axis=1)
    return record


def test_a_comparison_in_words():
    found = data_of(comparison_text(record_of(repetitions=40, warmup=0), slower_record()))
    assert found["words"][0].startswith("The whole run: slower, b / a 1.1")
    assert found["words"][1].startswith("1 layer is slower in b; by the most time relu1: slower, b / a 1.500")
    assert [row["verdict"] for row in found["rows"]][1::2] == ["slower", "slower"]
    few = data_of(comparison_text(record_of(repetitions=5), record_of(repetitions=5)))
    assert "(too few repetitions)" in few["words"][1] and "More repetitions" in few["words"][2]


def test_the_command_for_two_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = record_of(repetitions=40, warmup=0, path=tmp_path / "a.h5").path
    after = record_of(repetitions=40, warmup=0, path=tmp_path / "b.h5").path
    place = tmp_path / "both.html"
    assert cli.main(["compare", before, after, "--html", str(place)]) == 0
    assert data_of(place.read_text())["title"] == "a: a.h5, b: b.h5"
    for record in (before, after):
        assert cli.main(["compare", before, after, "--html", record]) == 2, "no record is replaced"


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_two_records_side_by_side(width: int, browser: Browser, tmp_path: Path):
    browser.resize(width, 1000)
    hostile = [hostile_record(repetitions=40), hostile_record(repetitions=40)]
    opened(browser, comparison_text(*hostile), tmp_path)
    assert browser.evaluate("document.querySelectorAll('#words b, #table b').length") == 0
    assert browser.errors == []
    opened(browser, comparison_text(record_of(repetitions=40, warmup=0), slower_record()), tmp_path)
    cells = "[...document.querySelectorAll('#table tbody td:nth-child(2)')].map((cell) => cell.textContent)"
    assert browser.evaluate(cells) == ["conv1", "relu1", "odd", "the whole run"]
    heads = "[...document.querySelectorAll('th button')]"
    browser.evaluate(f"{heads}.find((b) => b.textContent === 'b / a').click()")
    assert browser.evaluate(cells)[0] == "relu1", "the largest ratio first"
    drawn = FIGURE.format("ratios") + ".renderers[1].data_source.data"
    assert browser.evaluate(f"[...{drawn}.name]")[0] == "relu1", "the picture in the table's order"
    browser.press("/")
    for letter in "odd":
        browser.press(letter)
    assert browser.evaluate(cells) == ["odd"] and text_of(browser, "#shown") == "1 of 4 rows"
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.errors == [] and browser.requests == []
