// Guarded calls: node guard.mjs DEPENDENCY URL...   Without a decision, the call is made and not reported.
import { readFile } from "node:fs/promises";

const { SIDECAR_URL = "http://127.0.0.1:7480", SIDECAR_TOKEN_FILE = "/dev/null", SIDECAR_TIMEOUT_MS = "100" } = process.env;

async function ask(path, content) {
  try {
    const token = (await readFile(SIDECAR_TOKEN_FILE, "utf8")).trim(); // now: the file may have been replaced
    const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
    const signal = AbortSignal.timeout(Number(SIDECAR_TIMEOUT_MS));
    const answer = await fetch(SIDECAR_URL + path, { method: "POST", headers, body: JSON.stringify(content), signal });
    if (answer.status === 200) return await answer.json();
    if (answer.status < 500) console.error("sidecar:", await answer.text()); // a mistake here, such as a wrong token
    return {};
  } catch {
    return {};
  }
}

const NEVER_SENT = new Set(["ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

function kindOf(error) {
  const code = error.cause?.code ?? "";
  if (error.name === "AbortError") return "cancelled"; // by the caller: the vendor did nothing wrong
  if (error.name === "TimeoutError") return "timeout";
  if (code === "ENOTFOUND" || code === "EAI_AGAIN") return "dns";
  if (/CERT|SELF_SIGNED|ISSUER/.test(code)) return "tls";
  return NEVER_SENT.has(code) ? "connect" : error.cause ? "reset" : "local";
}

export async function guarded(dependency, send) {
  const call = await ask("/v1/calls", { dependency });
  if (call.allowed === false) throw Object.assign(new Error(`refused ${call.reason}`), { refused: call });
  const begun = performance.now();
  const report = (how) => {
    const elapsed_ms = performance.now() - begun;
    return call.permit && ask("/v1/reports", [{ permit: call.permit, elapsed_ms, ...how }]);
  };
  try {
    const response = await send(call.timeout_ms ?? 30_000); // without a decision, the call has a bound too
    await report({ status: response.status, retry_after: response.headers.get("retry-after") ?? "" });
    return response;
  } catch (error) {
    await report({ error: kindOf(error) });
    throw error;
  }
}

const [dependency, ...urls] = process.argv.slice(2);
for (const url of urls) {
  const send = (ms) => fetch(url, { signal: AbortSignal.timeout(ms) });
  const shown = await guarded(dependency, send).then((answer) => answer.status, (error) => error.message);
  console.log(shown);
}
