"use strict";
// What happens when: the page is opened, used, printed, or the system's colours change.

function listen() {
  const on = (selector, event, act) => {
    for (const element of document.querySelectorAll(selector)) element.addEventListener(event, act);
  };
  on("thead button", "click", (event) => sortBy(event.currentTarget.closest("th")));
  on("button[data-copy]", "click", (event) => copyTable(event.currentTarget));
  on("input[data-search]", "input", filterRows);
  on("select[data-filter]", "change", () => {
    history.replaceState(null, "", address(readAddress().section));
    applyFilters();
  });
  for (const link of links()) link.addEventListener("click", followLink);
  on("main details", "toggle", drawCharts);
  on("#open-all", "click", openAll);
  addEventListener("hashchange", followAddress);
  addEventListener("popstate", followAddress);
  addEventListener("resize", drawCharts);
  addEventListener("beforeprint", openForPrint);
  addEventListener("afterprint", closeAfterPrint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
}

function followAddress() {
  chooseFromAddress();
  applyFilters();
  const { section } = readAddress();
  if (section) openSection(section);
}

listen();
followAddress();
