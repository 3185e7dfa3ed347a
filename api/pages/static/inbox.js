// Makes an inbox quick: selects all, and takes keys. Without this script every box, field and button works by itself.
"use strict";

const form = document.querySelector("[data-inbox]");
const rows = form ? [...form.querySelectorAll("[data-row]")] : [];
const boxes = rows.map((row) => row.querySelector("input[type=checkbox]")).filter(Boolean);
const help = document.querySelector("[data-keys]");
let here = -1;
let pending = null;

function told() {
  const number = boxes.filter((box) => box.checked).length;
  const place = form.querySelector("[data-selected]");
  if (place) {
    place.textContent = number ? `${number} of ${boxes.length} selected` : "None selected";
  }
  const all = form.querySelector("[data-all] input");
  if (all) {
    all.checked = number === boxes.length;
    all.indeterminate = number > 0 && number < boxes.length;
  }
}

function go(step) {
  if (!rows.length) {
    return;
  }
  here = Math.min(Math.max(here + step, 0), rows.length - 1);
  rows[here].querySelector("a").focus();
  rows[here].scrollIntoView({ block: "nearest" });
}

// None in a row about which this visitor may not decide.
function boxHere() {
  return here >= 0 ? rows[here].querySelector("input[type=checkbox]") : null;
}

function decide(action) {
  const box = boxHere();
  if (box && !boxes.some((other) => other.checked)) {
    box.checked = true;
    told();
  }
  pending = form.querySelector(`button[name=action][value=${action}]`);
  const reason = form.querySelector("[name=reason]");
  if (pending && reason) {
    reason.focus();
  }
}

const KEYS = {
  j: () => go(1),
  k: () => go(-1),
  x: () => {
    const box = boxHere();
    if (box) {
      box.checked = !box.checked;
      told();
    }
  },
  a: () => decide("accept"),
  f: () => decide("false_positive"),
  "/": () => document.querySelector("[name=text]")?.focus(),
  "?": () => help?.showModal(),
};

function isTyping(target) {
  return target.closest("textarea, select, dialog") || (target.matches("input") && target.type !== "checkbox");
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "Escape" && document.activeElement?.matches("input, textarea, select")) {
    document.activeElement.blur();
    return;
  }
  if (!isTyping(event.target) && Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

if (form) {
  const all = form.querySelector("[data-all]");
  if (all) {
    all.hidden = false;
    all.querySelector("input").addEventListener("change", (event) => {
      for (const box of boxes) {
        box.checked = event.target.checked;
      }
      told();
    });
  }
  form.addEventListener("change", told);
  form.addEventListener("focusin", (event) => {
    const row = event.target.closest("[data-row]");
    if (row) {
      here = rows.indexOf(row);
    }
  });
  form.querySelector("[name=reason]")?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && pending) {
      event.preventDefault();
      pending.click();
    }
  });
  told();
}
for (const opener of document.querySelectorAll("[data-keys-open]")) {
  opener.hidden = false;
  opener.addEventListener("click", () => help.showModal());
}
