import { Live, make, seconds, setText } from "./live.js";

const byId = (id) => document.getElementById(id);
const rows = new Map(); // by key, with the hidden ones

function row(key) {
  const tr = make("tr", "");
  const name = make("th", "key", key);
  name.scope = "row";
  tr.append(name);
  for (const what of ["holder", "left", "on", "fence", "waiting"]) tr.append(make("td", what));
  return tr;
}

// names of the columns, for where the table is not drawn as one.
const labels = { holder: "holder", left: "lease left", on: "on nodes", fence: "fence", waiting: "waiting" };

const holder = {
  held: (l) => l.owner || "somebody without a name",
  free: () => "nobody",
  "in doubt": (l) => (l.owner ? "perhaps " + l.owner : "not known"),
  split: () => "nobody, and it is not free",
};

function cell(tr, what, text) {
  const td = tr.querySelector("." + what);
  if (!td.dataset.label) td.dataset.label = labels[what];
  setText(td, text);
  td.classList.toggle("nothing", text === "–");
}

function drawLock(tr, l, state) {
  tr.dataset.state = l.state;
  cell(tr, "holder", holder[l.state](l));
  cell(tr, "on", l.state === "free" ? "–" : l.has + " of " + state.nodes.length);
  cell(tr, "fence", l.fence || "–");
}

function wanted(l, text) {
  if (byId("awaited").checked && !l.waiting) return false;
  return !text || [l.key, l.owner || "", ...(l.waiters || []).map((w) => w.owner)].some((s) => s.toLowerCase().includes(text));
}

function drawLocks(state) {
  const body = byId("locks").tBodies[0];
  const locks = state.locks || [];
  const text = byId("filter").value.trim().toLowerCase();
  const seen = new Set();
  let at = body.firstElementChild;
  let shown = 0;
  for (const l of locks) {
    seen.add(l.key);
    let tr = rows.get(l.key);
    if (!tr) rows.set(l.key, (tr = row(l.key)));
    if (tr === at) at = at.nextElementSibling;
    else body.insertBefore(tr, at);
    drawLock(tr, l, state);
    tr.hidden = !wanted(l, text);
    if (!tr.hidden) shown++;
  }
  for (const [key, tr] of rows) {
    if (seen.has(key)) continue;
    tr.remove();
    rows.delete(key);
  }
  byId("locks").hidden = locks.length === 0;
  byId("none").hidden = locks.length > 0;
  let count = shown === locks.length ? locks.length + " listed" : shown + " of " + locks.length + " listed";
  if (state.more) count += ", " + state.more + " more are not";
  if (state.searching) count += "; still looking through the nodes’ keys";
  setText(byId("count"), count);
}

function list(element, things, key, entry) {
  const now = JSON.stringify(things);
  if (element.dataset.drawn === now) return;
  element.dataset.drawn = now;
  element.replaceChildren(...things.map(entry));
}

function draw(state) {
  setText(byId("verdict"), state.verdict.text);
  byId("verdict").className = "verdict " + state.verdict.tone;
  list(byId("nodes"), state.nodes, "name", (n) => {
    const up = !n.error;
    const card = make("li", "card node");
    card.dataset.state = !up ? "down" : n.barred || n.voteless ? "barred" : "up";
    card.append(
      make("div", "top", make("h3", "", n.name), make("span", "state", !up ? "no answer" : n.barred || n.voteless ? "may not vote" : "answers")),
      make("p", "vote", n.error || n.tells || ""),
    );
    if (n.barred) card.append(make("p", "vote until", ""));
    return card;
  });
  drawLocks(state);
  list(byId("findings"), state.findings || [], "message", (f) =>
    make("li", f.severity, make("strong", "", f.severity + (f.node ? ", " + f.node : "") + ": "), f.message + ". ", make("span", "small", f.advice)),
  );
}

function summary(findings) {
  const of = (severity) => findings.filter((f) => f.severity === severity).length;
  const parts = ["critical", "warning", "info"].filter(of).map((severity) => of(severity) + " " + severity);
  return parts.join(", ") || "nothing found";
}

function tick(state, now) {
  for (const l of state.locks || []) {
    const tr = rows.get(l.key);
    if (!tr || tr.hidden) continue;
    cell(tr, "left", l.until < 0 ? "no end" : l.until ? seconds(l.until - now) : "–");
    const names = (l.waiters || []).map((w) => w.owner + " for " + seconds(now - w.since));
    if (l.waiting > names.length) names.push(l.waiting - names.length + " more");
    cell(tr, "waiting", l.waiting ? l.waiting + ": " + names.join(", ") : "–");
  }
  for (const [i, n] of state.nodes.entries()) {
    const until = byId("nodes").children[i]?.querySelector(".until");
    if (until) setText(until, "for " + seconds(n.barred - now) + " yet");
  }
  const since = Math.round((now - state.checked) / 1000);
  setText(byId("checked"), state.checked ? summary(state.findings || []) + ", " + since + " s ago" : "being asked");
}

const live = new Live(draw, tick, 500);
for (const id of ["filter", "awaited"]) {
  byId(id).addEventListener("input", () => {
    if (!live.state) return;
    drawLocks(live.state);
    tick(live.state, live.now());
  });
}
