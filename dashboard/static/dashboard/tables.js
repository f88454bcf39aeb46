/* Tables of a page: filter and order are in the address, so that a link shows the same rows and "Back" the ones
   before; each has a CSV link; rows can be selected, and names copied.
   Loaded before app.js: new rows of the server are put into the chosen order before app.js compares the order. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const asked = name => new URLSearchParams(location.search).get(name) || "";
  const keep = (name, value, step) => { // a step is one that "Back" undoes; typing is not
    const address = new URL(location.href);
    if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
    if (address.href === location.href) return;
    if (step) history.pushState(history.state, "", address); else history.replaceState(history.state, "", address);
  };

  // ---- the tables: the first of each section, under the name of its heading
  const FILTERED_FROM = 8; // rows
  const nameOf = section => (section.getAttribute("aria-labelledby") || section.id).replace(/^h-/, "");
  const listOf = section => {
    const table = $("table.tbl", section);
    if (!table || !nameOf(section) || table.closest("form, dialog, details")) return null;
    const main = table.matches("[data-main], :has(> tbody[data-sortable])"), name = nameOf(section);
    return {
      section, table, prefix: main ? "" : `${name}.`, paged: table.hasAttribute("data-paged"),
      heads: $$("thead th", table), list: table.tBodies[0],
    };
  };
  const lists = () => $$("main section").map(listOf).filter(Boolean);

  // ---- order: by a column, "-" for descending; without one it is the server's, mostly worst first
  const keyOf = head => head.dataset.key
    ||= head.textContent.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const number = text => { const n = parseFloat(text.replace(/[\s,]/g, "")); return isNaN(n) ? null : n; };
  const valueOf = (row, column) => row.cells[column]?.dataset.value
    ?? ($("time[datetime]", row.cells[column])?.dateTime || row.cells[column]?.textContent.trim() || "");
  const compare = (a, b) => {
    if (!a || !b) return a ? -1 : b ? 1 : 0; // what is empty comes last, in either order
    const [x, y] = [number(a), number(b)];
    return x !== null && y !== null && !/^\d{4}-/.test(a) ? x - y : a.localeCompare(b, undefined, { numeric: true });
  };
  const rowsOf = list => [...list.rows].filter(row => row.cells.length > 1);
  const sorts = ({ paged, table }) =>
    !paged && table.tBodies.length === 1 && table.tHead?.rows.length === 1 && !$("[rowspan], tr.day", table);
  const drawnOrder = new WeakMap(); // list -> its rows as the server sent them
  const sort = ({ heads, prefix }, list) => {
    const wanted = asked(`${prefix}sort`), down = wanted.startsWith("-");
    const column = heads.findIndex(head => keyOf(head) === wanted.replace(/^-/, ""));
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    if (column < 0) return;
    const rows = rowsOf(list);
    const values = new Map(rows.map(row => [row, valueOf(row, column)]));
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      return (down && x && y ? -1 : 1) * compare(x, y);
    });
    if (sorted.some((row, i) => row !== rows[i])) list.append(...sorted);
  };
  const unsort = list => { // a list that is not sent again goes back to the order it came in
    const rows = drawnOrder.get(list);
    if (rows?.every(row => row.parentNode === list)) list.append(...rows);
    else list.closest("section").querySelector("[data-resort]")?.click();
  };
  const busy = list => list.matches(":hover, :focus-within");
  const addSorting = one => {
    if (!sorts(one)) return;
    if (!drawnOrder.has(one.list)) drawnOrder.set(one.list, rowsOf(one.list));
    for (const head of one.heads) {
      const words = head.textContent.trim(), pick = $(".pick", head);
      if (!words || $(".sort, .vh", head)) continue;
      const key = keyOf(head), button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = words;
      head.replaceChildren(...(pick ? [pick, button] : [button]));
      button.addEventListener("click", () => {
        const first = head.classList.contains("num") ? `-${key}` : key, now = asked(`${one.prefix}sort`);
        const second = first.startsWith("-") ? key : `-${key}`;
        keep(`${one.prefix}sort`, now === first ? second : now === second ? "" : first, true);
        const list = listOf(one.section) || one; // its body may have been sent again
        if (!asked(`${one.prefix}sort`)) unsort(list.list);
        sort(list, list.list);
      });
    }
  };
  document.addEventListener("htmx:before:swap", e => {
    for (const { target, fragment } of e.detail.tasks || []) {
      const section = target instanceof Element && target.matches("tbody") && target.closest("section");
      const one = section && listOf(section), fresh = $("tbody", fragment);
      if (one && fresh && sorts(one)) sort(one, fresh);
    }
  });

  // ---- filter: the chips of a list and the words of its box
  const box = $("[data-filter]");
  if (box) {
    box.value = asked("q") || box.value;
    box.addEventListener("input", () => keep("q", box.value.trim()));
    for (const chip of $$(".chip[data-kind]", box.closest("section"))) {
      chip.addEventListener("click", () => keep("state", chip.dataset.kind, true));
    }
  }
  const readAddress = () => { // app.js listens by then
    if (!box) return;
    const wanted = asked("state"), section = box.closest("section");
    const chip = $$(".chip[data-kind]", section).find(one => one.dataset.kind === wanted);
    if (chip?.getAttribute("aria-pressed") === "false") chip.click();
    box.value = asked("q");
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const narrow = ({ list, prefix, section }) => {
    const words = ($("[data-box]", section)?.value || "").trim().toLowerCase();
    for (const row of rowsOf(list)) row.hidden = Boolean(words) && !row.textContent.toLowerCase().includes(words);
  };
  const addFilter = one => {
    const { section, list, prefix } = one;
    if ($("[data-box], [data-filter], [role=search]", section) || one.paged || !sorts(one)) return;
    if (rowsOf(list).length < FILTERED_FROM && !asked(`${prefix}q`)) return;
    const input = document.createElement("input");
    input.type = "search";
    input.dataset.box = "";
    input.placeholder = "Filter";
    input.setAttribute("aria-label", `Filter ${$("h2", section)?.textContent.trim() || "rows"}`);
    input.value = asked(`${prefix}q`);
    input.addEventListener("input", () => {
      keep(`${prefix}q`, input.value.trim());
      narrow(listOf(section) || one);
    });
    endOf(section)?.prepend(input);
  };

  // ---- CSV of every table: the server sends all rows that the filter of the address matches
  const endOf = section => {
    const header = $(":scope > header", section);
    if (!header) return null;
    const end = $(":scope > .end", header) || document.createElement("div");
    if (!end.parentNode) { end.className = "end"; header.append(end); }
    return end;
  };
  const PLACES = ["after", "before", "page"]; // of a list in pages; a file has all of them
  const addFile = ({ section }) => {
    if ($("a[download]", section) || section.querySelector("table").hasAttribute("data-no-file")) return;
    const link = document.createElement("a"), end = endOf(section);
    const write = () => {
      const address = new URL(location.href);
      for (const name of PLACES) address.searchParams.delete(name);
      address.searchParams.set("csv", section.getAttribute("aria-labelledby") || section.id);
      address.hash = "";
      link.href = address.href;
    };
    link.className = "btn bare csv";
    link.download = "";
    link.append("CSV");
    const what = document.createElement("span");
    what.className = "vh";
    what.textContent = ` of ${$("h2, h3", section)?.textContent.trim() || "the table"}`;
    link.append(what);
    write();
    for (const moment of ["pointerdown", "focus", "click"]) link.addEventListener(moment, write);
    end?.append(link);
  };

  const dress = () => {
    for (const one of lists()) {
      addSorting(one);
      addFilter(one);
      addFile(one);
      if (sorts(one) && !busy(one.list)) sort(one, one.list);
      if ($("[data-box]", one.section)) narrow(one);
    }
  };
  addEventListener("popstate", () => {
    for (const one of lists()) {
      const input = $("[data-box]", one.section);
      if (input) input.value = asked(`${one.prefix}q`);
      if (sorts(one) && !asked(`${one.prefix}sort`)) unsort(one.list);
    }
    readAddress();
    dress();
  });

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
  document.addEventListener("htmx:after:swap", () => { dress(); showSelection(); });
  dress();
  addEventListener("DOMContentLoaded", readAddress);
  addEventListener("pageshow", showSelection); // "Back" brings the ticks along

  // ---- copy: a name, a token or a command, from its cell
  const COPIED = "main :is(td.strong, tbody th[scope=row], .prose pre:not(.command *), [data-copied])";
  const copier = document.createElement("button");
  copier.type = "button";
  copier.className = "copy";
  copier.tabIndex = -1; // "c" does the same with the keyboard
  copier.setAttribute("aria-label", "Copy");
  const textOf = cell => (cell.dataset.copied || $("a", cell)?.textContent || cell.textContent).trim();
  let copied = ""; // by the button, which shows a tick until the pointer is over another text
  const copy = async cell => {
    const text = textOf(cell);
    try {
      await navigator.clipboard.writeText(text);
      const said = text.length > 200 ? "the text" : text;
      $("#announce").textContent = `Copied: ${said}`;
      copier.dataset.done = "";
      copied = text;
    } catch { // a browser permits the clipboard only over TLS
      getSelection().selectAllChildren($("a", cell) || cell);
      $("#announce").textContent = "Your browser does not permit this. The text is selected: press Ctrl C.";
    }
  };
  document.addEventListener("pointerover", e => {
    const cell = e.target instanceof Element && e.target.closest(COPIED);
    if (!cell || copier.parentNode === cell || !cell.textContent.trim()) return;
    if (textOf(cell) !== copied) { // a live update that draws the row again leaves the tick
      delete copier.dataset.done;
      copied = "";
    }
    cell.append(copier);
  });
  copier.addEventListener("click", e => { e.preventDefault(); copy(copier.parentNode); });
  addEventListener("keydown", e => {
    if (e.key !== "c" || e.ctrlKey || e.metaKey || e.altKey || !$("#single-keys")?.checked) return;
    if (!(e.target instanceof Element) || e.target.closest("input, textarea, select, dialog")) return;
    const cell = e.target.closest(COPIED);
    if (cell) copy(cell);
  });
})();
