/* Charts of stored series: fetched from the API, drawn with uPlot, readable by keyboard and as a table.
   What is unknown is null: never joined, never 0, and hatched. Range and zoom are in the address. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;
  const LIVE_MS = 10_000, TABLE_ROWS = 25, DEFAULT_SPAN = 3600, SHORTEST = 60, LONGEST = 400 * 86_400;
  const charts = new Map(); // figure -> what is drawn in it

  // ---- the range, of all charts of the page
  const read = name => Number(new URL(location.href).searchParams.get(name)) || 0;
  const moment = $("[data-charts][data-home-since]")?.dataset; // a page about one moment begins with the time around it
  const home = moment && { since: Number(moment.homeSince), until: Number(moment.homeUntil) };
  const range = { span: read("span") || DEFAULT_SPAN, since: read("since"), until: read("until"), ...home };
  const fixed = () => range.since && range.until > range.since;
  const now = () => Date.now() / 1000;
  const bounds = (least = 0) => fixed() ? [range.since, range.until] : [now() - Math.max(range.span, least), now()];
  const setRange = changed => {
    Object.assign(range, { since: 0, until: 0 }, changed);
    const address = new URL(location.href);
    for (const name of ["span", "since", "until"]) address.searchParams.delete(name);
    if (fixed()) { address.searchParams.set("since", range.since); address.searchParams.set("until", range.until); }
    if (range.span !== DEFAULT_SPAN) address.searchParams.set("span", range.span);
    if (!home) history.replaceState(history.state, "", address); // there, the address is of another moment next time
    showTools();
    for (const chart of charts.values()) {
      chart.u?.setData(chart.data); // what is known of the new range, until the answer comes
      load(chart);
    }
  };
  const zoom = factor => {
    const [since, until] = bounds(), middle = (since + until) / 2;
    const half = Math.min(LONGEST, Math.max(SHORTEST, (until - since) * factor)) / 2;
    const end = Math.min(now(), middle + half);
    setRange({ since: Math.round(end - 2 * half), until: Math.round(end) });
  };

  // ---- words
  const two = n => String(n).padStart(2, "0");
  const clock = (s, step) => {
    const d = new Date(s * 1000), day = `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`;
    const time = `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}${step < 60 ? `:${two(d.getUTCSeconds())}` : ""}`;
    return now() - s > 20 * 3600 ? `${day} ${time}` : time;
  };
  const length = s => s >= 172_800 ? `${Math.round(s / 86_400)} d` : s >= 7200 ? `${+(s / 3600).toFixed(1)} h`
    : s >= 120 ? `${Math.round(s / 60)} min` : `${Math.round(s)} s`;
  const number = v => v >= 99.5 ? Math.round(v).toLocaleString("en-US") : Number.isInteger(v) ? String(v)
    : v < 1 ? String(Number(v.toPrecision(2))) : v.toFixed(1);
  // A second and more is not written in milliseconds, as on the rest of the page.
  const amount = (unit, v) => unit === "ms" && v >= 1000 ? `${Number((v / 1000).toPrecision(3))}\u202fs`
    : `${number(v)}${unit.startsWith("/") ? "" : "\u202f"}${unit}`;
  const words = (chart, v) => v == null ? "unknown" : amount(chart.about.unit, v);
  const write = (element, text) => { if (element && element.textContent !== text) element.textContent = text; };

  // ---- figures
  const percentile = (counts, edges, share) => {
    const total = counts.reduce((sum, n) => sum + n, 0), wanted = total * share;
    if (!total) return null;
    let below = 0, floor = 0;
    for (let i = 0; i < edges.length; i += 1) {
      if (counts[i] && below + counts[i] >= wanted) return floor + (edges[i] - floor) * (wanted - below) / counts[i];
      below += counts[i];
      floor = edges[i];
    }
    return floor;
  };
  const value = (line, answer, at, edges) => {
    const all = names => names.map(name => answer.fields[name][at]);
    const counted = all(line.fields);
    if (!answer.known_s[at] || counted.some(v => v === null)) return null;
    const sum = counted.reduce((a, b) => a + b, 0);
    if (line.how === "rate") return sum / answer.known_s[at];
    if (line.how === "peak") return sum / line.divisor;
    if (line.how === "percentile") {
      const us = percentile(counted, edges, line.at / 100);
      return us === null ? null : us / 1000;
    }
    const of = all(line.of).reduce((a, b) => a + b, 0);
    return of ? Math.min(100, sum / of * 100) : null; // nothing was asked: there is no share
  };
  const points = (chart, answer) => {
    const x = answer.known_s.map((_, at) => answer.start + at * answer.step_s);
    return [x, ...chart.about.lines.map(line => x.map((_, at) => value(line, answer, at, chart.about.edges)))];
  };

  // ---- drawing
  const LOOKS = { plain: "--blue", bad: "--red", cut: "--plot", human: "--violet" };
  const DASHES = { cut: [3, 3], human: [6, 3] };
  const token = name => getComputedStyle(root).getPropertyValue(name).trim() || "CanvasText";
  const probe = document.createElement("i"); // light-dark() has to be worked out by the browser
  probe.hidden = true;
  const colour = name => {
    if (matchMedia("(forced-colors: active)").matches) return "CanvasText";
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = token(name);
    return getComputedStyle(probe).color;
  };
  const hatch = (ctx, name, gap) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = gap;
    const t = tile.getContext("2d");
    t.strokeStyle = colour(name);
    t.beginPath();
    t.moveTo(0, gap); t.lineTo(gap, 0);
    t.moveTo(-1, 1); t.lineTo(1, -1);
    t.moveTo(gap - 1, gap + 1); t.lineTo(gap + 1, gap - 1);
    t.stroke();
    return ctx.createPattern(tile, "repeat");
  };
  const shade = (u, from, until, name, gap) => {
    const { left, top, width, height } = u.bbox;
    const a = Math.max(left, u.valToPos(from, "x", true)), b = Math.min(left + width, u.valToPos(until, "x", true));
    if (b <= a) return;
    u.ctx.fillStyle = hatch(u.ctx, name, gap);
    u.ctx.fillRect(a, top, b - a, height);
  };
  const gaps = chart => { // runs of points that no line knows, as times
    const { answer } = chart, runs = [];
    answer.known_s.forEach((known, at) => {
      const from = answer.start + at * answer.step_s, last = runs.at(-1);
      if (known || (answer.first_at !== null && from + answer.step_s <= answer.first_at)) return; // before it, blank
      if (last && last[1] === from) last[1] += answer.step_s;
      else runs.push([from, from + answer.step_s]);
    });
    return runs;
  };
  const drawBelow = chart => u => {
    u.ctx.save();
    for (const [from, until] of gaps(chart)) shade(u, from, until, "--line-firm", 8);
    for (const p of chart.answer.partial) shade(u, p.start, p.end, "--plot-soft", 6);
    u.ctx.restore();
  };
  const drawAbove = chart => u => {
    const { ctx } = u, { left, top, width, height } = u.bbox, ratio = devicePixelRatio || 1;
    ctx.save();
    const { limit } = chart.about;
    if (limit != null) {
      const y = u.valToPos(limit, "y", true);
      if (y >= top && y <= top + height) {
        ctx.strokeStyle = colour("--line-firm");
        ctx.setLineDash([4 * ratio, 3 * ratio]);
        ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(left + width, y); ctx.stroke();
        ctx.fillStyle = colour("--muted");
        ctx.font = `${11 * ratio}px ${getComputedStyle(root).getPropertyValue("--font")}`;
        ctx.textAlign = "right";
        ctx.textBaseline = "alphabetic";
        const base = y > top + 16 * ratio ? y - 4 * ratio : y + 13 * ratio;
        const wide = ctx.measureText(chart.about.limit_label).width;
        const end = left + width - 4 * ratio, words = ctx.fillStyle;
        ctx.fillStyle = colour("--surface"); // the line of the data does not cross the words
        ctx.fillRect(end - wide - 3 * ratio, base - 10 * ratio, wide + 6 * ratio, 13 * ratio);
        ctx.fillStyle = words;
        ctx.fillText(chart.about.limit_label, end, base);
      }
    }
    for (const period of chart.periods) { // one thin band each, above what is drawn
      const a = Math.max(left, u.valToPos(period.start, "x", true));
      const b = Math.min(left + width, u.valToPos(period.end, "x", true));
      if (b < left || a > left + width) continue;
      ctx.fillStyle = colour(period.forced ? "--violet" : "--red");
      ctx.fillRect(a, top - 8 * ratio, Math.max(ratio, b - a), 4 * ratio);
    }
    for (const mark of chart.marks) {
      const x = u.valToPos(mark.at, "x", true);
      if (x < left || x > left + width || mark.kind === "transition") continue; // a band is enough
      ctx.strokeStyle = ctx.fillStyle = colour(mark.kind === "override" ? "--violet"
        : mark.kind === "change" ? "--blue" : mark.kind === "refusal" ? "--red" : "--muted");
      ctx.setLineDash(mark.kind === "pod" ? [2 * ratio, 3 * ratio] : []);
      ctx.lineWidth = ratio;
      ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
      ctx.beginPath(); ctx.moveTo(x - 4 * ratio, top);
        ctx.lineTo(x + 4 * ratio, top); ctx.lineTo(x, top + 6 * ratio); ctx.fill();
    }
    ctx.restore();
  };
  const barsOf = line => ({ // of hours: a line through one point is a dot
    paths: uPlot.paths.bars({ size: [0.8, 32, 3] }), fill: () => colour(LOOKS[line.look]) });
  const options = chart => {
    const { about, plot } = chart;
    const axis = { stroke: () => colour("--muted"),
      grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false },
      font: "11px system-ui", size: 46 };
    return {
      width: Math.max(200, plot.clientWidth), height: 170,
      tzDate: s => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
      legend: { show: false },
      padding: [12, 8, 0, 0],
      scales: { x: { time: true, range: () => bounds(about.least_s) },
        y: { range: (_, low, high) => [0,
        Math.max(about.limit ? about.limit * 1.15 : 0, high * 1.1, about.unit === "%" ? 5 : 1) || 1] } },
      axes: [
        { ...axis, size: 28, space: 64, values: (u, ticks) => {
          const days = u.scales.x.max - u.scales.x.min > 2 * 86_400, step = ticks[1] - ticks[0];
          return ticks.map(s => { const d = new Date(s * 1000);
            return days && step >= 86_400
              ? `${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`
              : days ? `${two(d.getUTCDate())}. ${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`
              : `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}${step < 60 ? `:${two(d.getUTCSeconds())}` : ""}`; });
        } },
        { ...axis, values: (_, ticks) =>
          ticks.map(v => amount(about.unit, v)), size: 58 },
      ],
      series: [{}, ...about.lines.map(line => ({
        label: line.label, spanGaps: false, ...(about.least_s && barsOf(line)),
          width: line.look === "bad" ? 2 : 1.5, dash: DASHES[line.look],
        stroke: () => colour(LOOKS[line.look]),
          points: { show: (u, i) => !about.least_s && u.data[i].filter(v => v != null).length < 3, size: 4 },
      }))],
      cursor: { sync: { key: "fuseboard" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      hooks: {
        drawClear: [drawBelow(chart)],
        draw: [drawAbove(chart)],
        setCursor: [u => { if (u.cursor.idx != null) showPoint(chart, u.cursor.idx); }],
        setSelect: [u => {
          if (u.select.width < 8) return;
          const since = Math.round(u.posToVal(u.select.left, "x")),
            until = Math.round(u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          if (until - since >= 10) setRange({ since, until });
        }],
      },
    };
  };

  // ---- one point, for the pointer, the keys, and screen readers
  const partialAt = (chart, at) => chart.answer.partial.find(p => p.start <= at && at < p.end);
  const describe = (chart, place) => {
    const at = chart.data[0][place], partial = partialAt(chart, at);
    const values = chart.about.lines.map((line, i) => `${line.label} ${words(chart, chart.data[i + 1][place])}`);
    const unknown = !chart.answer.known_s[place];
    const before = unknown && chart.answer.first_at !== null && at < chart.answer.first_at;
    const text = before ? `not known before ${clock(chart.answer.first_at, chart.answer.step_s)}`
      : unknown ? "unknown: not measured" : values.join(", ");
    const limit = chart.about.limit != null && !unknown ? `, ${chart.about.limit_label}` : "";
    const made = at < chart.answer.made_up_until ? " (made up by the demo)" : "";
    const from = !partial ? "" : partial.known ? `, from ${partial.heard} of ${partial.known} pods` : ", at least";
    return `${clock(at, chart.answer.step_s)}${made}, ${text}${limit}${from}`;
  };
  const marksAt = (chart, place) => {
    const at = chart.data[0][place];
    return chart.marks.filter(mark => mark.at >= at && mark.at < at + chart.answer.step_s);
  };
  const showPoint = (chart, place) => {
    chart.place = place;
    const marks = marksAt(chart, place).map(mark => mark.text), text = [describe(chart, place), ...marks].join(". ");
    write(chart.say, text);
    const { plot } = chart;
    plot.setAttribute("aria-valuenow", place);
    plot.setAttribute("aria-valuetext", text);
    plot.title = new Date(chart.data[0][place] * 1000).toLocaleString();
  };
  const moveTo = (chart, place) => {
    place = Math.max(0, Math.min(chart.data[0].length - 1, place));
    const { u } = chart;
    u.setCursor({ left: u.valToPos(chart.data[0][place], "x"), top: u.over.clientHeight / 2 });
    showPoint(chart, place);
  };
  const onKey = (chart, e) => {
    if (!chart.u || e.ctrlKey || e.metaKey || e.altKey) return;
    const here = chart.place ?? chart.data[0].length - 1, far = e.shiftKey ? 30 : 1;
    const places = [...new Set(chart.marks.map(m => Math.floor((m.at - chart.answer.start) / chart.answer.step_s)))];
    const to = { ArrowLeft: here - far, ArrowRight: here + far, Home: 0, End: chart.data[0].length - 1,
      "[": places.filter(p => p < here).at(-1), "]": places.find(p => p > here) }[e.key];
    if (to !== undefined) moveTo(chart, to);
    else if (e.key === "+" || e.key === "-") zoom(e.key === "+" ? 0.5 : 2);
    else if (e.key === "Enter") {
      const mark = marksAt(chart, here).find(m => m.revision);
      if (!mark) return;
      location.href = document.getElementById("palette").dataset.revision.replace(/0$/, mark.revision);
    } else return;
    e.preventDefault();
    e.stopPropagation();
  };

  // ---- the sentence under a chart
  const conclude = chart => {
    const { data, answer, about } = chart, parts = [];
    about.lines.forEach((line, i) => {
      let top = -1;
      data[i + 1].forEach((v, at) => { if (v != null && (top < 0 || v > data[i + 1][top])) top = at; });
      if (top < 0 || !(data[i + 1][top] > 0)) return;
      const highest = words(chart, data[i + 1][top]);
      parts.push(`${line.label}: highest ${highest} at ${clock(data[0][top], answer.step_s)}`);
    });
    const unknown = gaps(chart).reduce((sum, [from, until]) => sum + until - from, 0);
    if (!answer.known_s.some(Boolean))
      return answer.first_at === null ? "Nothing is known of this yet."
      : "Unknown: nothing was measured in this range.";
    const any = data.slice(1).some(values => values.some(v => v != null));
    if (!parts.length) parts.push(any ? "All 0" : "Measured, but there was nothing to count");
    if (answer.first_at > answer.start) parts.push(`not known before ${clock(answer.first_at, answer.step_s)}`);
    // The newest seconds are always still on their way.
    if (unknown > 30 + answer.step_s) parts.push(`unknown for ${length(unknown)}`);
    if (answer.made_up_until) {
      parts.push(`what is before ${clock(answer.made_up_until, answer.step_s)} is made up by the demo`);
    }
    for (const mark of about.marks) parts.push(`${mark.text} at ${clock(mark.at, 10)}`);
    const opened = chart.periods.length;
    const openFor = chart.periods.reduce((sum, one) => sum + one.end - one.start, 0);
    const often = opened === 1 ? "once" : `${opened} times`;
    if (opened && about.limit != null) parts.push(`not closed ${often}, for ${length(openFor)}`);
    if (chart.earlier) parts.push(`zoom in to see ${chart.earlier} more event${chart.earlier > 1 ? "s" : ""}`);
    return `${parts.join("; ")}. Points of ${length(answer.step_s)}.`;
  };

  // ---- as a table
  const fillTable = chart => {
    const details = $("details", chart.figure), box = $("details > div", chart.figure);
    if (!details.open || !chart.data) return;
    const total = chart.data[0].length, pages = Math.max(1, Math.ceil(total / TABLE_ROWS));
    chart.page = Math.min(chart.page ?? pages - 1, pages - 1);
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    table.className = "tbl";
    const cell = (row, text, tag) => {
      const c = document.createElement(tag);
      c.textContent = text;
      if (tag === "th") c.scope = row === head ? "col" : "row";
      row.append(c);
    };
    cell(head, "Time, UTC", "th");
    for (const line of chart.about.lines) cell(head, line.label, "th");
    for (let at = chart.page * TABLE_ROWS; at < Math.min(total, (chart.page + 1) * TABLE_ROWS); at += 1) {
      const row = body.insertRow(), partial = partialAt(chart, chart.data[0][at]);
      const pods = !partial ? "" : partial.known ? ` (${partial.heard} of ${partial.known} pods)` : " (at least)";
      cell(row, clock(chart.data[0][at], chart.answer.step_s) + pods, "th");
      chart.about.lines.forEach((_, i) => cell(row, words(chart, chart.data[i + 1][at]), "td"));
    }
    const nav = document.createElement("p");
    for (const [word, by] of [["Earlier", -1], ["Later", 1]]) {
      const button = document.createElement("button");
      button.type = "button"; button.className = "btn"; button.textContent = word;
      button.disabled = chart.page + by < 0 || chart.page + by >= pages;
      button.addEventListener("click", () => {
        chart.page += by;
        fillTable(chart);
        $(`details p button:nth-of-type(${by < 0 ? 1 : 2})`, chart.figure).focus();
      });
      nav.append(button);
    }
    nav.append(` Page ${chart.page + 1} of ${pages}`);
    box.replaceChildren(table, nav);
  };

  // ---- fetching
  const time = s => new Date(s * 1000).toISOString();
  const addressOf = (chart, path, query) => {
    const [since, until] = bounds(chart.about.least_s);
    return `${chart.panel.dataset.charts}${path}?${query}&since=${time(since)}&until=${time(until)}`;
  };
  const get = async (chart, path, query) => {
    const address = addressOf(chart, path, query);
    const signal = AbortSignal.any([chart.stop.signal, AbortSignal.timeout(15_000)]);
    const answer = await fetch(address, { signal, headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  };
  const load = async chart => {
    chart.stop?.abort();
    chart.stop = new AbortController();
    const { stop } = chart;
    try {
      const [answer, marks] = await Promise.all([
        get(chart, "", chart.figure.dataset.query),
        get(chart, "/marks", chart.figure.dataset.marks)]);
      if (stop.signal.aborted || !chart.figure.isConnected) return;
      const all = [...marks.marks, ...chart.about.marks].sort((a, b) => a.at - b.at);
      Object.assign(chart, {
        answer, marks: all, earlier: marks.earlier, periods: marks.open_periods, data: points(chart, answer),
        loaded: Date.now() });
      draw(chart);
    } catch (error) {
      if (stop.signal.aborted) return;
      chart.loaded = Date.now();
      const why = /^\d+$/.test(error.message) ? `Fuseboard answered ${error.message}` : "Fuseboard did not answer";
      const shown = chart.data ? "The chart displays what was known before." : "The figures are unknown.";
      write(chart.say, `${why}. ${shown} It tries again in 10 s.`);
    }
  };
  const draw = chart => {
    const focused = document.activeElement === chart.plot && chart.place != null;
    if (chart.u) chart.u.setData(chart.data);
    else {
      chart.plot.replaceChildren();
      chart.u = new uPlot(options(chart), chart.data, chart.plot);
      // The figure beside it says the same in words.
      for (const part of chart.plot.children) part.setAttribute("aria-hidden", "true");
    }
    chart.plot.setAttribute("aria-valuemax", Math.max(0, chart.data[0].length - 1));
    if (!focused) {
      chart.place = null;
      const text = conclude(chart);
      write(chart.say, text);
      chart.plot.setAttribute("aria-valuetext", text);
    }
    fillTable(chart);
  };

  // ---- beginning and end of a chart
  const begin = figure => {
    const chart = { figure, panel: figure.closest("[data-charts]"), plot: $(".chart-plot", figure),
      say: $(".chart-say", figure),
      about: JSON.parse(figure.dataset.chart), marks: [], periods: [], earlier: 0, place: null,
      query: figure.dataset.query };
    charts.set(figure, chart);
    const keys = $(".chart-keys", figure);
    keys.replaceChildren(...chart.about.lines.map(line => {
      const key = document.createElement("span");
      key.className = `look-${line.look}`;
      key.textContent = line.label;
      return key;
    }));
    const file = $("a[download]", figure) || document.createElement("a");
    file.className = "more";
    file.download = "";
    file.textContent = "CSV";
    file.setAttribute("aria-label", `CSV of ${figure.querySelector("figcaption b").textContent}`);
    const write = () => { file.href = `${addressOf(chart, "", figure.dataset.query)}&format=csv`; };
    for (const moment of ["pointerdown", "focus", "click"]) file.addEventListener(moment, write);
    write();
    $("figcaption", figure).append(file);
    chart.resize = new ResizeObserver(() => {
      const width = chart.plot.clientWidth;
      if (chart.u && width) chart.u.setSize({ width: Math.max(200, width), height: 170 });
    });
    chart.resize.observe(chart.plot);
    chart.plot.addEventListener("keydown", e => onKey(chart, e));
    $("details", figure).addEventListener("toggle", () => fillTable(chart));
    load(chart);
  };
  const end = chart => {
    chart.stop?.abort();
    chart.resize.disconnect();
    chart.u?.destroy();
    charts.delete(chart.figure);
  };
  const look = () => {
    for (const chart of [...charts.values()]) {
      if (!chart.figure.isConnected) end(chart);
      else if (chart.figure.dataset.query !== chart.query) { end(chart); begin(chart.figure); }
    }
    for (const figure of $$("figure[data-chart]")) if (!charts.has(figure)) begin(figure);
    showTools();
  };
  const showTools = () => {
    for (const button of $$("[data-span]")) {
      button.setAttribute("aria-pressed", String(!fixed() && Number(button.dataset.span) === range.span));
    }
    const there = home ? range.since === home.since && range.until === home.until : !fixed();
    for (const button of $$("[data-zoom=back]")) button.disabled = there;
    const [since, until] = bounds();
    const shown = fixed() ? `${clock(since, 10)} to ${clock(until, 10)} UTC` : `last ${length(range.span)}`;
    for (const span of $$("[data-chart-span]")) write(span, shown);
  };
  document.addEventListener("click", e => {
    const button = e.target.closest("[data-span], [data-zoom]");
    if (!button) return;
    if (button.dataset.span) setRange({ span: Number(button.dataset.span) });
    else if (button.dataset.zoom === "back") setRange(home || {});
    else zoom(button.dataset.zoom === "in" ? 0.5 : 2);
  });
  const typed = field => Date.parse(`${field.value}Z`) / 1000; // the fields are in UTC
  const filled = s => new Date(s * 1000).toISOString().slice(0, 16);
  document.addEventListener("toggle", e => { // a capture: it does not bubble
    const form = e.target.open && $("[data-dates]", e.target);
    if (form) [form.since.value, form.until.value] = bounds().map(filled);
  }, true);
  const sayWrong = (form, text) => { // beside the fields, as the server does it for other forms
    const note = $(".err", form);
    note.hidden = !text;
    note.textContent = text;
    for (const field of [form.since, form.until]) field.setAttribute("aria-invalid", String(!!text));
  };
  document.addEventListener("input", e => {
    if (e.target.form?.matches("[data-dates]")) sayWrong(e.target.form, "");
  });
  document.addEventListener("submit", e => {
    if (!e.target.matches("[data-dates]")) return;
    e.preventDefault();
    const { since, until } = e.target, [begin, end] = [typed(since), Math.min(typed(until), now())];
    const missing = [since, until].find(field => isNaN(typed(field)));
    const text = missing ? "Enter a date and a time in both fields."
      : end - begin < SHORTEST ? "Enter an end at least a minute after the start, and a start in the past."
      : end - begin > LONGEST ? "Enter a range of at most 400 days." : "";
    sayWrong(e.target, text);
    if (text) return (missing || until).focus();
    setRange({ since: Math.round(begin), until: Math.round(end) });
    e.target.closest("details").open = false;
  });
  new MutationObserver(look).observe(document.body,
    { childList: true, subtree: true, attributes: true, attributeFilter: ["data-query"] });
  const redraw = () => { for (const chart of charts.values()) chart.u?.redraw(false); };
  new MutationObserver(redraw).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  for (const query of ["(forced-colors: active)", "(prefers-color-scheme: dark)"]) {
    matchMedia(query).addEventListener("change", redraw);
  }
  setInterval(() => { // finer points change sooner
    const paused = $("[data-pause]")?.getAttribute("aria-pressed") === "true";
    if (document.hidden || paused || (fixed() && range.until < now() - 30)) return; // later, nothing is added
    for (const chart of charts.values()) {
      const every = Math.max(LIVE_MS, Math.min(300_000, range.span * 1000 / 360));
      if (Date.now() - (chart.loaded ?? 0) >= every - 500) load(chart);
    }
  }, LIVE_MS);
  look();
})();
