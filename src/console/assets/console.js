// Shows times in the viewer's time zone, with UTC as a tooltip. htmx handles everything else.
"use strict";

(function () {
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  function showLocalTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const time = new Date(element.dateTime);
      if (!Number.isNaN(time.getTime()) && !element.title) {
        element.title = element.dateTime;
        element.textContent = format.format(time);
      }
    }
  }

  document.addEventListener("DOMContentLoaded", () => showLocalTimes(document));
  document.addEventListener("htmx:load", (event) => showLocalTimes(event.target));
})();
