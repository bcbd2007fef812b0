// Draws two records held against each other. What comes from them is put in as text, never as markup.
(() => {
  const { element, figure, hover, make, sourceOf } = shared;
  const record = JSON.parse(document.getElementById("record").textContent);
  const rows = record.rows.map((row, index) => ({ ...row, index }));
  const KINDS = {
    slower: { colour: "#d55e00", marker: "triangle", mark: "\u25b2" },
    faster: { colour: "#009e73", marker: "inverted_triangle", mark: "\u25bc" },
    same: { colour: "#0072b2", marker: "circle", mark: "\u25cf" },
    "can't tell": { colour: "#8a9099", marker: "x", mark: "\u2715" },
  };
  const COLUMNS = [
    { key: "index", title: "#", text: (r) => r.index + 1, off: true },
    { key: "name", title: "layer", text: (r) => r.name, isText: true },
    { key: "before", title: "a, \u00b5s", text: (r) => r.before_text, column: "us", off: true },
    { key: "after", title: "b, \u00b5s", text: (r) => r.after_text, column: "us", off: true },
    { key: "ratio", title: "b / a", text: (r) => r.ratio_text, column: "us" },
    { key: "low", title: "interval", text: (r) => r.interval, column: "share", off: true },
    { key: "verdict", title: "verdict", text: (r) => (r.reason ? `${r.verdict}: ${r.reason}` : r.verdict), isText: true },
  ];
  const hidden = new Set();
  const view = { key: "index", descending: false, text: "" };
  const body = make("tbody");
  const lines = [];
  let plot = null;

  const marked = (verdict) => {
    const mark = make("span", `${KINDS[verdict].mark} `, { "aria-hidden": "true" });
    mark.style.color = KINDS[verdict].colour;
    return mark;
  };

  function writeHead() {
    element("title").textContent = record.title;
    for (const [name, figureText, note] of record.tiles) {
      const tile = make("li");
      tile.append(make("span", name), make("strong", figureText), make("span", note));
      element("tiles").append(tile);
    }
    record.words.forEach((sentence) => element("words").append(make("li", sentence)));
    element("about").replaceChildren(...record.about.flatMap(([term, text]) => [make("dt", term), make("dd", text)]));
  }

  const classOf = (column) => (column.isText ? "text" : "") + (column.off ? " narrow-off" : "");

  function makeTable() {
    const widths = make("colgroup");
    for (const column of COLUMNS) {
      widths.append(make("col", undefined, { class: (column.column ?? column.key) + (column.off ? " narrow-off" : "") }));
      column.head = make("th", undefined, { scope: "col", class: classOf(column) });
      column.button = make("button", column.title, { type: "button" });
      column.button.addEventListener("click", () => {
        view.descending = view.key === column.key ? !view.descending : column.key === "ratio";
        view.key = column.key;
        arrange();
      });
      column.head.append(column.button);
      element("head").append(column.head);
    }
    element("table").prepend(widths);
    for (const row of rows) {
      const line = make("tr");
      for (const column of COLUMNS) {
        const cell = make("td", undefined, { class: classOf(column), title: String(column.text(row)) });
        if (column.key === "verdict") cell.append(marked(row.verdict));
        cell.append(String(column.text(row)));
        line.append(cell);
      }
      lines.push(line);
    }
    element("table").append(body);
  }

  function writeVerdicts() {
    for (const verdict of Object.keys(KINDS)) {
      const number = rows.filter((row) => row.verdict === verdict).length;
      if (!number) continue;
      const button = make("button", undefined, { type: "button", "aria-pressed": "true", title: "show or hide" });
      button.append(marked(verdict), `${verdict} \u00d7 ${number}`);
      button.addEventListener("click", () => {
        if (!hidden.delete(verdict)) hidden.add(verdict);
        button.setAttribute("aria-pressed", String(!hidden.has(verdict)));
        arrange();
      });
      element("types").append(button);
    }
  }

  function arrange() {
    const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((r) => !hidden.has(r.verdict) && words.every((w) => `${r.name} ${r.verdict} ${r.reason}`.toLowerCase().includes(w)));
    shown.sort((a, b) => {
      const [x, y] = [a[view.key], b[view.key]];
      if (x === null || y === null) return (x === null) - (y === null) || a.index - b.index;
      const order = typeof x === "string" ? x.localeCompare(y) : x - y;
      return (view.descending ? -order : order) || a.index - b.index;
    });
    body.replaceChildren(...shown.map((row) => lines[row.index]));
    for (const column of COLUMNS) {
      const isOrder = column.key === view.key;
      column.head.setAttribute("aria-sort", isOrder ? (view.descending ? "descending" : "ascending") : "none");
      column.button.textContent = column.title + (isOrder ? (view.descending ? " \u25bc" : " \u25b2") : "");
    }
    element("shown").textContent = `${shown.length} of ${rows.length} rows`;
    draw(shown);
  }

  function dataOf(shown) {
    const drawn = shown.flatMap((row, i) => (row.ratio === null ? [] : [{ ...row, x: i + 0.5 }]));
    const of = (get) => drawn.map(get);
    return {
      x: of((r) => r.x), y: of((r) => r.ratio), low: of((r) => r.low ?? r.ratio), high: of((r) => r.high ?? r.ratio), name: of((r) => r.name),
      told: of((r) => `${r.ratio_text} [${r.interval}]`), verdict: of((r) => r.verdict), times: of((r) => `${r.before_text} and ${r.after_text} us`),
      colour: of((r) => KINDS[r.verdict].colour), marker: of((r) => KINDS[r.verdict].marker),
    };
  }

  function draw(shown) {
    const data = dataOf(shown);
    // Points lead: an interval without an end near by goes out of the picture.
    const [least, most] = [Math.min(0.98, ...data.y), Math.max(1.02, ...data.y)];
    const margin = (most / least) ** 0.15;
    const [start, end] = [least / margin, most * margin];
    if (plot) {
      plot.source.data = data;
      plot.x.setv({ start: 0, end: Math.max(shown.length, 1), reset_start: 0, reset_end: Math.max(shown.length, 1) });
      plot.y.setv({ start, end, reset_start: start, reset_end: end });
      return;
    }
    const source = sourceOf(data);
    const x = new Bokeh.Range1d({ start: 0, end: Math.max(shown.length, 1) });
    const y = new Bokeh.Range1d({ start, end });
    const made = figure("ratios", { height: 300, x_range: x, y_range: y, y_axis_type: "log", y_axis_label: "b / a" });
    made.xaxis.visible = false;
    made.xgrid.visible = false;
    if (end / start < 20) { // fewer than two powers of ten: ticks of a plain scale
      made.left[0].ticker = new Bokeh.BasicTicker({ desired_num_ticks: 6 });
      made.left[0].formatter = new Bokeh.NumeralTickFormatter({ format: "0.00" });
    }
    made.add_layout(new Bokeh.Span({ location: 1, dimension: "width", line_color: "#8a9099", line_width: 2 }));
    const colour = { field: "colour" };
    made.segment({ x0: { field: "x" }, x1: { field: "x" }, y0: { field: "low" }, y1: { field: "high" }, source, line_color: colour });
    const glyph = made.scatter({
      x: { field: "x" }, y: { field: "y" }, marker: { field: "marker" }, source, size: 8, fill_color: colour, line_color: colour,
    });
    hover(made, glyph, [["layer", "@name"], ["b / a", "@told"], ["a and b", "@times"], ["verdict", "@verdict"]]);
    plot = { source, x, y };
  }

  element("search").addEventListener("input", (event) => { view.text = event.target.value; arrange(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.tagName === "INPUT") return;
    event.preventDefault();
    element("search").focus();
  });
  writeHead();
  makeTable();
  writeVerdicts();
  arrange();
  document.documentElement.dataset.ready = "yes";
})();
