"use strict";
// Which configurations does the reader want to see? The selects say so, and the page's address keeps it:
// #scaling&loader=dali-gpu&batch=64 is a section and two filters.

const selects = () => [...document.querySelectorAll("select[data-filter]")];

function chosen() {
  return Object.fromEntries(
    selects().filter((select) => select.value !== "").map((select) => [select.dataset.filter, select.value]),
  );
}

// The level of each factor: facts, which a factor that they do not name does not restrict.
function passes(facts, filters) {
  return Object.entries(filters).every(([name, value]) => !(name in facts) || isLevel(facts[name], value));
}

// A number may be written in several ways, 1e-05 or 0.00001, and the page's have seven digits.
const isLevel = (fact, text) =>
  typeof fact === "number" ? Math.abs(fact - Number(text)) <= 1e-6 * Math.abs(fact) : String(fact) === text;

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
