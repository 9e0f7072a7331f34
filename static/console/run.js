// The run page, live: events of the socket go through the one reducer, and the rows are filled from its state.

import { announce } from "./shell.js";
import { Timeline, isProblem } from "./timeline.js";

const page = JSON.parse(document.getElementById("run-state").textContent);
const timeline = new Timeline(page.words, page.state);
const list = document.querySelector("[data-timeline]");
const template = document.getElementById("timeline-row");
const LINKS = { apr_: "Open the review", op_: "Open the operation" };
const BACKOFF_MS = [500, 15_000];
const POLL_MS = 5_000;
const REFUSED = [4401, 4403, 4404];
const loadedAt = performance.now();
let folded = page.folded;

// The server's clock, carried on by the browser's.
const now = () => Math.floor(page.clock + performance.now() - loadedAt);
const named = (text) => text.replace(/user:\d+/g, (found) => page.names[found] ?? found);
const set = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
};
const prefixOf = (key) => Object.keys(page.urls).find((prefix) => key.startsWith(prefix));
const urlOf = (key) => (prefixOf(key) ? page.urls[prefixOf(key)].replace(`${prefixOf(key)}key`, encodeURIComponent(key)) : "");

// ---- Rows ----

const SVG = "http://www.w3.org/2000/svg";

function rowOf(key) {
    const known = document.getElementById(`g-${key}`);
    if (known) return known;
    const row = document.createElement("li");
    row.className = "tl-row";
    row.id = `g-${key}`;
    row.dataset.group = key;
    row.append(template.content.cloneNode(true));
    list.append(row);
    return row;
}

function drawRow(group, seen) {
    const row = rowOf(group.key);
    const slot = (name) => row.querySelector(`[data-slot="${name}"]`);
    row.dataset.lane = group.lane;
    row.dataset.state = group.state;
    row.toggleAttribute("data-problem", isProblem(group));
    set(slot("offset"), seen.offset);
    set(slot("lane"), page.words.lane[group.lane]);
    set(slot("title"), named(group.title));
    set(slot("note"), named(group.note));
    set(slot("word").querySelector("span"), named(group.word));
    slot("word").querySelector("use").setAttribute("href", `#s-${group.state}`);
    set(slot("took"), seen.took);
    set(slot("detail-title"), named(group.title));
    drawBars(slot("bars"), group, seen.bars);
    drawIdle(row, seen.idle);
    drawDetail(slot, group);
}

function drawBars(svg, group, bars) {
    const rects = bars.map((bar) => {
        const rect = document.createElementNS(SVG, "rect");
        const open = ["active", "waiting"].includes(bar.look) && !group.end;
        rect.setAttribute("class", `bar bar-${bar.look}${open ? " bar-open" : ""}`);
        const tenths = (units) => `${Math.floor(units / 10)}.${units % 10}%`;
        rect.setAttribute("x", tenths(bar.x));
        rect.setAttribute("y", "3");
        rect.setAttribute("width", tenths(bar.width));
        rect.setAttribute("height", "8");
        rect.setAttribute("rx", "2");
        return rect;
    });
    svg.replaceChildren(...rects);
}

function drawIdle(row, text) {
    let idle = row.querySelector(".tl-idle");
    if (!text) return idle?.remove();
    if (!idle) {
        idle = document.createElement("p");
        idle.className = "tl-idle";
        row.prepend(idle);
    }
    set(idle, text);
}

function drawDetail(slot, group) {
    const lines = group.lines.map(([name, text]) => {
        const line = document.createElement("div");
        const term = document.createElement("dt");
        const value = document.createElement("dd");
        term.textContent = name;
        value.dir = "auto";
        value.textContent = named(text);
        line.append(term, value);
        return line;
    });
    slot("lines").replaceChildren(...lines);
    slot("text").hidden = !group.text;
    set(slot("text"), group.text);
    const href = urlOf(group.key);
    if (href && !slot("link").firstElementChild) {
        const link = document.createElement("a");
        link.href = href;
        link.textContent = LINKS[prefixOf(group.key)];
        slot("link").replaceChildren(link);
    }
}

// ---- Head ----

function drawHead() {
    const { state } = timeline;
    const pill = document.querySelector("[data-status]");
    pill.className = `pill state-${state.status}`;
    set(pill, timeline.statusLabel());
    document.title = document.title.replace(/ · [^·]* · AgentOps$/, ` · ${timeline.statusLabel()} · AgentOps`);
    const line = timeline.nowLine();
    const box = document.querySelector("[data-now]");
    box.className = `now look-${line.look}`;
    box.querySelector("use").setAttribute("href", `#s-${line.look}`);
    set(box.querySelector("[data-now-text]"), named(line.text));
    const link = box.querySelector("[data-now-link]");
    link.hidden = !line.key.startsWith("apr_");
    if (urlOf(line.key)) link.href = urlOf(line.key);
    else link.removeAttribute("href");
    const answer = timeline.answer();
    document.querySelector("[data-answer]").hidden = !answer;
    set(document.querySelector("[data-answer-text]"), answer);
    if (state.finished) for (const button of document.querySelectorAll("[data-cancel], [data-control]")) button.remove();
    tell(named(line.text));
}

function drawFigures() {
    const values = document.querySelectorAll("[data-figures] dd");
    timeline.figures(now(), page.budget_microusd).forEach(([, value], i) => set(values[i], value));
}

function draw() {
    const seen = timeline.view(now(), folded);
    for (const row of seen.rows) drawRow(timeline.state.groups[row.key], row);
    const tail = document.querySelector("[data-tail]");
    tail.hidden = !seen.tail;
    set(tail, seen.tail);
    drawFigures();
}

// At most one polite sentence in five seconds, the latest.
let told = timeline.nowLine().text;
let toldAt = 0;
let telling = null;

function tell(text) {
    if (text === told) return;
    told = text;
    if (telling) return;
    telling = setTimeout(() => {
        telling = null;
        toldAt = Date.now();
        announce(told);
    }, Math.max(0, toldAt + 5000 - Date.now()));
}

// ---- Events ----

let frame = null;

function take(events) {
    const atEnd = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 40;
    const before = Object.keys(timeline.state.groups).length;
    if (!events.map((event) => timeline.take(event)).some(Boolean)) return;
    frame ??= requestAnimationFrame(() => {
        frame = null;
        drawHead();
        draw();
        // Follow only a reader who was at the end, and only when something was added there.
        if (atEnd && window.scrollY > 0 && Object.keys(timeline.state.groups).length > before) {
            window.scrollTo(0, document.documentElement.scrollHeight);
        }
    });
}

const live = document.querySelector("[data-live]");

function say(text, isLive) {
    live.hidden = false;
    live.classList.toggle("is-live", isLive);
    set(live.querySelector("[data-live-text]"), text);
}

let failures = 0;
let polling = null;

function connect() {
    if (timeline.state.finished) return ended();
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/ws/runs/${page.run_id}?after=${timeline.state.seq}`);
    socket.addEventListener("open", () => {
        failures = 0;
        clearInterval(polling);
        polling = null;
        say("live", true);
    });
    socket.addEventListener("message", ({ data }) => {
        const event = JSON.parse(data);
        if (event.type === "stream.reset") return location.reload();
        if (!Number.isInteger(event.seq)) return;
        // A gap means that something was lost on the way: ask again from what is known.
        if (event.seq > timeline.state.seq + 1) return socket.close();
        take([event]);
        // What a person may do now, and why it stands still, is the server's to say.
        if (event.type === "run.paused" || ["pause", "retry"].includes(event.data.why)) return location.reload();
        if (timeline.state.finished) ended();
    });
    socket.addEventListener("close", ({ code }) => {
        if (timeline.state.finished) return;
        if (REFUSED.includes(code)) return say("no longer shown live: sign in again, or ask for the right to see it", false);
        failures += 1;
        if (failures >= 3 && !polling) polling = setInterval(poll, POLL_MS);
        say(polling ? "connection lost; asks every 5 s" : "reconnects", false);
        const wait = Math.min(BACKOFF_MS[1], BACKOFF_MS[0] * 2 ** (failures - 1));
        setTimeout(connect, wait * (0.5 + Math.random() / 2));
    });
}

async function poll() {
    try {
        const url = `${page.events_url}?after=${timeline.state.seq}`;
        const answer = await fetch(url, { headers: { Accept: "application/json" } });
        if (answer.ok && !answer.redirected) take((await answer.json()).events);
    } catch {
        // The next poll asks again from the same position.
    }
    if (timeline.state.finished) ended();
}

function ended() {
    clearInterval(polling);
    live.hidden = true;
}

// ---- Filter and scale, without a new page ----

document.querySelector(".tl-filter").addEventListener("click", (event) => {
    const link = event.target.closest("[data-show]");
    if (!link || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    list.dataset.show = link.dataset.show;
    for (const other of document.querySelectorAll(".tl-filter [data-show]")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
});

document.querySelector("[data-scale]").addEventListener("click", (event) => {
    event.preventDefault();
    folded = !folded;
    set(event.currentTarget, folded ? "True scale" : "Fold idle time");
    draw();
});

document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && list.querySelector("details[open]");
    if (open) {
        open.open = false;
        open.querySelector("summary").focus();
    }
});

if (!timeline.state.finished) {
    connect();
    setInterval(() => {
        if (!timeline.state.finished && document.visibilityState === "visible") draw();
    }, 1000);
}
