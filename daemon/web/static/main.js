// The frame of the page: which view is shown, who is signed in, and whether what is shown is fresh.

import { el, fill, foreign, searchBySlash } from "./dom.js";
import { follow, lineOf, signIn, signOut, wasSignedIn } from "./reach.js";
import { Store } from "./store.js";
import { lasting, moment } from "./words.js";
import * as overview from "./overview.js";
import * as map from "./map.js";
import * as queue from "./queue.js";
import * as job from "./job.js";
import * as plan from "./plan.js";
import * as events from "./events.js";
import * as sharing from "./sharing.js";
import * as shares from "./shares.js";
import * as steering from "./steering.js";

/**
 * What an address asks for: what stands behind a view's name in it, and behind the question mark.
 * @typedef {{ rest: string[], query: URLSearchParams }} Place
 */
/**
 * A view on the screen: drawn anew after each change, and told when it goes.
 * @typedef {{ update: () => void, close?: () => void }} Shown
 */
/** @typedef {(root: HTMLElement, store: Store, place: Place) => Shown} Open */

/** @type {Record<string, { title?: string, open: Open }>} Those without a title are not in the menu. */
const VIEWS = { overview, map, queue, plan, sharing, events, shares, steering, job };
const STALE = 3; // rounds without success after which it is told how old the last one is, as by onesd
const store = new Store();
const main = el("main", { id: "main", tabindex: "-1" });
const notice = aNotice();
const late = aNotice();
const unusedLink = aNotice();
const live = el("span", { class: "live" });
const pill = el("a", { class: "pill", href: "#/steering" });
const who = el("span", { class: "who" });
const out = el("button", { class: "plain", click: leave }, "Sign out");
const links = new Map(
  Object.entries(VIEWS)
    .filter(([, view]) => view.title)
    .map(([name, view]) => [name, el("a", { href: `#/${name}` }, view.title)]),
);
const nav = el("nav", { "aria-label": "Views" }, [...links.values()]);
const head = el(
  "header",
  {},
  el("a", { class: "brand", href: "#/overview" }, "ONES"),
  nav,
  el("span", { class: "session" }, live, pill, who, out),
);
/** @type {Shown | null} */
let shown = null;
let loaded = false;

document.body.append(
  el("button", { class: "skip", click: () => main.focus() }, "Skip to the view"),
  head,
  notice,
  late,
  unusedLink,
  main,
);

function aNotice() {
  return el("div", { class: "notice", role: "status", hidden: true });
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decoded);
  return { name: Object.hasOwn(VIEWS, name) ? name : "overview", rest, query: new URLSearchParams(query) };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a link that was cut
  }
}

function show() {
  if (!loaded) return;
  const { name, rest, query } = route();
  shown?.close?.();
  for (const [each, link] of links) {
    if (each === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.className = name;
  const focused = main.contains(document.activeElement);
  const root = fill(main);
  if (focused) main.focus({ preventScroll: true }); // else the keyboard would begin at the top again
  document.title = `${VIEWS[name].title ?? "Job"} – ONES`;
  shown = VIEWS[name].open(root, store, { rest, query });
  links.get(name)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  draw();
}

function update() {
  const { round, mode, paused, policy } = store.values.cluster;
  fill(pill, `${paused ? "paused, " : mode === "observe" ? "observing, " : ""}policy ${policy}`);
  pill.classList.toggle("warn", Boolean(paused));
  pill.setAttribute("title", paused ? `paused by ${paused.by}: ${paused.reason}` : "What operators may do");
  fill(live, round.number ? `round ${round.number}, ${moment(round.at, store.now)}` : "no round has ended yet");
  tellAge();
  draw();
}

/** Rounds may hang while onesd can be reached. */
function tellAge() {
  const { round } = store.values.cluster;
  const seconds = store.now + sinceHeard() - round.at;
  const stale = round.number > 0 && seconds > STALE * round.every;
  told(late, stale && `no round for ${lasting(seconds)}; what is shown is as old, and onesctl status says why.`);
}

function draw() {
  try {
    shown?.update();
  } catch (fault) {
    // A fault of one view is told, and leaves the others as they are.
    told(notice, `This view can't be drawn: ${lineOf(fault)}`);
    console.error(fault);
  }
}

/** @param {HTMLElement} where @param {string | false} words */
function told(where, words = false) {
  where.hidden = !words;
  fill(where, words);
}

/** @param {string} title @param {Child[]} content */
function card(title, ...content) {
  shown?.close?.();
  shown = null;
  loaded = false;
  document.body.classList.add("out");
  main.className = "";
  fill(main, el("section", { class: "card sign-in" }, el("h1", {}, title), content));
}

const HOW = [
  el("p", {}, "On a host where ", el("code", {}, "onesctl"), " works, run"),
  el("pre", {}, el("code", {}, "onesctl web")),
  el("p", {}, "and open the link that it prints. It holds for a while, and once."),
];

/** @type {import("./reach.js").Listener} */
const on = {
  hello(answer) {
    store.operator = answer.operator;
    document.body.classList.remove("out");
    fill(who, foreign(answer.user), answer.operator ? " (operator)" : "");
  },
  state(state) {
    store.take(state);
    told(notice);
    if (!loaded) {
      loaded = true;
      show();
    }
    update();
  },
  changed(message) {
    store.change(message);
    told(notice);
    update();
  },
  beat: tellAge,
  lost(why) {
    told(late);
    if (loaded) told(notice, `${why}; what is shown is ${age()} old, and it is tried again.`);
    else card("One moment", el("p", {}, `${why}; it is tried again.`));
  },
  signedOut(why) {
    for (const each of [notice, late, unusedLink]) told(each);
    const before = wasSignedIn();
    localStorage.removeItem("ones-proof");
    card(
      before ? "Signed out" : "Sign in",
      before && el("p", { class: "why" }, "Your session has ended: it was too old, or onesd was restarted."),
      !before && why && el("p", { class: "why" }, why),
      HOW,
    );
  },
};

const sinceHeard = () => (performance.now() - store.heard) / 1000;
const age = () => lasting(sinceHeard());

async function leave() {
  await signOut().catch(() => {});
  location.reload();
}

async function start() {
  const secret = /^#sign-in=([\w-]+)$/.exec(location.hash)?.[1];
  if (secret !== undefined) {
    // Before anything else: the link is of no use to whoever looks at the address later.
    history.replaceState(null, "", "#/overview");
    try {
      await signIn(secret);
    } catch (fault) {
      if (!wasSignedIn()) return on.signedOut(lineOf(fault));
      told(unusedLink, `${lineOf(fault)}. You stay signed in as before.`);
    }
  }
  if (!wasSignedIn()) on.signedOut("");
  else await follow(on);
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#sign-in=")) location.reload();
  else {
    told(unusedLink);
    show();
  }
});
searchBySlash();
start();
