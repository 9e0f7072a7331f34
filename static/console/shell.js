// On every page: letter keys with their switch, countdowns by the server's clock, and the figures of the sidebar.

const KEYS_OFF = "agentops.keys-off";
const keysAreOn = () => localStorage.getItem(KEYS_OFF) === null;
const POLL_MS = 15_000;
const WARN_SECONDS = 300;

function typing(target) {
    return target.closest("input:not([type=radio]):not([type=checkbox]), textarea, select, [contenteditable], dialog[open]") !== null;
}

function step(by) {
    const link = document.querySelector(`[data-key="${by > 0 ? "j" : "k"}"]`);
    if (link) return link.click();
    const rows = [...document.querySelectorAll("[data-row]")];
    const at = rows.indexOf(document.activeElement);
    const to = at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by;
    rows[to]?.focus();
}

function focusOn(element) {
    element?.focus();
    element?.scrollIntoView({ block: "center" });
}

function onKey(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") return send(event);
    if (!keysAreOn() || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const act = {
        j: () => step(1),
        k: () => step(-1),
        a: () => focusOn(document.querySelector('[data-key="a"]')),
        r: () => focusOn(document.querySelector('[data-key="r"]')),
        "/": () => focusOn(document.querySelector('input[type="search"]')),
        "?": () => help?.showModal(),
    }[event.key];
    if (act) {
        event.preventDefault();
        act();
    }
}

// Ctrl or Cmd with Enter sends what has the focus: the button itself, or from the comment a rejection.
function send(event) {
    const form = event.target.closest("form.decide");
    if (!form) return;
    event.preventDefault();
    const button = event.target.closest("button") ?? form.querySelector('button[value="reject"]');
    if (button) form.requestSubmit(button);
}

const help = document.getElementById("keys-help");
const helpSwitch = help?.querySelector("[data-keys-switch]");
if (helpSwitch) {
    helpSwitch.checked = keysAreOn();
    helpSwitch.addEventListener("change", () => {
        if (helpSwitch.checked) localStorage.removeItem(KEYS_OFF);
        else localStorage.setItem(KEYS_OFF, "1");
    });
    const button = document.querySelector("[data-keys-help]");
    button.hidden = false;
    button.addEventListener("click", () => help.showModal());
}
document.addEventListener("keydown", onKey);

// ---- Countdowns ----

export function left(seconds) {
    if (seconds <= 0) return "time is up";
    const minutes = Math.floor(seconds / 60);
    const hours = Math.floor(seconds / 3600);
    const two = (number) => String(number).padStart(2, "0");
    if (hours) return `${hours} h ${two(minutes % 60)} min left`;
    if (minutes >= 5) return `${minutes} min left`;
    return minutes ? `${minutes} min ${two(seconds % 60)} s left` : `${seconds} s left`;
}

const timers = [...document.querySelectorAll("[data-expires]")].map((element) => {
    // The page carries the server's clock; the browser's own only measures how long ago that was.
    const rest = Date.parse(element.dataset.expires) - Date.parse(element.dataset.clock);
    return { element, until: performance.now() + rest, warned: rest < WARN_SECONDS * 1000 };
});

function tick() {
    for (const timer of timers) {
        const seconds = Math.ceil((timer.until - performance.now()) / 1000);
        const text = left(seconds);
        if (timer.element.textContent !== text) timer.element.textContent = text;
        const urgent = seconds < WARN_SECONDS;
        (timer.element.closest(".pill") ?? timer.element).classList.toggle("urgent", urgent);
        if (timer.element.dataset.timer === "review") {
            if (urgent && !timer.warned && seconds > 0) announce("Five minutes are left to decide.");
            if (seconds <= 0) timeIsUp();
        }
        timer.warned ||= urgent;
    }
}

function timeIsUp() {
    const gone = document.querySelector("[data-gone]");
    if (!gone?.hidden) return;
    gone.hidden = false;
    for (const part of document.querySelectorAll(".decide-bar, .decide fieldset")) part.remove();
    announce("Time is up. Nobody decided.");
}

const announcer = document.createElement("p");
announcer.className = "visually-hidden";
announcer.setAttribute("role", "status");
(document.getElementById("content-start") ?? document.body).append(announcer);

export function announce(text) {
    announcer.textContent = text;
}

if (timers.length) {
    tick();
    setInterval(tick, 1000);
}

// ---- An elevated risk: its reasons must have been in view before the yes is sent ----

const form = document.getElementById("decide");
const reasons = document.querySelector("[data-reasons]");
if (form?.dataset.risk === "elevated" && reasons) {
    let seen = false;
    new IntersectionObserver((entries, observer) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        seen = true;
        observer.disconnect();
    }).observe(reasons);
    form.addEventListener("submit", (event) => {
        if (seen || event.submitter?.value !== "approve") return;
        event.preventDefault();
        reasons.scrollIntoView({ block: "center" });
        announce("Read first why a person must decide, then approve.");
    });
}

// A second press while the first is on its way would only be told that it is recorded already.
form?.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
});
addEventListener("pageshow", () => form && delete form.dataset.sent);

// ---- Figures of the sidebar, and news for the inbox ----

const badges = [...document.querySelectorAll("[data-count]")];
const news = document.querySelector("[data-inbox-news]");
let figuresFrom = news?.dataset.rendered;

async function poll() {
    if (document.visibilityState !== "visible") return;
    try {
        const answer = await fetch("/admin/counts/", { headers: { Accept: "application/json" } });
        if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
        show(await answer.json());
    } catch {
        if (news) tell(`Figures from ${figuresFrom}; the connection is lost.`);
    }
}

function show(counts) {
    figuresFrom = counts.at;
    for (const badge of badges) {
        const count = counts[badge.dataset.count];
        badge.textContent = count > 99 ? "99+" : String(count);
        badge.hidden = count === 0;
    }
    if (!news) return;
    if (counts.approvals === Number(news.dataset.inboxNews)) news.hidden = true;
    else tell(counts.approvals > Number(news.dataset.inboxNews) ? "New proposals wait." : "Some were decided meanwhile.");
}

function tell(text) {
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Refresh";
    news.replaceChildren(`${text} `, link);
    news.hidden = false;
}

if (badges.length) setInterval(poll, POLL_MS);

// The inbox hears at once that something has changed; what changed is fetched. Without the socket the poll is enough.
function listen() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const bell = new WebSocket(`${scheme}//${location.host}/ws/approvals`);
    bell.addEventListener("message", poll);
    bell.addEventListener("close", ({ code }) => {
        if (code < 4000) setTimeout(listen, POLL_MS * (0.5 + Math.random() / 2));
    });
}

if (news) listen();
