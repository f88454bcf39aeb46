/* The command palette. Commands are data from the server, which sends only what the role permits. What changes
   something opens its form, filled in; only what concerns this browser runs at once. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const dialog = $("#palette"), list = $("#pal-list"), input = $("input", dialog), count = $("#pal-count");
  const MOST = 12, RECENT = 6, WAIT_MS = 150, SEARCHED = 2;

  // ---- matching: every typed word must fit a word of the entry, exactly or with a slip. What opens a form that
  // changes something takes no slip: "spend" is one letter from "send", a word for Force closed.
  const changes = entry => entry.hint === "Opens the form";
  const wordsOf = text => text.toLowerCase().split(/\s+/).flatMap(
    token => [token, ...token.split(/[^\p{L}\p{N}]+/u)]).filter(Boolean);
  const slips = (typed, word) => { // optimal string alignment of what is typed with the best prefix of the word
    let before = [], above = [...Array(word.length + 1).keys()];
    for (let i = 1; i <= typed.length; i++) {
      const row = [i];
      for (let j = 1; j <= word.length; j++) {
        const same = typed[i - 1] === word[j - 1];
        row[j] = Math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1));
        const swapped = i > 1 && j > 1 && typed[i - 1] === word[j - 2] && typed[i - 2] === word[j - 1];
        if (swapped) row[j] = Math.min(row[j], before[j - 2] + 1);
      }
      [before, above] = [above, row];
    }
    return Math.min(...above);
  };
  const fit = (typed, word, exact) => {
    if (typed === word) return 5;
    if (word.startsWith(typed)) return 4;
    if (exact) return 0;
    if (typed.length > 1 && word.includes(typed)) return 2;
    const allowed = typed.length >= 8 ? 2 : typed.length >= 4 ? 1 : 0;
    return allowed && word.length >= typed.length - allowed && slips(typed, word) <= allowed ? 1 : 0;
  };
  const scorer = () => { // many entries share their words: each pair is compared once per key
    const known = new Map();
    return (typed, entry) => {
      const exact = changes(entry);
      entry.words ||= new Set(wordsOf(`${entry.name} ${entry.also || ""} ${exact ? "" : entry.hint}`));
      entry.initials ||= entry.name.toLowerCase().split(/[^\p{L}\p{N}]+/u).map(word => word[0] || "").join("");
      let best = !exact && typed.length > 1 && entry.initials.startsWith(typed) ? 3 : 0;
      for (const word of entry.words) {
        const pair = `${exact} ${typed} ${word}`;
        if (!known.has(pair)) known.set(pair, fit(typed, word, exact));
        best = Math.max(best, known.get(pair));
      }
      return best;
    };
  };
  const matching = (entries, words, recent) => {
    const score = scorer(), found = [];
    for (const entry of entries) {
      let sum = 0;
      const all = words.every(word => { const one = score(word, entry); sum += one; return one > 0; });
      if (all) found.push([sum, entry]);
    }
    const place = entry => (recent.includes(entry.id) ? recent.indexOf(entry.id) : RECENT);
    return found.sort(([a, one], [b, other]) =>
      b - a || place(one) - place(other) || one.name.length - other.name.length).map(([, entry]) => entry);
  };

  // ---- commands: those of the server, and each verb with each breaker that it applies to
  let commands = null, tenants = [], asked = "", timer = 0, asking = null;
  const load = async () => {
    const answer = await fetch(dialog.dataset.entries);
    if (!answer.ok || answer.redirected) return false;
    const { entries, verbs } = await answer.json();
    commands = [...entries];
    for (const on of entries.filter(entry => entry.object)) {
      for (const verb of verbs || []) {
        if (verb.needs && !on[verb.needs]) continue;
        commands.push({
          ...verb,
          id: `${verb.id}:${on.object}`,
          name: `${verb.name} ${on.object}`,
          href: on.href + (verb.path || "") + (verb.query ? `?${verb.query}` : ""),
          now: on.override && verb.id === "automatic",
        });
      }
    }
    return true;
  };
  const recentIds = () => {
    try { return JSON.parse(localStorage.getItem("recent-commands")) || []; } catch { return []; }
  };
  const remember = id => {
    if (/^(tenant|edit|suspend|resume|raise|find|revision):/.test(id)) return; // no customers in the browser's storage
    const kept = [id, ...recentIds().filter(other => other !== id)].slice(0, RECENT);
    localStorage.setItem("recent-commands", JSON.stringify(kept));
  };
  const grouped = (label, entries) => entries.map(entry => ({ ...entry, group: label }));
  const groupOf = entry => entry.ui ? "Run" : changes(entry) ? "Do" : "Open";

  const atRest = () => {
    const recent = recentIds().map(id => commands.find(entry => entry.id === id)).filter(Boolean);
    const wrong = commands.filter(entry => entry.now && !recent.includes(entry));
    const rest = commands.filter(entry => entry.id.startsWith("page:") && !recent.includes(entry));
    return [
      ...grouped("Recent", recent), ...grouped("Now", wrong.slice(0, RECENT)), ...grouped("Open", rest),
    ].slice(0, MOST);
  };
  const minutesOf = word => {
    const [, figure, unit] = /^(\d{1,3})(m|min|h)$/.exec(word) || [];
    return figure ? Number(figure) * (unit === "h" ? 60 : 1) : 0;
  };
  const lasting = (entries, words, recent) => { // "force open payments-api 15m"
    const minutes = words.map(minutesOf).find(Boolean);
    const others = words.filter(word => !minutesOf(word));
    if (!minutes || !others.length) return [];
    return matching(entries.filter(entry => entry.lasts?.includes(minutes)), others, recent).map(entry => ({
      ...entry,
      name: `${entry.name} for ${minutes % 60 ? `${minutes} min` : `${minutes / 60} h`}`,
      href: `${entry.href}&lasts=${minutes}`,
    }));
  };
  const tokenIn = typed => { // in the fragment, so that no proxy logs it
    const token = typed.replace("urn:fuseboard:refusal:", "");
    const href = `${dialog.dataset.explain}#${token}`;
    return token.startsWith("fr1.")
      && [{ id: "find:token", name: "Explain this refusal", hint: "Token", glyph: "human", href, group: "Find" }];
  };
  const results = typed => {
    const token = tokenIn(typed);
    if (token) return token;
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return atRest();
    const recent = recentIds(), all = [...commands, ...tenants];
    const found = [...lasting(all, words, recent), ...matching(all, words, recent)].slice(0, MOST);
    const groups = [...new Set(found.map(groupOf))];
    const shown = groups.flatMap(group => grouped(group, found.filter(entry => groupOf(entry) === group)));
    if (/^\d{1,9}$/.test(typed)) {
      const href = dialog.dataset.revision.replace(/0$/, typed);
      shown.push({ id: "revision:", name: `Revision ${typed}`, hint: "Revision", glyph: "human", href, group: "Find" });
    }
    const href = `${dialog.dataset.tenants}?q=${encodeURIComponent(typed)}`;
    const name = `Search tenants for \u201c${typed}\u201d`;
    return [...shown, { id: "find:tenants", name, hint: "Tenants", glyph: "human", href, group: "Find" }];
  };

  // ---- tenants are searched on the server: there may be 100,000
  const search = typed => {
    const wanted = typed.split(/\s+/).at(-1);
    clearTimeout(timer);
    asking?.abort();
    if (wanted.length < SEARCHED || tokenIn(typed)) { tenants = []; asked = ""; return; }
    if (wanted === asked) return;
    timer = setTimeout(async () => {
      asking = new AbortController();
      try {
        const address = `${dialog.dataset.entries}?tenants=${encodeURIComponent(wanted)}`;
        const answer = await fetch(address, { signal: asking.signal });
        if (!answer.ok || answer.redirected) return;
        [tenants, asked] = [(await answer.json()).entries, wanted];
        draw();
      } catch (error) {
        if (error.name !== "AbortError") write("Tenants cannot be searched: Fuseboard cannot be reached.");
      }
    }, WAIT_MS);
  };

  // ---- the list: a combobox, whose active option is named at every drawing
  let shown = [], chosen = 0;
  const write = text => { count.textContent = text; };
  const draw = () => {
    const kept = shown[chosen]?.id;
    shown = results(input.value.trim());
    const groups = new Map();
    shown.forEach((entry, i) => {
      if (!groups.has(entry.group)) {
        const box = $("#pal-group").content.firstElementChild.cloneNode(true);
        box.setAttribute("aria-label", entry.group);
        box.firstElementChild.textContent = entry.group;
        groups.set(entry.group, box);
      }
      const item = $("#pal-item").content.firstElementChild.cloneNode(true);
      item.id = `pal-${i}`;
      item.dataset.index = i;
      if (entry.css) $("svg", item).classList.add(entry.css);
      $("use", item).setAttribute("href", `#g-${entry.glyph || "ok"}`);
      $(".pal-name", item).textContent = entry.name;
      $(".hint", item).textContent = entry.hint;
      groups.get(entry.group).append(item);
    });
    list.replaceChildren(...groups.values());
    write(`${shown.length} result${shown.length === 1 ? "" : "s"}`);
    choose(moved ? Math.max(0, shown.findIndex(entry => entry.id === kept)) : 0);
  };
  let moved = false; // an answer that arrives late does not take away what was chosen by key
  const choose = i => {
    const items = $$("[role=option]", list);
    chosen = Math.max(0, Math.min(items.length - 1, i));
    items.forEach((item, n) => item.setAttribute("aria-selected", n === chosen));
    if (items.length) input.setAttribute("aria-activedescendant", items[chosen].id);
    else input.removeAttribute("aria-activedescendant");
    items[chosen]?.scrollIntoView({ block: "nearest" });
  };
  const open = async () => {
    if (!dialog.open) {
      input.value = "";
      [tenants, asked, moved] = [[], "", false];
      dialog.showModal();
      if (commands) draw(); // not what was found last time
    }
    try {
      if (!await load() && !commands) return write("Commands cannot be loaded. Reload the page.");
    } catch {
      if (!commands) return write("Commands cannot be loaded: Fuseboard cannot be reached.");
    }
    draw();
    search(input.value.trim()); // something may be typed before the commands are here
  };
  const RUN = {
    theme: () => $("[data-theme-toggle]").click(),
    pause: () => $("[data-pause]").click(),
    wall: () => document.documentElement.classList.toggle("wall"),
    copy: () => navigator.clipboard.writeText(location.href),
  };
  const run = async entry => {
    if (!entry) return;
    remember(entry.id);
    if (!entry.ui) { location.href = entry.href + (entry.fragment ? `#${entry.fragment}` : ""); return; }
    try {
      await RUN[entry.ui]();
    } catch { // a browser permits the clipboard only over TLS
      write("Your browser does not permit this. Copy the address from its address bar.");
      return;
    }
    dialog.close();
    $("#announce").textContent = `${entry.name}: done`;
  };

  input.addEventListener("input", () => {
    moved = false;
    if (!commands) return;
    draw();
    search(input.value.trim());
  });
  input.addEventListener("keydown", e => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (by) { e.preventDefault(); moved = true; choose(chosen + by); }
    if (e.key === "Enter") { e.preventDefault(); run(shown[chosen]); }
    if (e.key === "Escape" && input.value) { // the first one clears, the next one closes
      e.preventDefault();
      input.value = "";
      input.dispatchEvent(new Event("input"));
    }
  });
  list.addEventListener("click", e => {
    const item = e.target.closest("[role=option]");
    if (item) run(shown[item.dataset.index]);
  });
  document.addEventListener("click", e => { if (e.target.closest("[data-open=palette]")) open(); });
  addEventListener("keydown", e => {
    if (!(e.ctrlKey || e.metaKey) || e.shiftKey || e.key.toLowerCase() !== "k") return; // with Caps Lock it is "K"
    e.preventDefault();
    open();
  });
  // A command filled the form in: what is missing is the reason.
  // After the browser has scrolled to the fragment, which takes the focus away.
  addEventListener("load", () => requestAnimationFrame(() => {
    if (new URLSearchParams(location.search).has("act")) $("#override-form [name=reason]")?.focus();
  }));
})();
