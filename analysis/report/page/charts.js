"use strict";
// Charts: what of a figure the filters leave, in the page's colours, with legends that fit its width.

// The chart library and the figures are embedded compressed, so that the file stays small; the browser unpacks
// them. One that cannot shows all but the charts (start.js says so).
async function unpacked(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

let figureTexts = []; // JSON, by the number that a chart's element names

async function loadPlotly() {
  if (!globalThis.DecompressionStream) return;
  figureTexts = (await unpacked("figures-gz")).split("\n");
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly-gz");
  document.head.append(script);
}

// --- what the filters leave ---------------------------------------------------------------------------

// A trace says in `meta` which levels it shows, or which configurations (`members`) it is the mean or the
// band of; in `customdata` it says the levels of each of its points.
function visibleData(data, filters) {
  return data
    .filter((trace) => trace.meta === undefined || passes(trace.meta, filters))
    .map((trace) => (trace.meta?.members ? summarised(trace, filters) : picked(trace, filters)))
    .filter((trace) => trace !== null);
}

function picked(trace, filters) {
  if (!Array.isArray(trace.customdata)) return trace;
  const keep = trace.customdata.map((facts) => passes(facts, filters));
  const pick = (values) => (Array.isArray(values) ? values.filter((_, index) => keep[index]) : values);
  const left = { ...trace, x: pick(trace.x), y: pick(trace.y) };
  for (const ends of ["error_x", "error_y"]) {
    if (!trace[ends]) continue;
    const { array, arrayminus } = trace[ends];
    left[ends] = { ...trace[ends], array: pick(array), arrayminus: pick(arrayminus) };
  }
  return left;
}

// As analysis/display/plots.py has it for all configurations: one is drawn with its intervals, of several
// the mean, with a band from the lowest to the highest.
function summarised(trace, filters) {
  const { members: all, band } = trace.meta;
  if (Object.keys(filters).length === 0) return trace;
  const members = all
    .filter((member) => passes(member.facts, filters))
    .map((member) => picked(member, filters))
    .filter((member) => member.x.length > 0);
  if (members.length === 0 || (members.length === 1 && band)) return null;
  if (members.length === 1) return { ...trace, error_y: undefined, ...members[0] };
  const at = new Map();
  for (const member of members) {
    member.x.forEach((x, index) => {
      if (member.y[index] !== null) at.set(x, [...(at.get(x) ?? []), member.y[index]]);
    });
  }
  const x = [...at.keys()].sort((a, b) => a - b);
  const of = (summary) => x.map((one) => summary(at.get(one)));
  const lowest = of((values) => Math.min(...values));
  const highest = of((values) => Math.max(...values));
  if (band) return { ...trace, x: [...x, ...x.toReversed()], y: [...highest, ...lowest.toReversed()] };
  const mean = of((values) => values.reduce((sum, one) => sum + one, 0) / values.length);
  return { ...trace, x, y: mean };
}

// --- how it looks -------------------------------------------------------------------------------------

const ENTRY = 20; // the height of a line of a legend
const AROUND = 10; // all of them
const SIGN = 46; // the width of an entry's sign and of the gaps around its name
const LETTER = 6.6;
const ON_PAPER = 205; // pixels
const MOST_LEGEND = 0.2; // of a chart's height
const NARROW = 600; // pixels
const MOST_LABELS = 0.4; // of its width, beside bars

// Names beside bars, in two lines at most: plotly would leave them all the width that they ask for.
function withLabels(layout, data, width) {
  const bars = data.filter((trace) => trace.orientation === "h");
  if (bars.length === 0) return layout;
  const names = [...new Set(bars.flatMap((trace) => trace.y))];
  const texts = names.map((name) => inLines(name, Math.floor((MOST_LABELS * width) / LETTER)));
  const longest = Math.max(0, ...texts.flatMap((text) => text.split("<br>")).map((line) => line.length));
  const yaxis = { ...layout.yaxis, automargin: false, tickvals: names, ticktext: texts };
  return { ...layout, yaxis, margin: { ...layout.margin, l: Math.ceil(LETTER * longest) + 12 } };
}

// Two lines of so many characters at most; what does not fit ends in an ellipsis. `name` is escaped, as plotly
// reads it.
function inLines(name, most) {
  const text = name.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  const place = text.length <= most ? text.length : Math.max(text.lastIndexOf(" ", most), 0) || most;
  const lines = [text.slice(0, place), text.slice(place).trim()].filter(Boolean);
  return lines
    .map((line) => (line.length <= most ? line : `${line.slice(0, most - 1)}…`))
    .map((line) => line.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"))
    .join("<br>");
}

// The legend on top, as many entries in a line as fit.
function withLegend(unlabelled, data, width) {
  const layout = withLabels(withTicks(unlabelled, width), data, width);
  const names = data.filter((one) => one.showlegend !== false && one.type !== "heatmap").map((one) => one.name);
  const entry = Math.ceil(LETTER * Math.max(0, ...names.map((name) => name.length)));
  const inLine = Math.max(1, Math.floor((width - layout.margin.l - layout.margin.r) / (entry + SIGN)));
  const above = names.length > 0 ? ENTRY * Math.ceil(names.length / inLine) + AROUND : 0; // its height
  // A chart grows where the legend would take too much of it. On paper one of points has less room.
  const isOfPoints = data.every((trace) => ["lines", "lines+markers", "markers", "none"].includes(trace.mode));
  const most = printing && isOfPoints ? ON_PAPER : layout.height;
  const height = Math.max(Math.min(layout.height, most), Math.ceil(above / MOST_LEGEND));
  const fitted = {
    ...layout,
    height,
    margin: { ...layout.margin, t: above + 4 },
    title: "",
  };
  const sized = data.some((trace) => Array.isArray(trace.marker?.size));
  fitted.legend = {
    ...layout.legend, itemsizing: sized ? "constant" : "trace", orientation: "h", entrywidth: entry, x: 0, xref: "container",
    yanchor: "top", yref: "container", y: 1,
    tracegroupgap: 0, // each entry is a group: a line and its band
  };
  return fitted;
}

// --- names beside lines -------------------------------------------------------------------------------

const SYMBOLS = {
  circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", cross: "✚", x: "✖", star: "★", hexagon: "⬢",
};
const LINE_OF_TEXT = 15;
const MOST_NAME = 0.35; // of a chart's width

const longestName = (lines) => Math.max(...lines.map((line) => line.name.length)) + 2;

// The lines that have their names beside them instead of in a legend: where there is room.
function namedLines(data, layout, width) {
  const lines = data.filter((trace) => trace.showlegend !== false && trace.mode === "lines+markers");
  const others = data.filter((trace) => trace.showlegend !== false && trace.mode !== "lines+markers");
  if (lines.length === 0 || others.length > 0 || width <= NARROW) return [];
  return LETTER * longestName(lines) < MOST_NAME * width ? lines : [];
}

// The names at the right ends of lines, one below the other where these are close; those of lines that end
// before the others stand below their end. Args: height: of the plot, which may be less than its margins leave.
function namesBeside(lines, layout, height) {
  const at = (value, axis) => (axis.type === "log" ? Math.log10(value) : value);
  const [low, high] = layout.yaxis.range;
  const ends = lines.map((line) => {
    const last = line.y.findLastIndex((value) => value !== null);
    const [x, y] = [at(line.x[last], layout.xaxis), at(line.y[last], layout.yaxis)];
    return { line, x, y, place: (height * (high - y)) / (high - low) };
  });
  const right = Math.max(...ends.map((end) => end.x));
  const beside = ends.filter((end) => end.x === right).sort((a, b) => a.place - b.place);
  let lowest = -Infinity;
  const shifts = new Map();
  for (const end of beside) {
    lowest = Math.max(lowest + LINE_OF_TEXT, end.place);
    shifts.set(end, lowest);
  }
  const beyond = Math.max(0, lowest - height); // they may not leave the chart below
  return ends.map((end) => ({
    text: `<span style="color: ${end.line.line.color}">${SYMBOLS[end.line.marker.symbol]}</span> ${end.line.name}`,
    x: end.x, y: end.y, showarrow: false, xanchor: "left", xshift: 8,
    yanchor: shifts.has(end) ? "middle" : "top",
    yshift: shifts.has(end) ? end.place - shifts.get(end) + beyond : -8,
  }));
}

// On a narrow screen ticks have their first line alone: the second would lie on its neighbours.
function withTicks(layout, width) {
  if (width > NARROW) return layout;
  const ticktext = layout.xaxis?.ticktext?.map((text) => text.split("<br>")[0]);
  return ticktext ? { ...layout, xaxis: { ...layout.xaxis, ticktext } } : layout;
}

const isDark = () =>
  matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.classList.contains("paper");

// A figure's colours are those for white paper; on a dark screen others stand for them
// (analysis/display/plots.py).
function figureOf(element) {
  const text = figureTexts[Number(element.dataset.figure)];
  if (!isDark()) return JSON.parse(text);
  const onDark = JSON.parse(document.getElementById("colours-on-dark").textContent);
  return JSON.parse(text, (key, value) => (key === "color" ? (onDark[value] ?? value) : value));
}

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    separatethousands: true, exponentformat: "none",
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"),
  };
  const axes = Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name));
  return {
    ...layout,
    font: { ...layout.font, color: colour("--ink"), family: getComputedStyle(document.body).fontFamily },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    ...Object.fromEntries(axes.map((name) => [name, { ...layout[name], ...axis }])),
  };
}

// A chart of which the filters leave nothing: of one run, say, that is not among the chosen ones.
function nothingLeft(layout) {
  const text = "nothing is drawn for the chosen configurations";
  const said = { text, showarrow: false, x: 0.5, y: 0.5, xref: "paper", yref: "paper" };
  const empty = { visible: false };
  const { legend, margin } = layout;
  return { legend, margin: { ...margin, t: 8, b: 8 }, height: 80, xaxis: empty, yaxis: empty, annotations: [said] };
}

// Args: width: in pixels; by default that of the element.
function drawChart(element, filters, width = element.clientWidth) {
  const figure = figureOf(element);
  const left = visibleData(figure.data, filters);
  const lines = namedLines(left, figure.layout, width);
  const data = lines.length > 0 ? left.map((trace) => ({ ...trace, showlegend: false })) : left;
  const layout = data.length > 0 ? withLegend(figure.layout, data, width) : nothingLeft(figure.layout);
  if (lines.length > 0) layout.margin.r += LETTER * longestName(lines);
  element.style.height = `${layout.height}px`;
  const drawn = { ...themed(layout), width };
  Plotly.react(element, data, drawn, { displayModeBar: false });
  if (lines.length === 0) return;
  // Where lines end is known only now: plotly has chosen what the axes show, and would make room for the names.
  const annotations = namesBeside(lines, element.layout, element._fullLayout._size.h);
  Plotly.relayout(element, { annotations, "xaxis.autorange": false, "yaxis.autorange": false });
}

function saveChart(button) {
  const element = document.getElementById(button.dataset.save);
  const { clientWidth: width, clientHeight: height, id: filename } = element;
  Plotly.downloadImage(element, { format: "svg", filename, width, height });
}
