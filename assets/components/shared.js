// What all elements use: registration, theme, and small DOM helpers. Text goes in by textContent only.
const scope = (globalThis.batchscope ??= { draw: {}, early: {} });

function register(name, sheet, draw) {
  const show = (component) => {
    const host = component.parentElement;
    if (!host.batchscopeRoot) {
      const style = document.createElement("style");
      style.textContent = sheet;
      const root = document.createElement("div");
      root.className = "root";
      host.append(style, root);
      host.batchscopeRoot = root;
    }
    draw(component, host.batchscopeRoot);
  };
  scope.draw[name] = show;
  for (const component of (scope.early[name] ?? new Map()).values()) show(component);
  delete scope.early[name];
}

// JSON as bytes, compressed or (it begins with a bracket) not: an element's data as its program wants them. Unpacking takes a
// moment, in which newer data may overtake; what is older than what is shown is dropped.
const ZLIB = 0x78;
function unpacking(draw) {
  return (component, root) => {
    const bytes = component.data, order = (root.received = (root.received ?? 0) + 1);
    const show = (data) => {
      if (order < (root.shown ?? 0)) return;
      root.shown = order;
      draw({ ...component, data }, root);
    };
    if (!bytes) draw(component, root);
    else if (bytes[0] !== ZLIB) show(JSON.parse(new TextDecoder().decode(bytes)));
    else new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json().then(show);
  };
}

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function say(node, text) {
  if (node.firstChild && !node.firstChild.nextSibling && node.firstChild.nodeType === 3) {
    if (node.firstChild.data !== text) node.firstChild.data = text;
  } else node.textContent = text;
}

function attr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const SVG = "http://www.w3.org/2000/svg";
function icon(paths) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  for (const d of paths) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

// True on a dark ground; reads the page's own theme variables, so a switch of theme needs no message.
function isDark(node) {
  const colour = getComputedStyle(node).getPropertyValue("--st-background-color").trim();
  const parts = colour.startsWith("#")
    ? [1, 3, 5].map((i) => parseInt(colour.length === 4 ? colour[(i + 1) / 2] + colour[(i + 1) / 2] : colour.slice(i, i + 2), 16))
    : (colour.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
  return 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] < 128;
}

// One request pointed at in any element is shown in all of them. `ids` is a Set or null, `time` engine seconds or null.
scope.links ??= new Set();
scope.lives ??= new Map();
function pointAt(ids, time = null, source = null) {
  const before = scope.pointed ?? {};
  if (!ids && !before.ids) return;
  if (ids && before.ids && before.time === time && ids.size === before.ids.size && [...ids].every((id) => before.ids.has(id))) return;
  scope.pointed = { ids, time, source };
  for (const link of scope.links) {
    if (!link.root.isConnected) scope.links.delete(link);
    else link.show(scope.pointed);
  }
}

function onPoint(root, show) {
  scope.links.add({ root, show });
}
