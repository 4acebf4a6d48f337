// The block map as one element: canvas, overlay, tooltip, keyboard, panel. Data arrive as packets; a packet is drawn whole
// in the next animation frame, so there is never a half-drawn picture. Hovering only repaints the overlay.

const SEE_ALL = "block map: arrow keys move, Enter picks the owner, Escape clears";

class BlockMap {
  constructor(root) {
    this.view = null;
    this.chosen = null;
    this.cursor = -1;
    this.pointed = -1;
    this.sequence = 0;
    this.build(root);
    onPoint(root, () => this.view && this.drawOverlay());
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.stage);
  }

  build(root) {
    this.box = make("div", "block-map");
    this.stage = make("div", "stage");
    this.base = make("canvas", "base");
    this.base.tabIndex = 0;
    this.base.setAttribute("role", "application");
    this.base.setAttribute("aria-label", SEE_ALL);
    this.over = make("canvas", "over");
    this.over.setAttribute("aria-hidden", "true");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.said = make("div", "said");
    this.said.setAttribute("aria-live", "polite");
    this.legend = make("div", "legend");
    const side = make("div", "panel");
    const left = make("div", "left");
    this.stage.append(this.base, this.over, this.tip);
    left.append(this.stage, this.legend);
    this.box.append(left, side, this.said);
    root.append(this.box);
    this.panel = new BlockPanel(side, (id) => this.pick(id), (block) => this.point(block));
    this.listen();
  }

  listen() {
    this.base.addEventListener("pointermove", (event) => this.point(this.cellAt(event)));
    this.base.addEventListener("pointerleave", () => this.point(-1));
    this.base.addEventListener("click", (event) => {
      this.cursor = this.cellAt(event);
      this.pickCell(this.cursor);
    });
    this.base.addEventListener("keydown", (event) => this.onKey(event));
    this.base.addEventListener("blur", () => {
      this.cursor = -1;
      this.drawOverlay();
    });
  }

  receive(component) {
    this.component = component;
    const sequence = ++this.sequence;
    if (!component.data || component.data === this.bytes) {
      this.schedule();
      return;
    }
    this.bytes = component.data;
    inflate(component.data).then((raw) => {
      if (sequence < this.shown) return;
      this.shown = sequence;
      this.view = parsePacket(raw);
      if (this.pending === undefined || this.view.chosen === this.pending) {
        this.pending = undefined;
        this.chosen = this.view.chosen;
      }
      this.schedule();
    });
  }

  schedule() {
    if (this.frame || !this.view) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const view = this.view;
    const theme = (this.theme = readTheme(this.box));
    this.applyTheme(theme);
    const width = this.stage.clientWidth;
    if (!width) return;
    this.grid = this.box.classList.contains("compact") ? layOutCompact(view.n, width) : layOut(view.n, width, width < 560);
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    this.fit(this.base, ratio);
    this.fit(this.over, ratio);
    this.box.style.setProperty("--map-height", `${this.grid.height}px`);
    paintBlocks(this.base.getContext("2d"), view, this.grid, theme, this.chosenBlocks(), ratio);
    this.panel.update(view, theme, this.chosen);
    this.drawOverlay();
  }

  fit(canvas, ratio) {
    const wide = Math.round(this.grid.width * ratio), high = Math.round(this.grid.height * ratio);
    if (canvas.width !== wide) canvas.width = wide;
    if (canvas.height !== high) canvas.height = high;
    canvas.style.width = `${this.grid.width}px`;
    canvas.style.height = `${this.grid.height}px`;
  }

  applyTheme(theme) {
    const key = `${this.view.mode} ${theme.dark} ${theme.ground} ${theme.text}`;
    if (key === this.themeKey) return;
    this.themeKey = key;
    const vars = { "--ground": theme.ground, "--muted": theme.muted, "--line": theme.free, "--unfilled": theme.unfilled };
    for (const [name, value] of Object.entries(vars)) this.box.style.setProperty(name, value);
    drawLegend(this.legend, this.view.mode, theme);
  }

  // Blocks of the chosen request -> logical index: its table if the server has sent it, else the cells it owns.
  chosenBlocks() {
    const view = this.view, blocks = new Map();
    if (this.chosen === null) return blocks;
    if (view.chosen === this.chosen) {
      view.table.forEach((block, logical) => blocks.set(block, logical));
      return blocks;
    }
    const index = view.owners.findIndex(([id]) => id === this.chosen) + 1;
    if (index) view.owner.forEach((owner, i) => owner === index && blocks.set(i, undefined));
    return blocks;
  }

  drawOverlay() {
    if (!this.grid || !this.view) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    const ctx = this.over.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this.grid.width, this.grid.height);
    const tables = this.chosenBlocks();
    for (const i of tables.keys()) outlineCell(ctx, this.grid, i, this.theme.text, 1.2, this.theme.ground);
    this.drawLinked(ctx, tables);
    const at = this.pointed >= 0 ? this.pointed : this.cursor;
    const shown = at >= 0 && at < this.view.n;
    this.tip.hidden = !shown;
    if (!shown) return;
    outlineCell(ctx, this.grid, at, this.theme.text, 2, this.theme.ground);
    this.showTip(at, describeBlock(this.view, at, tables));
  }

  // Blocks of the request that is pointed at in another element.
  drawLinked(ctx, tables) {
    const ids = scope.pointed?.ids, view = this.view;
    if (!ids || ids.size > 1 || !this.theme) return;
    const index = view.owners.findIndex(([id]) => ids.has(id)) + 1;
    if (!index) return;
    for (let i = 0; i < view.n; i++)
      if (view.owner[i] === index && !tables.has(i)) outlineCell(ctx, this.grid, i, this.theme.text, 1.2, this.theme.ground);
  }

  showTip(i, lines) {
    resizeChildren(this.tip, lines.length, () => make("div"));
    lines.forEach((line, k) => say(this.tip.children[k], line));
    const { x, y, w, h } = cellBox(this.grid, i);
    const tipWidth = this.tip.offsetWidth;
    const left = x + w + 10 + tipWidth > this.grid.width ? Math.max(0, x - tipWidth - 8) : x + w + 10;
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(y + h + 6)}px)`;
  }

  cellAt(event) {
    if (!this.grid) return -1;
    const bounds = this.base.getBoundingClientRect();
    const col = Math.floor((event.clientX - bounds.left - this.grid.gutter) / this.grid.w);
    const row = Math.floor((event.clientY - bounds.top - 1) / this.grid.h);
    if (col < 0 || col >= this.grid.cols || row < 0) return -1;
    const i = row * this.grid.cols + col;
    return i < this.grid.n ? i : -1;
  }

  point(i) {
    if (i === this.pointed) return;
    this.pointed = i;
    const owner = i >= 0 && this.view ? this.view.owner[i] : 0;
    pointAt(owner ? new Set([this.view.owners[owner - 1][0]]) : null, null, this);
    this.base.style.cursor = i >= 0 && this.view && this.view.owner[i] ? "pointer" : "default";
    this.drawOverlay();
  }

  pickCell(i) {
    if (i < 0 || !this.view) return;
    const owner = this.view.owner[i];
    this.pick(owner ? this.view.owners[owner - 1][0] : null);
  }

  pick(id) {
    const next = id !== null && id === this.chosen ? null : id;
    if (next === this.chosen) return;
    this.chosen = this.pending = next;
    this.schedule();
    this.component.setTriggerValue("pick", { request: next });
  }

  onKey(event) {
    if (!this.grid) return;
    const { cols, n } = this.grid;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cols, ArrowDown: cols, PageUp: -8 * cols, PageDown: 8 * cols };
    const from = Math.max(this.cursor, 0);
    if (event.key in moves) this.cursor = this.cursor < 0 ? 0 : Math.min(n - 1, Math.max(0, from + moves[event.key]));
    else if (event.key === "Home") this.cursor = 0;
    else if (event.key === "End") this.cursor = n - 1;
    else if (event.key === "Enter" || event.key === " ") this.pickCell(this.cursor);
    else if (event.key === "Escape") this.pick(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.pointed = -1;
    this.drawOverlay();
    if (this.cursor >= 0) say(this.said, describeBlock(this.view, this.cursor, this.chosenBlocks()).join(", "));
  }
}

function draw_block_map(component, root) {
  root.blockMap ??= new BlockMap(root);
  root.blockMap.box.classList.toggle("compact", Boolean(root.getRootNode().host?.closest(".st-key-live_blocks")));
  root.blockMap.receive(component);
}
