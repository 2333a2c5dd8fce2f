// Short messages about what a button did.
const toasts = document.getElementById("toasts");

function toast(text, isError) {
  const element = document.createElement("div");
  element.className = isError ? "toast error" : "toast";
  element.setAttribute("role", isError ? "alert" : "status");
  const message = document.createElement("span");
  message.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "✕";
  close.setAttribute("aria-label", "Close message");
  close.addEventListener("click", () => element.remove());
  element.append(message, close);
  toasts.append(element);
  // Errors stay until they are closed.
  if (!isError) setTimeout(() => element.remove(), 6000);
}

// Shows a message that the previous page stored for this one.
function toastOnNextPage(text) {
  try { sessionStorage.setItem("toast", text); } catch { /* It is not shown. */ }
}
try {
  const left = sessionStorage.getItem("toast");
  sessionStorage.removeItem("toast");
  if (left) toast(left, false);
} catch { /* There is none. */ }
