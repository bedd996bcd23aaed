"use strict";
const cases = [...document.querySelectorAll(".case")];
const rows = new Map([...document.querySelectorAll("tr[data-case]")].map((row) => [row.dataset.case, row]));
const buttons = [...document.querySelectorAll("button[data-verdict]")];
const search = document.getElementById("search");

function show() {
  const verdicts = new Set(buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.verdict));
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const item of cases) {
    const fits = verdicts.has(item.dataset.verdict) && words.every((word) => item.dataset.name.includes(word));
    item.hidden = rows.get(item.id).hidden = !fits;
    shown += fits;
  }
  document.getElementById("shown").textContent = `${shown} of ${cases.length} cases`;
}

function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target || !target.classList.contains("case")) return;
  if (target.hidden) {
    buttons.forEach((button) => button.setAttribute("aria-pressed", "true"));
    search.value = "";
    show();
  }
  target.open = true;
  target.scrollIntoView();
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    show();
  });
}
search.addEventListener("input", show);
window.addEventListener("hashchange", reveal);
document.querySelector(".filters").hidden = false;
show();
reveal();
