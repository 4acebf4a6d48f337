// The roofline in small: steps as dots under the ceilings, on logarithmic axes. Pointing at a dot shows the requests that
// ran in that step; pointing at a request anywhere lights the steps that it was part of.
class StepsMap {
  constructor(root) {
    this.root = root;
    this.stage = make("div", "stage");
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.stage.append(this.canvas, this.tip);
    root.append(this.stage);
    this.canvas.addEventListener("pointermove", (e) => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => {
      this.near = null;
      this.tip.hidden = true;
      pointAt(null);
      this.schedule();
    });
    onPoint(root, () => this.schedule());
    new ResizeObserver(() => this.schedule()).observe(this.stage);
  }

  receive(component) {
    this.data = component.data;
    attr(this.canvas, "aria-label", `Roofline: ${this.data.dots.length} steps under the ceilings. ${this.data.words}`);
    this.schedule();
  }

  schedule() {
    if (this.frame || !this.data) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  place() {
    const d = this.data, wide = this.stage.clientWidth, high = d.height;
    const xs = d.dots.map((p) => p[2]), ridges = d.slopes.map(([, b]) => d.peak - b);
    const half = (v, up) => (up ? Math.ceil(v * 2) : Math.floor(v * 2)) / 2;
    const x0 = half(Math.min(...xs, ...ridges) - 0.2, false), x1 = half(Math.max(...xs, ...ridges) + 0.2, true);
    const ys = d.dots.map((p) => p[3]), y1 = d.peak + 0.22, y0 = Math.min(half(Math.min(...ys, d.peak - 1) - 0.1, false), y1 - 1);
    return { wide, high, left: 40, bottom: 26, x0, x1, y0, y1 };
  }

  xy(p, g) {
    const x = g.left + ((p[2] - g.x0) / (g.x1 - g.x0)) * (g.wide - g.left - 8);
    return [x, ((g.y1 - p[3]) / (g.y1 - g.y0)) * (g.high - g.bottom)];
  }

  hover(e) {
    const g = this.place();
    let best = null, least = 14 * 14;
    for (const p of this.data.dots) {
      const [x, y] = this.xy(p, g), far = (x - e.offsetX) ** 2 + (y - e.offsetY) ** 2;
      if (far < least) [best, least] = [p, far];
    }
    this.near = best;
    this.tip.hidden = !best;
    if (best) {
      const t = best[1], ids = new Set();
      for (const [id, [a, b]] of scope.lives) if (a <= t && t <= b) ids.add(id);
      pointAt(ids, t, this);
      say(this.tip, `step ${best[0]}, ${(10 ** best[2]).toPrecision(3)} FLOP/B, ${ids.size} requests`);
      const [x, y] = this.xy(best, g);
      const left = Math.max(0, Math.min(x + 12, g.wide - this.tip.offsetWidth - 4));
      this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(y + 12)}px)`;
    } else pointAt(null);
    this.schedule();
  }

  paint() {
    const d = this.data, g = this.place(), ratio = Math.min(window.devicePixelRatio || 1, 3), c = this.canvas;
    if (!g.wide) return;
    if (c.width !== Math.round(g.wide * ratio)) c.width = Math.round(g.wide * ratio);
    if (c.height !== Math.round(g.high * ratio)) c.height = Math.round(g.high * ratio);
    c.style.width = `${g.wide}px`;
    c.style.height = `${g.high}px`;
    const ctx = c.getContext("2d"), dark = isDark(this.root), style = getComputedStyle(this.root);
    const muted = dark ? "#95A0AC" : "#59646F", grid = dark ? "#1F262E" : "#E9ECF0", decode = dark ? "#56B4E9" : "#0072B2";
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, g.wide, g.high);
    ctx.font = `10px ${style.fontFamily}`;
    this.axes(ctx, g, muted, grid);
    ctx.strokeStyle = style.color;
    ctx.lineWidth = 1.2;
    for (const [name, b] of d.slopes) {
      const ridge = d.peak - b, a = this.xy([0, 0, g.x0, g.x0 + b], g), r = this.xy([0, 0, ridge, d.peak], g);
      ctx.beginPath();
      ctx.moveTo(...a);
      ctx.lineTo(...r);
      ctx.stroke();
      ctx.fillStyle = muted;
      ctx.textAlign = "center";
      ctx.textBaseline = "bottom";
      ctx.fillText(name, Math.max(r[0], g.left + 20), r[1] - 3);
    }
    const roof = this.xy([0, 0, Math.min(...d.slopes.map(([, b]) => d.peak - b)), d.peak], g);
    ctx.beginPath();
    ctx.moveTo(...roof);
    ctx.lineTo(g.wide - 8, roof[1]);
    ctx.stroke();
    ctx.textAlign = "right";
    ctx.fillText("compute", g.wide - 8, roof[1] - 3);
    this.dots(ctx, g, decode, style.color);
  }

  dots(ctx, g, decode, text) {
    const ids = scope.pointed?.ids, time = scope.pointed?.time ?? null, dots = this.data.dots;
    const lives = ids && time === null ? [...ids].map((id) => scope.lives.get(id)).filter(Boolean) : [];
    dots.forEach((p, i) => {
      const [x, y] = this.xy(p, g), lit = lives.some(([a, b]) => a <= p[1] && p[1] <= b);
      ctx.globalAlpha = lives.length ? (lit ? 0.95 : 0.12) : 0.15 + (0.8 * (i + 1)) / dots.length;
      ctx.fillStyle = p[4] > 0.5 ? "#E69F00" : decode;
      ctx.beginPath();
      if (p[4] > 0.5) ctx.rect(x - 3, y - 3, 6, 6);
      else ctx.arc(x, y, 3.2, 0, 7);
      ctx.fill();
    });
    ctx.globalAlpha = 1;
    const ringed = this.near ?? dots.at(-1);
    if (!ringed) return;
    const [x, y] = this.xy(ringed, g);
    ctx.strokeStyle = text;
    ctx.lineWidth = 1.6;
    ctx.beginPath();
    ctx.arc(x, y, 6.5, 0, 7);
    ctx.stroke();
  }

  axes(ctx, g, muted, grid) {
    const name = (v) => (v >= 12 ? `${10 ** (v - 12)}T` : v >= 9 ? `${10 ** (v - 9)}G` : v >= 6 ? `${10 ** (v - 6)}M` : `${Math.round(10 ** v * 100) / 100}`);
    ctx.textBaseline = "top";
    ctx.textAlign = "center";
    for (let v = Math.ceil(g.x0); v <= g.x1; v++) {
      const [x] = this.xy([0, 0, v, g.y0], g);
      ctx.fillStyle = grid;
      ctx.fillRect(Math.round(x), 0, 1, g.high - g.bottom);
      ctx.fillStyle = muted;
      if (x < g.wide - 10) ctx.fillText(name(v), x, g.high - g.bottom + 4);
    }
    ctx.fillText("FLOP/B", g.left + (g.wide - g.left) / 2, g.high - 11);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (let v = Math.ceil(g.y0); v <= g.y1; v++) {
      const [, y] = this.xy([0, 0, g.x0, v], g);
      ctx.fillStyle = grid;
      ctx.fillRect(g.left, Math.round(y), g.wide - g.left - 8, 1);
      ctx.fillStyle = muted;
      ctx.fillText(name(v), g.left - 5, y);
    }
  }
}

function draw_steps_map(component, root) {
  root.stepsMap ??= new StepsMap(root);
  root.stepsMap.receive(component);
}
