// The tree of servers, drawn. Wide places show it from the top down, narrow ones as an indented list.

import { counted, el, svg } from "./dom.js";

const RING = 2 * Math.PI * 15;

const WIDE = { width: 212, height: 68, gapX: 24, gapY: 44 };
const NARROW = { height: 64, gapY: 12, indent: 22 };

// Brings servers into the order of the tree, each once, even when fathers are named in a circle.
export function ordered(servers) {
  const byIdent = new Map(servers.map((server) => [server.id, server]));
  const children = new Map();
  for (const server of servers) {
    const father = byIdent.has(server.father) && server.father !== server.id ? server.father : "";
    if (!children.has(father)) children.set(father, []);
    children.get(father).push(server);
  }
  const seen = new Set();
  const grow = (server, father, depth) => {
    seen.add(server.id);
    const node = { server, father, depth, children: [] };
    for (const child of children.get(server.id) ?? []) if (!seen.has(child.id)) node.children.push(grow(child, node, depth + 1));
    return node;
  };
  const roots = (children.get("") ?? []).map((root) => grow(root, null, 0));
  for (const server of servers) if (!seen.has(server.id)) roots.push(grow(server, null, 0));
  return roots;
}

export function flat(roots) {
  return roots.flatMap((node) => [node, ...flat(node.children)]);
}

function placeWide(roots) {
  let column = 0;
  let deepest = 0;
  const place = (node) => {
    node.children.forEach(place);
    const [first, last] = [node.children[0], node.children.at(-1)];
    node.x = first ? (first.x + last.x) / 2 : column++ * (WIDE.width + WIDE.gapX);
    node.y = node.depth * (WIDE.height + WIDE.gapY);
    deepest = Math.max(deepest, node.depth);
    Object.assign(node, { width: WIDE.width, height: WIDE.height });
  };
  roots.forEach(place);
  return { width: column * (WIDE.width + WIDE.gapX) - WIDE.gapX, height: (deepest + 1) * (WIDE.height + WIDE.gapY) - WIDE.gapY };
}

function placeNarrow(roots, width) {
  const all = flat(roots);
  all.forEach((node, row) => {
    const x = Math.min(node.depth, 6) * NARROW.indent;
    Object.assign(node, { x, y: row * (NARROW.height + NARROW.gapY), width: width - x, height: NARROW.height });
  });
  return { width, height: all.length * (NARROW.height + NARROW.gapY) - NARROW.gapY };
}

function edgePath(node, isNarrow) {
  const { father } = node;
  if (isNarrow) return `M${father.x + 11} ${father.y + father.height}V${node.y + node.height / 2 - 8}q0 8 8 8H${node.x}`;
  const [x1, y1, x2, y2] = [father.x + father.width / 2, father.y + father.height, node.x + node.width / 2, node.y];
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

// A long name keeps its end, where the port of an address is.
const short = (text, most) => (text.length > most ? `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}` : text);

// The nodes on the way from the own server to the nearest holder; the song takes this way to be found.
function wayToHolder(nodes, holders) {
  const own = nodes.find((node) => node.server.own);
  if (!own) return new Set();
  const before = new Map([[own, null]]);
  for (const node of before.keys()) {
    if (holders.has(node.server.endpoint)) {
      const way = new Set();
      for (let step = node; step; step = before.get(step)) way.add(step);
      return way;
    }
    for (const next of [node.father, ...node.children]) if (next && !before.has(next)) before.set(next, node);
  }
  return new Set();
}

export class Tree {
  constructor(place, onChoose) {
    this.place = place;
    this.onChoose = onChoose;
    this.servers = [];
    this.holders = new Set();
    this.chosen = "";
    this.reached = ""; // the one node that the Tab key reaches
    this.drawn = "";
    new ResizeObserver(() => this.draw()).observe(place);
  }

  show(servers) {
    this.servers = servers;
    this.draw();
  }

  light(endpoints) {
    this.holders = new Set(endpoints);
    this.draw();
  }

  choose(ident) {
    this.chosen = this.chosen === ident ? "" : ident;
    this.draw();
    this.onChoose(this.servers.find((server) => server.id === this.chosen) ?? null);
  }

  draw() {
    const style = getComputedStyle(this.place);
    const room = this.place.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (room <= 0) return;
    const isNarrow = room < 560;
    const state = JSON.stringify([this.servers, [...this.holders], this.chosen, this.reached, isNarrow ? room : 0]);
    if (state === this.drawn) return;
    this.drawn = state;
    const hadFocus = this.place.contains(document.activeElement);
    this.paint(isNarrow, room);
    if (hadFocus) this.place.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  paint(isNarrow, room) {
    const roots = ordered(this.servers);
    this.nodes = flat(roots);
    this.isNarrow = isNarrow;
    if (!this.nodes.length) {
      this.place.replaceChildren(el("div", { class: "empty" }, el("p", { class: "lead" }, "No server is there yet"),
        el("p", {}, "Start a server that names this broker. It appears here by itself, with its songs.")));
      return;
    }
    if (!this.nodes.some((node) => node.server.id === this.reached)) this.reached = this.nodes[0].server.id;
    const size = isNarrow ? placeNarrow(roots, room - 8) : placeWide(roots);
    const way = wayToHolder(this.nodes, this.holders);
    const edges = this.nodes.filter((node) => node.father).map((node) => svg("path", {
      class: way.has(node) && way.has(node.father) ? "edge lit" : "edge", d: edgePath(node, isNarrow),
    }));
    edges.sort((one, other) => one.classList.contains("lit") - other.classList.contains("lit"));
    this.place.replaceChildren(svg("svg", {
      role: "tree", "aria-label": "Servers of the tree", width: size.width + 8, height: size.height + 18,
      viewBox: `-4 -14 ${size.width + 8} ${size.height + 18}`,
    }, edges, this.nodes.map((node) => this.node(node))));
  }

  node(node) {
    const { server } = node;
    const isHolder = this.holders.has(server.endpoint);
    const share = Math.min(1, server.capacity ? server.clients / server.capacity : 0);
    const marks = [server.root && "root", server.own && "yours"].filter(Boolean).join(", ");
    const label = [`${server.label}, ${server.clients} of ${counted(server.capacity, "listener", "listeners")}, ${counted(server.songs, "song", "songs")}`,
      marks, isHolder && "holds the song"].filter(Boolean).join(", ");
    const middle = node.height / 2;
    const letters = Math.floor((node.width - 76) / 9);
    return svg("g", {
      class: `node${isHolder ? " holder" : ""}${server.id === this.chosen ? " chosen" : ""}`, transform: `translate(${node.x} ${node.y})`,
      role: "treeitem", "aria-level": node.depth + 1, "aria-selected": String(server.id === this.chosen), "aria-label": label,
      tabindex: server.id === this.reached ? 0 : -1, "data-id": server.id,
      onclick: () => { this.reached = server.id; this.choose(server.id); },
      onkeydown: (event) => this.key(event, node),
    },
    svg("title", {}, `${server.label} at ${server.endpoint}`),
    svg("rect", { class: "halo", x: -3, y: -3, width: node.width + 6, height: node.height + 6, rx: 17 }),
    svg("rect", { class: "box", width: node.width, height: node.height, rx: 14 }),
    svg("circle", { class: "gauge-back", cx: 34, cy: middle, r: 15 }),
    share > 0 && svg("circle", { class: "gauge", cx: 34, cy: middle, r: 15, transform: `rotate(-90 34 ${middle})`, "stroke-dasharray": `${share * RING} ${RING}` }),
    svg("text", { class: "small", x: 34, y: middle + 4, "text-anchor": "middle" }, String(server.clients)),
    svg("text", { x: 64, y: middle - 3 }, short(server.label, letters)),
    svg("text", { class: "small", x: 64, y: middle + 15 }, [counted(server.songs, "song", "songs"), marks].filter(Boolean).join(" · ")),
    isHolder && svg("g", { class: "badge", transform: `translate(${node.width - 16} 1)` }, svg("circle", { r: 11 }),
      svg("path", { transform: "scale(.6)", d: "M-2.5 -7v13.2a4.4 3.6 0 1 1-2-3v-11.6l10-2.4v10.8a4.4 3.6 0 1 1-2-3v-6z" })),
    );
  }

  key(event, node) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") this.choose(node.server.id);
    else {
      const other = this.neighbour(event.key, node);
      if (other === undefined) return;
      if (other) {
        this.reached = other.server.id;
        this.draw();
        this.place.querySelector("[tabindex='0']")?.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    }
    event.preventDefault();
  }

  // Where an arrow leads: along the drawing, whichever way it is laid out.
  neighbour(key, node) {
    const at = this.nodes.indexOf(node);
    if (key === "Home") return this.nodes[0];
    if (key === "End") return this.nodes.at(-1);
    const row = this.nodes.filter((other) => other.depth === node.depth);
    const inRow = row.indexOf(node);
    const wide = { ArrowUp: node.father, ArrowDown: node.children[0], ArrowLeft: row[inRow - 1], ArrowRight: row[inRow + 1] };
    const narrow = { ArrowUp: this.nodes[at - 1], ArrowDown: this.nodes[at + 1], ArrowLeft: node.father, ArrowRight: node.children[0] };
    const moves = this.isNarrow ? narrow : wide;
    return key in moves ? moves[key] ?? null : undefined;
  }
}

// The same tree as nested lists, for those who would rather read it.
export function treeList(servers, holders) {
  const branch = (nodes) => el("ul", {}, nodes.map((node) => {
    const { server } = node;
    const marks = [server.root && "root", server.own && "yours", holders.has(server.endpoint) && "holds the song"].filter(Boolean).join(", ");
    return el("li", {}, el("strong", {}, server.label),
      ` ${server.clients} of ${counted(server.capacity, "listener", "listeners")}, ${counted(server.songs, "song", "songs")}${marks && ` (${marks})`}`,
      node.children.length ? branch(node.children) : null);
  }));
  return servers.length ? branch(ordered(servers)) : el("p", { class: "quiet" }, "No server is there yet.");
}
