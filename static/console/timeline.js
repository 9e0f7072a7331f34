// A run's timeline, computed from its events and nothing else: the same as console/timeline.py and timeline_view.py, held
// equal by a test. Pure functions on plain JSON; nothing here touches the page.

const TEXT_CHARS = 4000;
const HIDDEN = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const ZERO_DECIMALS = new Set("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF".split(" "));
const THREE_DECIMALS = new Set("BHD IQD JOD KWD LYD OMR TND".split(" "));
const SYMBOLS = { EUR: "€", USD: "$", GBP: "£", JPY: "¥", CNY: "CN¥", INR: "₹", KRW: "₩" };

export const WIDTH = 1000;
const FOLD_MS = 10_000;
const FOLD_WIDTH = 36;
const FOLDS_WIDTH = 360;
const BAR_WIDTH = 4;

const div = (a, b) => Math.floor(a / b);
const two = (number) => String(number).padStart(2, "0");

export function plain(text) {
    const name = (found) => `[U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`;
    return text.replaceAll("\r\n", "\n").replace(HIDDEN, name).replace(CONTROL, "\ufffd");
}

function short(value) {
    const text = plain(typeof value === "string" ? value : String(value));
    if (text.length <= TEXT_CHARS) return text;
    const points = Array.from(text);
    return points.length <= TEXT_CHARS ? text : `${points.slice(0, TEXT_CHARS).join("")}…`;
}

const fill = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
const shortened = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, short(value)]));

export function money(amountMinor, currency) {
    const decimals = ZERO_DECIMALS.has(currency) ? 0 : THREE_DECIMALS.has(currency) ? 3 : 2;
    const unit = 10 ** decimals;
    const whole = String(div(Math.abs(amountMinor), unit)).replace(/\B(?=(\d{3})+$)/g, ",");
    const part = decimals ? `.${String(Math.abs(amountMinor) % unit).padStart(decimals, "0")}` : "";
    return `${amountMinor < 0 ? "−" : ""}${SYMBOLS[currency] ?? `${currency}\u00a0`}${whole}${part}`;
}

export function dollars(microusd) {
    if (microusd % 10_000 === 0) return `$${div(microusd, 1_000_000)}.${two(div(microusd, 10_000) % 100)}`;
    return `$${div(microusd, 1_000_000)}.${String(div(microusd, 100) % 10_000).padStart(4, "0")}`;
}

export class Timeline {
    // `words`: the page's copy of console/timeline_words.py. `state`: from the server, or none for a new run.
    constructor(words, state) {
        this.words = words;
        this.state = state ?? {
            seq: 0, last: 0, before: 0, status: "queued", ending: "", why: "", created: 0, started: 0, finished: 0, waiting_since: 0, waited: 0,
            open_approvals: 0, open_calls: 0,
            counts: { turns: 0, calls: 0, failures: 0, input: 0, output: 0, cost_microusd: 0 },
            groups: {},
        };
    }

    // Bring the state forward by one event; true where it was new.
    take(frame) {
        const state = this.state;
        if (frame.seq <= state.seq) return false;
        state.seq = frame.seq;
        const [head, tail] = frame.type.split(/\.(.*)/s);
        const handle = { run: this.run, assistant: this.assistant, tool: this.tool, approval: this.approval, operation: this.operation }[head];
        const at = Date.parse(frame.at);
        state.before = state.last;
        state.last = Math.max(state.last, at);
        handle?.call(this, tail, at, frame.data);
        if (["running", "waiting_for_approval"].includes(state.status) && state.started) {
            const waits = state.open_approvals > 0 && state.open_calls <= state.open_approvals;
            state.status = waits && !state.ending ? "waiting_for_approval" : "running";
        }
        return true;
    }

    group(key, lane, at, title) {
        this.state.groups[key] ??= {
            key, lane, title, state: "active", word: "", start: at, end: 0, queued: 0, tries: [], note: "", text: "", lines: [],
        };
        return this.state.groups[key];
    }

    title(key, values = {}) { return fill(this.words.title[key], shortened(values)); }
    word(key, values = {}) { return fill(this.words.word[key], shortened(values)); }

    line(group, label, value) {
        if (value === undefined || value === null || value === "") return;
        const name = this.words.line[label];
        group.lines = [...group.lines.filter((line) => line[0] !== name), [name, short(value)]];
    }

    // ---- Run ----

    run(what, at, data) {
        const state = this.state;
        if (what === "created") {
            state.created = at;
            const group = this.group("run", "run", at, this.words.title.queued);
            put(group, "active", this.words.word.queued);
            for (const label of ["actor", "agent", "channel"]) this.line(group, label, data[label]);
        } else if (what === "started") {
            state.started = at;
            state.status = "running";
            const group = this.group("run", "run", at, "");
            group.title = this.title("started", { worker: data.worker ?? "" });
            group.queued = group.start;
            this.line(group, "worker", data.worker);
            this.line(group, "release", data.release);
            close(group, at, "ok", this.words.word.started);
        } else if (what === "paused") {
            const group = this.group(`pause-${state.seq}`, "wait", at, this.words.title.paused);
            put(group, "waiting", this.words.word.paused);
            group.note = short(data.reason || data.detail || "");
        } else if (what === "resumed") {
            this.resumed(at, data);
        } else if (what === "cancel_requested") {
            state.ending = "cancelled";
            const group = this.group("cancel", "run", at, this.title("cancel", { actor: data.actor ?? "" }));
            put(group, "active", this.words.word.ending);
            group.note = short(data.reason ?? "");
        } else if (["completed", "failed", "cancelled"].includes(what)) {
            this.ended(what, at, data);
        }
    }

    resumed(at, data) {
        this.state.status = "running";
        for (const group of Object.values(this.state.groups)) {
            if (group.lane === "wait" && !group.end) close(group, at, "ended", this.words.word.resumed);
        }
        if (["lease_lost", "release"].includes(data.why)) {
            const title = this.title(data.why, { worker: data.worker ?? "" });
            close(this.group(`lease-${this.state.seq}`, "lease", at, title), at, "warn", this.words.word.recovered);
        }
    }

    ended(status, at, data) {
        const state = this.state;
        state.status = status;
        state.finished = at;
        state.why = short(data.detail || data.code || "");
        for (const group of Object.values(state.groups)) {
            if (!group.end) close(group, at, "ended", this.words.word.stopped);
        }
        state.open_calls = 0;
        this.approvalsClosed(at, state.open_approvals);
        const group = this.group("end", "run", at, this.words.title[`run.${status}`]);
        close(group, at, { completed: "ok", failed: "failed" }[status] ?? "ended", this.words.word[status]);
        group.note = state.why;
        this.line(group, "code", data.code);
        this.line(group, "actor", data.actor);
    }

    // ---- Model ----

    assistant(what, at, data) {
        // A turn begins when what came before it is done, whatever the worker's own clock says.
        const begun = this.state.before || at;
        const group = this.group(`turn-${data.turn ?? 0}`, "model", begun, this.title("turn", { turn: String(data.turn ?? 0) }));
        if (what === "delta") {
            if (!group.tries.length) beginTry(group, at);
            put(group, "active", this.words.word.writing);
            const kept = data.offset ? group.text : "";
            group.text = short(kept + (data.text || ""));
            return;
        }
        const counts = this.state.counts;
        const tokens = data.tokens ?? {};
        counts.turns += 1;
        counts.input += tokens.input ?? 0;
        counts.output += tokens.output ?? 0;
        counts.cost_microusd += data.cost_microusd || 0;
        group.text = short(data.text || "");
        if (data.started_at) group.start = Math.max(group.start, Math.min(Date.parse(data.started_at), at));
        group.tries = [[group.start, at, "ok"]];
        close(group, at, "ok", this.words.word.done);
        this.line(group, "model", data.model);
        if (Object.keys(tokens).length) {
            const values = { input: String(tokens.input ?? 0), output: String(tokens.output ?? 0) };
            this.line(group, "tokens", fill(this.words.line.tokens_value, values));
        }
        if (data.cost_microusd) this.line(group, "cost", dollars(data.cost_microusd));
    }

    // ---- Tools ----

    tool(what, at, data) {
        const state = this.state;
        const key = data.call_id || `call-${state.seq}`;
        const isNew = !(key in state.groups);
        const group = this.group(key, "tool", at, short(data.tool ?? ""));
        const wasOpen = !isNew && !group.end;
        if (what === "requested") {
            state.counts.calls += 1;
            group.queued = at;
            group.note = argumentsOf(data.arguments);
            this.line(group, "arguments", group.note);
            put(group, "active", this.words.word.asked);
        } else if (what === "started") {
            beginTry(group, at);
            put(group, "active", this.words.word.running);
        } else if (what === "progress") {
            this.line(group, "progress", data.text);
        } else if (what === "completed") {
            close(group, at, "ok", this.words.word.done);
            this.line(group, "result", data.summary);
        } else if (what === "failed") {
            const look = data.code === "outcome_unknown" ? "unknown" : "failed"; // the operation beneath has counted it
            state.counts.failures += Number(look === "failed");
            close(group, at, look, this.words.word[look]);
            this.line(group, "code", data.code);
            this.line(group, "message", data.message);
        }
        state.open_calls += Number(!group.end) - Number(wasOpen);
    }

    // ---- Approvals and policy ----

    approval(what, at, data) {
        const state = this.state;
        const operationId = data.operation_id ?? "";
        const key = data.approval_id || `approval-${state.seq}`;
        if (what === "requested") this.policy(operationId, at, "ask", "person", "");
        const wasOpen = key in state.groups && !state.groups[key].end;
        const group = this.group(key, "approval", at, this.words.title.approval);
        group.note = this.nameOf(operationId);
        if (what === "requested") {
            group.end = 0;
            put(group, "waiting", this.words.word.waiting);
            this.line(group, "expires", data.expires_at);
            if (!wasOpen) {
                state.waiting_since ||= at;
                state.open_approvals += 1;
            }
            return;
        }
        const status = data.status ?? "";
        const word = status in this.words.word ? this.word(status, { by: data.by ?? "" }) : status;
        close(group, at, { approved: "ok", rejected: "failed" }[status] ?? "ended", word);
        this.approvalsClosed(at, wasOpen ? 1 : 0);
    }

    approvalsClosed(at, count) {
        const state = this.state;
        if (!count || !state.open_approvals) return;
        state.open_approvals = Math.max(0, state.open_approvals - count);
        if (state.open_approvals === 0) {
            state.waited += at - state.waiting_since;
            state.waiting_since = 0;
        }
    }

    policy(operationId, at, verdict, word, reason) {
        const group = this.group(`policy-${this.state.seq}`, "policy", at, this.words.title[`policy.${verdict}`]);
        group.note = this.nameOf(operationId);
        close(group, at, { allow: "ok", deny: "failed" }[verdict] ?? "ended", this.words.word[word]);
        this.line(group, "reason", reason);
    }

    nameOf(operationId) {
        return this.state.groups[operationId]?.title ?? this.words.title.unnamed;
    }

    // ---- Operations ----

    operation(what, at, data) {
        const words = this.words.word;
        const key = data.operation_id || `operation-${this.state.seq}`;
        const isNew = !(key in this.state.groups);
        const group = this.group(key, "operation", at, this.words.title.unnamed);
        if (isNew && data.action) group.title = this.action(data);
        const before = data.from || "";
        const reason = data.reason || "";
        if (what !== "succeeded") this.line(group, "reason", reason);
        this.line(group, "reference", data.provider_ref);
        if (what === "proposed") {
            endTry(group, at, "ended");
            group.end = 0;
            put(group, "waiting", words.proposed);
        } else if (what === "approved" && ["executing", "unknown", "escalated"].includes(before)) {
            endTry(group, at, "failed");
            this.state.counts.failures += 1;
            put(group, "active", words.again);
        } else if (what === "approved") {
            if (reason !== "approved") this.policy(key, at, "allow", "allowed", reason);
            put(group, "active", words.allowed);
        } else if (what === "dispatched") {
            beginTry(group, at);
            put(group, "active", this.word("sent", { attempt: data.attempt || group.tries.length }));
        } else if (what in OPERATION_LOOKS) {
            this.operationMoved(group, what, at, reason);
        }
    }

    operationMoved(group, what, at, reason) {
        const [look, word] = OPERATION_LOOKS[what];
        if (what === "rejected" && !["rejected", ""].includes(reason) && !group.tries.length) {
            this.policy(group.key, at, "deny", "refused", reason);
        }
        if (what === "unknown") {
            this.state.counts.failures += 1;
            if (group.tries.length) group.tries.at(-1).splice(1, 2, 0, "unknown");
        }
        if (["ok", "failed", "ended"].includes(look)) {
            close(group, at, look, this.words.word[word]);
        } else {
            group.end = 0;
            put(group, look, this.words.word[word]);
        }
    }

    action(data) {
        const words = this.words.action;
        const target = String(data.target ?? "");
        const colon = target.indexOf(":");
        const kind = (colon < 0 ? target : target.slice(0, colon)).replaceAll("_", " ");
        const name = colon < 0 ? "" : target.slice(colon + 1);
        const shown = name === "" || name === target.slice(0, colon) ? kind : `${kind} ${name}`;
        const amount = data.amount_minor ?? null;
        return fill(words[data.action] ?? words[""], {
            action: short(data.action ?? ""),
            amount: amount === null ? "" : ` ${money(amount, data.currency || "")}`,
            target: short(shown),
        });
    }

    // ---- What is seen at a moment ----

    view(moment, folded = true) {
        const state = this.state;
        const now = Math.max(moment, state.last);
        const axis = new Axis(state, now, folded);
        const folds = [...axis.folds];
        const rows = Object.values(state.groups).map((group) => {
            let idle = 0;
            while (folds.length && folds[0][0] <= group.start) idle += folds.shift()[1];
            const length = (group.end || now) - group.start;
            return {
                key: group.key,
                offset: `+${offset(group.start - state.created)}`,
                took: length > 0 ? took(length) : "",
                bars: spans(group, now).map(([start, end, look]) => ({ ...axis.bar(start, end), look })),
                idle: this.idle(idle),
            };
        });
        return { rows, tail: this.idle(folds.reduce((sum, fold) => sum + fold[1], 0)) };
    }

    idle(millis) {
        return millis ? fill(this.words.idle.idle, { time: took(millis) }) : "";
    }

    figures(moment, budgetMicrousd) {
        const { counts, finished, created, last, waited, waiting_since: since } = this.state;
        const now = Math.max(moment, last);
        const waitedMs = waited + (since ? now - since : 0);
        const cost = dollars(counts.cost_microusd);
        return [
            ["Wall time", took((finished || now) - created)],
            ["Waited for people", waitedMs ? took(waitedMs) : "none"],
            ["Model calls", String(counts.turns)],
            ["Tool calls", String(counts.calls)],
            ["Failed attempts", String(counts.failures)],
            ["Cost", budgetMicrousd ? `${cost} of ${dollars(budgetMicrousd)}` : cost],
        ];
    }

    answer() {
        return Object.values(this.state.groups).filter((group) => group.lane === "model" && group.text).at(-1)?.text ?? "";
    }

    statusLabel() {
        return this.words.status[this.state.ending && !this.state.finished ? "ending" : this.state.status];
    }

    nowLine() {
        const { state, words: { now: words } } = this;
        if (state.finished) {
            const look = { completed: "ok", failed: "failed" }[state.status] ?? "ended";
            const length = took(state.finished - state.created);
            return { look, text: fill(words[`run.${state.status}`], { took: length, why: state.why }), key: "" };
        }
        const open = Object.values(state.groups).filter((group) => !group.end);
        const unknown = open.find((group) => group.state === "unknown");
        if (unknown) {
            const key = unknown.word === this.words.word.escalated ? "escalated" : "unknown";
            return { look: "unknown", text: fill(words[key], { what: unknown.title }), key: unknown.key };
        }
        if (state.ending) return { look: "active", text: words.ending, key: "" };
        if (state.status === "waiting_for_approval") {
            const asked = open.find((group) => group.lane === "approval");
            return { look: "waiting", text: fill(words.waiting, { since: clock(asked.start), what: asked.note }), key: asked.key };
        }
        return this.busy(open);
    }

    busy(open) {
        const words = this.words.now;
        const sent = open.find((group) => group.lane === "operation" && group.state === "active");
        if (sent) {
            const sending = sent.tries.length > 0 && sent.tries.at(-1)[1] === 0;
            return { look: "active", text: fill(words[sending ? "sending" : "held"], { what: sent.title, word: sent.word }), key: sent.key };
        }
        const paused = open.find((group) => group.lane === "wait");
        if (paused) return { look: "waiting", text: fill(words.paused, { since: clock(paused.start) }), key: paused.key };
        const busy = open.find((group) => ["model", "tool"].includes(group.lane));
        if (busy) return { look: "active", text: fill(words[busy.lane === "model" ? "writing" : "tool"], { what: busy.title }), key: busy.key };
        if (!this.state.started) return { look: "waiting", text: fill(words.queued, { since: clock(this.state.created) }), key: "" };
        return { look: "active", text: words.model, key: "" };
    }
}

const OPERATION_LOOKS = {
    accepted: ["active", "accepted"],
    unknown: ["unknown", "unknown"],
    escalated: ["unknown", "escalated"],
    succeeded: ["ok", "succeeded"],
    failed: ["failed", "failed"],
    rejected: ["ended", "refused"],
    cancelled: ["ended", "cancelled"],
    expired: ["ended", "expired"],
    reversed: ["failed", "reversed"],
};

function put(group, state, word) {
    group.state = state;
    group.word = word;
}

function close(group, at, state, word) {
    put(group, state, word);
    group.end = at;
    // A try whose outcome was unknown keeps that look: its bar says for how long nobody knew.
    endTry(group, at, group.tries.at(-1)?.[2] === "unknown" ? "unknown" : state);
}

function beginTry(group, at) {
    group.end = 0;
    endTry(group, at, "ended");
    group.tries.push([at, 0, "active"]);
}

function endTry(group, at, state) {
    const last = group.tries.at(-1);
    if (last && last[1] === 0) {
        last[1] = at;
        last[2] = state;
    }
}

function argumentsOf(args) {
    if (args === null || typeof args !== "object" || Array.isArray(args)) return "";
    return short(Object.entries(args).map(([name, value]) => `${name}=${valueOf(value)}`).join(", "));
}

function valueOf(value) {
    if (value === null) return "none";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "object") return String(value);
    if (Array.isArray(value)) return `[${value.map(valueOf).join(", ")}]`;
    return `{${Object.entries(value).map(([name, item]) => `${name}=${valueOf(item)}`).join(", ")}}`;
}

export function took(millis) {
    if (millis < 1000) return `${Math.max(0, millis)} ms`;
    if (millis < 60_000) return `${div(millis, 1000)}.${div(millis, 100) % 10} s`;
    const minutes = div(millis, 60_000);
    if (minutes < 60) return `${minutes} min ${two(div(millis, 1000) % 60)} s`;
    return `${div(minutes, 60)} h ${two(minutes % 60)} min`;
}

const offset = (millis) => (millis >= 0 && millis < 60_000 ? `${div(millis, 1000)}.${div(millis, 100) % 10} s` : took(millis));
const clock = (millis) => `${new Date(millis).toISOString().slice(11, 19)} UTC`;

function spans(group, now) {
    const end = group.end || now;
    if (group.tries.length) {
        const first = group.tries[0][0];
        const waited = first > group.start ? [[group.start, first, "queue"]] : [];
        return [...waited, ...group.tries.map(([start, stop, look]) => [start, stop || now, look])];
    }
    return [[group.start, Math.max(end, group.start), group.queued ? "queue" : group.state]];
}

class Axis {
    constructor(state, now, folded) {
        const changes = new Map();
        const mark = (moment, work, waits) => {
            const entry = changes.get(moment) ?? [0, 0];
            changes.set(moment, [entry[0] + work, entry[1] + waits]);
        };
        mark(state.created, 0, 0);
        mark(state.finished || now, 0, 0);
        for (const group of Object.values(state.groups)) {
            const waits = Number(["approval", "wait"].includes(group.lane));
            for (const [start, end, look] of spans(group, now)) {
                const work = Number(!["queue", "waiting", "unknown"].includes(look) && !waits);
                mark(start, work, waits);
                mark(end, -work, -waits);
            }
        }
        const moments = [...changes.keys()].sort((a, b) => a - b);
        this.folds = [];
        const lengths = [];
        let work = 0;
        let waiting = 0;
        for (let i = 0; i + 1 < moments.length; i += 1) {
            work += changes.get(moments[i])[0];
            waiting += changes.get(moments[i])[1];
            const length = moments[i + 1] - moments[i];
            const idle = folded && length > FOLD_MS && (waiting > 0 || work === 0);
            lengths.push(idle ? -1 : length);
            if (idle) this.folds.push([moments[i + 1], length]);
        }
        const fold = Math.min(FOLD_WIDTH, div(FOLDS_WIDTH, Math.max(1, this.folds.length)));
        const room = WIDTH - fold * this.folds.length;
        const total = Math.max(1, lengths.reduce((sum, length) => sum + Math.max(0, length), 0));
        this.places = new Map([[moments[0], 0]]);
        let foldedSoFar = 0;
        let done = 0;
        lengths.forEach((length, i) => {
            foldedSoFar += Number(length < 0);
            done += Math.max(0, length);
            this.places.set(moments[i + 1], foldedSoFar * fold + div(done * room, total));
        });
    }

    bar(start, end) {
        const x = this.places.get(start);
        const width = Math.max(BAR_WIDTH, this.places.get(end) - x);
        return { x: Math.min(x, WIDTH - width), width };
    }
}

export function isProblem(group) {
    return [group.state, ...group.tries.map((attempt) => attempt[2])].some((look) => ["failed", "unknown", "warn"].includes(look));
}
