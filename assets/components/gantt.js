// Requests over time on a canvas: built once, painted whole in one animation frame. Zoom and pan live here, so no tick
// can undo them; a dragged or zoomed view stands still until a double click lets it follow again.
const GANTT_NAMES = ["queue", "prefill", "decode", "preempted"];
const GANTT_AXIS = 24, GANTT_LEFT = 2;

class Gantt {
  constructor(root) {
    this.root = root;
    this.view = null;
    this.legend = make("div", "legend");
    for (const name of GANTT_NAMES) {
      const item = make("span", "item");
      item.append(make("i", `swatch ${name}`), make("span", "", name));
      this.legend.append(item);
    }
    this.mode = make("span", "mode");
    this.legend.append(this.mode);
    this.stage = make("div", "stage");
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.stage.append(this.canvas, this.tip);
    root.append(this.legend, this.stage);
    this.listen();
    onPoint(root, () => this.schedule());
    new ResizeObserver(() => this.schedule()).observe(this.stage);
  }

  listen() {
    const c = this.canvas;
    c.addEventListener("wheel", (e) => {
      if (!e.shiftKey) return;
      e.preventDefault();
      const { from, to } = this.span(), at = this.timeAt(e.offsetX);
      const k = Math.exp(0.0016 * (e.deltaY || e.deltaX));
      this.view = { from: at - (at - from) * k, to: at + (to - at) * k };
      this.schedule();
    }, { passive: false });
    c.addEventListener("pointerdown", (e) => {
      this.drag = { x: e.offsetX, ...this.span(), moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (this.drag) {
        const d = this.drag, shift = ((e.offsetX - d.x) * (d.to - d.from)) / this.width();
        d.moved ||= Math.abs(e.offsetX - d.x) > 4;
        if (d.moved) this.view = { from: d.from - shift, to: d.to - shift };
        this.schedule();
      } else this.hover(e);
    });
    c.addEventListener("pointerup", (e) => {
      const d = this.drag;
      this.drag = null;
      const row = this.rowAt(e.offsetY);
      if (d && !d.moved && row) this.component.setTriggerValue("pick", { request: row[0] });
    });
    c.addEventListener("pointerleave", () => {
      this.at = null;
      this.tip.hidden = true;
      pointAt(null);
    });
    c.addEventListener("dblclick", () => {
      this.view = null;
      this.schedule();
    });
  }

  width() { return Math.max(this.stage.clientWidth - GANTT_LEFT, 50); }
  lane() { return this.data.lane; }

  span() {
    if (this.view) return this.view;
    const now = this.data.now, first = Math.min(now - 1, ...this.data.rows.map((r) => r[3][0]?.[1] ?? now));
    return { from: first, to: now };
  }

  timeAt(x) {
    const { from, to } = this.span();
    return from + ((x - GANTT_LEFT) / this.width()) * (to - from);
  }

  rowAt(y) { return this.data.rows[Math.floor(y / this.lane())]; }

  hover(e) {
    this.at = e.offsetX;
    const row = this.rowAt(e.offsetY);
    pointAt(row ? new Set([row[0]]) : null, null, this);
    this.tip.hidden = !row;
    if (row) this.showTip(row, e.offsetX, e.offsetY);
    this.schedule();
  }

  showTip(row, x, y) {
    const took = GANTT_NAMES.map((name, k) => [name, row[3].reduce((sum, s) => sum + (s[0] === k ? s[2] - s[1] : 0), 0)]);
    const lines = [`${row[0]}, ${row[1]}`, ...took.filter(([, ms]) => ms > 0).map(([name, ms]) => `${name} ${gantt_time(ms)}`)];
    while (this.tip.childElementCount > lines.length) this.tip.lastElementChild.remove();
    while (this.tip.childElementCount < lines.length) this.tip.append(make("div"));
    lines.forEach((line, k) => say(this.tip.children[k], line));
    const left = x + 14 + this.tip.offsetWidth > this.width() ? x - this.tip.offsetWidth - 10 : x + 14;
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(y + 10)}px)`;
  }

  receive(component) {
    this.component = component;
    this.data = component.data;
    for (const row of this.data.rows) {
      const spans = row[3].filter((s) => s[0] > 0);
      if (spans.length) scope.lives.set(row[0], [this.data.base + spans[0][1] / 1e3, this.data.base + spans.at(-1)[2] / 1e3]);
    }
    while (scope.lives.size > 400) scope.lives.delete(scope.lives.keys().next().value);
    attr(this.canvas, "aria-label", `${this.data.rows.length} requests over time: queue, prefill, decode, preempted. The tab Table view has the same as text`);
    this.schedule();
  }

  schedule() {
    if (this.frame || !this.data) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const wide = this.stage.clientWidth, lane = this.lane();
    if (!wide) return;
    const high = this.data.lanes * lane + GANTT_AXIS, ratio = Math.min(window.devicePixelRatio || 1, 3);
    const c = this.canvas;
    if (c.width !== Math.round(wide * ratio)) c.width = Math.round(wide * ratio);
    if (c.height !== Math.round(high * ratio)) c.height = Math.round(high * ratio);
    c.style.width = `${wide}px`;
    c.style.height = `${high}px`;
    say(this.mode, this.view ? "view held, double click follows again" : "");
    const ctx = c.getContext("2d"), dark = isDark(this.root);
    const style = getComputedStyle(this.root);
    const text = style.color, muted = dark ? "#95A0AC" : "#59646F", grid = dark ? "#1F262E" : "#E9ECF0";
    const paint = ["", "#E69F00", dark ? "#56B4E9" : "#0072B2"], quiet = dark ? "#566270" : "#AEB7C1";
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, wide, high);
    const { from, to } = this.span(), scale = this.width() / (to - from || 1);
    const x = (ms) => GANTT_LEFT + (ms - from) * scale;
    this.axis(ctx, from, to, x, high, muted, grid, style.fontFamily);
    const ids = scope.pointed?.ids;
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, 0, wide, high - GANTT_AXIS);
    ctx.clip();
    this.data.rows.forEach((row, i) => {
      const y = i * lane, lit = ids?.has(row[0]) || row[0] === this.data.chosen;
      ctx.globalAlpha = ids && !lit ? 0.3 : 1;
      for (const [phase, a, b] of row[3]) {
        if (b < from || a > to) continue;
        const left = x(a), w = Math.max(x(b) - left, 1);
        if (phase === 0) {
          ctx.fillStyle = quiet;
          ctx.fillRect(left, y + lane / 2 - 1, w, 2);
        } else {
          const inset = phase === 2 ? 1.5 : 1;
          if (phase === 3) gantt_hollow(ctx, left, y + inset, w, lane - 2 * inset);
          else {
            ctx.fillStyle = paint[phase];
            ctx.fillRect(left, y + inset, w, lane - 2 * inset);
          }
        }
      }
      if (lit) {
        ctx.strokeStyle = text;
        ctx.lineWidth = 1;
        const a = x(row[3][0][1]), b = x(row[3].at(-1)[2]);
        ctx.strokeRect(Math.round(a) - 0.5, Math.round(y) - 0.5, Math.round(b - a) + 1, Math.round(lane) + 0.5);
      }
    });
    ctx.globalAlpha = 1;
    const time = scope.pointed?.time;
    if (time !== null && time !== undefined) this.rule(ctx, x(1e3 * (time - this.data.base)), high, text);
    ctx.restore();
  }

  rule(ctx, x, high, colour) {
    ctx.fillStyle = colour;
    ctx.fillRect(Math.round(x), 0, 1, high - GANTT_AXIS);
  }

  axis(ctx, from, to, x, high, muted, grid, font) {
    const wanted = Math.max((to - from) / Math.max(this.width() / 90, 2), 1e-3);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= wanted);
    const base = 1e3 * this.data.base;
    ctx.font = `11px ${font}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (let t = Math.ceil((from + base) / step) * step; t <= to + base; t += step) {
      const at = Math.round(x(t - base));
      ctx.fillStyle = grid;
      ctx.fillRect(at, 0, 1, high - GANTT_AXIS + 4);
      ctx.fillStyle = muted;
      const digits = Math.max(0, -Math.floor(Math.log10(step / 1e3)));
      if (at > 16 && at < this.width() - 16) ctx.fillText((t / 1e3).toFixed(digits) + " s", at, high - GANTT_AXIS + 7);
    }
  }
}

function gantt_time(ms) {
  return ms < 1e3 ? `${ms.toPrecision(3)} ms` : ms < 12e4 ? `${(ms / 1e3).toPrecision(3)} s` : `${(ms / 6e4).toPrecision(3)} min`;
}

// Without blocks: hollow and dashed, as in every figure, so that it is told from prefill without its hue.
function gantt_hollow(ctx, x, y, w, h) {
  ctx.fillStyle = "#D55E0030";
  ctx.fillRect(x, y, w, h);
  ctx.strokeStyle = "#D55E00";
  ctx.lineWidth = 1.2;
  ctx.setLineDash([3, 2]);
  ctx.strokeRect(x + 0.6, y + 0.6, Math.max(w - 1.2, 0.5), h - 1.2);
  ctx.setLineDash([]);
}

function draw_gantt(component, root) {
  root.gantt ??= new Gantt(root);
  root.gantt.receive(component);
}
