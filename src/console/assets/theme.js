// Applies the theme that was chosen in this browser before the page is drawn, so that the page does not flash in another theme.
"use strict";

(function () {
  const root = document.documentElement;
  root.classList.add("scripted");
  try {
    const theme = localStorage.getItem("submission-manager-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    // Without storage the theme is that of the system.
  }
})();
