// Keeps the live part of a page up to date. The new version is morphed into the page: what did not change stays the same
// element, so that keyboard focus, scrolling, ticked boxes and opened details survive. Nothing is refreshed while text is
// selected, while a dialog is open, or in a tab that nobody sees.
const live = () => document.getElementById("live");
let paused = false;
let lastRefresh = Date.now();
let failingSince = null;

const morphCallbacks = {
  // What the viewer opened stays open, and the titles of times stay in the viewer's time zone.
  beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS") && !(name === "title" && node.tagName === "TIME"),
  beforeNodeMorphed: (now, next) => {
    if (now.type === "checkbox" && next.type === "checkbox") next.checked = now.checked;
    if (now.tagName === "TIME" && next.tagName === "TIME" && now.dateTime === next.dateTime) return false;
    return !(now.dataset?.keep !== undefined);
  },
};

function morph(now, next) {
  Idiomorph.morph(now, next, { morphStyle: "outerHTML", callbacks: morphCallbacks });
}

// Whether the page can be changed without disturbing the viewer.
function mayTouch() {
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && live()?.contains(selection.anchorNode);
  return !selecting && !document.querySelector("dialog[open]");
}

async function fetchPage(url, options) {
  const response = await fetch(url, { ...options, credentials: "same-origin", signal: AbortSignal.timeout(15000) });
  const text = await response.text();
  return { response, page: new DOMParser().parseFromString(text, "text/html") };
}

async function refresh() {
  const now = live();
  const { response, page } = await fetchPage(now.dataset.url ?? location.href, { headers: { "X-Refresh": "1" } });
  if (response.status === 401 && response.headers.has("HX-Redirect")) {
    // The session has ended. After the sign-in the viewer comes back to this page.
    location.assign(`/ui/sign-in?return=${encodeURIComponent(location.pathname + location.search)}`);
  }
  const next = page.getElementById("live");
  if (!response.ok || !next) throw new Error(explain(page, response));
  if (!mayTouch() || live() !== now) return;
  morph(now, next);
  htmx.process(live());
  readPageTime(page);
  showTimes(document);
}

// The text of an error page.
function explain(page, response) {
  const heading = page.querySelector("main h1")?.textContent;
  const text = page.querySelector("main .note")?.textContent;
  return heading && text ? `${heading}: ${text}` : `The server answered ${response.status}.`;
}

function showState() {
  const bar = document.getElementById("live-bar");
  const banner = document.getElementById("stale");
  const clock = (time) => new Date(time).toLocaleTimeString();
  bar.hidden = !live()?.dataset.every;
  document.getElementById("live-text").textContent = paused ? `Paused at ${clock(lastRefresh)}` : `Live, updated ${clock(lastRefresh)}`;
  document.getElementById("live-button").textContent = paused ? "Resume refresh" : "Pause refresh";
  if (failingSince && banner.hidden) {
    banner.textContent = `No update since ${clock(lastRefresh)}: the page may be out of date. ${failingSince} Trying again.`;
  }
  banner.hidden = !failingSince;
}

async function keepLive() {
  const every = Number(live()?.dataset.every ?? 0) * 1000;
  if (every && !paused && !document.hidden && mayTouch()) {
    try {
      await refresh();
      lastRefresh = Date.now();
      failingSince = null;
    } catch (error) {
      failingSince ??= error instanceof TypeError || error.name === "TimeoutError" ? "The server does not answer." : error.message;
    }
    showState();
  }
  setTimeout(keepLive, every || 3000);
}

document.getElementById("live-button").addEventListener("click", () => {
  paused = !paused;
  showState();
});
showState();
setTimeout(keepLive, Number(live()?.dataset.every ?? 3) * 1000);
