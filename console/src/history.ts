// The last hour of one group: what the balancer remembers, and each sample since.

import { signal } from "@preact/signals";
import { get, part } from "./api";
import { members, membersOf, sample } from "./live";
import type { History } from "./types";

type Values = (number | null)[];
export interface Track { load: Values; share: Values; in_flight: Values; weight: Values; alert: (boolean | null)[] }

const KEYS = ["rate", "failures", "p50_ms", "p99_ms", "in_flight", "queue", "spread"] as const;
type Key = (typeof KEYS)[number];

export class GroupHistory {
  readonly tick = signal(0);
  readonly loaded = signal(false);
  t: number[] = [];
  lines = Object.fromEntries(KEYS.map((key) => [key, [] as Values])) as Record<Key, Values>;
  tracks = new Map<string, Track>();
  thresholds: History["thresholds"] = { reject: null, critical: null };

  constructor(readonly name: string) {}

  async load(stop: AbortSignal): Promise<void> {
    const since = Math.floor(Date.now() / 1000) - 3600;
    const past = await get<History>(`/v1/history?group=${part(this.name)}&since=${since}`, stop);
    // What came by the stream while this was under way is newer, and stays.
    const cut = this.t[0] ?? Infinity;
    const keep = past.t.findIndex((t) => t >= cut - 0.5);
    const end = keep < 0 ? past.t.length : keep;
    this.t = [...past.t.slice(0, end), ...this.t];
    for (const key of KEYS) this.lines[key] = [...past[key].slice(0, end), ...this.lines[key]];
    const mine = this.t.length - end;
    for (const member of past.members) {
      const now = this.tracks.get(member.name);
      const join = <T>(before: (T | null)[], after: (T | null)[] | undefined): (T | null)[] => [...before.slice(0, end), ...(after ?? Array<T | null>(mine).fill(null))];
      this.tracks.set(member.name, {
        load: join(member.load, now?.load),
        share: join(member.share, now?.share),
        in_flight: join(member.in_flight, now?.in_flight),
        weight: join(member.weight, now?.weight),
        alert: join(member.alert, now?.alert),
      });
    }
    for (const track of this.tracks.values()) pad(track, this.t.length);
    this.thresholds = past.thresholds;
    this.loaded.value = true;
    this.tick.value++;
  }

  /** Takes the sample of now. */
  add(): void {
    const now = sample.peek();
    const group = now?.groups.find((known) => known.name === this.name);
    if (!now || !group || (this.t.at(-1) ?? 0) >= now.t) return;
    // A hole in time is a hole in the lines.
    const last = this.t.at(-1);
    if (last !== undefined && now.t - last > 5 && this.loaded.peek()) {
      this.push(last + 1, null);
    }
    this.push(now.t, group);
    const most = this.tracks.size > 200 ? 900 : 3600;
    const over = this.t.length - most;
    if (over > 60) {
      this.t.splice(0, over);
      for (const key of KEYS) this.lines[key].splice(0, over);
      for (const track of this.tracks.values()) for (const list of Object.values(track)) list.splice(0, over);
    }
    this.tick.value++;
  }

  private push(t: number, group: Record<Key, number | null> | null): void {
    this.t.push(t);
    for (const key of KEYS) this.lines[key].push(group ? group[key] : null);
    const length = this.t.length;
    if (group && membersOf.peek() === this.name) {
      for (const member of members.peek().values()) {
        let track = this.tracks.get(member.name);
        if (!track) this.tracks.set(member.name, (track = { load: [], share: [], in_flight: [], weight: [], alert: [] }));
        pad(track, length - 1);
        track.load.push(member.load);
        track.share.push(member.share);
        track.in_flight.push(member.in_flight);
        track.weight.push(member.effective_weight);
        track.alert.push(member.alert);
      }
    }
    for (const track of this.tracks.values()) pad(track, length);
    // Members that are gone for as long as anything is shown.
    if (length % 300 === 0) for (const [name, track] of this.tracks) if (track.load.slice(-900).every((value) => value === null) && !members.peek().has(name)) this.tracks.delete(name);
  }
}

function pad(track: Track, length: number): void {
  for (const list of Object.values(track) as (number | boolean | null)[][]) while (list.length < length) list.push(null);
}
