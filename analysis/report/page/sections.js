"use strict";
// Sections are folded to their finding; a click, a link to them and the printer open them.

const folded = () => [...document.querySelectorAll("main details")];

function openSection(id) {
  const section = document.getElementById(id);
  if (!section) return;
  const details = section.querySelector("details");
  if (details) details.open = true;
  section.scrollIntoView();
  (details?.querySelector("summary") ?? section).focus({ preventScroll: true });
}

function openAll() {
  for (const details of folded()) details.open = true;
  drawCharts();
}

// A link to a section keeps the filters in the address.
function followLink(event) {
  event.preventDefault();
  const section = event.currentTarget.getAttribute("href").slice(1);
  history.pushState(null, "", address(section));
  openSection(section);
}

let closedBefore = []; // printing

function openForPrint() {
  closedBefore = folded().filter((details) => !details.open);
  for (const details of closedBefore) details.open = true;
  drawAll();
}

function closeAfterPrint() {
  for (const details of closedBefore) details.open = false;
  closedBefore = [];
}
