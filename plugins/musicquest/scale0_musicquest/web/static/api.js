// Questions to the server of this page. A failure is an Error whose text can be shown.

export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  let answer;
  try {
    answer = await fetch(query ? `${path}?${query}` : path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("This page's own server does not answer. Is the program still running?");
  }
  if (answer.status === 403) throw new Error("This session has ended. Open the link from the terminal again.");
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  const { what = `The server answered with code ${answer.status}.`, why = "", next = "" } = told.error ?? {};
  throw new Error([what, why, next].filter(Boolean).join(" "));
}

// Tells the state whenever it changes. A page that nobody sees does not listen: browsers open few connections.
export function watch(onState, onLost) {
  let source = null;
  const open = () => {
    source = new EventSource("/api/live");
    source.addEventListener("state", (event) => onState(JSON.parse(event.data)));
    source.addEventListener("error", () => onLost(source));
  };
  const close = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!source) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted && !source) open(); });
  open();
}
