// Keeps the progress of a running analysis fresh. Without it the page reloads itself every few seconds.
"use strict";

const INTERVAL_MS = 2000;
const here = window.location.pathname.replace(/\/$/, "");

async function refresh() {
  const present = document.getElementById("progress");
  try {
    const response = await fetch(`${here}/progress`, { credentials: "same-origin", redirect: "error" });
    if (response.ok) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("progress");
      if (fresh && fresh.dataset.stage !== present.dataset.stage) {
        window.location.reload();
        return;
      }
      if (fresh) {
        present.replaceWith(document.adoptNode(fresh));
      }
    }
  } catch (error) {
    // The server is away for a moment: the next round asks again.
  }
  window.setTimeout(refresh, INTERVAL_MS);
}

window.setTimeout(refresh, INTERVAL_MS);
