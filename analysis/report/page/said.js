"use strict";
// What is said of the configurations that the filters leave: the opening, and the findings of folded sections.

let unpackedSaid = null; // what the page says of each choice; unpacked when something is chosen
const before = new Map(); // element -> its HTML before anything was chosen

const opening = () => document.getElementById("answers");
const finding = (id) => document.querySelector(`#${CSS.escape(id)} summary [data-follows]`);

// The numbers of the chosen levels, as the page's texts know a choice; 0: all.
const choiceNumbers = () => selects().map((select) => select.selectedIndex);

async function sayWhatIsLeft() {
  const filters = chosen();
  delete document.body.dataset.said;
  const packed = document.getElementById("said-gz");
  sayWhatIsChosen(null);
  if (Object.keys(filters).length === 0 || !packed || !globalThis.DecompressionStream) {
    sayOfAll();
    document.body.dataset.said = "true";
    return;
  }
  const asked = choiceNumbers().join(",");
  unpackedSaid ??= unpacked("said-gz").then(JSON.parse);
  const texts = await unpackedSaid;
  if (asked !== choiceNumbers().join(",") || printing) return; // another was chosen meanwhile
  const deeper = Object.keys(filters).length > texts.depth;
  const left = texts.said[texts.of[asked]];
  sayOfAll();
  if (!deeper) saySome(left ?? { configurations: 0, opening: [], findings: {}, lists: {} }, texts.pieces);
  sayWhatIsChosen(deeper ? undefined : (left?.configurations ?? 0), texts.configurations);
  addressLinks();
  document.body.dataset.said = "true";
}

function saySome(left, pieces) {
  const html = (numbers) => numbers.map((number) => pieces[number]).join("");
  if (left.opening) {
    put(opening(), left.opening.map((answer) => `<div class="answer">${html(answer)}</div>`).join(""));
  }
  for (const element of document.querySelectorAll("[data-follows]")) {
    const number = left.findings[element.closest("section").id];
    put(element, number === undefined ? "" : pieces[number]);
  }
  for (const element of document.querySelectorAll("[data-list]")) {
    put(element, html(left.lists[element.dataset.list] ?? []));
  }
}

function put(element, html) {
  if (!before.has(element)) before.set(element, element.innerHTML);
  element.innerHTML = html;
}

// As the page was opened: the sentences say that they are of all configurations while something is chosen.
function sayOfAll() {
  for (const [element, html] of before) element.innerHTML = html;
  before.clear();
}

// Args: count: of the configurations that are left; null: not known yet, undefined: not listed.
function sayWhatIsChosen(count, all) {
  const line = document.getElementById("shown");
  if (!line) return;
  const levels = selects().filter((select) => select.value !== "").map((select) => {
    return `${select.parentElement.firstChild.textContent.trim()} ${select.value}`;
  });
  line.hidden = levels.length === 0;
  const which = levels.join(", ");
  const texts = line.querySelector("span");
  if (count === undefined) texts.textContent = `Shown: ${which}. Sentences are for all configurations.`;
  else if (count === 0) texts.textContent = `No configuration has ${which}.`;
  else texts.textContent = count === null ? `Shown: ${which}.` : `Shown: ${count} of ${all} configurations (${which}).`;
}

function chooseAll() {
  for (const select of selects()) select.value = "";
  filtersChanged();
}
