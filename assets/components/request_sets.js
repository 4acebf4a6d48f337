// The sets of requests as rows, keyed by id: texts change in place, rows move by position only.
// Row: [id, tenant, hue, prompt, computed, cached, output, max, scheduled, isPrefill, blocks, age, preemptions, note, mine]
const SETS = {
  running: { title: "Running", columns: ["", "request", "tenant", "", "prompt + out / max", "blocks", "age"] },
  waiting: { title: "Waiting", columns: ["request", "tenant", "prompt", "age", "why"] },
  preempted: { title: "Preempted", columns: ["request", "tenant", "tokens", "age", "why"] },
  ended: { title: "Ended", columns: ["request", "tenant", "tokens", "took", "how"] },
};
const LEGEND = [
  ["prompt", "prompt, computed"], ["out", "output"], ["todo", "not in the cache yet"], ["rest", "left of max_tokens"],
  ["chunk", "this step's chunk"], ["hit", "prefix-cache hit"],
];

function sets_buildPanel(view, name) {
  const panel = { name, rows: new Map(), order: "" };
  panel.node = make("section", `panel ${name}`);
  const head = make("header");
  panel.count = make("span", "count");
  panel.aside = make("span", "aside");
  head.append(make("h3", "", SETS[name].title), panel.count, panel.aside);
  const columns = make("div", `row columns ${name === "running" ? "wide" : "slim"}`);
  SETS[name].columns.forEach((text, i) => columns.append(make("span", `c${i}`, text)));
  panel.list = make("div", "list");
  panel.list.setAttribute("role", "list");
  panel.space = make("div", "space");
  panel.hollow = make("p", "hollow");
  panel.lead = make("p", "lead");
  panel.list.append(panel.space, panel.hollow);
  panel.node.append(head, panel.lead, columns, panel.list);
  panel.list.addEventListener("pointerover", (e) => {
    const node = e.target.closest("[data-id]");
    if (node) pointAt(new Set([node.dataset.id]));
  });
  panel.list.addEventListener("pointerleave", () => pointAt(null));
  panel.list.addEventListener("click", (e) => sets_pick(view, e.target.closest("[data-id]")));
  panel.list.addEventListener("keydown", (e) => {
    if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      sets_pick(view, e.target.closest("[data-id]"));
    }
  });
  return panel;
}

function sets_pick(view, node) {
  if (!node) return;
  const id = node.dataset.id === view.chosen ? null : node.dataset.id;
  view.chosen = view.pending = id;
  sets_mark(view);
  view.component.setTriggerValue("pick", { request: id });
}

function sets_mark(view) {
  for (const panel of Object.values(view.panels))
    for (const [id, row] of panel.rows) {
      row.node.classList.toggle("chosen", id === view.chosen);
      row.node.classList.toggle("linked", Boolean(scope.pointed?.ids?.has(id)));
    }
}

function sets_build(root) {
  const view = (root.view = { root, panels: {} });
  view.limits = make("div", "limits");
  view.grid = make("div", "grid");
  const left = make("div", "left"), right = make("div", "right");
  for (const name of Object.keys(SETS)) view.panels[name] = sets_buildPanel(view, name);
  view.legend = make("div", "legend");
  for (const [mark, text] of LEGEND) {
    const item = make("span", "item");
    item.append(make("i", `swatch ${mark}`), make("span", "", text));
    view.legend.append(item);
  }
  view.detail = make("div", "detail");
  left.append(view.panels.running.node);
  right.append(view.panels.waiting.node, view.panels.preempted.node, view.panels.ended.node);
  view.grid.append(left, right);
  root.append(view.limits, view.grid, view.legend, view.detail);
  onPoint(root, () => sets_mark(view));
  return view;
}

function sets_newRow(panel, id) {
  const wide = panel.name === "running";
  const node = make("div", `row ${wide ? "wide" : "slim"}`);
  node.dataset.id = id;
  node.tabIndex = 0;
  node.setAttribute("role", "listitem");
  const cells = SETS[panel.name].columns.map((_, i) => node.appendChild(make("span", `c${i}`)));
  const row = { node, cells, parts: {} };
  if (wide) {
    cells[3].className = "bar";
    for (const part of ["prompt", "out", "rest", "todo", "chunk", "hit"]) row.parts[part] = cells[3].appendChild(make("i", part));
  }
  panel.rows.set(id, row);
  panel.space.append(node);
  return row;
}

function sets_span(node, from, to, scale) {
  const left = `${((100 * from) / scale).toFixed(2)}%`, width = `${((100 * Math.max(to - from, 0)) / scale).toFixed(2)}%`;
  if (node.style.left !== left) node.style.left = left;
  if (node.style.width !== width) node.style.width = width;
}

function sets_fill(view, panel, row, r) {
  const [id, tenant, hue, prompt, computed, cached, output, max, scheduled, prefill, blocks, age, preemptions, note, mine] = r;
  const c = row.cells, known = prompt + output;
  if (panel.name === "running") {
    say(c[0], prefill ? "P" : scheduled ? "D" : "·");
    c[0].className = `c0 ${prefill ? "prefill" : "decode"}`;
    say(c[1], id);
    say(c[2], tenant);
    say(c[4], `${prompt} + ${output} / ${max}`);
    say(c[5], String(blocks));
    say(c[6], age);
    const p = row.parts, s = view.data.scale;
    row.node.style.setProperty("--hue", hue);
    sets_span(p.prompt, 0, prompt, s);
    sets_span(p.out, prompt, known, s);
    sets_span(p.rest, known, prompt + max, s);
    sets_span(p.todo, computed, known - computed > 1 ? known : computed, s);
    sets_span(p.chunk, Math.max(computed - scheduled, 0), prefill ? computed : 0, s);
    sets_span(p.hit, 0, cached, s);
    attr(row.node, "title", `${id}: ${computed} of ${known} tokens computed, ${scheduled} in this step, ${blocks} blocks`);
  } else {
    say(c[0], id);
    say(c[1], tenant);
    say(c[2], panel.name === "waiting" ? String(prompt) : `${prompt} + ${output}`);
    say(c[3], age);
    say(c[4], note);
    attr(row.node, "title", note);
  }
  row.node.classList.toggle("mine", mine);
  row.node.classList.toggle("again", preemptions > 0 && panel.name === "running");
}

// Whether rows may slide to their places: not where one would pass over another, which would leave neither readable.
function sets_mayslide(panel, rows) {
  let last = -1, fresh = false, moved = false;
  const ordered = rows.every((r, i) => {
    const at = panel.rows.get(r[0])?.place;
    if (at === undefined) return (fresh = true);
    const kept = at > last && !fresh;
    moved ||= at !== i;
    last = at;
    return kept;
  });
  return ordered && !(fresh && moved);
}

function sets_showPanel(view, panel) {
  const rows = view.data.rows[panel.name] ?? [], total = view.data.counts[panel.name];
  say(panel.count, view.data.counts_text[panel.name]);
  say(panel.aside, view.data.asides[panel.name] ?? "");
  panel.node.classList.toggle("none", total === 0 && (panel.name === "preempted"));
  say(panel.lead, view.data.leads[panel.name] ?? "");
  say(panel.hollow, rows.length ? "" : view.data.hollow[panel.name]);
  const height = panel.name === "running" ? Math.max(13, Math.min(22, Math.floor((panel.list.clientHeight || 404) / Math.max(rows.length, 1)))) : 18;
  panel.space.style.height = `${rows.length * height}px`;
  panel.list.style.setProperty("--row", `${height}px`);
  const seen = new Set();
  panel.list.classList.toggle("placed", !sets_mayslide(panel, rows));
  rows.forEach((r, i) => {
    let row = panel.rows.get(r[0]);
    const y = `translateY(${i * height}px)`;
    if (!row) {
      row = sets_newRow(panel, r[0]);
      row.node.style.transform = `translate(-12px, ${i * height}px)`;
      row.node.getBoundingClientRect();
    }
    seen.add(r[0]);
    row.place = i;
    if (row.node.style.transform !== y) row.node.style.transform = y;
    sets_fill(view, panel, row, r);
  });
  for (const [id, row] of panel.rows)
    if (!seen.has(id)) {
      row.node.remove();
      panel.rows.delete(id);
    }
}

function sets_showLimits(view) {
  const limits = view.data.limits;
  while (view.limits.children.length < limits.length) {
    const box = make("div", "limit");
    const line = make("div", "line");
    const gauge = make("div", "gauge");
    line.append(make("b"), make("em"), make("span"));
    box.append(line, gauge);
    view.limits.append(box);
  }
  limits.forEach((limit, i) => {
    const box = view.limits.children[i], [line, gauge] = box.children;
    say(line.children[0], limit.name);
    say(line.children[1], limit.binds ? "binds" : "");
    say(line.children[2], limit.text);
    box.classList.toggle("binds", limit.binds);
    while (gauge.children.length < limit.parts.length) gauge.append(make("i"));
    limit.parts.forEach(([kind, share], k) => {
      gauge.children[k].className = kind;
      const width = `${(100 * share).toFixed(2)}%`;
      if (gauge.children[k].style.width !== width) gauge.children[k].style.width = width;
    });
  });
}

function sets_showDetail(view) {
  const chosen = view.data.detail;
  view.detail.hidden = !chosen;
  if (!chosen) return;
  if (!view.detail.facts) {
    const d = view.detail;
    d.name = make("b");
    d.facts = make("span", "facts");
    d.words = make("span", "tail");
    d.stop = make("button", "cancel", "Cancel request");
    d.stop.type = "button";
    d.stop.addEventListener("click", () => view.component.setTriggerValue("cancel", { request: view.data.detail.id }));
    d.append(d.name, d.facts, d.stop, d.words);
  }
  say(view.detail.name, chosen.id);
  say(view.detail.facts, chosen.facts);
  say(view.detail.words, chosen.tail);
  view.detail.stop.hidden = !chosen.alive;
}

function draw_request_sets(component, root) {
  const view = root.view ?? sets_build(root);
  view.component = component;
  const data = (view.data = component.data);
  root.classList.toggle("dark", isDark(root));
  if (view.pending === undefined || view.pending === data.chosen) {
    view.chosen = data.chosen;
    view.pending = undefined;
  }
  sets_showLimits(view);
  for (const panel of Object.values(view.panels)) sets_showPanel(view, panel);
  sets_mark(view);
  sets_showDetail(view);
}
