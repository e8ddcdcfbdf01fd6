// Makes elements. Text goes in as text alone: nothing here, or anywhere in the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {{ [Name in keyof GlobalEventHandlersEventMap]?: (event: GlobalEventHandlersEventMap[Name]) => unknown }} Listeners
 * @typedef {Listeners & Record<string, string | number | boolean | null | undefined | ((event: never) => unknown)>} Attributes
 */

/**
 * An HTML element; attributes that are functions become listeners, false and null are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @template {Element} Made
 * @param {Made} node
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, /** @type {EventListener} */ (value));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...there(children));
  return node;
}

/**
 * Those that are there, out of all lists.
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function there(children) {
  return children.flatMap((child) => {
    if (Array.isArray(child)) return there(child);
    return child === null || child === undefined || child === false ? [] : [child];
  });
}

/**
 * Foreign text, kept from turning round what stands beside it.
 * @param {string} text
 * @param {Attributes} attributes
 */
export function foreign(text, attributes = {}) {
  return el("bdi", attributes, text === "" ? "–" : text);
}

/**
 * Put these in the place of all that a node has.
 * @template {Element} Filled
 * @param {Filled} node
 * @param {Child[]} children
 */
export function fill(node, ...children) {
  node.replaceChildren(...there(children));
  return node;
}

/**
 * The element that something happened to, or the nearest one around it, that is of this kind.
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export function around({ target }, selector) {
  return target instanceof Element ? target.closest(selector) : null;
}

/**
 * Keeps one child for each key, in order; a child is made anew only where its row has changed, or
 * what else it is made of.
 * @template Row
 */
export class Keyed {
  /** @param {Element} root @param {(key: string, row: Row) => HTMLElement} make */
  constructor(root, make) {
    this.root = root;
    this.make = make;
    /** @type {Map<string, { mark: string, node: HTMLElement }>} */
    this.kept = new Map();
  }

  /** @param {[key: string, row: Row][]} rows @param {string} also */
  show(rows, also = "") {
    // Before the others are put in order: whichever is moved loses the focus.
    const wanted = new Set(rows.map(([key]) => key));
    for (const [key, { node }] of this.kept) if (!wanted.has(key)) node.remove();
    /** @type {typeof this.kept} */
    const kept = new Map();
    /** @type {ChildNode | null} */
    let before = this.root.firstChild;
    for (const [key, row] of rows) {
      const mark = JSON.stringify(row) + also;
      let known = this.kept.get(key);
      if (known === undefined) known = { mark, node: this.make(key, row) };
      else if (known.mark !== mark) {
        const { activeElement: active } = document;
        const focused = active instanceof HTMLElement && known.node.contains(active) && active.dataset.focus;
        const fresh = this.make(key, row);
        if (known.node === before) before = fresh;
        known.node.replaceWith(fresh);
        known = { mark, node: fresh };
        if (focused) /** @type {HTMLElement | null} */ (fresh.querySelector(`[data-focus="${CSS.escape(focused)}"]`))?.focus();
      }
      kept.set(key, known);
      if (known.node === before) before = before.nextSibling;
      else this.root.insertBefore(known.node, before);
    }
    this.kept = kept;
  }
}

/**
 * Links to the variants of a view, of which one is shown.
 * @param {string} label
 * @param {string} view
 * @param {Record<string, string>} variants
 * @param {string} shown
 */
export function tabs(label, view, variants, shown) {
  const chosen = /\?.*$/.exec(location.hash)?.[0] ?? "";
  return el(
    "div",
    { class: "tabs", role: "group", "aria-label": label },
    Object.entries(variants).map(([name, words]) =>
      el("a", { href: `#/${view}/${name}${chosen}`, "aria-current": name === shown ? "true" : null }, words),
    ),
  );
}

/**
 * A table under these heads.
 * @param {string[]} heads
 * @param {HTMLTableSectionElement} body
 * @param {Attributes} attributes
 */
export function table(heads, body, attributes = {}) {
  return el("table", attributes, el("thead", {}, el("tr", {}, heads.map((words) => el("th", { scope: "col" }, words)))), body);
}

/**
 * A bar as long as a share; its class says what of.
 * @param {number} share
 * @param {string | null} name
 */
export function bar(share, name = null) {
  const inner = el("i", { class: name });
  inner.style.width = `${100 * share}%`;
  return el("span", { class: "track" }, inner);
}

/**
 * The same with words behind it.
 * @param {number} share
 * @param {string} words
 * @param {string | null} name
 */
export function measure(share, words, name = null) {
  return el("span", { class: "measure" }, bar(share, name), words);
}

/** From now on the key / leads to the field that searches, where there is one. */
export function searchBySlash() {
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || around(event, "input, textarea, select")) return;
    /** @type {HTMLInputElement | null} */
    const search = document.querySelector("input[type=search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
  });
}
