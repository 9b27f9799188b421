// The connection to the command: states and news as they come, and what buttons ask for.

const silenceMost = 11000; // milliseconds without a word from a connection that is alive
const newsMost = 200;

const byId = (id) => document.getElementById(id);

// setText leaves alone what is there already, so that nothing is drawn for it.
export function setText(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// make is an element with a class, a text and children.
export function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

export function seconds(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 100) return s.toFixed(1) + " s";
  if (s < 6000) return Math.round(s / 60) + " min";
  return Math.round(s / 3600) + " h";
}

// Live calls draw(state) for each state, and tick(state, now) every so many milliseconds, where
// now is the command's clock.
export class Live {
  constructor(draw, tick, every) {
    this.draw = draw;
    this.tick = tick;
    this.state = null;
    this.offset = 0; // the command's clock less ours
    this.frozen = false;
    this.ended = false;
    this.opened = false;
    this.heard = performance.now();
    document.addEventListener("visibilitychange", () => this.reconsider());
    byId("freeze").addEventListener("click", () => this.freeze());
    document.addEventListener("click", (e) => this.pressed(e));
    setInterval(() => this.beat(), every);
    this.reconsider();
  }

  now() {
    return performance.now() + this.offset;
  }

  // A page that nobody sees costs the command nothing.
  reconsider() {
    if (document.hidden) this.close();
    else if (!this.source) this.open();
  }

  open() {
    if (this.ended) return;
    this.heard = performance.now();
    const told = this.told ? "?after=" + this.told : "";
    const source = (this.source = new EventSource("events" + told));
    source.addEventListener("open", () => this.alive());
    source.addEventListener("error", () => this.lost());
    source.addEventListener("beat", (e) => this.clock(JSON.parse(e.data)));
    source.addEventListener("end", () => this.end());
    source.addEventListener("news", (e) => {
      this.alive();
      this.told = e.lastEventId;
      this.tell(JSON.parse(e.data));
    });
    source.addEventListener("state", (e) => {
      const d = JSON.parse(e.data);
      this.clock(d);
      if (d.state === null) return;
      this.state = d.state;
      if (!this.frozen) this.drawNow();
    });
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }

  alive() {
    this.opened = true;
    this.heard = performance.now();
    this.banner("");
  }

  clock(d) {
    this.alive();
    this.offset = d.now - performance.now();
  }

  lost() {
    if (this.ended) return;
    const again = this.opened ? "What you see is what was last known. Trying again…" : "Trying again…";
    this.banner("No connection to the command. " + again, "bad");
    // The browser gives up where it got an answer that is no stream.
    if (this.source && this.source.readyState === EventSource.CLOSED) {
      this.close();
      setTimeout(() => this.reconsider(), 2000);
    }
  }

  end() {
    this.ended = true;
    this.close();
    this.banner("The command has ended. Start it again, and open the address that it prints.", "odd");
  }

  // A connection can be dead without anybody having said so.
  beat() {
    if (this.source && performance.now() - this.heard > silenceMost) {
      this.close();
      this.lost();
      this.open();
    }
    if (this.state && !this.frozen && !this.ended && !document.hidden) this.tick(this.state, this.now());
  }

  banner(text, tone = "") {
    const b = byId("link");
    if (b.textContent === text) return;
    b.textContent = text;
    b.className = "banner " + tone;
    b.hidden = text === "";
    document.body.classList.toggle("stale", text !== "");
    if (text) this.aloud(text);
  }

  aloud(text) {
    byId("aloud").textContent = text;
  }

  drawNow() {
    this.draw(this.state, this.now());
    this.tick(this.state, this.now());
  }

  freeze() {
    this.frozen = !this.frozen;
    const b = byId("freeze");
    b.setAttribute("aria-pressed", this.frozen);
    if (this.frozen) return;
    for (const n of this.kept || []) this.write(n);
    this.kept = [];
    if (this.state) this.drawNow();
  }

  tell(n) {
    if (this.frozen) (this.kept = this.kept || []).push(n);
    else this.write(n);
    if (n.aloud) this.aloud(n.text);
  }

  write(n) {
    const list = byId("news");
    if (!list) return;
    const item = make("li", n.tone, make("time", "", this.when(n.at)), " ", make("span", "", n.text));
    list.prepend(item); // the latest is what one looks for
    while (list.childElementCount > newsMost) list.lastElementChild.remove();
  }

  // An operator wants the time of day, who watches the demo how long it has run.
  when(at) {
    if (!document.body.classList.contains("watch")) return (at / 1000).toFixed(1);
    return new Date(Date.now() - this.now() + at).toLocaleTimeString([], { hour12: false });
  }

  async pressed(e) {
    const b = e.target.closest("button[data-do]");
    if (!b || b.getAttribute("aria-disabled") === "true") return;
    const body = JSON.stringify({ do: b.dataset.do, node: Number(b.dataset.node || 0) });
    try {
      const r = await fetch("do", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      if (!r.ok) this.tell({ tone: "odd", aloud: true, text: (await r.text()).trim(), at: this.now() });
    } catch {
      this.lost();
    }
  }
}
