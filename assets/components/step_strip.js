// The step that was picked in a figure: what it was, the requests that were in it, and a way to look at it. Its height is
// the same with and without a step, so that nothing below it moves.
function step_strip_build(root) {
  const view = (root.strip = { root, chips: new Map() });
  view.line = make("div", "line");
  view.words = make("span", "words");
  view.look = make("button", "look", "Go to this step");
  view.look.type = "button";
  view.look.title = "The page then shows the first kept picture that has it; F follows the engine again";
  view.look.addEventListener("click", () => view.component.setTriggerValue("look", { step: view.data.step }));
  view.line.append(view.words, view.look);
  view.chips.node = make("div", "chips");
  root.append(view.line, view.chips.node);
  onPoint(root, () => step_strip_mark(view));
  return view;
}

function step_strip_mark(view) {
  for (const [id, chip] of view.chips) chip.classList.toggle("linked", Boolean(scope.pointed?.ids?.has(id)));
}

function step_strip_chip(view, id) {
  const chip = make("button", "chip", id);
  chip.type = "button";
  chip.title = `Circle the steps of ${id}, here and on every page`;
  chip.addEventListener("click", () => view.component.setTriggerValue("pick", { request: id }));
  chip.addEventListener("pointerenter", () => pointAt(new Set([id])));
  chip.addEventListener("pointerleave", () => pointAt(null));
  view.chips.set(id, chip);
  return chip;
}

function draw_step_strip(component, root) {
  const view = root.strip ?? step_strip_build(root), data = component.data;
  view.component = component;
  view.data = data;
  say(view.words, data.words);
  view.look.hidden = data.step === null;
  const ids = new Set(data.requests.map(([id]) => id));
  for (const [id, chip] of view.chips)
    if (!ids.has(id)) {
      chip.remove();
      view.chips.delete(id);
    }
  for (const [id, hue] of data.requests) {
    const chip = view.chips.get(id) ?? view.chips.node.appendChild(step_strip_chip(view, id));
    chip.style.setProperty("--hue", hue);
    chip.setAttribute("aria-pressed", String(id === data.chosen));
  }
}
