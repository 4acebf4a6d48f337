// "Save as" of one figure: a menu of widths and formats; the server makes the file, this hands it to the browser.
function save_as_build(root) {
  const view = (root.saveAs = { root, width: 0, done: "", asked: 0 });
  view.open = make("button", "open");
  view.open.type = "button";
  view.open.title = "Save this figure";
  view.open.setAttribute("aria-label", "Save this figure");
  view.open.setAttribute("aria-expanded", "false");
  view.open.append(icon(["M8 2v8M4.5 7 8 10.5 11.5 7M3 13.5h10"]));
  view.menu = make("div", "menu");
  view.menu.hidden = true;
  view.widths = make("div", "row");
  view.formats = make("div", "row");
  view.note = make("div", "note", "Light ground, fonts inside, a caption that says what ran where.");
  view.note.setAttribute("aria-live", "polite");
  view.menu.append(view.widths, view.formats, view.note);
  root.append(view.open, view.menu);
  const toggle = (shown) => {
    view.menu.hidden = !shown;
    attr(view.open, "aria-expanded", String(shown));
  };
  view.open.addEventListener("click", () => toggle(view.menu.hidden));
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !view.menu.hidden) {
      toggle(false);
      view.open.focus();
      event.stopPropagation();
    }
  });
  return view;
}

function save_as_choices(view) {
  const { widths, formats, what } = view.data;
  if (view.formats.childElementCount === formats.length) return;
  if (what) {
    view.open.title = `Save this ${what}`;
    attr(view.open, "aria-label", view.open.title);
    say(view.note, "The rows as they are now, with their headings.");
  }
  view.widths.hidden = !widths.length;
  view.widths.replaceChildren(
    ...widths.map((label, i) => {
      const choice = make("button", "choice", label);
      choice.type = "button";
      choice.addEventListener("click", () => {
        view.width = i;
        for (const [k, other] of [...view.widths.children].entries()) attr(other, "aria-pressed", String(k === i));
      });
      attr(choice, "aria-pressed", String(i === view.width));
      return choice;
    }),
  );
  view.formats.replaceChildren(
    ...formats.map((label, i) => {
      const choice = make("button", "format", label);
      choice.type = "button";
      choice.addEventListener("click", () => {
        view.asked += 1;
        const id = `${Date.now()}-${view.asked}`;
        say(view.note, `Making ${label} ...`);
        view.component.setTriggerValue("save", { format: i, width: view.width, id });
      });
      return choice;
    }),
  );
}

function draw_save_as(component, root) {
  const view = root.saveAs ?? save_as_build(root);
  view.component = component;
  view.data = component.data;
  save_as_choices(view);
  const file = view.data.file;
  if (!file || file.id === view.done) return;
  view.done = file.id;
  component.setTriggerValue("saved", { id: file.id });
  if (file.error) {
    say(view.note, file.error);
    return;
  }
  const bytes = Uint8Array.from(atob(file.content), (c) => c.charCodeAt(0));
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: file.mime }));
  link.download = file.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 30000);
  say(view.note, `Saved ${file.name}`);
}
