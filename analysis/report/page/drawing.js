"use strict";
// When is a chart drawn? When it comes near the view, and again when what it depends on has changed.

const nextTask = () => new Promise((resolve) => setTimeout(resolve));
let library = null; // loaded once, after the first view stands
let view = 0; // counts the changes that all charts depend on: of filters, width and colours
const drawnIn = new Map(); // chart -> the view in which it was drawn last
let running = null; // the drawing that is under way
let printing = false;

const loaded = () => (library ??= loadPlotly());

// What all charts depend on has changed.
function redrawCharts() {
  view += 1;
  drawCharts();
}

// Draw the charts near the view that do not show it yet: nobody looks at the others, and each takes long.
function drawCharts() {
  delete document.body.dataset.drawn;
  running ??= drawNext().finally(() => {
    running = null;
  });
}

// One at a time, so that the page answers meanwhile.
async function drawNext() {
  await nextTask();
  if (nextChart()) await loaded();
  if (!globalThis.Plotly && nextChart()) return;
  // Nothing is waited for between the choice of a chart and its drawing: it may be folded meanwhile.
  for (let element = nextChart(); element && !printing; element = nextChart()) {
    drawnIn.set(element, view);
    drawChart(element, chosen());
    await nextTask();
  }
  if (printing) return;
  document.body.dataset.drawn = "true";
}

// Of the charts that are not drawn in this view: one that is seen, or else one that is less than a screen away.
function nextChart() {
  const left = [...document.querySelectorAll("details[open] .chart")].filter((one) => drawnIn.get(one) !== view);
  const within = (away) => (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > -away && box.top < innerHeight + away;
  };
  return left.find(within(0)) ?? left.find(within(innerHeight));
}

const PAPER = 680; // the width of a sheet between its margins, A4 or letter

// What is printed is the whole page, as on white paper.
function drawForPaper() {
  printing = true;
  document.documentElement.classList.add("paper");
  if (!globalThis.Plotly) return;
  for (const element of document.querySelectorAll(".chart")) drawChart(element, chosen(), PAPER);
  document.body.dataset.drawn = "true";
}

function drawForScreen() {
  printing = false;
  document.documentElement.classList.remove("paper");
  redrawCharts();
}
