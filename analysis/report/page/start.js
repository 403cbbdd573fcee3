"use strict";
// What happens when: the page is opened, used, printed, or the system's colours change.

function listen() {
  const on = (selector, event, act) => {
    for (const element of document.querySelectorAll(selector)) element.addEventListener(event, act);
  };
  on("thead button", "click", (event) => sortBy(event.currentTarget.closest("th")));
  on("button[data-copy]", "click", (event) => copyTable(event.currentTarget));
  on("button[data-save]", "click", (event) => saveChart(event.currentTarget));
  on("input[data-search]", "input", filterRows);
  on("select[data-filter]", "change", filtersChanged);
  on("nav, .summary", "click", followLink);
  on("main details", "toggle", drawCharts);
  on("#open-all", "click", openAll);
  const arriving = new IntersectionObserver(drawCharts, { rootMargin: "100% 0px" });
  for (const chart of document.querySelectorAll(".chart")) arriving.observe(chart);
  addEventListener("hashchange", followAddress);
  addEventListener("popstate", followAddress);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return; // a phone hides its address bar
    width = innerWidth;
    redrawCharts();
  });
  addEventListener("beforeprint", openForPrint);
  addEventListener("afterprint", closeAfterPrint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
}

function followAddress() {
  chooseFromAddress();
  applyFilters();
  const { section } = readAddress();
  if (section) openSection(section);
}

if (!globalThis.DecompressionStream) document.body.classList.add("without-charts");
listen();
followAddress();
document.body.dataset.ready = "true";
// A printer does not wait for it.
(globalThis.requestIdleCallback ?? setTimeout)(loaded);
