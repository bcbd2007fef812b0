// Draws the record that the page carries. What comes from it is put in as text, never as markup.
(() => {
  const { COLOURS, REST, element, figure, hover, keyed, label, make, paint, percent, sourceOf, style, swatch } = shared;
  const record = JSON.parse(document.getElementById("record").textContent);
  const layers = record.layers.map((layer, index) => ({ ...layer, index }));

  const WHISKERS = 150; // beyond so many bars they would hide them
  const KINDS = { activation: "#0072b2", input: "#009e73", output: "#e69f00", workspace: "#cc79a7" };

  // --- types of layers, the most time first

  const types = [];
  for (const layer of layers) {
    let type = types.find((t) => t.name === layer.op);
    if (!type) types.push((type = { name: layer.op, share: 0, number: 0, shown: true }));
    type.share += layer.share ?? 0;
    type.number += 1;
  }
  types.sort((a, b) => b.share - a.share);
  types.forEach((type, rank) => { type.colour = COLOURS[rank] ?? REST; type.rank = rank; });
  const typeOf = new Map(types.map((type) => [type.name, type]));

  // --- the head of the page

  function writeHead() {
    element("model").textContent = record.model;
    element("device").textContent = record.device;
    for (const [name, figure, note] of record.tiles) {
      const tile = make("li");
      tile.append(make("span", name), make("strong", figure), make("span", note));
      element("tiles").append(tile);
    }
    for (const part of record.words) {
      const block = make("div");
      const list = make("ul");
      part.sentences.forEach((sentence) => list.append(make("li", sentence)));
      block.append(make("h3", part.title), list);
      element("words").append(block);
    }
    writeTerms(element("about"), record.about);
    element("moment").max = String(Math.max(layers.length - 1, 0));
  }

  function writeTerms(list, rows) {
    list.replaceChildren(...rows.flatMap(([term, text]) => [make("dt", term), make("dd", text)]));
  }

  // --- the table, and the order that it shares with the bars

  const ALL_COLUMNS = [
    { key: "index", title: "#", text: (l) => l.index + 1, off: true },
    { key: "name", title: "layer", text: (l) => l.name, isText: true },
    { key: "op", title: "type", text: (l) => l.op, isText: true, off: true },
    { key: "variant", title: "variant", text: (l) => l.variant, isText: true, off: true },
    { key: "us", title: "\u00b5s", text: (l) => (l.unresolved ? "? " : "") + l.time },
    { key: "share", title: "share", text: (l) => percent(l.share) },
    { key: "gflops", title: "GFLOP/s", text: (l) => (l.gflops ? l.gflops.toFixed(1) : "-"), off: true },
    { key: "roof", title: "of roof", text: (l) => percent(l.roof), off: true },
    { key: "error", title: "of bound", text: (l) => (l.error === null ? "-" : l.error.toFixed(2)), off: true },
    { key: "live", title: "alive", text: (l) => l.size, off: true, column: "size" },
  ];
  // Columns that would hold nothing are left out.
  const COLUMNS = ALL_COLUMNS.filter((c) => layers.some((l) => l[c.key] !== null) || ["us", "share"].includes(c.key));
  const view = { key: "index", descending: false, grouped: false, text: "" };
  const largest = Math.max(...layers.map((l) => l.share ?? 0), 1e-12);
  const rows = new Map();
  const body = make("tbody");
  let shown = [];
  let current = null;

  const classOf = (column) => `${column.key}${column.isText ? " text" : ""}${column.off ? " narrow-off" : ""}`;

  function makeRow(layer) {
    const row = make("tr");
    for (const column of COLUMNS) {
      const cell = make("td", undefined, { class: classOf(column) });
      if (column.key === "name") {
        const pick = make("button", layer.name, { type: "button", class: "pick", title: layer.name, tabindex: "-1" });
        pick.addEventListener("click", () => choose(layer.index));
        cell.append(pick);
      } else {
        if (column.key === "op") cell.append(swatch(typeOf.get(layer.op).colour));
        cell.append(column.key === "share" ? make("span", column.text(layer), { class: "number" }) : String(column.text(layer)));
        if (column.key === "share" && layer.share) {
          const meter = make("span", "", { class: "meter", "aria-hidden": "true" });
          meter.style.width = `${(4.5 * layer.share) / largest}rem`;
          cell.append(meter);
        }
        if (column.key === "variant" && layer.fallback) cell.classList.add("warn");
        if (column.key === "us" && layer.unresolved) {
          cell.classList.add("warn");
          cell.title = "not resolved: too short, or it varies by more than it lasts";
        }
      }
      row.append(cell);
    }
    rows.set(layer.index, row);
    return row;
  }

  function makeTable() {
    const widths = make("colgroup");
    for (const column of COLUMNS) {
      widths.append(make("col", undefined, { class: (column.column ?? column.key) + (column.off ? " narrow-off" : "") }));
      const title = make("th", undefined, { scope: "col", class: classOf(column) });
      column.button = make("button", column.title, { type: "button" });
      column.button.addEventListener("click", () => {
        view.descending = view.key === column.key ? !view.descending : !column.isText && column.key !== "index";
        view.key = column.key;
        arrange();
      });
      column.head = title;
      title.append(column.button);
      element("head").append(title);
      for (const descending of [false, true]) {
        const names = column.isText ? ["A to Z", "Z to A"] : ["smallest first", "largest first"];
        const runs = ["in the order of execution", "last layer first"];
        const text = column.key === "index" ? runs[+descending] : `${column.title}, ${names[+descending]}`;
        element("order").append(make("option", text, { value: `${column.key} ${descending}` }));
      }
    }
    element("table").prepend(widths);
    layers.forEach((layer) => body.append(makeRow(layer)));
    element("table").append(body);
  }

  function compare(a, b) {
    const [x, y] = [a[view.key], b[view.key]];
    if (x === null || y === null) return (x === null) - (y === null) || a.index - b.index;
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return (view.descending ? -order : order) || a.index - b.index;
  }

  function arrange() {
    const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
    const isWanted = (l) => {
      const text = `${l.name} ${l.op} ${l.variant}`.toLowerCase();
      return typeOf.get(l.op).shown && words.every((word) => text.includes(word));
    };
    shown = layers.filter(isWanted).sort(compare);
    const lines = [];
    if (view.grouped) {
      shown.sort((a, b) => typeOf.get(a.op).rank - typeOf.get(b.op).rank);
      let last = null;
      for (const layer of shown) {
        if (layer.op !== last) lines.push(groupLine(layer.op));
        last = layer.op;
        lines.push(rows.get(layer.index));
      }
    } else {
      shown.forEach((layer) => lines.push(rows.get(layer.index)));
    }
    body.replaceChildren(...lines);
    for (const column of COLUMNS) {
      const isOrder = column.key === view.key;
      column.head.setAttribute("aria-sort", isOrder ? (view.descending ? "descending" : "ascending") : "none");
      column.button.textContent = column.title + (isOrder ? (view.descending ? " \u25bc" : " \u25b2") : "");
    }
    element("order").value = `${view.key} ${view.descending}`;
    const sum = shown.reduce((total, layer) => total + (layer.share ?? 0), 0);
    element("shown").textContent = `${shown.length} of ${layers.length} layers, ${percent(sum)} of their time`;
    setEntry(shown.some((l) => l.index === current) ? current : shown[0]?.index);
    drawBars();
  }

  function groupLine(op) {
    const members = shown.filter((layer) => layer.op === op);
    const sum = members.reduce((total, layer) => total + (layer.share ?? 0), 0);
    const line = make("tr", undefined, { class: "group" });
    line.append(make("td", `${op}: ${members.length} layers, ${percent(sum)}`, { class: "text", colspan: String(COLUMNS.length) }));
    return line;
  }

  // One name at a time is in the way of the Tab key; arrows go on from there.
  let entry = null;
  function setEntry(index) {
    const button = (i) => rows.get(i)?.querySelector(".pick");
    if (entry !== null) button(entry)?.setAttribute("tabindex", "-1");
    entry = index ?? null;
    if (entry !== null) button(entry).setAttribute("tabindex", "0");
  }

  function moveFocus(event) {
    const place = shown.findIndex((layer) => layer.index === entry);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: shown.length - 1, PageDown: place + 15, PageUp: place - 15 }[event.key];
    if (to === undefined || !event.target.classList.contains("pick")) return;
    event.preventDefault();
    setEntry(shown[Math.min(Math.max(to, 0), shown.length - 1)].index);
    rows.get(entry).querySelector(".pick").focus();
  }

  function writeTypes() {
    for (const type of types) {
      const button = make("button", undefined, { type: "button", "aria-pressed": "true", title: "show or hide" });
      button.append(swatch(type.colour), `${type.name} \u00d7 ${type.number}, ${percent(type.share)}`);
      button.addEventListener("click", () => {
        type.shown = !type.shown;
        button.setAttribute("aria-pressed", String(type.shown));
        arrange();
      });
      element("types").append(button);
    }
  }

  // --- the panel of a layer

  let opener = null;
  function choose(index) {
    rows.get(current)?.classList.remove("chosen");
    current = index;
    const layer = layers[index];
    rows.get(index).classList.add("chosen");
    element("panel-title").textContent = `${index + 1}. ${layer.name}`;
    writeTerms(element("panel-facts"), layer.facts);
    if (element("panel").hidden) opener = document.activeElement;
    element("panel").hidden = false;
    element("panel").scrollTop = 0;
    element("close").focus({ preventScroll: true });
    if (shown.some((l) => l.index === index)) setEntry(index);
    tellMoment(index);
    markInNetwork(index);
  }

  function closePanel() {
    if (element("panel").hidden) return;
    element("panel").hidden = true;
    rows.get(current)?.classList.remove("chosen");
    markInNetwork(null);
    (opener?.isConnected ? opener : rows.get(current)?.querySelector(".pick"))?.focus({ preventScroll: true });
  }

  function step(by) {
    const place = shown.findIndex((layer) => layer.index === current);
    const next = shown[place + by];
    if (next) choose(next.index);
  }

  // --- figures

  // Each figure is a document of its own and owns its ranges; ranges of one name follow each other.
  const links = {};
  function linked(name, extent) {
    const others = (links[name] ??= []);
    const range = new Bokeh.Range1d({ ...extent, reset_start: extent.start, reset_end: extent.end });
    if (others.length) range.setv({ start: others[0].start, end: others[0].end });
    const follow = () => {
      for (const other of others) {
        if (other.start !== range.start || other.end !== range.end) other.setv({ start: range.start, end: range.end });
      }
    };
    range.properties.start.change.connect(follow);
    range.properties.end.change.connect(follow);
    others.push(range);
    return range;
  }

  // A click on what stands for a layer opens its panel.
  function pickable(made, renderer, source) {
    made.add_tools(new Bokeh.TapTool({ renderers: [renderer] }));
    renderer.nonselection_glyph = null;
    source.selected.properties.indices.change.connect(() => {
      const [picked] = source.selected.indices;
      if (picked !== undefined) choose(source.data.layer[picked]);
    });
  }

  const isUntimed = layers.every((l) => l.us === null);
  let bars = null;
  function drawBars() {
    if (isUntimed) {
      element("bars-hint").textContent = "No layer was timed, so there are no bars.";
      element("bars").hidden = true;
      return;
    }
    const data = {
      layer: shown.map((l) => l.index), left: shown.map((_, i) => i + 0.05), right: shown.map((_, i) => i + 0.95),
      middle: shown.map((_, i) => i + 0.5), us: shown.map((l) => l.us ?? 0), low: shown.map((l) => l.low ?? l.us ?? 0),
      high: shown.map((l) => l.high ?? l.us ?? 0), name: shown.map((l) => l.name), op: shown.map((l) => l.op),
      variant: shown.map((l) => l.variant), time: shown.map((l) => `${l.time} us`), share: shown.map((l) => percent(l.share)),
      colour: shown.map((l) => typeOf.get(l.op).colour),
    };
    const width = Math.max(shown.length, 1);
    // Whiskers may be far above all bars; the bars are what the picture is for.
    const top = 1.15 * Math.max(...data.us, ...data.high.map((high, i) => Math.min(high, 2 * data.us[i])), 1e-3);
    if (bars) {
      bars.source.data = data;
      bars.whiskers.visible = shown.length <= WHISKERS;
      bars.x.setv({ start: 0, end: width, reset_start: 0, reset_end: width });
      bars.y.setv({ start: 0, end: top, reset_start: 0, reset_end: top });
      return;
    }
    const source = sourceOf(data);
    const x = new Bokeh.Range1d({ start: 0, end: width });
    const y = new Bokeh.Range1d({ start: 0, end: top });
    const made = figure("bars", { height: 260, x_range: x, y_range: y, y_axis_label: "us" });
    made.xaxis.visible = false;
    made.xgrid.visible = false;
    const glyph = made.quad({
      left: { field: "left" }, right: { field: "right" }, bottom: 0, top: { field: "us" }, source,
      fill_color: { field: "colour" }, line_color: null,
    });
    const whiskers = made.segment({ x0: { field: "middle" }, x1: { field: "middle" }, y0: { field: "low" }, y1: { field: "high" }, source, line_color: "#808890" });
    hover(made, glyph, [["layer", "@name"], ["type", "@op, @variant"], ["median", "@time, @share"]], { mode: "vline", attachment: "above" });
    pickable(made, glyph, source);
    bars = { source, x, y, whiskers };
    whiskers.visible = shown.length <= WHISKERS;
  }

  // --- the network: a column for each step away from the inputs, columns broken into rows like words

  const MEASURES = [
    { key: "us", title: "time", text: (l) => `${l.time} us` },
    { key: "live", title: "memory alive", text: (l) => l.size, scale: 2 ** 20, unit: "MiB" },
    { key: "error", title: "error, of what it may be", text: (l) => l.error?.toFixed(2), unit: "of the bound" },
    { key: "energy", title: "energy", text: (l) => `${l.energy} uJ`, unit: "uJ" },
  ].filter((m) => layers.some((l) => l[m.key] !== null));
  const TALLEST = 4000; // pixels: a canvas has its limits
  let network = null;

  function layOut(width) {
    const places = [];
    const taken = new Set();
    for (const layer of layers) {
      const column = 1 + Math.max(-1, ...layer.from.map((i) => places[i].column));
      let lane = layer.from.length ? Math.min(...layer.from.map((i) => places[i].lane)) : 0;
      if (taken.has(`${column} ${lane}`)) for (lane = 0; taken.has(`${column} ${lane}`);) lane++;
      taken.add(`${column} ${lane}`);
      places.push({ column, lane });
    }
    const columns = 1 + Math.max(...places.map((p) => p.column));
    const across = Math.max(Math.floor(width / 38), Math.ceil(Math.sqrt(3 * columns)));
    const lanes = [];
    for (const { column, lane } of places) {
      const row = Math.floor(column / across);
      lanes[row] = Math.max(lanes[row] ?? 1, lane + 1);
    }
    const tops = [];
    let height = 0;
    for (let row = 0; row < lanes.length; row++) {
      tops[row] = height + 0.5;
      height += lanes[row] + 0.5;
    }
    const points = places.map(({ column, lane }) => {
      const row = Math.floor(column / across);
      return { row, lane, x: column - row * across, y: -(tops[row] + lane + 0.25), top: -(tops[row] - 0.4) };
    });
    return { points, across, height };
  }

  function linesBetween(points, across) {
    const lines = [];
    const add = (x0, y0, x1, y1, cx, cy) => lines.push({ x0, y0, x1, y1, cx, cy });
    const straight = (x0, y0, x1, y1) => add(x0, y0, x1, y1, (x0 + x1) / 2, (y0 + y1) / 2);
    layers.forEach((layer, index) => layer.from.forEach((source) => {
      const [a, b] = [points[source], points[index]];
      const [from, to] = [a.x + 0.4, b.x - 0.4];
      if (a.row !== b.row) {
        straight(from, a.y, across - 0.3, a.x === across - 1 ? a.y : a.top);
        straight(-0.7, b.x === 0 ? b.y : b.top, to, b.y);
      } else if (a.lane === b.lane && b.x - a.x > 1) {
        const bend = a.lane ? -0.9 : 0.9;
        add(from, a.y, to, b.y, (from + to) / 2, a.y + bend);
      } else straight(from, a.y, to, b.y);
    }));
    return lines;
  }

  // Operators as they are written short: Conv, GAP for GlobalAveragePool.
  const short = (op) => label(op.replace(/[^A-Z]/g, "").length > 1 ? op.replace(/[^A-Z]/g, "").slice(0, 4) : op.slice(0, 4));

  function drawNetwork() {
    if (!layers.length || !MEASURES.length) return;
    const width = element("network").clientWidth - 110;
    const { points, across, height } = layOut(width);
    const made = figure("network", {
      height: Math.ceil(Math.min(30 * height, TALLEST)) + 60, tools: "pan,wheel_zoom,reset,save",
      x_range: new Bokeh.Range1d({ start: -0.8, end: across - 0.2 }), y_range: new Bokeh.Range1d({ start: -height - 0.1, end: 0.1 }),
    });
    for (const part of [...made.below, ...made.left, ...made.center]) part.visible = false;
    const lines = linesBetween(points, across);
    const ends = Object.fromEntries(["x0", "y0", "x1", "y1", "cx", "cy"].map((key) => [key, lines.map((l) => l[key])]));
    const fields = Object.fromEntries(Object.keys(ends).map((key) => [key, { field: key }]));
    made.quadratic({ ...fields, source: sourceOf(ends), line_color: REST, line_alpha: 0.8 });
    const source = sourceOf({
      layer: layers.map((l) => l.index), x: points.map((p) => p.x), y: points.map((p) => p.y), name: layers.map((l) => l.name),
      op: layers.map((l) => l.op), variant: layers.map((l) => l.variant), short: layers.map((l) => short(l.op)),
      value: layers.map(() => 0), text: layers.map(() => ""), ink: layers.map(() => "#ffffff"),
    });
    const mapper = new Bokeh.LinearColorMapper({ palette: Bokeh.Palettes.Cividis256, low: 0, high: 1, nan_color: REST });
    const box = { x: { field: "x" }, y: { field: "y" }, width: 0.8, height: 0.6 };
    const glyph = made.rect({ ...box, source, fill_color: { field: "value", transform: mapper }, line_color: REST });
    if (width / across > 30) {
      const words = made.text({
        x: { field: "x" }, y: { field: "y" }, text: { field: "short" }, source, text_color: { field: "ink" },
        text_font_size: "9px", text_align: "center", text_baseline: "middle",
      });
      words.nonselection_glyph = null; // a box that is picked takes no other's name away
    }
    const mark = sourceOf({ x: [], y: [] });
    made.rect({ ...box, source: mark, fill_color: null, line_color: "#d55e00", line_width: 3 });
    const scale = new Bokeh.ColorBar({ color_mapper: mapper, width: 10, label_standoff: 6, padding: 4 });
    made.add_layout(scale, "right");
    paint(made);
    hover(made, glyph, [["layer", "@name"], ["type", "@op, @variant"], ["", "@text"]]);
    pickable(made, glyph, source);
    network = { source, mapper, scale, mark, points, made };
    colourNetwork();
  }

  function colourNetwork() {
    const measure = MEASURES.find((m) => m.key === element("colour-by").value);
    const values = layers.map((l) => (l[measure.key] === null ? NaN : l[measure.key] / (measure.scale ?? 1)));
    const most = values.reduce((best, v, i) => (v > (values[best] ?? -1) ? i : best), -1);
    const high = Math.max(values[most] ?? 0, 1e-9);
    if (most >= 0) element("network-most").textContent = `most: layer ${most + 1}, ${layers[most].name}, ${measure.text(layers[most])}`;
    const { source, mapper, scale } = network;
    mapper.setv({ low: 0, high });
    scale.title = measure.unit ?? "us";
    const text = layers.map((l) => `${measure.title}: ${l[measure.key] === null ? "not measured" : measure.text(l)}`);
    // Cividis is light from its middle on.
    source.data = { ...source.data, value: values, text, ink: values.map((v) => (v > 0.5 * high ? "#000000" : "#ffffff")) };
  }

  function markInNetwork(index) {
    if (!network) return;
    const point = network.points[index];
    network.mark.data = point ? { x: [point.x], y: [point.y] } : { x: [], y: [] };
  }

  // Where layers begin and end: in time, or where no repetition was timed one by one.
  const isTimed = record.timeline !== null;
  const ends = isTimed ? record.timeline.ends : layers.map((_, i) => i + 1);
  const begins = [0, ...ends.slice(0, -1)];
  const span = ends[ends.length - 1] || 1;
  const during = () => linked("during", { start: 0, end: span });
  const timeLabel = isTimed ? "us since the first layer began" : "layers";

  function drawTimeline() {
    if (!isTimed) {
      element("time-hint").textContent = "Not measured: the record has no layer times.";
      return;
    }
    element("time-hint").textContent =
      `Repetition ${record.timeline.repetition}, of all the nearest to the median; a row for each of the types that take the most time.`;
    const rowOf = (l) => Math.min(typeOf.get(l.op).rank, COLOURS.length);
    const lanes = Math.min(types.length, COLOURS.length + 1);
    const data = {
      layer: layers.map((l) => l.index), left: begins, right: ends,
      bottom: layers.map((l) => lanes - 1 - rowOf(l) + 0.1), top: layers.map((l) => lanes - 1 - rowOf(l) + 0.9),
      name: layers.map((l) => l.name), op: layers.map((l) => l.op), colour: layers.map((l) => typeOf.get(l.op).colour),
      time: layers.map((_, i) => `${(ends[i] - begins[i]).toFixed(1)} us, from ${begins[i].toFixed(1)}`),
    };
    const source = sourceOf(data);
    const made = figure("timeline", {
      height: 90 + 30 * lanes, x_range: during(), y_range: new Bokeh.Range1d({ start: 0, end: lanes }), x_axis_label: timeLabel,
    });
    const names = new Map();
    for (let row = 0; row < lanes; row++) {
      names.set(lanes - 1 - row + 0.5, row < COLOURS.length ? label(types[row].name).slice(0, 18) : "others");
    }
    made.yaxis.ticker = new Bokeh.FixedTicker({ ticks: [...names.keys()] });
    made.yaxis.major_label_overrides = names;
    made.ygrid.visible = false;
    const glyph = made.quad({
      left: { field: "left" }, right: { field: "right" }, bottom: { field: "bottom" }, top: { field: "top" }, source,
      fill_color: { field: "colour" }, line_color: style("--paper"), line_width: layers.length > 300 ? 0 : 0.5,
    });
    hover(made, glyph, [["layer", "@name"], ["type", "@op"], ["time", "@time"]]);
    pickable(made, glyph, source);
  }

  let momentSource = null;
  function drawMemory() {
    if (!layers.length) return;
    const mib = (bytes) => bytes / 2 ** 20;
    const data = {
      layer: layers.map((l) => l.index), left: begins, right: ends, top: layers.map((l) => mib(l.live)),
      work: layers.map((l) => mib(l.workspace)), name: layers.map((l) => l.name), size: layers.map((l) => l.size),
    };
    const source = sourceOf(data);
    const made = figure("memory", {
      height: 220, x_range: during(), x_axis_label: timeLabel, y_axis_label: "MiB alive",
      y_range: new Bokeh.Range1d({ start: 0, end: 1.08 * Math.max(...data.top, 1e-6) }),
    });
    const sides = { left: { field: "left" }, right: { field: "right" }, bottom: 0, source, line_color: null };
    const glyph = made.quad({ ...sides, top: { field: "top" }, fill_color: KINDS.activation, fill_alpha: 0.75 });
    made.quad({ ...sides, top: { field: "work" }, fill_color: KINDS.workspace });
    momentSource = sourceOf({ left: [], right: [], top: [] });
    made.quad({
      left: { field: "left" }, right: { field: "right" }, top: { field: "top" }, bottom: 0, source: momentSource,
      fill_color: "#d55e00", fill_alpha: 0.25, line_color: "#d55e00", line_width: 3,
    });
    const meanings = [[KINDS.activation, "alive"], [KINDS.workspace, "workspace, part of that"], ["#d55e00", "the moment told of below"]];
    element("memory-hint").replaceChildren(...meanings.map(([colour, text]) => keyed(swatch(colour), text)));
    hover(made, glyph, [["layer", "@name"], ["alive", "@size"]], { mode: "vline" });
    pickable(made, glyph, source);
    tellMoment(Number(element("moment").value));
  }

  function drawArena() {
    const pieces = record.buffers.filter((b) => layers[b.first] && layers[b.last]);
    if (!pieces.length) {
      element("kinds").textContent = "Not in the record.";
      return;
    }
    const kinds = [...new Set(pieces.map((b) => b.kind))];
    const parts = kinds.map((kind) => keyed(swatch(KINDS[kind] ?? REST), kind));
    element("kinds").replaceChildren(...parts, "A box lasts from the first layer that needs it to the last, and lies at its bytes.");
    const source = sourceOf({
      left: pieces.map((b) => begins[b.first]), right: pieces.map((b) => ends[b.last]),
      bottom: pieces.map((b) => b.offset / 2 ** 20), top: pieces.map((b) => (b.offset + b.bytes) / 2 ** 20),
      name: pieces.map((b) => b.name), kind: pieces.map((b) => b.kind), size: pieces.map((b) => b.size),
      life: pieces.map((b) => `layers ${b.first + 1} to ${b.last + 1}`), colour: pieces.map((b) => KINDS[b.kind] ?? REST),
    });
    const made = figure("arena", { height: 240, x_range: during(), x_axis_label: timeLabel, y_axis_label: "MiB into the arena" });
    const glyph = made.quad({
      left: { field: "left" }, right: { field: "right" }, bottom: { field: "bottom" }, top: { field: "top" }, source,
      fill_color: { field: "colour" }, fill_alpha: 0.55, line_color: { field: "colour" },
    });
    hover(made, glyph, [["tensor", "@name"], ["kind", "@kind, @size"], ["alive", "@life"]]);
  }

  function tellMoment(index) {
    const layer = layers[index];
    if (!layer) return;
    element("moment").value = String(index);
    element("moment").setAttribute("aria-valuetext", `layer ${index + 1}, ${layer.name}`);
    const isPeak = index === record.peak ? ", the peak" : "";
    element("alive-title").textContent = `Alive while layer ${index + 1}, ${layer.name}, runs: ${layer.size}${isPeak}`;
    const living = record.buffers.filter((b) => b.first <= index && index <= b.last).sort((a, b) => b.bytes - a.bytes);
    const life = (b) => (b.first === b.last ? `in layer ${b.first + 1} alone` : `from layer ${b.first + 1}, ${layers[b.first]?.name}, to layer ${b.last + 1}, ${layers[b.last]?.name}`);
    element("alive").replaceChildren(...living.map((b) => make("li", `${b.name}: ${b.size}, ${b.kind}, ${life(b)}`)));
    if (momentSource) momentSource.data = { left: [begins[index]], right: [ends[index]], top: [layer.live / 2 ** 20] };
  }

  function drawRoofline() {
    const points = layers.filter((l) => l.gflops > 0 && l.intensity > 0);
    const hint = element("roof-hint");
    if (!record.roofs || !points.length) {
      hint.textContent = record.roofs ? "No layer both computes and was timed." : "The machine's roofs were not measured in this run.";
      return;
    }
    const { gbs, gflops } = record.roofs;
    hint.textContent =
      `Roofs as measured: ${gbs.toFixed(1)} GB/s of memory, ${gflops.toFixed(0)} GFLOP/s of arithmetic. Bytes are the compulsory ones, ` +
      "so a layer whose data comes out of caches may be above the slope; operations are the definition's, so one that takes fewer " +
      "(Winograd) may be above the flat. Larger points take more of the time.";
    const ridge = gflops / gbs;
    const intensities = points.map((l) => l.intensity);
    const [from, to] = [Math.min(...intensities, ridge) / 2, Math.max(...intensities, ridge) * 2];
    const rates = points.map((l) => l.gflops);
    const made = figure("roofline", {
      height: 340, x_axis_type: "log", y_axis_type: "log", tools: "pan,wheel_zoom,box_zoom,reset,save",
      x_range: new Bokeh.Range1d({ start: from, end: to }),
      y_range: new Bokeh.Range1d({ start: Math.min(...rates, from * gbs) / 2, end: Math.max(...rates, gflops) * 2 }),
      x_axis_label: "operations for each compulsory byte", y_axis_label: "GFLOP/s",
    });
    made.line({ x: [from, ridge, to], y: [from * gbs, gflops, gflops], line_color: "#d55e00", line_width: 2 });
    const source = sourceOf({
      layer: points.map((l) => l.index), x: intensities, y: rates, name: points.map((l) => l.name), op: points.map((l) => l.op),
      size: points.map((l) => 6 + 16 * Math.sqrt((l.share ?? 0) / largest)), colour: points.map((l) => typeOf.get(l.op).colour),
      roof: points.map((l) => `${percent(l.roof)} of the roof of ${l.bound}`), time: points.map((l) => `${l.time} us, ${percent(l.share)}`),
    });
    const glyph = made.scatter({
      x: { field: "x" }, y: { field: "y" }, size: { field: "size" }, source, fill_color: { field: "colour" }, fill_alpha: 0.7,
      line_color: { field: "colour" },
    });
    hover(made, glyph, [["layer", "@name"], ["type", "@op"], ["reaches", "@roof"], ["time", "@time"]]);
    pickable(made, glyph, source);
  }

  function drawRuns() {
    const runs = record.runs;
    const hint = element("runs-hint");
    if (!runs) {
      hint.textContent = "Not measured.";
      return;
    }
    const kinds = { steady: ["circle", "#0072b2"], "warm-up": ["triangle", "#e69f00"], outlier: ["x", "#d55e00"] };
    const kindOf = (i) => (runs.warmup[i] ? "warm-up" : runs.outlier[i] ? "outlier" : "steady");
    const of = runs.us.map((_, i) => kindOf(i));
    const counts = Object.keys(kinds).map((kind) => [kind, of.filter((k) => k === kind).length]);
    const marks = { steady: "\u25cf", "warm-up": "\u25b2", outlier: "\u2715" };
    hint.replaceChildren(...counts.filter(([, n]) => n).flatMap(([kind, n]) => {
      const mark = make("span", `${marks[kind]} `);
      mark.style.color = kinds[kind][1];
      return [keyed(mark, `${kind}: ${n}`)];
    }), "Warm-up is kept here and left out of every median.");
    const [low, high] = [Math.min(...runs.us), Math.max(...runs.us)];
    const margin = 0.05 * (high - low) || 0.05 * high || 1;
    const extent = { start: low - margin, end: high + margin };
    const made = figure("runs", { height: 240, y_range: linked("total", extent), x_axis_label: "repetition", y_axis_label: "us, first to last layer" });
    for (const [kind, [marker, colour]] of Object.entries(kinds)) {
      const chosen = of.flatMap((k, i) => (k === kind ? [i] : []));
      if (!chosen.length) continue;
      const source = sourceOf({
        x: chosen.map((i) => runs.repetition[i]), y: chosen.map((i) => runs.us[i]), kind: chosen.map(() => kind),
      });
      const glyph = made.scatter({
        x: { field: "x" }, y: { field: "y" }, source, marker, size: 8, fill_color: colour, line_color: colour, fill_alpha: 0.6,
      });
      hover(made, glyph, [["repetition", "@x, @kind"], ["total", "@y{0,0.0} us"]]);
    }
    const beside = figure("spread", { height: 240, y_range: linked("total", extent), x_axis_label: "repetitions", tools: "save" });
    const [bottom, top] = [runs.edges.slice(0, -1), runs.edges.slice(1)];
    const steady = sourceOf({ bottom, top, left: bottom.map(() => 0), right: runs.steady_count });
    const warm = sourceOf({ bottom, top, left: runs.steady_count, right: runs.steady_count.map((n, i) => n + runs.warmup_count[i]) });
    for (const [source, colour] of [[steady, "#0072b2"], [warm, "#e69f00"]]) {
      beside.quad({
        left: { field: "left" }, right: { field: "right" }, bottom: { field: "bottom" }, top: { field: "top" }, source,
        fill_color: colour, line_color: null, hatch_pattern: source === warm ? "/" : " ", hatch_color: "#ffffff",
      });
    }
  }

  // --- light and dark, keys

  function onKey(event) {
    if (event.key === "Escape") closePanel();
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      element("search").focus();
    }
  }

  function listen() {
    element("search").addEventListener("input", (event) => { view.text = event.target.value; arrange(); });
    element("order").addEventListener("change", (event) => {
      const [key, descending] = event.target.value.split(" ");
      Object.assign(view, { key, descending: descending === "true" });
      arrange();
    });
    element("grouped").addEventListener("change", (event) => { view.grouped = event.target.checked; arrange(); });
    MEASURES.forEach((m) => element("colour-by").append(make("option", m.title, { value: m.key })));
    element("colour-by").addEventListener("change", () => { if (network) colourNetwork(); });
    element("table").addEventListener("keydown", moveFocus);
    element("moment").addEventListener("input", (event) => tellMoment(Number(event.target.value)));
    element("to-peak").addEventListener("click", () => tellMoment(record.peak ?? 0));
    element("close").addEventListener("click", closePanel);
    element("previous").addEventListener("click", () => step(-1));
    element("next").addEventListener("click", () => step(1));
    document.addEventListener("keydown", onKey);
  }

  // Pictures are drawn when they come near, one a turn, so that the page answers meanwhile.
  const pictures = new Map(Object.entries({
    network: drawNetwork, timeline: drawTimeline, memory: drawMemory, arena: drawArena, roofline: drawRoofline, runs: drawRuns,
  }));
  const waiting = [];

  function drawNext() {
    const name = waiting.shift();
    if (name === undefined) {
      document.documentElement.dataset.ready = "yes";
      return;
    }
    const draw = pictures.get(name);
    pictures.delete(name);
    draw?.();
    element(name).classList.add("drawn");
    if (name === "runs") element("spread").classList.add("drawn");
    setTimeout(drawNext, 0);
  }

  function watch() {
    const observer = new IntersectionObserver((entries) => {
      const near = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target.id);
      waiting.push(...near);
      near.forEach((name) => observer.unobserve(element(name)));
      setTimeout(drawNext, 0);
    }, { rootMargin: "300px" });
    [...pictures.keys()].forEach((name) => observer.observe(element(name)));
    addEventListener("beforeprint", () => { waiting.push(...pictures.keys()); while (waiting.length) drawNext(); });
  }

  writeHead();
  makeTable();
  writeTypes();
  listen();
  arrange();
  tellMoment(record.peak ?? 0);
  watch();
})();
