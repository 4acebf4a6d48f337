// Painting of the block map: packet -> typed arrays -> one canvas. No DOM beyond the 2D context.
// One cell is one physical block; the bar inside a cell is as high as the block is full.

const EDGE = 2;
const LIVE = 1, INDEXED = 2, SHARED = 4;

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Packet: u32 header length, JSON header, then owner u16[n], last_use u16[n], fill u8[n], refs u8[n], flags u8[n].
function parsePacket(raw) {
  const length = new DataView(raw.buffer, raw.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  let at = 4 + length;
  const take = (size) => raw.slice(at, (at += size));
  const n = head.n;
  return {
    ...head,
    owner: new Uint16Array(take(2 * n).buffer),
    age: new Uint16Array(take(2 * n).buffer),
    fill: take(n),
    refs: take(n),
    flags: take(n),
  };
}

function stateOf(view, i) {
  const flags = view.flags[i];
  return flags & LIVE ? "live" : flags & INDEXED ? "cached" : "free";
}

function tokensIn(view, i) {
  return Math.round((view.fill[i] / 255) * view.bs);
}

function readTheme(node) {
  const style = getComputedStyle(node);
  const get = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  const dark = isDark(node);
  const colours = PALETTE[dark ? "dark" : "light"];
  return { ...colours, dark, ground: get("--st-background-color", colours.ground), text: get("--st-text-color", colours.text), font: style.fontFamily };
}

function ownerColour(hue, theme) {
  return hue < 0 ? theme.idle : `${theme.hue}${hue})`;
}

function rampAt(stops, share) {
  return stops[Math.min(stops.length - 1, Math.max(0, Math.round(share * (stops.length - 1))))];
}

const AGE_CAP = 10000;
const REF_BUCKETS = [[1, "1"], [2, "2"], [4, "3-4"], [8, "5-8"], [255, "9+"]];

function refBucket(refs) {
  return REF_BUCKETS.findIndex(([top]) => refs <= top);
}

// Colour of each cell in each mode; free cells are never filled.
const COLOUR_MODES = {
  owner: (v, i, t) => (v.flags[i] & LIVE ? ownerColour(v.owner[i] ? v.owners[v.owner[i] - 1][1] : -1, t) : t.shared),
  state: (v, i, t) => (v.flags[i] & LIVE ? t.useful : t.shared),
  age: (v, i, t) => rampAt(t.viridis, Math.log1p(Math.min(v.age[i], AGE_CAP)) / Math.log1p(AGE_CAP)),
  fill: (v, i, t) => rampAt(t.viridis, v.fill[i] / 255),
  sharing: (v, i, t) => (v.refs[i] ? rampAt(t.cividis, refBucket(v.refs[i]) / (REF_BUCKETS.length - 1)) : t.shared),
};

// Rows of 64 blocks; fewer columns where a cell would be narrower than 6 px, more where there would be over 96 rows.
// Cells are a fraction of a pixel wide, so that a row fills the width; edges are rounded when they are drawn.
function layOut(n, width, phone) {
  const gutter = n > 64 ? 10 + 6.5 * String(n).length : 0;
  const room = Math.max(width - gutter - EDGE, 60);
  let cols = Math.min(64, Math.max(n, 8));
  while (cols > 8 && room / cols < 6) cols /= 2;
  cols = Math.floor(cols);
  while (!phone && n / cols > 96 && room / (cols * 2) >= 5) cols *= 2;
  const rows = Math.max(1, Math.ceil(n / cols));
  const w = Math.min(room / cols, 30);
  const tallest = phone ? w : Math.min(448 / rows, (rows > 10 ? 1.7 : 2.8) * w, 28);
  const h = Math.max(6, Math.floor(tallest));
  return { n, cols, rows, gutter, w, h, width: gutter + cols * w + EDGE, height: rows * h + EDGE };
}

// All blocks within one small picture, whatever their number: cells about as high as wide, no row labels.
const COMPACT_PX = 236;
function layOutCompact(n, width) {
  const cols = Math.min(n, Math.max(8, Math.round(Math.sqrt((n * width) / COMPACT_PX) / 8) * 8));
  const rows = Math.ceil(n / cols), w = (width - EDGE) / cols, h = Math.max(2, Math.min(Math.floor(COMPACT_PX / rows), 14));
  return { n, cols, rows, gutter: 0, w, h, width: cols * w + EDGE, height: rows * h + EDGE };
}

function cellBox(grid, i) {
  const col = i % grid.cols;
  const x = Math.round(grid.gutter + col * grid.w);
  return { x, y: Math.floor(i / grid.cols) * grid.h + 1, w: Math.round(grid.gutter + (col + 1) * grid.w) - x, h: grid.h };
}

function hatchPattern(ctx, colour, ratio) {
  const tile = document.createElement("canvas");
  const size = 4 * ratio;
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.lineWidth = 1.1 * ratio;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift - 1, size + 1);
    pen.lineTo(shift + size + 1, -1);
    pen.stroke();
  }
  return ctx.createPattern(tile, "repeat");
}

function paintBlocks(ctx, view, grid, theme, chosen, ratio) {
  const gap = grid.h >= 5 && grid.w >= 5 ? 1 : 0;
  const colourOf = COLOUR_MODES[view.mode] || COLOUR_MODES.owner;
  const dim = chosen.size > 0;
  const hatched = [];
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, grid.width, grid.height);
  paintRowLabels(ctx, grid, theme);
  for (let i = 0; i < grid.n; i++) {
    const box = cellBox(grid, i);
    const w = box.w - gap, h = box.h - gap;
    const live = view.flags[i] & LIVE;
    ctx.globalAlpha = dim && !chosen.has(i) ? 0.28 : 1;
    if (!live && !(view.flags[i] & INDEXED)) {
      ctx.fillStyle = theme.free;
      ctx.fillRect(box.x, box.y + h - 1, w, 1);
      continue;
    }
    const bar = view.fill[i] ? Math.max(1, Math.round((view.fill[i] / 255) * h)) : 0;
    if (bar < h) {
      ctx.fillStyle = theme.unfilled;
      ctx.fillRect(box.x, box.y, w, h - bar);
    }
    ctx.fillStyle = colourOf(view, i, theme);
    ctx.fillRect(box.x, box.y + h - bar, w, bar);
    if (!live) hatched.push(box.x, box.y, w, h);
    if (view.flags[i] & SHARED) paintCorner(ctx, box.x, box.y, w, h, theme);
  }
  ctx.globalAlpha = 1;
  ctx.fillStyle = hatchPattern(ctx, theme.ground, ratio);
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  for (let k = 0; k < hatched.length; k += 4) ctx.fillRect(...hatched.slice(k, k + 4).map((length) => length * ratio));
}

function paintCorner(ctx, x, y, w, h, theme) {
  const size = Math.max(3, Math.min(w, h) * 0.62);
  ctx.fillStyle = theme.ground;
  triangle(ctx, x + w, y, size + 1.5);
  ctx.fillStyle = theme.shared;
  triangle(ctx, x + w, y, size);
}

function triangle(ctx, right, top, size) {
  ctx.beginPath();
  ctx.moveTo(right - size, top);
  ctx.lineTo(right, top);
  ctx.lineTo(right, top + size);
  ctx.fill();
}

function paintRowLabels(ctx, grid, theme) {
  if (!grid.gutter) return;
  const every = Math.max(1, Math.ceil(13 / grid.h));
  ctx.fillStyle = theme.muted;
  ctx.font = `10px ${theme.font}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (let row = 0; row < grid.rows; row += every) {
    ctx.fillText(String(row * grid.cols), grid.gutter - 7, (row + 0.5) * grid.h + 1);
  }
}

function outlineCell(ctx, grid, i, colour, width, halo) {
  const box = cellBox(grid, i);
  for (const [style, line] of [[halo, width + 2], [colour, width]]) {
    ctx.strokeStyle = style;
    ctx.lineWidth = line;
    ctx.strokeRect(box.x - 0.5, box.y - 0.5, box.w, box.h);
  }
}
