"use strict";
// Which configurations does the reader want to see? The selects say so, and the page's address keeps it:
// #scaling&loader=dali-gpu&batch=64 is a section and two filters.

const selects = () => [...document.querySelectorAll("select[data-filter]")];

function chosen() {
  return Object.fromEntries(
    selects().filter((select) => select.value !== "").map((select) => [select.dataset.filter, select.value]),
  );
}

let known = null; // the facts of the page, by number

// Facts: the level of each factor, as tables and charts name them: by number.
function factsOf(number) {
  known ??= JSON.parse(document.getElementById("facts").textContent);
  return known[number];
}

// A factor that facts do not name, they do not restrict.
function passes(facts, filters) {
  const levels = typeof facts === "number" ? factsOf(facts) : facts;
  return Object.entries(filters).every(([name, value]) => !(name in levels) || isLevel(levels[name], value));
}

// A number may be written in several ways: 1e-05 is 0.00001.
const isLevel = (fact, text) => (typeof fact === "number" ? fact === Number(text) : String(fact) === text);

// --- the address --------------------------------------------------------------------------------------

function readAddress() {
  const parts = location.hash.slice(1).split("&").filter(Boolean);
  const filters = new URLSearchParams(parts.filter((part) => part.includes("=")).join("&"));
  return { section: parts.find((part) => !part.includes("=")) ?? "", filters };
}

function address(section) {
  const filters = new URLSearchParams(chosen()).toString();
  return `#${[section, filters].filter(Boolean).join("&")}`;
}

// What the address names and the page offers is chosen; the rest is not, leaves the address, and is named.
function chooseFromAddress() {
  const { section, filters } = readAddress();
  for (const select of selects()) {
    const value = filters.get(select.dataset.filter) ?? "";
    select.value = [...select.options].some((option) => option.value === value) ? value : "";
  }
  const offered = document.getElementById(section) ? section : "";
  const now = chosen();
  const others = [...filters].filter(([name, value]) => now[name] !== value);
  const ignored = [...(offered === section ? [] : [section]), ...others.map((one) => one.join("="))];
  sayIgnored(ignored);
  if (ignored.length > 0) history.replaceState(null, "", address(offered));
}

function filtersChanged() {
  history.replaceState(null, "", address(readAddress().section));
  sayIgnored([]);
  applyFilters();
}

function sayIgnored(parts) {
  document.getElementById("ignored").textContent =
    parts.length > 0 ? `Ignored in the address, as this report does not have it: ${parts.join(", ")}.` : "";
}

function applyFilters() {
  addressLinks();
  filterRows();
  redrawCharts();
}
