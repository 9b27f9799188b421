import { Live, make, seconds, setAttribute, setText } from "./live.js";

const byId = (id) => document.getElementById(id);
const colours = 6;
const faults = [
  ["kill", "Kill", "it dies, and its keys with it"],
  ["hang", "Hang", "it takes what it is sent, and answers nothing"],
  ["cut off", "Cut off", "it runs, but nothing gets through to it or back"],
  ["flush", "Flush", "all its keys are deleted, and it runs on"],
  ["bring back", "Bring back", "ends what was done to it"],
];

const hue = (worker) => "w" + (((worker - 1) % colours) + 1);

// grow gives a list as many entries as there are things.
function grow(list, n, entry) {
  while (list.childElementCount < n) list.append(entry(list.childElementCount));
  while (list.childElementCount > n) list.lastElementChild.remove();
  return [...list.children];
}

function workerCard(i) {
  const card = make("li", "card worker " + hue(i + 1));
  card.append(make("h3", "", make("span", "badge", String(i + 1)), " worker " + (i + 1)), make("p", "what"), make("p", "more"));
  return card;
}

function nodeCard(i) {
  const card = make("li", "card node");
  const title = make("h3", "", "node " + (i + 1));
  title.id = "node-" + (i + 1);
  const state = make("span", "state");
  const bar = make("div", "lease", make("div", "fill"), make("span", "whose"));
  const buttons = make("div", "buttons");
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-labelledby", title.id);
  for (const [what, label, means] of faults) {
    const b = make("button", "", label);
    b.type = "button";
    b.dataset.do = what;
    b.dataset.node = i;
    b.setAttribute("aria-label", label + " node " + (i + 1));
    b.title = means;
    buttons.append(b);
  }
  card.append(make("div", "top", title, state), bar, make("p", "vote"), buttons);
  return card;
}

const doing = {
  idle: () => "does something else",
  waiting: (w) => (w.place ? "waits, number " + w.place : "asks for the lock"),
  holding: () => "has the lock",
  paused: () => "paused, with the lock",
  late: () => "paused, its lease is over",
};

const votes = {
  granted: "said yes to this lock",
  refused: "said no to this lock",
  barred: "does not count yet",
  "not sent": "could not be asked",
  unknown: "gave no answer",
  failed: "answered with an error",
  pending: "has not answered yet",
};

function draw(state) {
  setText(byId("verdict"), state.verdict.text);
  byId("verdict").className = "verdict " + state.verdict.tone;

  grow(byId("workers"), state.workers.length, workerCard).forEach((card, i) => {
    const w = state.workers[i];
    card.dataset.state = w.state;
    setText(card.querySelector(".what"), doing[w.state](w));
  });
  const line = state.workers.map((w, i) => [w.place, i + 1]).filter(([place]) => place > 0);
  line.sort((a, b) => a[0] - b[0]);
  const waiting = state.workers.filter((w) => w.state === "waiting").length;
  if (line.length) setText(byId("line"), "In the queue: worker " + line.map(([, n]) => n).join(", then "));
  else setText(byId("line"), waiting ? waiting + " wait, in no order yet." : "Nobody waits.");

  grow(byId("nodes"), state.nodes.length, nodeCard).forEach((card, i) => {
    const n = state.nodes[i];
    const up = n.state === "up" || n.state === "barred";
    card.dataset.state = n.state;
    card.querySelector(".lease").className = "lease " + (n.holder ? hue(n.holder) : "none");
    const vote = n.state === "barred" ? "would not count yet" : votes[n.vote] || "";
    setText(card.querySelector(".vote"), up ? vote : "");
    for (const b of card.querySelectorAll("button")) {
      setAttribute(b, "aria-disabled", (b.dataset.do === "bring back") === up);
    }
  });

  for (const side of ["with", "without"]) {
    for (const [what, value] of Object.entries(state[side])) setText(byId(side + "-" + what), value);
    byId(side + "-lost").className = state[side].lost ? "bad" : "good";
  }
  wire(state);
}

// tick draws what changes by itself: the time that is left.
function tick(state, now) {
  state.workers.forEach((w, i) => {
    const more = byId("workers").children[i].querySelector(".more");
    const texts = {
      idle: "",
      waiting: "for " + seconds(now - w.since),
      holding: "lease: " + seconds(w.until - now),
      paused: "lease: " + seconds(w.until - now),
      late: "wakes in " + seconds(w.wakes - now),
    };
    setText(more, texts[w.state]);
  });
  state.nodes.forEach((n, i) => {
    const card = byId("nodes").children[i];
    const left = Math.max(0, n.until - now);
    const words = n.mayVote ? "no vote: " + seconds(n.mayVote - now) : n.words;
    setText(card.querySelector(".state"), words);
    setText(card.querySelector(".whose"), n.holder && left ? "worker " + n.holder + ", " + seconds(left) : "no key");
    const share = n.holder ? Math.min(1, left / state.ttl) : 0;
    card.querySelector(".fill").style.transform = "scaleX(" + share.toFixed(3) + ")";
  });
}

// wire draws a line from whoever has the lock to each node that has the key.
function wire(state) {
  const svg = byId("wires");
  const frame = svg.getBoundingClientRect();
  const lines = [];
  state.nodes.forEach((n, i) => {
    if (!n.holder) return;
    const from = byId("workers").children[n.holder - 1].getBoundingClientRect();
    const to = byId("nodes").children[i].getBoundingClientRect();
    const reached = n.state === "up" || n.state === "barred";
    lines.push([from.left + from.width / 2 - frame.left, to.left + to.width / 2 - frame.left, hue(n.holder) + (reached ? "" : " cut")]);
  });
  while (svg.childElementCount < lines.length) svg.append(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  while (svg.childElementCount > lines.length) svg.lastElementChild.remove();
  lines.forEach(([x1, x2, kind], i) => {
    const l = svg.children[i];
    setAttribute(l, "x1", Math.round(x1));
    setAttribute(l, "x2", Math.round(x2));
    setAttribute(l, "y1", 0);
    setAttribute(l, "y2", Math.round(frame.height));
    setAttribute(l, "class", kind);
  });
}

const live = new Live(draw, tick, 100);
addEventListener("resize", () => live.state && wire(live.state));
