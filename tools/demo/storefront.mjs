// A program in Node beside a sidecar: it calls one vendor again and again, as docs/examples/sidecar/guard.mjs guards it,
// and prints one line of JSON for each call. Times are milliseconds since 1970.
import { setTimeout as pause } from "node:timers/promises";
import { guarded } from "../../docs/examples/sidecar/guard.mjs";

const { DEPENDENCY, VENDOR_URL, PAUSE_MS } = process.env;

for (;;) {
  const asked = Date.now();
  let decided = 0;
  const send = (ms) => {
    decided = Date.now() + 1; // whole milliseconds: it must not be before the decision
    return fetch(VENDOR_URL, { method: "POST", signal: AbortSignal.timeout(ms) });
  };
  const how = await guarded(DEPENDENCY, send).then((answer) => `made ${answer.status}`, (error) => error.message);
  console.log(JSON.stringify({ asked, decided: decided || Date.now(), how }));
  await pause(Number(PAUSE_MS));
}
