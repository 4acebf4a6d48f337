// The status bar: built once, then only texts and classes change. The age runs on in the browser between ticks, so a
// server that has gone silent is seen to have gone silent.
const ICONS = {
  start: ["M4 2.5v11l9-5.5z"],
  pause: ["M4 2.5h3v11H4z", "M9 2.5h3v11H9z"],
  step: ["M3 2.5v11l7-5.5z", "M11 2.5h2v11h-2z"],
  reset: ["M8 3V.8L4.6 3.9 8 7V4.8a3.6 3.6 0 1 1-3.6 3.6H2.6A5.4 5.4 0 1 0 8 3z"],
};

function button(name, title, onClick) {
  const node = make("button", "control");
  node.type = "button";
  node.append(icon(ICONS[name]));
  node.title = title;
  node.setAttribute("aria-label", title);
  node.addEventListener("click", onClick);
  return node;
}

function buildBar(root) {
  const bar = (root.bar = { root, values: {} });
  const send = (name) => bar.component.setTriggerValue("command", { name });
  const controls = make("div", "controls");
  bar.state = make("span", "state");
  bar.toggle = button("pause", "Pause at the next step boundary", () => send(bar.data.running ? "pause" : "start"));
  bar.step = button("step", "Run one step", () => send("step_once"));
  bar.reset = button("reset", "Reset: cancel every request and clear the counters", () => send("reset"));
  controls.append(bar.toggle, bar.step, bar.reset, bar.state);
  bar.line = make("div", "values");
  const right = make("div", "right");
  bar.age = make("span", "age");
  bar.role = make("button", "role");
  bar.role.type = "button";
  bar.role.addEventListener("click", () => send(bar.data.controller ? "release" : "acquire"));
  bar.rate = make("select", "rate");
  bar.rate.setAttribute("aria-label", "Refresh");
  bar.rate.title = "How often the page is drawn anew; the engine does not wait for it";
  bar.rate.addEventListener("change", () => bar.component.setTriggerValue("rate", bar.rate.value));
  bar.cost = make("span", "cost");
  bar.cost.title = "Python time of the latest tick of this page";
  const keys = make("button", "keys", "?");
  keys.type = "button";
  keys.title = "Keyboard shortcuts";
  keys.setAttribute("aria-label", "Keyboard shortcuts");
  keys.addEventListener("click", () => scope.help());
  right.append(bar.age, bar.cost, bar.role, bar.rate, keys);
  root.append(controls, bar.line, right);
  root.setAttribute("role", "region");
  root.setAttribute("aria-label", "Engine status");
  bar.timer = setInterval(() => {
    if (!root.isConnected) return;
    showAge(bar);
  }, 200);
  return bar;
}

function showAge(bar) {
  if (!bar.data) return;
  const silent = (performance.now() - bar.at) / 1000;
  const age = bar.data.age + silent;
  const limit = Math.max(3, 4 * (bar.data.period ?? 0));
  const stale = bar.data.period ? silent > limit : false;
  const old = bar.data.running && age > 5;
  const text = age < 1.5 ? "now" : age < 120 ? `${age.toFixed(age < 10 ? 1 : 0)}\u202fs ago` : `${Math.round(age / 60)}\u202fmin ago`;
  say(bar.age, (stale ? "stale: " : "") + text);
  bar.age.className = "age" + (stale || old ? " stale" : "");
  bar.age.title = `The engine published this picture ${age.toFixed(1)} s ago. Drawing it took ${bar.data.tick} of Python.${bar.data.period ? "" : " Refresh is off."}`;
}

function showValue(bar, item) {
  let cell = bar.values[item.key];
  if (!cell) {
    cell = bar.values[item.key] = make("span", `value ${item.key}`);
    cell.words = make("span", "words");
    cell.figure = make("span", "figure");
    cell.after = make("span", "words");
    cell.append(cell.words, cell.figure, cell.after);
    if (item.share !== undefined) {
      cell.gauge = make("span", "gauge");
      cell.gauge.append((cell.fill = make("i")));
      cell.append(cell.gauge);
    }
    bar.line.append(cell);
  }
  say(cell.words, item.before ?? "");
  say(cell.figure, item.text);
  say(cell.after, item.after ?? "");
  attr(cell, "title", item.title ?? "");
  if (cell.fill) cell.fill.style.width = `${(100 * (item.share ?? 0)).toFixed(1)}%`;
}

function draw_status_bar(component, root) {
  const bar = root.bar ?? buildBar(root);
  const data = component.data;
  bar.component = component;
  (scope.doors ??= {}).bar = bar;
  bar.data = data;
  bar.at = performance.now();
  say(bar.state, data.state);
  root.className = `root is-${data.state}`;
  const name = data.running ? "pause" : "start";
  if (bar.shown !== name) {
    bar.shown = name;
    bar.toggle.replaceChildren(icon(ICONS[name]));
    const title = data.running ? "Pause at the next step boundary" : "Start";
    bar.toggle.title = title;
    bar.toggle.setAttribute("aria-label", title);
  }
  const locked = !data.controller;
  for (const node of [bar.toggle, bar.step, bar.reset]) node.disabled = locked || !data.ready;
  bar.step.disabled ||= data.running;
  say(bar.cost, data.tick);
  say(bar.role, data.role);
  bar.role.title = data.role_help;
  bar.role.classList.toggle("viewer", locked);
  const options = JSON.stringify(data.rates);
  if (bar.options !== options) {
    bar.options = options;
    bar.rate.replaceChildren(...data.rates.map((label) => new Option(label, label)));
  }
  if (bar.sentRate !== data.rate) {
    bar.sentRate = data.rate;
    bar.rate.value = data.rate;
  }
  for (const item of data.values) showValue(bar, item);
  showAge(bar);
}
