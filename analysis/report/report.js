"use strict";
// The report's behaviour: draw the charts, sort, search and filter. No network, no storage.

// The chart library is embedded compressed, so that the file stays small; the browser unpacks it.
async function loadPlotly() {
  const packed = document.getElementById("plotly-gz").textContent.trim();
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
  return {
    ...layout,
    font: { ...layout.font, color: colour("--ink"), family: getComputedStyle(document.body).fontFamily },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
  };
}

function chosen() {
  const filters = {};
  for (const select of document.querySelectorAll("select[data-filter]")) {
    if (select.value !== "") filters[select.dataset.filter] = select.value;
  }
  return filters;
}

function passes(facts, filters) {
  return Object.entries(filters).every(([name, value]) => !(name in facts) || String(facts[name]) === value);
}

// A trace (or, in a bar chart, a bar) says in `meta` (`customdata`) which configuration it shows.
function visibleData(data, filters) {
  return data
    .filter((trace) => !trace.meta || passes(trace.meta, filters))
    .map((trace) => {
      if (!Array.isArray(trace.customdata)) return trace;
      const keep = trace.customdata.map((facts) => passes(facts, filters));
      const pick = (values) => (Array.isArray(values) ? values.filter((_, index) => keep[index]) : values);
      return { ...trace, x: pick(trace.x), y: pick(trace.y), text: pick(trace.text) };
    });
}

function drawChart(element, filters) {
  const figure = JSON.parse(document.getElementById(element.dataset.figure).textContent);
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  Plotly.react(element, visibleData(figure.data, filters), themed(figure.layout), config);
}

const nextTask = () => new Promise((resolve) => setTimeout(resolve));
let drawing = 0; // a newer drawing ends an older one

// Draw the charts that are in view; then, one at a time, the others, so that the page answers meanwhile.
async function drawCharts() {
  const mine = ++drawing;
  const filters = chosen();
  const inView = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const charts = [...document.querySelectorAll(".chart")];
  delete document.body.dataset.drawn;
  const first = charts.filter(inView);
  for (const element of first) drawChart(element, filters);
  document.body.dataset.ready = "true";
  for (const element of charts.filter((element) => !first.includes(element))) {
    await nextTask();
    if (mine !== drawing) return;
    drawChart(element, filters);
  }
  document.body.dataset.drawn = "true";
}

// What is printed is the whole page.
function drawAll() {
  drawing += 1;
  for (const element of document.querySelectorAll(".chart")) drawChart(element, chosen());
  document.body.dataset.drawn = "true";
}

function filterRows() {
  const filters = chosen();
  for (const table of document.querySelectorAll("table[data-live]")) {
    const box = document.querySelector(`input[data-search="${table.id}"]`);
    const words = box ? box.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const facts = row.dataset.facts ? JSON.parse(row.dataset.facts) : {};
      row.hidden = !(passes(facts, filters) && words.every((word) => text.includes(word)));
    }
  }
}

function sortBy(header) {
  const table = header.closest("table");
  const descending = header.getAttribute("aria-sort") === "ascending";
  const numeric = header.classList.contains("number");
  const key = (row) => {
    const cell = row.cells[header.cellIndex];
    if (!numeric) return cell.textContent;
    return cell.dataset.value === "" ? -Infinity : Number(cell.dataset.value);
  };
  const order = (a, b) => (numeric ? key(a) - key(b) : key(a).localeCompare(key(b)));
  const rows = [...table.tBodies[0].rows].sort((a, b) => (descending ? order(b, a) : order(a, b)));
  table.tBodies[0].append(...rows);
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

async function start() {
  for (const button of document.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  for (const input of document.querySelectorAll("input[data-search]")) input.addEventListener("input", filterRows);
  for (const select of document.querySelectorAll("select[data-filter]")) {
    select.addEventListener("change", () => { filterRows(); drawCharts(); });
  }
  await loadPlotly();
  addEventListener("beforeprint", () => { if (!document.body.dataset.drawn) drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  await drawCharts();
}

start();
