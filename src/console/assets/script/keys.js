// Keyboard shortcuts, their help, and the choice of the theme.
const help = document.getElementById("keys");
const shortcutsBox = document.getElementById("shortcuts-on");
const stored = (name) => { try { return localStorage.getItem(`submission-manager-${name}`); } catch { return null; } };
const store = (name, value) => { try { localStorage.setItem(`submission-manager-${name}`, value); } catch { /* The choice is kept until the page is closed. */ } };

const themeSelect = document.getElementById("theme");
themeSelect.value = document.documentElement.dataset.theme ?? "system";
themeSelect.addEventListener("change", () => {
  if (themeSelect.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = themeSelect.value;
  store("theme", themeSelect.value);
});

shortcutsBox.checked = stored("shortcuts") !== "off";
shortcutsBox.addEventListener("change", () => store("shortcuts", shortcutsBox.checked ? "on" : "off"));
document.getElementById("keys-button").addEventListener("click", () => help.showModal());

// Moves the mark to another row of the first table, and focuses its link.
function moveRow(by) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.classList.contains("current"));
  const next = rows[Math.min(Math.max(at < 0 ? 0 : at + by, 0), rows.length - 1)];
  rows[at]?.classList.remove("current");
  next.classList.add("current");
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}

const follow = (selector) => document.querySelector(selector)?.click();
const actions = {
  "/": () => { const box = document.getElementById("find"); box.focus(); box.select(); },
  "?": () => help.showModal(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  x: () => document.querySelector("tr.current input[type=checkbox]")?.click(),
  n: () => follow('.pages a[rel="next"]'),
  p: () => follow('.pages a[rel="prev"]'),
  ".": () => document.getElementById("live-button").click(),
};

let goPressed = false;
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select");
  if (!shortcutsBox.checked || typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (goPressed) {
    goPressed = false;
    const link = [...document.querySelectorAll(".pages-of-console a[data-key]")].find((link) => link.dataset.key === event.key);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  if (event.key === "g") { goPressed = true; setTimeout(() => { goPressed = false; }, 1500); return; }
  const action = actions[event.key];
  if (action) { event.preventDefault(); action(); }
});
