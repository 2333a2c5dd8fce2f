// Times: the server writes "3 min ago" with the exact time in UTC as its title. This adds the exact time in the viewer's time
// zone to the title, and keeps the text up to date.
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

// The same words as `ago` in src/console/when.rs.
function ago(milliseconds) {
  const seconds = Math.floor(Math.abs(milliseconds) / 1000);
  if (seconds < 10) return "just now";
  let text = `${Math.floor(seconds / 86400)} d`;
  if (seconds < 60) text = `${seconds - (seconds % 10)} s`;
  else if (seconds < 3600) text = `${Math.floor(seconds / 60)} min`;
  else if (seconds < 86400) text = `${Math.floor(seconds / 3600)} h`;
  return milliseconds < 0 ? `in ${text}` : `${text} ago`;
}

function showTimes(root) {
  for (const element of root.querySelectorAll("time[data-ago]")) {
    const time = new Date(element.dateTime);
    if (Number.isNaN(time.getTime())) continue;
    const title = `${exact.format(time)} · ${element.dateTime}`;
    if (element.title !== title) element.title = title;
    const text = ago(serverNow() - time.getTime());
    if (element.textContent !== text) element.textContent = text;
  }
  for (const element of root.querySelectorAll("time[data-exact]")) {
    const time = new Date(element.dateTime);
    if (Number.isNaN(time.getTime())) continue;
    element.textContent = exact.format(time);
    element.title = element.dateTime;
  }
}

// The current time of the server: its time when it wrote the page, plus the time that has passed in this browser since. So it
// does not matter if the clock of this machine is wrong.
let pageTime = null;
function readPageTime(root) {
  const written = Date.parse(root.querySelector("[data-now]")?.dataset.now ?? "");
  pageTime = Number.isNaN(written) ? null : written - performance.now();
}
function serverNow() {
  return pageTime === null ? Date.now() : pageTime + performance.now();
}

readPageTime(document);
showTimes(document);
setInterval(() => { if (mayTouch()) showTimes(document); }, 10000);
