/* Tables: their filter and order are in the address, so that a link shows the same rows; rows can be selected.
   Loaded before app.js: new rows of the server are put into the chosen order before app.js compares the order. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const asked = name => new URLSearchParams(location.search).get(name) || "";
  const keep = (name, value) => {
    const address = new URL(location.href);
    if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
    history.replaceState(history.state, "", address);
  };

  // ---- order: by a column, "-" for descending; without one it is the server's, worst first
  const body = $("tbody[data-sortable]");
  const heads = body ? $$("thead th", body.closest("table")) : [];
  const keyOf = head => head.dataset.key ||= head.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const number = text => { const n = parseFloat(text.replace(/[\s,]/g, "")); return isNaN(n) ? null : n; };
  const valueOf = (row, column) => row.cells[column]?.textContent.trim() || "";
  const compare = (a, b) => {
    if (!a || !b) return a ? -1 : b ? 1 : 0; // what is empty comes last, in either order
    const [x, y] = [number(a), number(b)];
    return x !== null && y !== null ? x - y : a.localeCompare(b, undefined, { numeric: true });
  };
  const sort = list => {
    const wanted = asked("sort"), down = wanted.startsWith("-");
    const column = heads.findIndex(head => keyOf(head) === wanted.replace(/^-/, ""));
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    if (column < 0) return;
    const rows = $$(":scope > tr[id]", list);
    const values = new Map(rows.map(row => [row, valueOf(row, column)]));
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      return (down && x && y ? -1 : 1) * compare(x, y);
    });
    if (sorted.some((row, i) => row !== rows[i])) list.append(...sorted);
  };
  const busy = () => body.matches(":hover, :focus-within");
  for (const head of heads) {
    const words = head.textContent.trim(), key = keyOf(head), button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = words;
    const pick = $(".pick", head);
    head.replaceChildren(...(pick ? [pick, button] : [button]));
    button.addEventListener("click", () => {
      const first = head.classList.contains("num") ? `-${key}` : key, now = asked("sort");
      const second = first.startsWith("-") ? key : `-${key}`;
      keep("sort", now === first ? second : now === second ? "" : first);
      sort($(`#${body.id}`));
      if (!asked("sort")) $("[data-resort]")?.click();
    });
  }
  document.addEventListener("htmx:before:swap", e => {
    for (const { target, fragment } of e.detail.tasks || []) {
      if (!body || !(target instanceof Element) || target.id !== body.id) continue;
      const fresh = $("[data-sortable]", fragment);
      if (fresh) sort(fresh);
    }
  });

  // ---- filter: the chip and the words of the box
  const box = $("[data-filter]");
  if (box) {
    box.value = asked("q") || box.value;
    box.addEventListener("input", () => keep("q", box.value.trim()));
    for (const chip of $$(".chip[data-kind]", box.closest("section"))) {
      chip.addEventListener("click", () => keep("state", chip.dataset.kind));
    }
    addEventListener("DOMContentLoaded", () => { // app.js listens by then
      const wanted = asked("state");
      if (wanted) $(`.chip[data-kind="${CSS.escape(wanted)}"]`)?.click();
      box.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  // ---- selection: a row that is filtered out stays selected, and the bar counts it
  const bar = $("[data-selection]");
  const boxes = () => $$("input[name=b][form]");
  const showSelection = () => {
    if (!bar) return;
    const chosen = boxes().filter(one => one.checked), hidden = chosen.filter(one => one.closest("tr").hidden);
    const most = Number(bar.dataset.selection), all = boxes().filter(one => !one.closest("tr").hidden);
    bar.hidden = !chosen.length;
    const words = [`${chosen.length} selected`];
    if (hidden.length) words.push(`${hidden.length} of them filtered out`);
    if (chosen.length > most) words.push(`at most ${most} at once`);
    $("[data-count]", bar).textContent = words.join(", ");
    $("[type=submit]", bar).disabled = chosen.length > most;
    const head = $("[data-select-all]");
    head.checked = all.length > 0 && all.every(one => one.checked);
    head.indeterminate = !head.checked && all.some(one => one.checked);
  };
  document.addEventListener("change", e => {
    if (e.target.matches("[data-select-all]")) {
      for (const one of boxes()) if (!one.closest("tr").hidden) one.checked = e.target.checked;
    }
    if (e.target.matches("[data-select-all], input[name=b]")) showSelection();
  });
  document.addEventListener("click", e => {
    if (e.target.closest("[data-unselect]")) for (const one of boxes()) one.checked = false;
    if (e.target.closest("[data-unselect], .chip[data-kind]")) showSelection();
  });
  document.addEventListener("input", e => { if (e.target === box) showSelection(); });
  document.addEventListener("htmx:after:swap", () => {
    if (body && !busy()) sort($(`#${body.id}`));
    showSelection();
  });
  if (body) sort(body);
  addEventListener("pageshow", showSelection); // "Back" brings the ticks along
})();
