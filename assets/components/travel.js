// The slider over the kept pictures. The last place is "now"; while a thumb is held, ticks leave it alone.
function travel_build(root) {
  const view = (root.travel = { root });
  view.follow = make("button", "follow");
  view.follow.type = "button";
  view.range = make("input", "range");
  view.range.type = "range";
  view.range.min = 0;
  view.range.setAttribute("aria-label", "Look back over the recorded steps");
  view.text = make("span", "text");
  root.append(view.follow, view.range, view.text);
  const seek = (step) => {
    view.sent = step;
    view.until = performance.now() + 2500;
    view.component.setTriggerValue("seek", { step });
  };
  view.range.addEventListener("input", () => {
    const i = Number(view.range.value), step = view.data.steps[i];
    say(view.text, step === undefined ? "now" : `step ${step}`);
    clearTimeout(view.timer);
    view.timer = setTimeout(() => seek(step === undefined ? null : step), 90);
  });
  view.follow.addEventListener("click", () => seek(view.data.at === null ? view.data.steps.at(-1) ?? null : null));
  return view;
}

function draw_travel(component, root) {
  const view = root.travel ?? travel_build(root);
  const data = (view.data = component.data);
  view.component = component;
  (globalThis.batchscope.doors ??= {}).follow = view.follow;
  const n = data.steps.length;
  if (view.range.max !== String(n)) view.range.max = n;
  view.range.disabled = n === 0;
  const behind = data.at !== null;
  root.classList.toggle("behind", behind);
  say(view.follow, behind ? "Follow" : "Following");
  view.follow.title = behind ? "Back to the running engine (F)" : "Hold this picture and look back (F)";
  const held = view.until > performance.now() && data.at !== view.sent && root.activeElement === view.range;
  if (!held) {
    const i = behind ? data.steps.indexOf(data.at) : n;
    const place = String(i < 0 ? 0 : i);
    if (view.range.value !== place) view.range.value = place;
    say(view.text, data.text);
  }
}
