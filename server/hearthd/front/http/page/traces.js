// Downloads a trace, or passes it to Perfetto. Perfetto is the only site besides the daemon that this page uses: it is
// opened only by a click, in a separate tab, and gets the trace from the browser, but no address of the daemon.

import { get } from "./daemon.js";
import { el } from "./dom.js";

const PERFETTO = "https://ui.perfetto.dev";
const LONG = 120000; // time limit, because the conversion of a long trace takes a while
const TIMEOUT = 30000;

const fileOf = (trace) => `hearth-device${trace.device}-${trace.id.slice(0, 8)}.json`;
const load = async (trace) => (await get(`traces/${encodeURIComponent(trace.id)}.json`, LONG)).blob();

export async function download(trace) {
  const url = URL.createObjectURL(await load(trace));
  el("a", { href: url, download: fileOf(trace) }).click();
  setTimeout(() => URL.revokeObjectURL(url), TIMEOUT);
}

/** Must be called in the handler of a click, because browsers open no window otherwise. */
export async function openInPerfetto(trace) {
  const there = window.open(PERFETTO, "_blank");
  if (!there) throw new Error("The browser opened no window. Allow it, or download the trace and open it there.");
  const [buffer] = await Promise.all([load(trace).then((blob) => blob.arrayBuffer()), answers(there)]);
  const title = `Hearth: device ${trace.device}, session ${trace.session}`;
  there.postMessage({ perfetto: { buffer, title, fileName: fileOf(trace) } }, PERFETTO);
}

/** Returns when Perfetto has loaded: it then answers PING by PONG. */
function answers(there) {
  return new Promise((resolve, reject) => {
    const ping = setInterval(() => there.postMessage("PING", PERFETTO), 100);
    const end = () => {
      clearInterval(ping);
      clearTimeout(late);
      window.removeEventListener("message", hear);
    };
    const hear = (event) => {
      if (event.origin !== PERFETTO || event.source !== there || event.data !== "PONG") return;
      end();
      resolve();
    };
    const late = setTimeout(() => {
      end();
      reject(new Error("ui.perfetto.dev did not answer. Download the trace and open it there later."));
    }, TIMEOUT);
    window.addEventListener("message", hear);
  });
}

/** Returns the two buttons of a trace. `say` shows an error to the user. */
export function actions(trace, say) {
  const button = (label, what) => {
    const node = el("button", {
      type: "button",
      "aria-label": `${label}: trace of device ${trace.device}, session ${trace.session}`,
      onclick: async () => {
        node.disabled = true;
        say("");
        try {
          await what(trace);
        } catch (error) {
          say(`${error.message} ${error.fix ?? ""}`.trim());
        } finally {
          node.disabled = false;
        }
      },
    }, label);
    return node;
  };
  return [button("Download", download), button("Open in Perfetto", openInPerfetto)];
}
