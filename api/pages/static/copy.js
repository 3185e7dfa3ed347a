// Gives every listing that is marked `data-copy` a button that copies it. Without this script the listing is as complete,
// and is selected by hand.
"use strict";

const SHOWN_MS = 2000;

function selected(code) {
  // Clipboards are refused to pages without TLS: the listing is at least selected then.
  const range = document.createRange();
  range.selectNodeContents(code);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch (error) {
    selected(code);
    button.textContent = "Selected";
  }
  window.setTimeout(() => {
    button.textContent = "Copy";
  }, SHOWN_MS);
}

for (const listing of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${listing.getAttribute("aria-label")}`);
  button.addEventListener("click", () => copy(button, listing.querySelector("code")));
  listing.append(button);
}
