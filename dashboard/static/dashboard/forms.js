/* Forms: what is wrong with a field, and what could not be sent. Also on the pages before the frame. */
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  // ---- a form without an answer says so, and keeps what was typed
  const sends = source => !!source.matches?.("form[method=post]");
  const unsent = (source, text) => {
    const note = source.closest && $(".unsent", source.closest("form") || document);
    if (!note) return;
    // What is not known of a change stays until the form is sent again: a preview does not end it.
    if (note.dataset.sent && !sends(source)) return;
    note.dataset.sent = text && sends(source) ? "sent" : "";
    note.hidden = !text;
    write($("span", note), text);
  };
  document.addEventListener("htmx:before:request", e => unsent(e.target, ""));
  const UNREACHABLE = "Fuseboard cannot be reached.";
  const FAILED = "Fuseboard or its database failed.";
  // It can fail after the change was stored, and the answer can be lost. A preview changes nothing.
  const UNKNOWN = "It is not known whether your change was made: look at Changes before you submit it again.";
  const unknown = (source, why) => {
    const said = sends(source) ? [why, UNKNOWN] : [why];
    unsent(source, [...said, "Your input is kept."].join(" "));
  };
  const FORBIDDEN = "Not allowed: your role does not permit this, or this page is outdated. Reload it and try again.";
  const LOGGED_OUT = "Not sent: you are logged out. Log in on another tab, then submit again.";
  const refusal = answer => {
    if (answer.status === 403) return FORBIDDEN;
    return answer.redirected && new URL(answer.url).pathname === "/login" ? LOGGED_OUT : "";
  };
  document.addEventListener("htmx:error", e => unknown(e.target, UNREACHABLE));
  document.addEventListener("htmx:before:response", e => {
    const answer = e.detail.ctx.response.raw, text = refusal(answer);
    if (!text && answer.status < 500) return;
    e.preventDefault();
    if (text) unsent(e.target, text);
    else unknown(e.target, FAILED);
  });

  // ---- a form that is being sent takes no text: its answer would replace it
  const LONGEST_MS = 30_000; // after this, or when the reader stops the browser, it can be sent again
  const rest = form => {
    const had = document.activeElement;
    form.inert = true;
    if (form.contains(had)) had.blur(); // the browser does that only before it draws again
    form.setAttribute("aria-busy", "true");
    const ready = () => {
      clearTimeout(timer);
      form.inert = false;
      form.removeAttribute("aria-busy");
      if (document.activeElement === document.body && form.contains(had)) had.focus();
    };
    const timer = setTimeout(ready, LONGEST_MS);
    return ready;
  };
  const sending = new WeakMap();
  document.addEventListener("submit", e => {
    setTimeout(() => { // after the other listeners, which may send it themselves
      if (!e.defaultPrevented && e.target.method === "post") sending.set(e.target, rest(e.target));
    });
  });
  document.addEventListener("htmx:before:request", e => {
    if (e.target.matches("form[method=post]")) sending.set(e.target, rest(e.target));
  });
  document.addEventListener("htmx:finally:request", e => sending.get(e.target)?.());
  addEventListener("pageshow", () => { for (const form of document.forms) sending.get(form)?.(); });

  // ---- a time is typed in UTC: beside it is what that is where the reader sits
  const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const SHORT = new Intl.DateTimeFormat("en", { timeZone: ZONE, timeZoneName: "shortOffset" });
  const offset = at => SHORT.formatToParts(at).find(part => part.type === "timeZoneName").value
    .replace("GMT", "UTC").replace(/\+0$/, "");
  const now = new Date();
  const seasons = [0, 6].map(month => offset(new Date(Date.UTC(now.getFullYear(), month))));
  const OWN_ZONE = seasons.every(one => one === "UTC") ? "UTC is your time zone, too."
    : `In UTC. Your time zone, ${ZONE}, is ${offset(now)}${seasons[0] === seasons[1] ? "" : " now"}.`;
  const localTimes = () => {
    for (const control of $$("input[type=datetime-local]")) {
      let note = $("[data-local-time]", control.parentElement);
      if (!note) {
        note = document.createElement("span");
        note.className = "hint";
        note.dataset.localTime = "";
        control.after(note);
      }
      const at = new Date(`${control.value}Z`);
      write(note, control.value && !isNaN(at) ? `${LOCAL.format(at)} in ${ZONE}` : OWN_ZONE);
    }
  };
  document.addEventListener("input", e => { if (e.target.matches("[type=datetime-local]")) localTimes(); });
  document.addEventListener("htmx:after:swap", localTimes);
  localTimes();

  // ---- fields: the server says what is wrong with one. Only the browser knows of a date that is half typed:
  // it sends nothing for it, and a change meant for later would begin at once
  const HALF_TYPED = "Enter the whole date and time, or clear all of it.";
  const complain = (control, text) => {
    const field = control.closest(".field") || control.parentElement;
    let note = $(".err", field);
    if (!note) {
      note = document.createElement("p");
      note.className = "err";
      note.id = `${control.id || control.name}_error`;
      field.append(note);
    }
    write(note, text);
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", [$(".hint[id]", field)?.id, note.id].filter(Boolean).join(" "));
  };
  document.addEventListener("submit", e => {
    if (e.target.matches("[data-dates]")) return; // it says so itself
    const half = [...e.target.elements].filter(control => control.validity?.badInput);
    for (const control of half) control.closest("details")?.setAttribute("open", ""); // it was folded meanwhile
    const wrong = half.filter(control => control.checkVisibility());
    if (!wrong.length) return;
    e.preventDefault();
    e.stopImmediatePropagation();
    for (const control of wrong) complain(control, HALF_TYPED);
    wrong[0].focus();
  }, true);
  const undescribe = element => { // a description that was removed is not named any more
    const names = element.getAttribute("aria-describedby");
    if (names === null) return;
    const left = names.split(/\s+/).filter(name => name && document.getElementById(name));
    if (left.length) element.setAttribute("aria-describedby", left.join(" "));
    else element.removeAttribute("aria-describedby");
  };
  const forgive = e => { // what was wrong is about to be put right
    const field = e.target.closest?.(".field");
    if (!field) return;
    for (const note of $$(".err", field)) note.remove();
    for (const control of $$("[aria-invalid]", field)) control.removeAttribute("aria-invalid");
    for (const described of [field, ...$$("[aria-describedby]", field)]) undescribe(described);
  };
  // ---- a page with errors begins at the first: also one with a fragment, or where another field has the focus
  const wrong = $$("[aria-invalid], .field > .err").find(element => element.checkVisibility());
  if (wrong) (wrong.matches(".err") ? $("input:not([type=hidden])", wrong.parentElement) : wrong)?.focus();
  document.addEventListener("input", forgive);
  document.addEventListener("change", forgive);
  document.addEventListener("change", e => { // a duration that is no longer offered is not kept in secret
    if (!e.target.matches("[name=act]")) return;
    const offered = $$("[name=lasts]", e.target.form).filter(
      one => getComputedStyle(one.closest("label")).display !== "none");
    if (offered.length && !offered.some(one => one.checked)) {
      offered.findLast(one => Number(one.value)).checked = true; // the longest that is named
    }
  }, true);
  // ---- copy: a button names the element whose text it copies. Without scripts, such a button stays hidden
  const labels = new WeakMap(); // of buttons that say "Copied" for 3 s
  const offerCopy = () => { for (const button of $$("[data-copies][hidden]")) button.hidden = false; };
  document.addEventListener("htmx:after:swap", offerCopy);
  offerCopy();
  document.addEventListener("click", async e => {
    const button = e.target.closest("[data-copies]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copies);
    if (!labels.has(button)) labels.set(button, [...button.childNodes]);
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
    } catch { // a browser permits the clipboard only over TLS
      getSelection().selectAllChildren(source);
      said = "Selected: press Ctrl C";
    }
    write(button, said);
    if ($("#announce")) $("#announce").textContent = said;
    setTimeout(() => button.replaceChildren(...labels.get(button)), 3000);
  });
  // ---- a chosen file is read at once: its form shows what it would change, and writes nothing
  document.addEventListener("change", e => {
    if (e.target.matches("input[type=file][data-send]") && e.target.files.length) e.target.form.requestSubmit();
  });
})();
