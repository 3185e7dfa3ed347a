// Light, dark, or as the system has it: the choice is kept in this browser, and set before the page is drawn. Without
// this script the system decides, and the choice is not offered.
"use strict";

const KEPT_AS = "gradproof-scheme";
const CHOICES = ["light", "dark"];

function chosen() {
  try {
    return window.localStorage.getItem(KEPT_AS);
  } catch (error) {
    return null; // storage is refused: the system decides
  }
}

function apply(choice) {
  if (CHOICES.includes(choice)) {
    document.documentElement.dataset.scheme = choice;
  } else {
    delete document.documentElement.dataset.scheme;
  }
  for (const button of document.querySelectorAll("[data-scheme-choice]")) {
    const own = button.dataset.schemeChoice;
    button.setAttribute("aria-pressed", String(own === (CHOICES.includes(choice) ? choice : "system")));
  }
  document.dispatchEvent(new Event("schemechange"));
}

function choose(choice) {
  try {
    window.localStorage.setItem(KEPT_AS, choice);
  } catch (error) {
    // It holds for this page at least.
  }
  apply(choice);
}

apply(chosen());
document.addEventListener("DOMContentLoaded", () => {
  for (const group of document.querySelectorAll("[data-schemes]")) {
    group.hidden = false;
    for (const button of group.querySelectorAll("[data-scheme-choice]")) {
      button.addEventListener("click", () => choose(button.dataset.schemeChoice));
    }
  }
  apply(chosen());
});
