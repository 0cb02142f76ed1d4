"""The live page's script: it puts new parts in the places of old ones, and does nothing else.

What a reader has opened, scrolled or focused stays so. Nothing is sent to the server but the request for news.
"""

from __future__ import annotations

HEAD = """<div class="live"><p id="connection">Connecting</p>
<button type="button" id="pause" aria-pressed="false">Pause</button>
<p class="unseen" id="spoken" role="status"></p></div>
"""

SCRIPT = """
"use strict";
const state = document.getElementById("connection"), spoken = document.getElementById("spoken");
const pause = document.getElementById("pause");
let paused = false, over = false, held = {};

function say(name, text) {
  document.documentElement.dataset.state = name;
  if (state.textContent !== text) state.textContent = text;
}

function show(name, content) {
  const part = document.getElementById(name);
  if (!part) return;
  const open = [...part.querySelectorAll("details[open]")].map(one => one.id);
  const moved = [...part.querySelectorAll(".scroll[id]")].map(one => [one.id, one.scrollLeft, one.scrollTop]);
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const focused = active && (active.id || (active.closest("details") || {}).id);
  const summary = active && active.tagName === "SUMMARY";
  part.innerHTML = content;
  part.hidden = !content;
  for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
  for (const [id, left, top] of moved) {
    const one = document.getElementById(id);
    if (one) { one.scrollLeft = left; one.scrollTop = top; }
  }
  if (focused) {
    const one = document.getElementById(focused);
    if (one) (summary ? one.querySelector("summary") : one).focus({preventScroll: true});
  }
}

function showHeld() {
  for (const [name, content] of Object.entries(held)) show(name, content);
  held = {};
}

function status() {
  if (over) say("over", over);
  else if (paused) say("paused", "Paused: what is shown is kept until you go on");
  else say("live", "Live: this page follows the run");
}

pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Go on" : "Pause";
  pause.setAttribute("aria-pressed", String(paused));
  if (!paused) showHeld();
  status();
});

const source = new EventSource("events");
source.addEventListener("open", status);
source.addEventListener("error", () => { if (!over) say("lost", "No connection: what is shown is of earlier"); });
source.addEventListener("parts", event => {
  const news = JSON.parse(event.data);
  Object.assign(held, news.parts);
  if (!paused) showHeld();
  if (spoken.textContent !== news.place) spoken.textContent = news.place;
  status();
});
source.addEventListener("over", event => {
  source.close();
  over = JSON.parse(event.data);
  paused = false;
  showHeld();
  pause.hidden = true;
  spoken.textContent = over;
  status();
});
"""
