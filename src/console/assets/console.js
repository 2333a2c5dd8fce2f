// Shows times in the viewer's zone, with UTC on hover. htmx does everything else.
"use strict";

(function () {
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  function localise(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(element.dateTime);
      if (!Number.isNaN(moment.getTime()) && !element.title) {
        element.title = element.dateTime;
        element.textContent = format.format(moment);
      }
    }
  }

  document.addEventListener("DOMContentLoaded", () => localise(document));
  document.addEventListener("htmx:load", (event) => localise(event.target));
})();
