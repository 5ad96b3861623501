// Small helpers: elements without HTML in strings, so that nothing a server says can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

export const icon = (name) => svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

export function button(label, iconName, action, more = {}) {
  const { class: kind = "round small", ...rest } = more;
  return el("button", { type: "button", class: kind, "aria-label": label, title: label, onclick: action, ...rest }, icon(iconName));
}

export const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export function minutes(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export const byLine = (song) => [song.artist, song.album].filter(Boolean).join(" · ");

// Sets a text only when it is another one: screen readers announce every change of a live region.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let toastTimer = 0;

export function toast(text, action = null) {
  const place = byId("toast");
  clearTimeout(toastTimer);
  const close = () => place.replaceChildren();
  const act = action && el("button", { class: "link", type: "button", onclick: () => { close(); action.run(); } }, action.label);
  place.replaceChildren(el("span", {}, text), ...(act ? [act] : []), el("button", { class: "link", type: "button", onclick: close }, "Close"));
  toastTimer = setTimeout(close, 12000);
}
