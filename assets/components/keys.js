// Keyboard: once for the whole document, never while somebody types. Streamlit's own keys (R, C) stay as they are.
const KEYS = [
  ["P", "pause or go on"], [".", "one step, while paused"], ["F", "hold this picture, or follow again"],
  ["1 to 9", "open a page, in the order of the menu"], ["K", "kiosk: without menu and controls"], ["?", "this list"],
];

function keys_help() {
  const open = document.querySelector(".bs-keys");
  if (open) return open.remove();
  const box = make("dialog", "bs-keys");
  box.setAttribute("aria-label", "Keyboard shortcuts");
  const list = make("dl");
  for (const [key, what] of KEYS) list.append(make("dt", "", key), make("dd", "", what));
  box.append(make("h2", "", "Keyboard"), list);
  box.addEventListener("click", () => box.remove());
  document.querySelector(".stApp").append(box);
  box.setAttribute("open", "");
}

function keys_kiosk(on) {
  document.documentElement.classList.toggle("bs-kiosk", on);
  const address = new URL(location.href);
  on ? address.searchParams.set("kiosk", "1") : address.searchParams.delete("kiosk");
  history.replaceState(history.state, "", address);
}

function keys_act(key) {
  const doors = scope.doors ?? {}, bar = doors.bar;
  if (key === "p" && bar && !bar.toggle.disabled) bar.toggle.click();
  else if (key === "." && bar && !bar.step.disabled) bar.step.click();
  else if (key === "f" && doors.follow?.isConnected) doors.follow.click();
  else if (key === "k") keys_kiosk(!document.documentElement.classList.contains("bs-kiosk"));
  else if (key === "?") keys_help();
  else if (key === "escape") document.querySelector(".bs-keys")?.remove();
  else if (/^[1-9]$/.test(key)) document.querySelectorAll('[data-testid="stSidebarNavLink"]')[Number(key) - 1]?.click();
  else return false;
  return true;
}

if (scope.onKey) document.removeEventListener("keydown", scope.onKey);
scope.onKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const node = event.composedPath()[0];
  if (node.isContentEditable || /^(TEXTAREA|SELECT)$/.test(node.tagName)) return;
  if (node.tagName === "INPUT" && !/^(range|checkbox|radio)$/.test(node.type)) return;
  if (keys_act(event.key.toLowerCase())) event.preventDefault();
};
document.addEventListener("keydown", scope.onKey);
scope.help = keys_help;
if (new URLSearchParams(location.search).has("kiosk")) document.documentElement.classList.add("bs-kiosk");
