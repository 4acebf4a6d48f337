// The panel beside the map (block table of the chosen request, or the largest holders), legend and tooltip text.
// Every text that comes from outside is set with textContent, never parsed.

// Brings the children of `parent` to `count` nodes, making and removing only the difference: no flicker, focus kept.
function resizeChildren(parent, count, create) {
  while (parent.childElementCount > count) parent.lastElementChild.remove();
  while (parent.childElementCount < count) parent.append(create());
}

const plural = (count, word) => `${count.toLocaleString("en").replace(/,/g, "\u2009")} ${word}${count === 1 ? "" : "s"}`;

function describeBlock(view, i, tables) {
  const state = stateOf(view, i);
  const lines = [`block ${i}`];
  if (state === "free") return [...lines, "free, holds nothing"];
  const owner = view.owner[i] ? view.owners[view.owner[i] - 1][0] : null;
  const place = tables.get(i);
  if (owner) lines.push(`owner ${owner}`);
  if (place !== undefined) lines.push(`logical block ${place} of the chosen request`);
  lines.push(`tokens ${tokensIn(view, i)} of ${view.bs}`);
  lines.push(state === "cached" ? "no owner, cached for reuse" : `refs ${view.refs[i]}${view.flags[i] & SHARED ? " (shared)" : ""}`);
  if (state === "live" && view.flags[i] & INDEXED) lines.push("in the prefix index");
  lines.push(view.age[i] ? `last used ${plural(view.age[i], "step")} ago` : "used in the latest step");
  return lines;
}

function legendItems(mode, theme) {
  const gradient = (stops) => `linear-gradient(90deg, ${stops.join(",")})`;
  const cached = ["cached, no owner", "hatch", mode === "age" || mode === "fill" ? theme.muted : theme.shared];
  const rest = [
    ["unfilled slots", "", theme.unfilled],
    ["shared (refs > 1)", "corner", theme.shared],
    ["free", "free", theme.free],
  ];
  const hues = [0, 60, 120, 180, 240, 300].map((hue) => ownerColour(hue, theme));
  const ageLabel = "last use, steps ago: 0 to 10 000 (log)";
  const first = {
    owner: [["live, hue of the owner", "wide", gradient(hues)]],
    state: [["live", "", theme.useful]],
    age: [[ageLabel, "wide", gradient(theme.viridis)]],
    fill: [["fill, 0 to 100 %", "wide", gradient(theme.viridis)]],
    sharing: REF_BUCKETS.map(([, label], k) => [`${label} ref${k ? "s" : ""}`, "", rampAt(theme.cividis, k / (REF_BUCKETS.length - 1))]),
  }[mode];
  return [...first, cached, ...rest];
}

function drawLegend(box, mode, theme) {
  box.replaceChildren(
    ...legendItems(mode, theme).map(([label, kind, paint]) => {
      const item = make("span", "item");
      const swatch = make("i", `swatch ${kind}`);
      swatch.style.setProperty("--paint", paint);
      item.append(swatch, make("span", "", label));
      return item;
    }),
  );
}

class BlockPanel {
  constructor(box, onPick, onPoint) {
    this.onPick = onPick;
    this.onPoint = onPoint;
    this.title = make("div", "panel-title");
    this.swatch = make("i", "swatch");
    this.name = make("span", "name");
    this.clear = make("button", "clear", "Clear");
    this.clear.type = "button";
    this.clear.hidden = this.swatch.hidden = true;
    this.clear.addEventListener("click", () => onPick(null));
    this.title.append(this.swatch, this.name, this.clear);
    this.facts = make("div", "facts");
    this.list = make("div", "list");
    box.append(this.title, this.facts, this.list);
  }

  update(view, theme, chosen) {
    const told = view.chosen === chosen ? [chosen, view.hue, 0, view.status] : view.owners.find(([id]) => id === chosen);
    const [, hue, , status] = told ?? [chosen, -1, 0, ""];
    this.clear.hidden = chosen === null;
    this.swatch.hidden = chosen === null;
    this.swatch.style.setProperty("--paint", ownerColour(hue, theme));
    say(this.name, chosen === null ? "Largest holders" : chosen);
    if (chosen === null) this.drawHolders(view, theme);
    else this.drawTable(view, theme, chosen, hue, status);
  }

  drawHolders(view, theme) {
    const holders = view.owners.filter(([, , blocks]) => blocks > 0).sort((a, b) => b[2] - a[2] || (a[0] < b[0] ? -1 : 1));
    const most = holders.length ? holders[0][2] : 1;
    const total = plural(holders.length, "request");
    say(this.facts, holders.length ? `${total} hold blocks; click one, or a cell, to see its block table` : "No request holds a block now.");
    this.mode("holders");
    resizeChildren(this.list, holders.length, () => this.makeHolder());
    holders.forEach(([id, hue, blocks], k) => {
      const row = this.list.children[k];
      row.dataset.id = id;
      row.children[0].style.setProperty("--paint", ownerColour(hue, theme));
      say(row.children[1], id);
      row.children[2].firstElementChild.style.width = `${(100 * blocks) / most}%`;
      row.children[2].firstElementChild.style.background = ownerColour(hue, theme);
      say(row.children[3], String(blocks));
    });
  }

  makeHolder() {
    const row = make("button", "holder");
    row.type = "button";
    const bar = make("span", "bar");
    bar.append(make("i"));
    row.append(make("i", "swatch"), make("span", "id"), bar, make("span", "count"));
    row.addEventListener("click", () => this.onPick(row.dataset.id));
    return row;
  }

  drawTable(view, theme, chosen, hue, status) {
    const table = view.chosen === chosen ? view.table : [];
    const shared = table.filter((block) => view.flags[block] & SHARED).length;
    const tokens = table.reduce((sum, block) => sum + tokensIn(view, block), 0);
    const runs = table.filter((block, k) => k === 0 || block !== table[k - 1] + 1).length;
    const facts = [status, table.length ? plural(table.length, "block") : "holds no block now"];
    if (table.length) facts.push(plural(tokens, "token"), `in ${plural(runs, "piece")}`);
    if (shared) facts.push(`${shared} shared (S)`);
    say(this.facts, facts.filter(Boolean).join(", "));
    this.mode("table");
    resizeChildren(this.list, table.length, () => this.makeChip());
    table.forEach((block, logical) => {
      const chip = this.list.children[logical];
      const isShared = Boolean(view.flags[block] & SHARED);
      chip.dataset.block = block;
      chip.classList.toggle("shared", isShared);
      chip.style.setProperty("--full", `${Math.round((view.fill[block] / 255) * 100)}%`);
      chip.style.setProperty("--paint", isShared ? theme.shared : ownerColour(hue, theme));
      say(chip.children[0], `${logical}`);
      say(chip.children[2], `${block}`);
      say(chip.children[3], isShared ? `S\u00d7${view.refs[block]}` : "");
      chip.title = describeBlock(view, block, new Map([[block, logical]])).join("\n");
    });
  }

  makeChip() {
    const chip = make("span", "chip");
    chip.append(make("span", "logical"), make("span", "arrow", "\u2192"), make("b", "physical"), make("span", "mark"));
    chip.addEventListener("pointerenter", () => this.onPoint(Number(chip.dataset.block)));
    chip.addEventListener("pointerleave", () => this.onPoint(-1));
    return chip;
  }

  mode(kind) {
    if (this.list.dataset.kind === kind) return;
    this.list.replaceChildren();
    this.list.dataset.kind = kind;
  }
}
