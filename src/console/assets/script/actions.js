// Buttons that change something: asks for confirmation, sends the form, and says what happened. When the server does not
// answer, the page stays. Without scripting the same forms are sent by the browser.
const confirmDialog = document.getElementById("confirm");

function confirmed(text, button) {
  if (!text) return Promise.resolve(true);
  document.getElementById("confirm-text").textContent = text;
  document.getElementById("confirm-button").textContent = button;
  confirmDialog.returnValue = "";
  confirmDialog.showModal();
  return new Promise((resolve) => {
    confirmDialog.addEventListener("close", () => resolve(confirmDialog.returnValue === "yes"), { once: true });
  });
}

async function send(form, button) {
  const body = new URLSearchParams(new FormData(form));
  if (button?.name) body.append(button.name, button.value);
  const url = button?.getAttribute("formaction") ?? form.action;
  const { response, page } = await fetchPage(url, { method: "POST", body });
  if (!response.ok) throw new Error(explain(page, response));
  const done = button?.dataset.done ?? form.dataset.done;
  const arrived = new URL(response.url);
  if (arrived.pathname !== location.pathname || arrived.search !== location.search) {
    if (done) toastOnNextPage(done);
    location.assign(response.url);
    return;
  }
  morph(document.getElementById("main"), page.getElementById("main"));
  htmx.process(document.getElementById("main"));
  readPageTime(page);
  showTimes(document);
  lastRefresh = Date.now();
  if (done) toast(done, false);
}

// Omits empty fields from the address.
function tidy(form) {
  const empty = [...form.elements].filter((field) => field.name && field.type !== "hidden" && !field.value);
  for (const field of empty) field.disabled = true;
  setTimeout(() => { for (const field of empty) field.disabled = false; });
}

// Tells the server the viewer's time zone, for times without one.
function fillZone(form) {
  const zone = form.querySelector("[data-zone]");
  if (zone) zone.value = new Date().getTimezoneOffset();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method === "get") tidy(form);
  fillZone(form);
  if (form.method !== "post" || form.hasAttribute("data-native") || event.submitter?.hasAttribute("data-native")) return;
  event.preventDefault();
  const button = event.submitter;
  const ask = button?.dataset.confirm ?? form.dataset.confirm;
  if (!(await confirmed(ask, button?.textContent.trim() ?? "Continue"))) return;
  if (button) button.disabled = true;
  try {
    await send(form, button);
  } catch (error) {
    const silent = error instanceof TypeError || error.name === "TimeoutError";
    toast(silent ? "The server does not answer. It is not known whether this was done. Check when it answers again." : error.message, true);
  }
  if (button) button.disabled = false;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const from = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(from ? from.textContent : button.dataset.copy);
    toast("Copied.", false);
  } catch {
    toast("The browser did not allow copying. Select the text and copy it yourself.", true);
  }
});

// The calendar beside a field for a time. The field gets the time that was picked, in the viewer's time zone.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-pick]");
  if (!button) return;
  const field = document.getElementById(button.dataset.pick);
  const picker = document.createElement("input");
  picker.type = "datetime-local";
  picker.tabIndex = -1;
  picker.setAttribute("aria-hidden", "true");
  picker.addEventListener("change", () => { field.value = picker.value.replace("T", " "); });
  picker.addEventListener("blur", () => picker.remove());
  button.after(picker);
  picker.focus();
  picker.showPicker?.();
});

document.addEventListener("change", (event) => {
  if (event.target.id !== "select-all") return;
  for (const box of document.querySelectorAll("#selection tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// On phones a long filter is folded, so that the list is in sight. One with an error stays open.
const filters = document.querySelector(".filters");
if (filters && matchMedia("(max-width: 45rem)").matches && !filters.querySelector("[aria-invalid]")) filters.open = false;
