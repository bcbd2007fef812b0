"""The page of a run: nothing but itself is needed, names can do no harm, and it works in a browser.

The tests with a browser are left out where Chromium isn't installed.
"""

import base64
import dataclasses
import hashlib
import html
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest

import minicnn
from minicnn import cli
from minicnn.facts import median_us
from minicnn.record import BufferFacts, LayerFacts
from minicnn.report import html as page
from models import build
from test_export import BUFFERS, HOSTILE, LAYERS, hostile_record, record_of
from tools.make_pictures import Browser, find_chromium

pytest.importorskip("bokeh", reason="the page needs bokeh")
in_browser = pytest.mark.skipif(find_chromium() is None, reason="Chromium isn't installed")
ROOFS = {"copy_gb_per_s": 10.0, "fma_gflop_per_s": 100.0}


class Elements(HTMLParser):
    """Every element of a page, and the text of its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self._script = dict(attributes)
            self.scripts.append((self._script, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[-1] = (self._script, self.scripts[-1][1] + data)


def data_of(text: str) -> dict:
    (found,) = [script for attributes, script in Elements(text).scripts if attributes.get("id") == "record"]
    return json.loads(found)


def test_all_layers_are_there():
    found = data_of(page.html_text(record_of(**ROOFS)))
    assert [layer["name"] for layer in found["layers"]] == ["conv1", "relu1", "odd"]
    assert [layer["us"] for layer in found["layers"]] == pytest.approx([100, 200, 300])
    assert found["timeline"]["ends"] == pytest.approx([100, 300, 600])
    assert [b["name"] for b in found["buffers"]] == ["x", "a b", "y"]
    assert found["runs"]["warmup"] == [True] * 3 + [False] * 9
    assert sum(found["runs"]["steady_count"]) == 9 and sum(found["runs"]["warmup_count"]) == 3
    assert found["roofs"] == {"gbs": 10.0, "gflops": 100.0}
    facts = dict(found["layers"][0]["facts"])
    assert facts["ONNX nodes"] == "pad\nconv" and facts["why this variant"] == "asked for all Conv"
    assert "energy" in facts["not in the record"]


def test_who_writes_and_who_reads():
    found = data_of(page.html_text(record_of()))
    assert [layer["from"] for layer in found["layers"]] == [[], [0], []]
    facts = [dict(layer["facts"]) for layer in found["layers"]]
    assert facts[0]["reads"].endswith("NCHW (from the network's input)")
    assert facts[0]["writes"].endswith("NHWC\nread by layer 2, relu1")
    assert facts[1]["reads"].endswith("NHWC (from layer 1, conv1)")


def test_what_a_gpu_gives_each_launch_is_in_the_panel():
    taken = ("40 registers, 75% occupancy (registers)", "")
    layer = LayerFacts(name="one", op="Conv", kernel=("conv<<<1x1x1, 8x1x1>>>", "fill"), resources=taken)
    facts = dict(data_of(page.html_text(record_of((layer,))))["layers"][0]["facts"])
    assert facts["of a GPU each takes"] == taken[0]


def test_nothing_is_fetched():
    elements = Elements(page.html_text(record_of()))
    for tag, attributes in elements.found:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), (tag, attributes)
    style = (page.PAGE / "page.css").read_text()
    assert "url(" not in style and "@import" not in style
    own = "".join(file.read_text() for file in page.PAGE.iterdir())
    assert "//" not in re.sub(r"(^|\s)//[^\n]*", "", own), "no address in what is ours"


def test_only_the_scripts_that_are_meant_may_run():
    elements = Elements(page.html_text(hostile_record()))
    (policy,) = [
        a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy
    for attributes, script in elements.scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert attributes.get("type") == "application/json" or f"'sha256-{digest}'" in policy
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)


def test_hostile_names_are_text():
    text = page.html_text(hostile_record())
    plain = page.html_text(record_of())
    kinds = [[tag for tag, _ in Elements(each).found] for each in (text, plain)]
    assert kinds[0] == kinds[1], "names make no elements"
    assert "alert(1)</" not in text and "<!--" not in data_text(text)
    shown = [layer["name"] for layer in data_of(text)["layers"]]
    assert shown[0] == HOSTILE[0] and shown[4] == "(no name)" and "\u202e" not in shown[3]
    assert f"<title>minicnn: {html.escape('script>')}</title>" in text, "a model's name, after its last slash"


def data_text(text: str) -> str:
    return next(script for attributes, script in Elements(text).scripts if attributes.get("id") == "record")


def test_a_record_without_times_or_layers():
    empty = data_of(page.html_text(record_of((), 0, 0, buffers=())))
    assert (empty["layers"], empty["timeline"], empty["runs"], empty["roofs"]) == ([], None, None, None)
    untimed = record_of()
    for samples in (untimed.time_us, untimed.plain_us, untimed.wall_us):
        samples[:] = math.nan
    found = data_of(page.html_text(untimed))
    assert found["timeline"] is None and found["runs"] is None
    assert ["one run", "not measured", ""] in found["tiles"]


def test_without_bokeh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    path = record_of(path=tmp_path / "run.h5").path
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda _: None)
    assert cli.main(["report", path, "--html", str(tmp_path / "run.html")]) == 2
    assert "pip install 'minicnn-cuda[html]'" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


def test_the_command(tmp_path: Path):
    path = record_of(path=tmp_path / "run.h5").path
    assert cli.main(["report", path, "--html", str(tmp_path / "run.html")]) == 0
    assert data_of((tmp_path / "run.html").read_text())["model"] == "net.onnx"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def opened(browser: Browser, record, tmp_path: Path) -> float:
    browser.errors.clear()
    browser.requests.clear()
    path = tmp_path / "page.html"
    path.write_text(record if isinstance(record, str) else page.html_text(record))
    return browser.open(path)


def draw_all(browser: Browser) -> None:
    browser.resize(1280, 5000)
    browser.wait_for("[...document.querySelectorAll('.chart')].every((c) => c.classList.contains('drawn'))")
    browser.evaluate("new Promise((done) => setTimeout(done, 300))")


def names(browser: Browser) -> list[str]:
    return browser.evaluate("[...document.querySelectorAll('.pick')].map((b) => b.textContent)")


def text_of(browser: Browser, selector: str) -> str:
    return browser.evaluate(f"document.querySelector({selector!r}).innerText")


@in_browser
@pytest.mark.parametrize(
    "record",
    [record_of(**ROOFS), record_of(LAYERS[:2]), hostile_record(**ROOFS), record_of((), 0, 0, buffers=())],
    ids=["with roofs", "two layers", "hostile names", "empty"],
)
def test_no_error_and_no_request(record, browser: Browser, tmp_path: Path):
    opened(browser, record, tmp_path)
    draw_all(browser)
    browser.evaluate("document.getElementById('theme').click()")
    for name in ("alive", "words"):
        assert (
            browser.evaluate(f"document.getElementById({name!r}).querySelectorAll('script, b').length") == 0
        )
    assert browser.evaluate("Bokeh.documents.length") >= (2 if record.layers else 0)
    assert browser.errors == [] and browser.requests == []
    axes = "Bokeh.documents.flatMap((d) => d.roots()).flatMap((figure) => figure.left)"
    labels = browser.evaluate(f"{axes}.flatMap((axis) => [...axis.major_label_overrides.values()])")
    assert not any("$" in label for label in labels), "no TeX out of a name"


@in_browser
def test_sorting_searching_grouping(browser: Browser, tmp_path: Path):
    browser.resize(1280, 1000)
    opened(browser, record_of(**ROOFS), tmp_path)
    assert names(browser) == ["conv1", "relu1", "odd"]
    browser.evaluate(
        "[...document.querySelectorAll('th button')].find((b) => b.textContent === '\u00b5s').click()"
    )
    assert names(browser) == ["odd", "relu1", "conv1"], "the slowest first"
    sort = "document.querySelector('th[aria-sort=descending]').innerText"
    assert browser.evaluate(sort).startswith("\u00b5s")
    browser.evaluate("document.getElementById('grouped').click()")
    assert "Det: 1 layers, 50.0 %" in text_of(browser, "#table")
    browser.press("/")
    for letter in "relu":
        browser.press(letter)
    assert names(browser) == ["relu1"] and text_of(browser, "#shown").startswith("1 of 3 layers, 33.3 %")
    browser.evaluate("document.querySelector('#search').value = 'nothing like it'")
    browser.evaluate("document.querySelector('#search').dispatchEvent(new Event('input'))")
    assert names(browser) == []
    assert browser.errors == []


@in_browser
def test_keys_alone_open_a_layer(browser: Browser, tmp_path: Path):
    browser.resize(1280, 1000)
    opened(browser, record_of(), tmp_path)
    browser.evaluate("document.querySelector('.pick[tabindex=\"0\"]').focus()")
    assert browser.evaluate("document.querySelectorAll('.pick[tabindex=\"0\"]').length") == 1
    browser.press("ArrowDown")
    browser.press("Enter")
    assert text_of(browser, "#panel-title") == "2. relu1" and "elementwise" in text_of(browser, "#panel")
    assert "relu1, runs: 3.91 KiB, the peak" in text_of(browser, "#alive-title")
    browser.evaluate("document.getElementById('next').click()")
    assert text_of(browser, "#panel-title") == "3. odd"
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('panel').hidden")
    assert browser.evaluate("document.activeElement.textContent") == "relu1", "focus is back where it was"


# Bokeh draws below shadow roots: all texts of tooltips that are there
SHOWN_BY_POINTING = (
    "(function texts(root) { return [...root.querySelectorAll('*')].map((e) => "
    "(e.classList.contains('bk-Tooltip') ? (e.shadowRoot ?? e).textContent : '') + "
    "(e.shadowRoot ? texts(e.shadowRoot) : '')).join(' ') })(document)"
)


@in_browser
def test_pointing_at_bars(browser: Browser, tmp_path: Path):
    browser.resize(1280, 2400)
    opened(browser, record_of(), tmp_path)
    browser.evaluate("new Promise((done) => setTimeout(done, 500))")
    box = "document.getElementById('bars').getBoundingClientRect()"
    x, y, width, height = (browser.evaluate(f"{box}.{side}") for side in ("x", "y", "width", "height"))
    browser.point(x + 0.9 * width, y + 0.8 * height)
    browser.wait_for(f"{SHOWN_BY_POINTING}.includes('odd')")
    browser.point(x + 0.9 * width, y + 0.8 * height, click=True)
    browser.wait_for("!document.getElementById('panel').hidden")
    assert text_of(browser, "#panel-title") == "3. odd"
    assert browser.errors == []


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(width: int, browser: Browser, tmp_path: Path):
    browser.resize(width, 900)
    opened(browser, hostile_record(**ROOFS), tmp_path)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.evaluate("document.querySelector('.pick').click()")
    assert browser.evaluate("document.getElementById('panel').getBoundingClientRect().right") <= width


@in_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_their_ground(theme: str, browser: Browser, tmp_path: Path):
    opened(browser, record_of(), tmp_path)
    browser.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
    for ink in ("--ink", "--faint", "--accent", "--warn"):
        for ground in ("--paper", "--card"):
            colours = [
                browser.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue({name!r})")
                for name in (ink, ground)
            ]
            light = sorted(luminance(colour) + 0.05 for colour in colours)
            assert light[1] / light[0] >= 4.5, f"{ink} on {ground} (WCAG AA)"


def luminance(colour: str) -> float:
    """Source    WCAG 2.1, relative luminance"""
    levels = np.array([int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def large_record(number: int):
    """As large as the largest networks people bring."""
    rng = np.random.default_rng(0)
    ops = ("Conv", "Relu", "Gemm", "MaxPool", "Add", "Concat", "Softmax", "Resize")
    layers = tuple(
        LayerFacts(name=f"/stage{i // 100}/block{i // 10}/layer{i}", op=ops[i % 8], nodes=(f"node{i}",),
                   variant="tiled", kernel=("conv_tiled<<<1x131x1, 8x1x1>>>",), flops=10**6, bytes_min=10**5,
                   live_bytes=int(rng.integers(10**6)), outputs=(f"t{i} float32 1x1 NCHW",),
                   inputs=(f"t{i - 1} float32 1x1 NCHW", f"t{i - 4} float32 1x1 NCHW"))
        for i in range(number)
    )  # fmt: skip
    buffers = [
        BufferFacts(name=f"t{i}", kind="activation", nbytes=10**5, first=i, last=i) for i in range(number)
    ]
    return record_of(layers, repetitions=8, buffers=buffers, **ROOFS)


def network(name: str, folder: Path) -> Path:
    """A network of the onnx wheel with seeded weights, or one of two layers."""
    if name == "two":
        x, y = (onnx.helper.make_tensor_value_info(n, 1, [1, 3, 16, 16]) for n in "xy")
        pairs = (("Sigmoid", "x", "m"), ("Softmax", "m", "y"))
        nodes = [onnx.helper.make_node(op, [a], [b], name=op) for op, a, b in pairs]
        graph = onnx.helper.make_graph(nodes, "two", [x], [y])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    else:
        model = build.refill(onnx.load(build.light_models()[name]), seed=1)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@in_browser
@pytest.mark.parametrize("name, layers", [("two", 2), ("resnet50", 58), ("densenet121", 246)])
def test_a_real_network(name: str, layers: int, browser: Browser, tmp_path: Path):
    """Recorded here and now: sort, search, point, choose, light and dark; nothing fetched, nothing fails."""
    with minicnn.load(network(name, tmp_path)).plan(device="host", threads=2) as engine:
        shape = (1, 3, 16, 16) if name == "two" else (1, 3, 224, 224)
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        record = engine.profile(x, repeat=3)
    browser.resize(1280, 1000)
    opened(browser, record, tmp_path)
    assert len(names(browser)) == layers == len(record.layers)
    draw_all(browser)
    boxes = browser.evaluate(FIGURE.format("network") + ".renderers[1].data_source.length")
    lines = browser.evaluate(FIGURE.format("network") + ".renderers[0].data_source.length")
    assert boxes == layers and lines >= layers - 1, "every layer but the first reads from another"
    browser.evaluate("document.getElementById('order').value = 'us true'")
    browser.evaluate("document.getElementById('order').dispatchEvent(new Event('change'))")
    slowest = int(np.nanargmax(median_us(record)))
    assert names(browser)[0] == record.layers[slowest].name
    assert record.layers[slowest].name in text_of(browser, "#network-most")
    box = "document.getElementById('bars').getBoundingClientRect()"
    right, top, height = (browser.evaluate(f"{box}.{side}") for side in ("right", "y", "height"))
    inner = browser.evaluate(FIGURE.format("bars") + ".inner_width")
    first_bar = right - 12 - inner * (1 - 0.5 / layers)  # 12: min_border_right
    browser.point(first_bar, top + 0.8 * height)
    browser.wait_for(f"{SHOWN_BY_POINTING}.includes({record.layers[slowest].name!r})")
    browser.press("/")
    for letter in record.layers[-1].name:
        browser.press(letter)
    assert record.layers[-1].name in names(browser)
    browser.evaluate("document.querySelector('.pick').click()")
    assert record.layers[-1].nodes[0] in text_of(browser, "#panel")
    browser.evaluate("document.getElementById('theme').click()")
    browser.press("Escape")
    assert browser.errors == [] and browser.requests == []


@in_browser
def test_two_thousand_layers(browser: Browser, tmp_path: Path):
    browser.resize(1280, 1000)
    seconds = opened(browser, large_record(2000), tmp_path)
    print(f"opened in {seconds:.2f} s")  # not held against a limit: the machine may be busy
    assert len(names(browser)) == 2000
    draw_all(browser)
    assert browser.errors == []


FIGURE = "Bokeh.documents.flatMap((d) => d.roots()).find((figure) => figure.name === {!r})"


@in_browser
def test_the_network_is_drawn_and_coloured(browser: Browser, tmp_path: Path):
    """The checked layer's error and the energy of another one can be chosen, since they are in the record."""
    layers = (
        dataclasses.replace(LAYERS[0], is_checked=True, check_of_bound=0.25),
        dataclasses.replace(LAYERS[1], energy_uj=7.5),
        LAYERS[2],
    )
    opened(browser, record_of(layers), tmp_path)
    draw_all(browser)
    network = FIGURE.format("network")
    glyphs = f"{network}.renderers.map((r) => r.glyph.type + ' ' + r.data_source.length)"
    assert browser.evaluate(glyphs)[:2] == ["Quadratic 1", "Rect 3"], "a line, three boxes"
    line, boxes = (f"{network}.renderers[{i}].data_source.data" for i in (0, 1))
    ends = browser.evaluate(f"[{line}.x0[0], {line}.y0[0], {line}.x1[0], {line}.y1[0]]")
    middles = browser.evaluate(f"[0, 1].flatMap((i) => [{boxes}.x[i], {boxes}.y[i]])")
    assert ends == [middles[0] + 0.4, middles[1], middles[2] - 0.4, middles[3]], "from right to left edge"
    values = f"[...{network}.renderers[1].data_source.data.value].map((v) => (Number.isNaN(v) ? null : v))"
    choices = browser.evaluate("[...document.getElementById('colour-by').options].map((o) => o.value)")
    assert choices == ["us", "live", "error", "energy"]
    wanted = {
        "us": [100, 200, 300],
        "live": [3000, 4000, 512],
        "error": [0.25, None, None],
        "energy": [None, 7.5, None],
    }
    for choice, numbers in wanted.items():
        browser.evaluate(
            f"document.getElementById('colour-by').value = {choice!r},"
            "document.getElementById('colour-by').dispatchEvent(new Event('change'))"
        )
        scale = 2**20 if choice == "live" else 1
        assert browser.evaluate(values) == [n if n is None else pytest.approx(n / scale) for n in numbers]
    assert text_of(browser, "#network-most") == "most: layer 2, relu1, 7.5 uJ"
    assert browser.errors == []


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_no_box_of_the_network_lies_on_another(width: int, browser: Browser, tmp_path: Path):
    """Branches, a way past several layers, and more layers than a row holds."""
    tensors = [f"t{i} float32 1x1 NCHW" for i in range(200)]
    layers = [LayerFacts(name="l0", op="Conv", outputs=(tensors[0],))]
    for i in range(1, 200):
        past = {3: i - 2, 9: i - 7}.get(i % 10, i - 1)
        read = {i - 2} if i % 5 == 0 else {i - 1, max(past, 0)}
        inputs = tuple(tensors[r] for r in sorted(read))
        layers.append(LayerFacts(name=f"l{i}", op="Conv", inputs=inputs, outputs=(tensors[i],)))
    browser.resize(width, 1000)
    opened(browser, record_of(tuple(layers), buffers=()), tmp_path)
    browser.evaluate("document.getElementById('network').scrollIntoView()")
    browser.wait_for("document.getElementById('network').classList.contains('drawn')")
    data = FIGURE.format("network") + ".renderers[1].data_source.data"
    places = browser.evaluate(f"[...{data}.x].map((x, i) => [x, [...{data}.y][i]])")
    places = sorted(map(tuple, places))
    assert len(places) == 200
    for i, (x, y) in enumerate(places):
        assert not any(x == other_x and abs(y - other_y) < 0.6 for other_x, other_y in places[i + 1 :])
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.errors == []


def test_weights_are_no_part_of_the_picture_of_the_arena():
    assert any(b.kind == "weight" for b in BUFFERS)
    assert all(b["kind"] != "weight" for b in data_of(page.html_text(record_of()))["buffers"])
