// Speaks to onesd: the session, questions, and the stream of changes.
//
// A session has two secrets. The cookie is the browser's, and no script sees it; the proof is kept
// for this very host and port, and goes with every question in a header that no other site may set.

const KEY = "ones-proof";
const LONGEST_PAUSE = 15000; // ms between two tries
const ANSWERED = 30000; // ms for an answer
const BEATS = 45000; // ms for three of the beats by which onesd says that it is there
const AGAIN = 5000; // ms between two readings of what is asked for beside the stream

export class SignedOut extends Error {}

/**
 * Who hears what onesd sends, and what becomes of the connection.
 * @typedef {object} Listener
 * @property {(answer: Page.Hello) => void} hello
 * @property {(state: Page.State) => void} state
 * @property {(message: Page.Change) => void} changed
 * @property {() => void} beat that there is nothing new
 * @property {(why: string) => void} lost
 * @property {(why: string) => void} signedOut
 */

/**
 * A fault in a line for people.
 * @param {unknown} fault
 */
export const lineOf = (fault) => (fault instanceof Error ? fault.message : String(fault));

/**
 * Exchange the secret of a link for a session.
 * @param {string} secret
 */
export async function signIn(secret) {
  /** @type {{ proof: string }} */
  const answer = await asked("POST", "/sign-in", { secret });
  localStorage.setItem(KEY, answer.proof);
}

export async function signOut() {
  await asked("POST", "/sign-out", {}).finally(() => localStorage.removeItem(KEY));
}

export const wasSignedIn = () => localStorage.getItem(KEY) !== null;

function headers() {
  return { "Ones-Proof": localStorage.getItem(KEY) ?? "", "Content-Type": "application/json" };
}

/**
 * One question, its JSON answer. Throws SignedOut, or an Error with a line for people.
 * @template Answer
 * @param {"GET" | "POST"} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<Answer>}
 */
export async function asked(method, path, body) {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWERED);
  try {
    const reply = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body), signal: late.signal, cache: "no-store" }).catch(gone);
    const answer = await reply.json().catch((fault) => (fault instanceof SyntaxError ? {} : gone(fault)));
    if (reply.status === 401) throw new SignedOut(answer.error);
    if (!reply.ok) throw new Error(answer.error ?? `onesd answered ${reply.status}`);
    return answer;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * For a view of what is asked for while it is open: at once, and again after a round, though not
 * after each. The last answer is shown again beside all that has come since: a round's jobs come
 * after the message that made the view ask. `failed` gets a line for people.
 * @template Answer
 * @param {string} path
 * @param {{ show: (answer: Answer) => void, failed: (fault: string) => void }} on
 */
export function reading(path, { show, failed }) {
  let read = -Infinity;
  let closed = false;
  /** @type {Answer | null} */
  let last = null;
  async function load() {
    read = performance.now();
    try {
      /** @type {Answer} */
      const answer = await asked("GET", path);
      last = answer;
      if (!closed) show(answer);
    } catch (fault) {
      last = null;
      if (!closed) failed(lineOf(fault));
    }
  }
  return {
    update() {
      if (last !== null) show(last);
      if (performance.now() - read > AGAIN) load();
    },
    close() {
      closed = true;
    },
  };
}

/**
 * Follows what onesd sends, while the page can be seen: a page that nobody looks at costs nothing,
 * and a browser has few connections to one host.
 * @param {Listener} on
 */
export async function follow(on) {
  let pause = 500;
  for (;;) {
    if (document.hidden) await seen();
    const proof = localStorage.getItem(KEY);
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      await oneStream(on, stop.signal, () => (pause = 500));
      if (!stop.signal.aborted) throw new Error("the connection to onesd was closed");
    } catch (fault) {
      if (fault instanceof SignedOut) {
        if (wasSignedIn() && localStorage.getItem(KEY) !== proof) continue; // anew, in another window
        on.signedOut(fault.message);
        return;
      }
      if (!stop.signal.aborted) {
        on.lost(lineOf(fault));
        // Not all pages at once, when onesd comes back.
        await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
        pause = Math.min(LONGEST_PAUSE, pause * 2);
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
      stop.abort();
    }
  }
}

/** @returns {Promise<void>} */
function seen() {
  return new Promise((done) => {
    document.addEventListener("visibilitychange", function look() {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    });
  });
}

/**
 * @param {unknown} [fault]
 * @returns {never}
 */
function gone(fault) {
  const late = fault instanceof DOMException && fault.name === "AbortError";
  throw new Error(late ? `onesd has not answered for ${ANSWERED / 1000} s` : "onesd does not answer");
}

/**
 * The same, unless it takes longer than onesd is ever silent: a connection can hang without being
 * closed.
 * @template Found
 * @param {Promise<Found>} waiting
 * @returns {Promise<Found>}
 */
function inTime(waiting) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @type {Promise<never>} */
  const silence = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`onesd has not been heard for ${BEATS / 1000} s`)), BEATS);
  });
  return Promise.race([waiting, silence]).finally(() => clearTimeout(timer));
}

/** @param {Listener} on @param {AbortSignal} signal @param {() => void} well */
async function oneStream(on, signal, well) {
  const reply = await inTime(fetch("/data/changes", { headers: headers(), signal, cache: "no-store" }).catch(gone));
  if (reply.status === 401) throw new SignedOut((await reply.json()).error);
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error ?? "onesd refuses");
  /** @type {number | null} */
  let serial = null;
  for await (const message of messages(reply.body ?? gone())) {
    if (message === null) on.beat();
    else if ("ended" in message) throw new SignedOut("your session has ended");
    else if ("hello" in message) {
      on.hello(message.hello);
      /** @type {Page.State} */
      const state = await asked("GET", "/data/state");
      serial = state.serial;
      on.state(state);
      well();
    } else if (message.from === serial) {
      serial = message.serial;
      on.changed(message);
    } else if (serial === null || message.serial > serial) {
      /** @type {Page.State} */
      const state = await asked("GET", "/data/state"); // one was missed
      serial = state.serial;
      on.state(state);
    }
  }
}

/**
 * The messages of a stream of server-sent events; null: a beat.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<Page.Message | null, void>}
 */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await inTime(reader.read().catch(gone));
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop() ?? "";
    for (const part of parts) yield part.startsWith("data: ") ? JSON.parse(part.slice(6)) : null;
  }
}
