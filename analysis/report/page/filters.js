"use strict";
// Which configurations does the reader want to see? The selects above the sections say so.

function chosen() {
  const filters = {};
  for (const select of document.querySelectorAll("select[data-filter]")) {
    if (select.value !== "") filters[select.dataset.filter] = select.value;
  }
  return filters;
}

// Facts: the level of each factor. A factor that they do not name, they do not restrict.
function passes(facts, filters) {
  return Object.entries(filters).every(([name, value]) => !(name in facts) || String(facts[name]) === value);
}
