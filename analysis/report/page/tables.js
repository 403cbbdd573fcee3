"use strict";
// Tables: they sort, search, and show the rows that the filters leave.

let known = null; // the facts of rows, by number

function filterRows() {
  const filters = chosen();
  known ??= JSON.parse(document.getElementById("facts").textContent);
  for (const table of document.querySelectorAll("table[data-live]")) {
    const box = document.querySelector(`input[data-search="${table.id}"]`);
    const words = box ? box.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const facts = known[row.dataset.facts] ?? {};
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

// The rows that are shown, as CSV: numbers with all their digits.
function asCsv(table) {
  const inert = (text) => (/^[=+@\t\r-](?![\d.,]*(e[-+]?\d+)?$)/i.test(text) ? `'${text}` : text); // no formula
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const header = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const lines = rows.map((row) => [...row.cells].map((cell) => cell.dataset.value || cell.textContent));
  return [header, ...lines].map((cells) => cells.map(inert).map(quoted).join(",")).join("\n") + "\n";
}

async function copyTable(button) {
  const status = button.parentElement.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(asCsv(document.getElementById(button.dataset.copy)));
    status.textContent = "copied";
  } catch (error) {
    status.textContent = `not copied: ${error.message}`;
  }
}
