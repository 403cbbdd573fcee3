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
