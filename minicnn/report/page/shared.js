// What the pages share: elements made of text, figures, light and dark.
"use strict";
const shared = (() => {
  const element = (id) => document.getElementById(id);
  const figures = [];
  const isNarrow = matchMedia("(max-width: 700px)").matches;

  // Okabe and Ito's colours without those that vanish on white or black; what is beyond them shares a grey.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"];
  const REST = "#8a9099";

  function make(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function swatch(colour) {
    const square = make("span", "", { class: "swatch", "aria-hidden": "true" });
    square.style.background = colour;
    return square;
  }

  function keyed(mark, text) {
    const pair = make("span", undefined, { class: "keyed" });
    pair.append(mark, text);
    return pair;
  }

  const percent = (share) => (share === null ? "-" : `${(100 * share).toFixed(share && share < 0.00995 ? 2 : 1)} %`);
  // On an axis Bokeh takes what stands between dollar signs, or after some backslashes, for TeX.
  const label = (text) => text.replace(/[$\\]/g, "\u00b7");

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function figure(target, options) {
    const made = Bokeh.Plotting.figure({
      sizing_mode: "stretch_width", tools: "xpan,xwheel_zoom,xbox_zoom,reset,save", toolbar_location: "above",
      active_drag: null, min_border_right: 12, name: target, ...options,
    });
    made.toolbar.logo = null;
    paint(made);
    figures.push(made);
    Bokeh.Plotting.show(made, element(target));
    return made;
  }

  function paint(made) {
    const [ink, faint, line, grid] = ["--ink", "--faint", "--line", "--grid"].map(style);
    made.background_fill_color = null;
    made.border_fill_color = null;
    made.outline_line_color = line;
    for (const scale of made.right.filter((part) => part.color_mapper !== undefined)) {
      scale.background_fill_color = null;
      scale.major_label_text_color = scale.title_text_color = faint;
    }
    for (const axis of [...made.below, ...made.left].filter((part) => part.axis_label !== undefined)) {
      if (isNarrow && axis.ticker?.desired_num_ticks) axis.ticker.desired_num_ticks = 4;
      axis.axis_label_text_color = ink;
      axis.axis_label_text_font_style = "normal";
      axis.major_label_text_color = faint;
      axis.axis_line_color = axis.major_tick_line_color = line;
      axis.minor_tick_line_color = null;
    }
    for (const part of made.center) if (part.grid_line_color !== undefined) part.grid_line_color = grid;
  }

  const sourceOf = (data) => new Bokeh.ColumnDataSource({ data });

  function hover(made, renderer, tooltips, more = {}) {
    made.add_tools(new Bokeh.HoverTool({ renderers: [renderer], tooltips, ...more }));
  }

  function setTheme(isDark) {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    element("theme").textContent = isDark ? "Light" : "Dark";
    element("theme").setAttribute("aria-pressed", String(isDark));
    figures.forEach(paint);
  }

  element("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  return { COLOURS, REST, element, figure, hover, keyed, label, make, paint, percent, sourceOf, style, swatch };
})();
