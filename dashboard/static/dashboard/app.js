/* The whole of our script: no framework, no inline code. Time is counted here from absolute moments and the
   server's clock, so a countdown costs no traffic, survives a lost socket, and a wrong laptop clock does no harm. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;

  // ---- clock: the server's, by the message of this connection that was on its way for the shortest time
  let ahead = root.dataset.now * 1000 - performance.now();
  const now = () => (performance.now() + ahead) / 1000;
  const two = n => String(n).padStart(2, "0");
  const countdown = s => {
    s = Math.max(0, Math.round(s));
    const h = s / 3600 | 0, m = (s % 3600) / 60 | 0;
    return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
  };
  const span = s => {
    s = Math.max(0, Math.round(s));
    const d = s / 86400 | 0, h = (s % 86400) / 3600 | 0, m = (s % 3600) / 60 | 0;
    return d > 1 ? `${d} d` : d ? `1 d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
  };
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const localTime = ms => `${LOCAL.format(new Date(ms))}, your time`;
  const paint = () => {
    const at = now();
    for (const e of $$("[data-until]")) {
      write(e, e.dataset.until > at ? countdown(e.dataset.until - at) : e.dataset.due || "0:00");
    }
    const known = $(".app.is-stale") ? shownAt : at; // what is shown did not last longer than it is known
    if (!paused) for (const e of $$("[data-since]")) write(e, `for ${span(known - e.dataset.since)}`);
    if (!paused) for (const e of $$("[data-ago]")) write(e, `${span(at - e.dataset.ago)} ago`);
    for (const e of $$("time[data-local]:not([title])")) e.title = localTime(e.dataset.local * 1000);
    for (const e of $$("[data-part]")) { // the bar of a countdown, in a quarter of a thousand
      const [from, until] = e.dataset.part.split(" ").map(Number);
      e.setAttribute("width", Math.max(0, Math.min(100, (until - at) / Math.max(1, until - from) * 100)).toFixed(1));
    }
    const clock = $("[data-clock]");
    if (clock) write(clock, new Date(at * 1000).toISOString().slice(11, 19) + " UTC");
  };

  // ---- connection: shown honestly, and mended when a silent socket only looks open
  let connection = null, heard = Date.now(), met = false, opened = 0;
  const LIVE_S = 2; // an older state is not called live; the hub draws every second
  let fresh = true; // the next message is the first of its connection, whose server may have another clock
  let paused = false, pausedAt = 0, missed = 0, shownAt = now(), ageing = 0;
  const utc = s => new Date(s * 1000).toISOString().slice(11, 19);
  const indicator = (css, word, text) => {
    const live = $("#live");
    if (!live) return;
    live.className = `live ${css}`;
    write(live.firstElementChild, word);
    write(live.lastElementChild, text);
  };
  const showConnection = () => {
    if (!$("#socket")) return;
    // What is shown may be older than the message that brought it.
    const silent = (Date.now() - heard) / 1000, age = Math.max(silent, now() - shownAt);
    const waiting = `${missed} update${missed === 1 ? "" : "s"} waiting`;
    if (paused) indicator("is-paused", "Paused", `at ${utc(pausedAt)}, ${waiting}`);
    else if (!met && silent < 10) return; // the server's own words stand until the first message
    else if (silent < 10 && $("#live").hasAttribute("data-frame")) { // only the frame is sent again
      indicator("is-frame", "Loaded", `at ${utc(root.dataset.now)}`);
    }
    else if (age < LIVE_S) {
      const tenths = Math.floor(age * 10) / 10; // rounded, 1.95 would read as a state that is too old
      indicator("", "Live", `updated ${tenths.toFixed(1)}\u202fs ago`);
      clearTimeout(ageing); // it says so not a moment longer
      ageing = setTimeout(showConnection, (LIVE_S - age) * 1000 + 10);
    }
    else if (silent < 10) indicator("is-late", "Delayed", `showing ${utc(shownAt)}`);
    else indicator("is-down", "Reconnecting", `showing ${utc(shownAt)}`);
    const stale = !paused && silent >= 10;
    $(".app").classList.toggle("is-stale", stale);
    const banner = $("#stale");
    if (stale && banner.hidden) banner.setAttribute("role", "alert");
    banner.hidden = !stale;
    if (!stale) return;
    write($("[data-silent]", banner), `No update for ${span(silent)}.`);
    write($("[data-shown]", banner), utc(shownAt));
    askReach($("[data-reach]", banner));
  };
  let askedAt = 0;
  const askReach = async note => { // forms go over HTTP, which may work although the socket does not
    if (Date.now() - askedAt < 5000) return;
    askedAt = Date.now();
    let text = "Fuseboard cannot be reached: forms cannot be submitted.";
    try {
      const answer = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(4000) });
      // A proxy answers also while nothing is behind it.
      text = answer.ok ? "You can still submit forms."
        : `Fuseboard answers ${answer.status}: forms cannot be submitted.`;
    } catch { /* the text above is right */ }
    write(note, text);
  };
  const reconnect = () => { // a new connection begins with the whole; one that is on its way already will bring it
    const socket = connection && connection.socket, open = socket && socket.readyState === WebSocket.OPEN;
    if (open) socket.close(4000);
    return open;
  };
  document.addEventListener("htmx:ws:after:connection", e => {
    connection = e.detail.connection;
    opened = Date.now();
    fresh = true;
  });
  document.addEventListener("htmx:ws:close", e => { if (e.detail.code === 4401) location.reload(); });
  document.addEventListener("htmx:ws:before:message:incoming", e => {
    const { message } = e.detail;
    if (!paused) return e.detail.waitUntil(inflate(message.data).then(found => {
      message.data = swapsOf(found);
      e.detail.cancelled = !message.data;
    }));
    heard = Date.now();
    missed += 1;
    e.preventDefault();
  });
  document.addEventListener("htmx:ws:after:message:incoming", () => {
    heard = Date.now();
    met = true;
    takeTick();
    paint();
    showConnection();
  });
  const watchdog = () => { // visible and open, yet silent: the cable was pulled somewhere
    const socket = connection && connection.socket;
    if (document.hidden || !socket || socket.readyState !== WebSocket.OPEN) return;
    if (Date.now() - Math.max(heard, opened) > 5000) { opened = Date.now(); socket.close(); }
  };
  const setPaused = wanted => {
    paused = wanted; pausedAt = now(); missed = 0;
    sessionStorage.setItem("paused", paused ? "yes" : "");
    const button = $("[data-pause]");
    button.setAttribute("aria-pressed", paused);
    write(button, paused ? "Resume" : "Pause");
    say(paused ? "Live updates paused" : "Live updates on");
    if (!paused) reconnect();
    showConnection();
  };

  // ---- messages: what changed since the last one, by id; a list only says how its items moved
  let rev = 0, kept = {}, lists = {};
  const inflate = data => new Response(data.stream().pipeThrough(new DecompressionStream("deflate"))).json();
  const swapsOf = ({ rev: next, whole, html, lists: moved }) => {
    if (whole) { kept = {}; lists = {}; }
    else if (next !== rev + 1) { rev = 0; reconnect(); return ""; } // a message was lost: ask for the whole
    rev = next;
    Object.assign(kept, html);
    for (const [id, change] of Object.entries(moved)) {
      const before = lists[id]?.order || [], list = lists[id] = { ...lists[id], ...change };
      list.order = change.order.flatMap(part => part.trim ? part : before.slice(...part));
      const gone = new Set(before);
      for (const item of list.order) { gone.delete(item); delete html[item]; }
      for (const item of gone) delete kept[item];
      html[id] = list.head + list.order.map(item => kept[item]).join("\n") + list.tail;
    }
    return Object.entries(html).map(([id, text]) =>
      // By attribute, because a name may contain dots, which end an id in a #selector.
      `<hx-partial hx-target="[id='${id}']" hx-swap="outerMorph">${text}</hx-partial>`).join("");
  };

  // ---- each message carries a tick: the clock, the tab's title and what to announce
  const takeTick = () => {
    const tick = $("#tick");
    if (!tick) return;
    shownAt = Number(tick.dataset.shown);
    const first = tick.dataset.now * 1000 - performance.now();
    ahead = fresh ? first : Math.max(ahead - 1, first); // 1 ms per message: the server's clock may step back
    fresh = false;
    const title = [tick.dataset.title, $("main").dataset.title, "Fuseboard"].filter(Boolean).join(" \u00b7 ");
    if (document.title !== title) document.title = title;
    const icon = $("link[rel=icon]"), wanted = icon.dataset[tick.dataset.kind || "ok"];
    if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
    if (tick.dataset.say) say(tick.dataset.say);
  };
  let unsaid = [], saidAt = 0;
  const say = sentence => { unsaid.push(sentence); };
  const speak = () => { // one sentence per 5 s, politely: transitions only, never numbers
    if (!unsaid.length || Date.now() - saidAt < 5000) return;
    $("#announce").textContent = unsaid.join(". ");
    unsaid = []; saidAt = Date.now();
  };

  // ---- order of a list does not change under the pointer: its rows do, and the new order comes after leaving it
  // with the keyboard, also on the way from a row to "Sort again"
  const BUSY = "[data-ordered]:is(:hover, :focus-within), section:has(:focus-visible) [data-ordered]";
  const owed = new Set(); // ids of lists whose new order waits
  let sorting = false;
  const worse = new Set(); // rows that may be off the screen, where they stay for now
  const rowOf = (list, row) => $(`:scope > #${CSS.escape(row.id)}`, list);
  const order = list => $$(":scope > [id]", list).map(e => e.id).join(" ");
  const resortOf = list => list.closest("section") && $("[data-resort]", list.closest("section"));
  const oldRow = (list, row) => { // without effect: a click must not meet the row that came to its place
    if (list.dataset.ordered !== "kept") return [];
    const old = row.cloneNode(true);
    old.classList.add("is-old");
    return [old];
  };
  const arrange = (list, fresh) => {
    if (sorting || !list.matches(BUSY) || !order(fresh)) { owed.delete(list.id); showOrder(list, true); return; }
    const counts = resortOf(list)?.dataset.worse || ".st-open", wanted = order(fresh);
    for (const row of $$(":scope > [id]", fresh)) {
      if (!row.matches(counts)) worse.delete(row.id);
      else if (rowOf(list, row) && !rowOf(list, row).matches(counts)) worse.add(row.id);
    }
    // What is new comes after what was there.
    fresh.prepend(...$$(":scope > [id]", list).flatMap(row => rowOf(fresh, row) || oldRow(list, row)));
    if (wanted === order(fresh)) owed.delete(list.id); else owed.add(list.id);
    showOrder(list, !owed.has(list.id));
  };
  document.addEventListener("htmx:before:swap", e => {
    for (const { target, fragment } of e.detail.tasks || []) {
      if (!(target instanceof Element)) continue;
      for (const list of [target, ...$$("[data-ordered]", target)]) {
        const fresh = list.matches("[data-ordered]") && $(`#${CSS.escape(list.id)}`, fragment);
        if (fresh) arrange(list, fresh);
      }
    }
  });
  let bereft = "";
  document.addEventListener("htmx:after:swap", () => {
    if (bereft) $("a[href]", document.getElementById(bereft))?.focus();
    bereft = "";
  });
  const showOrder = (list, sorted) => {
    const button = resortOf(list);
    if (!button) return;
    if (sorted) {
      worse.clear();
      sorting = false;
      if (button.matches(":focus-visible")) bereft = list.id; // a button that hides takes the focus along
    }
    button.hidden = sorted;
    write(button, worse.size ? `${worse.size} ${button.dataset.resort}, sort again` : "Sort again");
  };
  const settle = () => {
    if (!owed.size || $(BUSY)) return;
    owed.clear();
    reconnect();
  };
  document.addEventListener("pointerout", settle);
  document.addEventListener("focusout", () => setTimeout(settle)); // afterwards, the focus is where it goes

  // ---- filters of a list: chips show rows by state; what the box holds narrows them further
  const filter = () => {
    for (const list of $$("[data-filtered]")) {
      const chip = $(`.chip[aria-pressed=true]`, list.closest("section"));
      const kind = chip ? chip.dataset.kind || "" : "";
      const words = ($("[data-filter]")?.value || "").toLowerCase();
      for (const row of $$("[data-kind][data-name]", list)) {
        const otherKind = kind && !row.dataset.kind.split(" ").includes(kind);
        row.hidden = otherKind || (words && !row.dataset.name.toLowerCase().includes(words));
      }
    }
  };
  document.addEventListener("input", e => {
    if (e.target.matches("[data-filter]")) filter();
  });

  // ---- theme, kept in a cookie so that the server sends the right one at once
  const setTheme = theme => {
    root.dataset.theme = theme;
    document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=lax`;
    for (const b of $$("[data-theme-toggle]")) write(b, theme === "dark" ? "Light theme" : "Dark theme");
  };

  const closeMenus = except => { for (const menu of $$("details.me[open]")) if (menu !== except) menu.open = false; };
  document.addEventListener("click", e => {
    closeMenus(e.target.closest("details.me"));
    const button = e.target.closest("button");
    if (!button) return;
    if (button.dataset.open && button.dataset.open !== "palette") $("#" + button.dataset.open).showModal();
    if (button.hasAttribute("data-theme-toggle")) setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    if (button.hasAttribute("data-pause")) setPaused(!paused);
    if (button.hasAttribute("data-resort")) { sorting = true; reconnect(); } // a page that reconnects sorts then
    if (button.hasAttribute("data-reload") && !reconnect()) location.reload();
    if (button.matches(".chip[data-kind]")) {
      for (const chip of $$(".chip", button.parentElement)) chip.setAttribute("aria-pressed", chip === button);
      filter();
    }
  });

  // ---- keyboard: never while typing, can be switched off, and no single key ever submits a change
  let pending = "";
  const single = $("#single-keys");
  if (single) {
    single.checked = localStorage.getItem("single-keys") !== "off";
    single.addEventListener("change", () => localStorage.setItem("single-keys", single.checked ? "on" : "off"));
  }
  const moveRow = by => {
    const rows = $$("main a[data-row], main tr[data-row] a").filter(a => a.offsetParent);
    const at = rows.indexOf(document.activeElement);
    (rows[at + by] || rows[by > 0 ? 0 : rows.length - 1])?.focus();
  };
  addEventListener("keydown", e => {
    if (e.key === "Escape") $("#nav")?.classList.add("is-quiet"); // until the pointer leaves
    if (e.key === "Escape" && $("details.me[open]")) {
      $("details.me[open] summary").focus();
      closeMenus();
    }
    if (e.key === "Enter" && !e.isComposing && e.target.matches("input[name^=note-]")) {
      e.preventDefault(); // the button of this card: all cards are in one form
      e.target.parentElement.querySelector("button[name=acknowledge]").click();
    }
    if (e.ctrlKey || e.metaKey || e.altKey || !single?.checked) return;
    if (e.target.closest("input, textarea, select, dialog")) return;
    const page = pending === "g" && $(`nav a[data-key="${CSS.escape(e.key)}"]`);
    pending = e.key === "g" ? "g" : "";
    if (page) { location.href = page.href; return; }
    if (e.key === "?") $("#keys").showModal();
    if (e.key === "p" && $("[data-pause]")) setPaused(!paused);
    if (e.key === "w") root.classList.toggle("wall");
    if (e.key === "j") moveRow(1);
    if (e.key === "k") moveRow(-1);
    if (e.key === "r") $("a[data-runbook]")?.click();
    if (e.key === "o") $("#override input:not([type=hidden]), a[data-override]")?.focus();
    if (e.key === "/" && $("[data-filter]")) { e.preventDefault(); $("[data-filter]").focus(); }
  });

  $("#nav")?.addEventListener("pointerleave", e => e.target.classList.remove("is-quiet"));

  // ---- what scrolls sideways can be scrolled by key
  const reachable = () => {
    for (const box of $$(".scroll:not(#timeline)")) {
      const scrolls = box.scrollWidth > box.clientWidth && !$("a[href], button, input, select, textarea, summary", box);
      if (scrolls === box.hasAttribute("tabindex")) continue;
      for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Wide table"]]) {
        if (scrolls) box.setAttribute(name, value); else box.removeAttribute(name);
      }
    }
  };
  addEventListener("resize", reachable);
  if (new URLSearchParams(location.search).has("wall")) root.classList.add("wall");
  document.addEventListener("htmx:after:swap", () => { paint(); filter(); reachable(); });
  setInterval(() => { if (!document.hidden) { paint(); speak(); } }, 1000);
  setInterval(() => { if (!document.hidden) { showConnection(); watchdog(); } }, 500);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) heard = Date.now(); });
  if ($("[data-pause]") && sessionStorage.getItem("paused")) setPaused(true); // also on the next page of this tab
  paint();
  reachable();
})();
