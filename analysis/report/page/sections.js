"use strict";
// Chapters are folded; a click, a link to one of their sections and the printer open them.

const folded = () => [...document.querySelectorAll("main details")];

function openSection(id) {
  const section = document.getElementById(id);
  if (!section) return;
  const details = section.closest("details");
  if (details) details.open = true;
  // The heading of a chapter is that of its first section.
  const isFirst = details?.querySelector("section") === section;
  (isFirst ? details : section).scrollIntoView();
  (details?.querySelector("summary") ?? section).focus({ preventScroll: true });
}

function openAll() {
  for (const details of folded()) details.open = true;
  drawCharts();
}

const links = () => [...document.querySelectorAll("nav a, .summary a")];
const sectionOf = (link) => link.hash.slice(1).split("&")[0];

// A link to a section keeps the filters in the address, in another tab too.
function addressLinks() {
  for (const link of links()) link.setAttribute("href", address(sectionOf(link)));
}

// A click opens the section here; with Ctrl and the like it is the browser's: another tab, another window.
function followLink(event) {
  const link = event.target.closest("a");
  if (!link) return;
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const section = sectionOf(link);
  history.pushState(null, "", address(section));
  openSection(section);
}

let closedBefore = []; // printing

function openForPrint() {
  closedBefore = folded().filter((details) => !details.open);
  for (const details of closedBefore) details.open = true;
  drawForPaper();
}

function closeAfterPrint() {
  for (const details of closedBefore) details.open = false;
  closedBefore = [];
  drawForScreen();
}
