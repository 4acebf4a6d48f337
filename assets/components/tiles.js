// Tiles: a figure and the line that led to it. The line keeps its place; only its points change.
function tiles_path(line, low, high, width, height) {
  let d = "", pen = false;
  const step = line.length > 1 ? width / (line.length - 1) : 0;
  line.forEach((v, i) => {
    if (v === null) {
      pen = false;
      return;
    }
    const y = height - 1.5 - ((v - low) / (high - low || 1)) * (height - 3);
    d += `${pen ? "L" : "M"}${(i * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  return d;
}

function draw_tiles(component, root) {
  const tiles = component.data;
  while (root.children.length < tiles.length) {
    const node = make("div", "tile");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 120 28");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS(SVG, "path"));
    node.append(make("div", "label"), make("div", "value"), make("div", "note"), svg);
    root.append(node);
  }
  tiles.forEach((tile, i) => {
    const node = root.children[i], [label, value, note, svg] = node.children;
    say(label, tile.label);
    say(value, tile.value);
    say(note, tile.note);
    attr(node, "title", tile.help);
    const seen = tile.line.filter((v) => v !== null);
    const low = tile.floor ?? Math.min(...seen), high = tile.ceiling ?? Math.max(...seen, low + 1e-12);
    svg.firstChild.setAttribute("d", seen.length > 1 ? tiles_path(tile.line, low, high, 120, 28) : "");
  });
}
