// Puts the parts of the page together: searching, the queue, the player, the tree.

import { ask, watch } from "./api.js";
import { byId, byLine, button, counted, el, icon, minutes, say, toast } from "./dom.js";
import { mediaKeys, Player } from "./player.js";
import { Queue, REPEATS } from "./queue.js";
import { Tree, treeList } from "./tree.js";

const KEPT = "musicquest";
const TYPING_MS = 180;
const HOLDERS_MS = 10000;
const PAGE = 50;
const OFFERED = 5;

const kept = (() => {
  try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
})();
const queue = new Queue(kept.queue);
const player = new Player(() => queue.following());
const tree = new Tree(byId("tree"), showServer);

let state = { servers: [], top: [], trouble: null };
let marked = null; // the song whose holders the tree shows
let query = byId("q").value.trim();

function keep() {
  try {
    localStorage.setItem(KEPT, JSON.stringify({ queue, volume: player.volume, muted: player.muted }));
  } catch { /* without storage the queue lasts as long as the page */ }
}

// --- songs in rows

function songRow(song, withHolders = true) {
  return el("li", { class: "song", "data-name": song.name },
    button(`Play ${song.title}`, "play", () => (isPlaying(song) ? player.toggle() : start(song)), { class: "round start", "data-title": song.title }),
    el("div", { class: "name" }, el("span", { class: "title" }, song.title), el("span", { class: "by" }, byLine(song) || (song.title === song.name ? "" : song.name))),
    el("span", { class: "facts" },
      withHolders && song.holders ? el("button", { class: "link holding", type: "button", title: "Show in the tree who holds it", onclick: () => mark(song) }, counted(song.holders.length, "holder", "holders")) : null,
      song.duration ? minutes(song.duration + 0.5) : null),
    el("a", { class: "round small save", href: song.url, download: song.name, "aria-label": `Save ${song.title}`, title: "Save to a file" }, icon("save")),
    button(`Add ${song.title} to the queue`, "add", () => add(song)),
  );
}

const isPlaying = (song) => Boolean(player.song) && player.song.name === song.name && (!song.sha256 || !player.song.sha256 || player.song.sha256 === song.sha256);

function markPlaying() {
  for (const row of document.querySelectorAll("[data-name]")) {
    const playing = row.dataset.name === player.song?.name;
    row.classList.toggle("playing", playing);
    if (playing) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    const begin = row.querySelector(".start");
    if (begin) choose(begin, `${playing && player.playing ? "Pause" : "Play"} ${begin.dataset.title}`, playing && player.playing ? "pause" : "play");
  }
}

// --- searching

let typing = 0;
let asking = new AbortController();

async function search() {
  clearTimeout(typing);
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  query = byId("q").value.trim();
  history.replaceState(null, "", query ? `/?${new URLSearchParams({ q: query })}` : "/");
  if (!query) return showIntroduction();
  const late = setTimeout(() => say(byId("found"), "Asking the servers…"), 300);
  try {
    const found = await ask("/api/search", { q: query, limit: PAGE }, signal);
    showFound(found);
  } catch (error) {
    if (!signal.aborted) showMessage("The search failed.", error.message);
  } finally {
    clearTimeout(late);
  }
}

function showIntroduction() {
  say(byId("found"), "");
  showMessage("What would you like to hear?", "Type a title, an artist, an album, or the name of a file. Every server of the tree is asked.");
  introduced = "";
  offerOwn();
}

let introduced = "";

// Before anything is looked for, a few songs of the own server are there to begin with.
async function offerOwn() {
  const own = state.servers.find((server) => server.own);
  const now = own ? `${own.id} ${own.songs}` : "";
  if (query || !own?.songs || introduced === now) return;
  introduced = now;
  const told = await ask("/api/songs", { server: own.id, limit: OFFERED }).catch(() => null);
  if (!told?.songs.length || query) return;
  byId("results").querySelector(".songs")?.remove();
  byId("results").append(el("ul", { class: "songs", "aria-label": "Songs of your server" }, told.songs.map((song) => songRow(song, false))));
  markPlaying();
}

function showMessage(lead, ...rest) {
  if (query) say(byId("found"), "");
  byId("results").replaceChildren(el("div", { class: "empty" }, el("p", { class: "lead" }, lead), ...rest.map((part) => (part instanceof Node ? part : el("p", {}, part)))));
}

function showFound({ hits, suggestions, complete }) {
  if (!hits.length) {
    const chips = suggestions.map((text) => el("li", {}, el("button", { class: "chip", type: "button", onclick: () => { byId("q").value = text; search(); byId("q").focus(); } }, text)));
    showMessage(`No server has “${query}”.`, ...(chips.length ? ["Did you mean", el("ul", { class: "chips" }, chips)] : ["Try fewer or shorter words."]));
    say(byId("found"), complete ? "" : "Some servers did not answer in time; there may be more.");
    return;
  }
  byId("results").replaceChildren(el("ul", { class: "songs" }, hits.map((song) => songRow(song))));
  markPlaying();
  const shown = hits.length >= PAGE ? `The first ${PAGE} songs` : counted(hits.length, "song", "songs");
  say(byId("found"), `${shown} for “${query}”${complete ? "" : ". Some servers did not answer in time; there may be more."}`);
}

byId("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
byId("q").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, TYPING_MS); });

// --- the queue

function start(song) {
  const there = queue.add(song, true);
  if (!there) return toast("The queue is full. Remove some songs first.");
  play(there);
}

function play(song) {
  queue.current = song;
  player.load(song);
  mark(song);
  showQueue();
}

function add(song) {
  const size = queue.songs.length;
  const there = queue.add(song);
  if (!there) toast("The queue is full. Remove some songs first.");
  else if (queue.songs.length === size) toast(`“${song.title}” is in the queue already.`);
  showQueue();
}

function next(byHand = true) {
  const song = queue.following(byHand);
  if (song) play(song);
  else player.pause();
}

function previous() {
  const song = player.time > 3 ? null : queue.before();
  if (song) play(song);
  else player.seek(0);
}

function remove(song) {
  const wasCurrent = song === queue.current;
  queue.remove(song);
  if (wasCurrent && queue.current) player.load(queue.current, player.playing);
  else if (wasCurrent) player.unload();
  showQueue();
}

function showQueue() {
  keep();
  const { songs } = queue;
  const total = songs.reduce((sum, song) => sum + (song.duration || 0), 0);
  say(byId("queue-facts"), songs.length ? `${counted(songs.length, "song", "songs")}${total ? `, ${minutes(total)}` : ""}` : "");
  byId("clear").hidden = !songs.length;
  const focus = document.activeElement?.dataset?.act;
  byId("queue").replaceChildren(songs.length ? el("ol", { tabindex: songs.length > 6 ? 0 : false, "aria-labelledby": "queue-title" }, songs.map(queueRow))
    : el("div", { class: "empty" }, el("p", { class: "lead" }, "Nothing is queued"), el("p", {}, "Add songs with the plus sign. They wait here, also when you come back.")));
  if (focus) byId("queue").querySelector(`[data-act="${CSS.escape(focus)}"]:not(:disabled)`)?.focus();
  const none = !songs.length;
  byId("next").disabled = none || !queue.following(true);
  byId("previous").disabled = none;
  byId("play").disabled = none;
  markPlaying();
}

function queueRow(song, place, songs) {
  const tool = (act, label, action, disabled = false) => button(`${label} ${song.title}`, act, action, { disabled, "data-act": `${act} ${song.name}` });
  return el("li", { class: "queued", "data-name": song.name },
    el("button", { class: "name", type: "button", "aria-label": `Play ${song.title}`, "data-act": `play ${song.name}`, onclick: () => play(song) },
      el("span", { class: "title" }, song.title), el("span", { class: "by" }, [song.artist, song.duration && minutes(song.duration + 0.5)].filter(Boolean).join(" · "))),
    el("span", { class: "tools" },
      tool("up", "Move up", () => { queue.move(song, -1); showQueue(); }, place === 0),
      tool("down", "Move down", () => { queue.move(song, 1); showQueue(); }, place === songs.length - 1),
      tool("remove", "Remove", () => remove(song))),
  );
}

byId("clear").addEventListener("click", () => { queue.clear(); player.unload(); showQueue(); });

// --- the player

function choose(element, label, iconName = null) {
  element.setAttribute("aria-label", label);
  element.title = label;
  if (iconName) element.querySelector("use").setAttribute("href", `#i-${iconName}`);
}

function fillRange(element, played, buffered = 0) {
  element.style.setProperty("--played", `${(100 * played).toFixed(2)}%`);
  element.style.setProperty("--buffered", `${(100 * buffered).toFixed(2)}%`);
}

let seeking = false;

function showPlayer() {
  const { song, duration } = player;
  say(byId("now-title"), song ? song.title : "Nothing is playing");
  const by = song ? byLine(song) || song.name : "Choose a song, and it plays at once";
  say(byId("now-by"), player.waiting && song ? "Waiting for the song…" : by);
  byId("player").classList.toggle("waiting", Boolean(song) && player.waiting);
  choose(byId("play"), player.playing ? "Pause" : "Play", player.playing ? "pause" : "play");
  const seek = byId("seek");
  seek.disabled = !song || !duration;
  const share = duration ? Math.min(1, player.time / duration) : 0;
  if (!seeking) {
    seek.value = Math.round(share * 1000);
    fillRange(seek, share, duration ? Math.min(1, player.buffered / duration) : 0);
  }
  seek.setAttribute("aria-valuetext", song ? `${minutes(player.time)} of ${minutes(duration)}` : "");
  say(byId("clock"), song && duration ? `${minutes(player.time)} / ${minutes(duration)}` : "");
  const silent = player.muted || !player.volume;
  choose(byId("mute"), silent ? "Sound on" : "Mute", silent ? "muted" : "volume");
  byId("volume").value = Math.round(player.volume * 100);
  fillRange(byId("volume"), silent ? 0 : player.volume);
  document.title = song ? `${song.title} · Music Quest` : "Music Quest";
}

function showModes() {
  byId("shuffle").setAttribute("aria-pressed", String(queue.shuffle));
  choose(byId("repeat"), { off: "Repeat: off", all: "Repeat: all songs", one: "Repeat: this song" }[queue.repeat]);
  byId("repeat").classList.toggle("on", queue.repeat !== "off");
  say(byId("repeat-mark"), queue.repeat === "one" ? "1" : "");
}

let shown = [null, false];

player.addEventListener("change", () => {
  showPlayer();
  if (shown[0] === player.song && shown[1] === player.playing) return;
  shown = [player.song, player.playing];
  markPlaying();
});
player.addEventListener("ended", () => {
  if (queue.repeat === "one") { player.seek(0); player.play(); } else next(false);
});
player.addEventListener("failed", ({ detail: song }) => {
  toast(`“${song.title}” stopped arriving. Its holders may have gone.`, { label: "Try again", run: () => player.load(song) });
});

byId("play").addEventListener("click", () => {
  if (player.song) player.toggle();
  else if (queue.current ?? queue.following(true)) play(queue.current ?? queue.following(true));
});
byId("next").addEventListener("click", () => next());
byId("previous").addEventListener("click", previous);
byId("shuffle").addEventListener("click", () => { queue.setShuffle(!queue.shuffle); showModes(); showQueue(); });
byId("repeat").addEventListener("click", () => {
  queue.repeat = REPEATS[(REPEATS.indexOf(queue.repeat) + 1) % REPEATS.length];
  showModes();
  showQueue();
});
byId("seek").addEventListener("input", (event) => {
  seeking = true;
  fillRange(event.target, event.target.value / 1000, player.duration ? player.buffered / player.duration : 0);
});
byId("seek").addEventListener("change", (event) => { seeking = false; player.seek((event.target.value / 1000) * player.duration); });
byId("seek").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -5, ArrowRight: 5, PageDown: -30, PageUp: 30 }[event.key];
  if (by) { event.preventDefault(); player.seek(player.time + by); }
});
byId("volume").addEventListener("input", (event) => { player.volume = event.target.value / 100; player.muted = false; keep(); });
byId("mute").addEventListener("click", () => { player.muted = !player.muted; keep(); });
mediaKeys(player, { next, previous });

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    byId("q").focus();
    byId("q").select();
  } else if (event.key === " " && event.target === document.body && player.song) {
    event.preventDefault();
    player.toggle();
  }
});

// --- the tree, and what is played most

async function mark(song) {
  marked = { song, holders: (song.holders ?? []).map((holder) => holder.endpoint), at: 0 };
  showHolders();
  await refreshHolders();
}

async function refreshHolders() {
  if (!marked || Date.now() - marked.at < HOLDERS_MS) return;
  const mine = marked;
  mine.at = Date.now();
  const { name, sha256 } = mine.song;
  try {
    const told = await ask(`/api/holders/${encodeURIComponent(name)}`, sha256 ? { sha: sha256 } : {});
    mine.holders = told.holders.map((holder) => holder.endpoint);
  } catch {
    return; // the verdict line tells of trouble; what was known stays
  }
  if (marked === mine) showHolders();
}

function showHolders() {
  const holders = new Set(marked?.holders ?? []);
  const names = state.servers.filter((server) => holders.has(server.endpoint)).map((server) => server.label);
  say(byId("holders"), marked && names.length ? `“${marked.song.title}” is on ${names.join(", ")}` : "");
  tree.light(holders);
  showList(holders);
}

let listed = "";

function showList(holders) {
  const now = JSON.stringify([state.servers, [...holders]]);
  if (now === listed) return;
  listed = now;
  byId("tree-list").replaceChildren(treeList(state.servers, holders));
}

async function showServer(server, offset = 0) {
  const place = byId("server");
  if (!server) return place.replaceChildren();
  try {
    const { total, songs } = await ask("/api/songs", { server: server.id, offset, limit: PAGE });
    const rows = songs.map((song) => songRow(song, false));
    const list = offset ? place.querySelector("ul") : el("ul", { class: "songs", tabindex: 0, "aria-label": `Songs of ${server.label}` });
    list.append(...rows);
    const here = offset + songs.length;
    const more = here < total && songs.length ? el("button", { class: "link", type: "button", onclick: () => showServer(server, here) }, `Show more, ${(total - here).toLocaleString("en")} are left`) : null;
    const title = el("div", { class: "heading" }, el("h2", {}, `Songs of ${server.label}`), el("span", { class: "quiet" }, counted(total, "song", "songs")),
      el("button", { class: "link", type: "button", onclick: () => tree.choose(server.id) }, "Close"));
    place.replaceChildren(title, total ? list : el("p", { class: "quiet" }, "No songs yet. Put files into its folder; it finds them by itself."), ...(more ? [more] : []));
    markPlaying();
  } catch (error) {
    place.replaceChildren(el("p", { class: "quiet" }, `The songs of ${server.label} cannot be listed. ${error.message}`));
  }
}

let topShown = "";

function showTop(rows) {
  const now = JSON.stringify(rows);
  if (now === topShown) return;
  topShown = now;
  byId("top").replaceChildren(rows.length ? el("ol", { class: "toplist" }, rows.map((song) => el("li", { "data-name": song.name },
    el("button", { class: "name", type: "button", "aria-label": `Play ${song.title}`, onclick: () => start(song) }, el("span", { class: "title" }, song.title), el("span", { class: "by" }, song.artist)),
    el("span", { class: "facts" }, counted(song.count, "play", "plays")))))
    : el("p", { class: "quiet" }, "What is played here shows up in this place."));
  markPlaying();
}

function verdict({ servers, trouble }) {
  const line = byId("verdict");
  line.classList.toggle("bad", Boolean(trouble));
  if (trouble) return say(line, [trouble.what, trouble.next].filter(Boolean).join(" "));
  if (!servers.length) return say(line, "No server is there yet.");
  const sum = (field) => servers.reduce((total, server) => total + server[field], 0);
  return say(line, [counted(servers.length, "server", "servers"), counted(sum("songs"), "song", "songs"), counted(sum("clients"), "listener", "listeners")].join(" · "));
}

function onState(now) {
  state = now;
  verdict(now);
  tree.show(now.servers);
  showTop(now.top);
  offerOwn();
  showHolders();
  refreshHolders();
}

function onLost(source) {
  const line = byId("verdict");
  line.classList.add("bad");
  say(line, source.readyState === EventSource.CLOSED ? "This session has ended. Open the link from the terminal again." : "This page's own server does not answer. Trying again…");
}

// --- begin

byId("tree-text").open = false;
player.volume = typeof kept.volume === "number" && kept.volume >= 0 && kept.volume <= 1 ? kept.volume : 0.8;
player.muted = kept.muted === true;
if (queue.current) player.load(queue.current, false);
showModes();
showQueue();
showPlayer();
if (query) search();
else showIntroduction();
watch(onState, onLost);
