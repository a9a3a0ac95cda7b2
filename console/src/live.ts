// The stream of samples, changes and alerts. It heals by itself: a stream that breaks, or falls silent, is
// opened again with a growing pause, and asks for what was missed meanwhile.

import { batch, effect, signal } from "@preact/signals";
import { ApiError, ask, part } from "./api";
import { namespace, namespaceOf, prefixOf } from "./namespaces";
import type { Alert, Change, GroupSample, MemberSample, Sample } from "./types";

/** Samples come every second; a stream that is silent for longer is as good as broken. */
const SILENCE_MS = 6000;
const PAUSE_MS = [500, 1000, 2000, 4000, 8000, 15000];
/** What the charts of all groups show. */
const KEPT = 120;

export type Link = "connecting" | "live" | "broken";

export const link = signal<Link>("connecting");
/** When the last sample came, by the clock of the browser. */
export const heard = signal(0);
/** When the next attempt is, by the clock of the browser. */
export const nextTry = signal(0);
export const sample = signal<Sample | null>(null);
export const change = signal<Change | null>(null);
/** Revisions that this page has made: it need not be told of them. */
export const mine = new Set<string>();
export const alerts = signal<Alert[]>([]);
/** The group whose members the stream has, and these. */
export const focus = signal<string | null>(null);
export const members = signal<Map<string, MemberSample>>(new Map());
/** The members' group, as they may still be those of the one before. */
export const membersOf = signal<string | null>(null);

/** The last two minutes of each group, for small charts. */
export const recent = new Map<string, { t: number[]; rate: number[]; p99: (number | null)[] }>();

let lastId = "";
let failures = 0;
let abort: AbortController | null = null;
let timer = 0;

function take(event: string, data: string): void {
  const value: unknown = JSON.parse(data);
  if (event === "sample") takeSample(value as Sample);
  else if (event === "change") change.value = value as Change;
  else if (event === "alert") alerts.value = [value as Alert, ...alerts.value].slice(0, 50);
  else if (event === "lost") change.value = { generation: 0, revision: "", at: Date.now() / 1000, who: null, how: "lost" };
}

function takeSample(next: Sample): void {
  batch(() => {
    heard.value = Date.now();
    link.value = "live";
    failures = 0;
    for (const group of next.groups) remember(next.t, group);
    if (recent.size > next.groups.length) {
      const names = new Set(next.groups.map((group) => group.name));
      for (const name of recent.keys()) if (!names.has(name)) recent.delete(name);
    }
    if (next.group && next.group.name === focus.value) {
      const known = next.group.full || membersOf.value !== next.group.name ? new Map<string, MemberSample>() : new Map(members.value);
      for (const member of next.group.members) known.set(member.name, member);
      for (const name of next.group.gone ?? []) known.delete(name);
      members.value = known;
      membersOf.value = next.group.name;
    }
    sample.value = next;
  });
}

function remember(t: number, group: GroupSample): void {
  let kept = recent.get(group.name);
  if (!kept) recent.set(group.name, (kept = { t: [], rate: [], p99: [] }));
  if (kept.t.at(-1) === t) return;
  kept.t.push(t);
  kept.rate.push(group.rate);
  kept.p99.push(group.p99_ms);
  if (kept.t.length > KEPT) {
    kept.t.shift();
    kept.rate.shift();
    kept.p99.shift();
  }
}

/** Takes lines apart as the standard for server-sent events says. */
export class Lines {
  private rest = "";
  private event = "";
  private data: string[] = [];

  constructor(
    private readonly take: (event: string, data: string) => void,
    private readonly seen: (id: string) => void,
  ) {}

  add(text: string): void {
    this.rest += text;
    let from = 0;
    for (let at = this.rest.indexOf("\n"); at >= 0; at = this.rest.indexOf("\n", from)) {
      this.line(this.rest.slice(from, at).replace(/\r$/, ""));
      from = at + 1;
    }
    this.rest = this.rest.slice(from);
  }

  private line(line: string): void {
    if (line === "") {
      if (this.data.length) this.take(this.event || "message", this.data.join("\n"));
      this.event = "";
      this.data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id") this.seen(value);
  }
}

async function run(): Promise<void> {
  abort?.abort();
  clearTimeout(timer);
  const mine = (abort = new AbortController());
  let watchdog = 0;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = window.setTimeout(() => mine.abort("silent"), SILENCE_MS);
  };
  try {
    alive();
    const group = focus.value;
    // With thousands of groups a sample has the first ones only, or those of a namespace.
    const prefix = prefixOf(group ? namespaceOf(group) : namespace.value);
    const query = [group && `group=${part(group)}`, prefix && `prefix=${part(prefix)}`].filter(Boolean).join("&");
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    const response = await ask("GET", `/v1/events${query && `?${query}`}`, undefined, { signal: mine.signal, headers });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const lines = new Lines(take, (id) => (lastId = id));
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      alive();
      lines.add(value);
    }
  } catch (error) {
    if (mine !== abort) return;
    // A group that is gone: the rest is still of interest.
    if (error instanceof ApiError && error.status === 404 && focus.value) {
      focus.value = null;
      return;
    }
  } finally {
    clearTimeout(watchdog);
  }
  if (mine !== abort) return;
  link.value = "broken";
  const pause = PAUSE_MS[Math.min(failures++, PAUSE_MS.length - 1)]! * (0.75 + 0.5 * Math.random());
  nextTry.value = Date.now() + pause;
  timer = window.setTimeout(() => void run(), pause);
}

export function retryNow(): void {
  failures = 0;
  void run();
}

export function start(): void {
  effect(() => {
    const name = focus.value;
    void namespace.value;
    // What is known of another group, or of this one long ago, is not what is now.
    if (membersOf.peek() !== name || name === null) {
      members.value = new Map();
      membersOf.value = null;
    }
    void run();
  });
  window.addEventListener("online", retryNow);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && link.value === "broken") retryNow();
  });
}
