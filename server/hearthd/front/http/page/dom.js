// Elements and text. Data of clients, such as names, is inserted as text only: no function here takes HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** A new element; `props` are attributes, but `on...` listeners; children are elements or text. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Changes the text only if it differs, so that selections, screen readers and the layout are not disturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}

/** Shows a state as a badge, whose mark distinguishes it without colours. */
export function setBadge(node, [mark, text, kind]) {
  node.dataset.mark = mark;
  node.className = `badge ${kind}`;
  setText(node, text);
}

/** Sets the children, in this order, without moving those that are in the right place. */
export function setChildren(parent, children) {
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}
