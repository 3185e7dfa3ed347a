// Keeps the part of a page that is marked `data-live` fresh, until it is no longer marked. Without this script the
// page is as complete, and says how to reload it.
"use strict";

const INTERVAL_MS = 2000;

async function refresh() {
  const present = document.querySelector("[data-live]");
  if (!present) {
    return;
  }
  try {
    const response = await fetch(present.dataset.live, { credentials: "same-origin", redirect: "error" });
    if (response.ok) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById(present.id);
      if (fresh && fresh.dataset.stage !== present.dataset.stage) {
        window.location.reload();
        return;
      }
      if (fresh && !present.contains(document.activeElement)) {
        present.replaceWith(document.adoptNode(fresh));
      }
    }
  } catch (error) {
    // The server is away for a moment: the next round asks again.
  }
  window.setTimeout(refresh, INTERVAL_MS);
}

window.setTimeout(refresh, INTERVAL_MS);
