"use strict";
// What happens when: the page is opened, used, printed, or the system's colours change.

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
