// One group, live: the loads of its members, where its traffic goes, and what can be changed at once.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { part, send } from "../api";
import { Chart, type Level, type Thread } from "../chart";
import { load, ms, percent, rate, short } from "../format";
import { levelOf, troubles } from "../health";
import { GroupHistory } from "../history";
import { change, focus, members, membersOf, sample } from "../live";
import { go, href, route } from "../router";
import type { Group, Zone } from "../types";
import { complain, Failed, Figures, Gauge, Health, Loading, needs, Panel, Scroll, Segments, TabPanel, Tabs, tell, useAnswer } from "../ui/kit";
import { Engines } from "./engines";
import { Explain } from "./explain";
import { Members } from "./members";
import { StrategyPanel } from "./strategy";

const SPANS = [
  { id: "60", label: "1 min" },
  { id: "300", label: "5 min" },
  { id: "900", label: "15 min" },
  { id: "3600", label: "1 h" },
] as const;

const TABS = [
  { id: "live", label: "Live" },
  { id: "explain", label: "Explain" },
  { id: "strategy", label: "Strategy" },
];

export function GroupPage({ name }: { name: string }): JSX.Element {
  useEffect(() => {
    focus.value = name;
  }, [name]);
  const tab = route.value.parts[2] ?? "live";
  const now = sample.value;
  const group = now?.groups.find((known) => known.name === name);
  const many = (group?.members ?? 0) > 300;
  const details = useAnswer<Group>(`/v1/groups/${part(name)}`, many ? 30 : 5, [change.value?.generation]);
  useEffect(() => {
    document.title = `${name} · Evenkeel`;
  }, [name]);

  if (!now) return <Loading what="Waiting for the first sample …" />;
  if (!group)
    return (
      <>
        <div class="page-head"><h1><span class="crumb"><a href={href("groups")}>Groups</a> / </span>{name}</h1></div>
        {details.error ? <Failed error={details.error} retry={details.again} /> : <Loading />}
      </>
    );
  const trouble = troubles(group);
  return (
    <>
      <div class="page-head">
        <h1><span class="crumb"><a href={href("groups")}>Groups</a> / </span>{name}</h1>
        <Health level={levelOf(group)}>{trouble.map((item) => item.text).join(" · ") || "good"}</Health>
        <div class="actions">
          {details.data?.maintenance && <span class="tag warn">in maintenance</span>}
          {details.data && <span class="tag">{details.data.strategy}</span>}
          {details.data && <span class="tag">{details.data.granularity.replaceAll("_", " ")}</span>}
          {details.data?.owner && <span class="tag accent">owner: {details.data.owner}</span>}
          <a class="button small" href={href("whatif", name)}>What if</a>
          {details.data && <button type="button" class="button small" title="In maintenance, clients of rules get the maintenance page instead of the service" {...needs("operate")} onClick={() => void setMaintenance(name, !details.data!.maintenance, details.again)}>{details.data.maintenance ? "End maintenance" : "Maintenance"}</button>}
          {!details.data?.owner && <a class="button small" href={href("config", "group", name)}>Configure</a>}
        </div>
      </div>
      <Tabs label={`Views of group ${name}`} tabs={TABS} current={tab} onChange={(id) => go("groups", name, ...(id === "live" ? [] : [id]))} />
      <TabPanel id={tab}>
        {tab === "explain" ? <Explain group={name} /> : tab === "strategy" ? <StrategyPanel group={details.data} again={details.again} error={details.error} /> : <Live name={name} details={details.data} again={details.again} />}
      </TabPanel>
    </>
  );
}

async function setMaintenance(group: string, on: boolean, again: () => void): Promise<void> {
  const put = (on: boolean) => send("PUT", `/v1/groups/${part(group)}/maintenance`, { on }).then(again);
  try {
    await put(on);
    tell(`Group ${group}: maintenance ${on ? "on" : "off"}, until the configuration says otherwise`, { label: "Undo", run: () => void put(!on).catch(complain) });
  } catch (error) {
    complain(error);
  }
}

/** Levels are kept with fewer digits than are sent. */
const round = (value: number) => Number(value.toPrecision(4));

/** With at most so many members, their table stands above the charts. */
const FEW = 12;

const TOKENS = ["s1", "s2", "s3", "s4", "s5", "s6"];

function Live({ name, details, again }: { name: string; details: Group | null; again: () => void }): JSX.Element {
  const [span, setSpan] = useState<(typeof SPANS)[number]["id"]>("300");
  const [picked, setPicked] = useState<"load" | "share" | "in_flight" | "weight" | null>(null);
  const past = useMemo(() => new GroupHistory(name), [name]);
  useEffect(() => {
    const stop = new AbortController();
    past.load(stop.signal).catch(() => (past.loaded.value = true));
    const end = sample.subscribe(() => past.add());
    return () => {
      stop.abort();
      end();
    };
  }, [past]);
  const tick = past.tick.value;
  const group = sample.value!.groups.find((known) => known.name === name)!;
  const known = membersOf.value === name ? members.value : null;

  // Without load reports the picture of loads is an empty grid: the share is what there is to see then.
  const tracked = [...past.tracks.values()].some((track) => track.load.some((value) => value !== null));
  const silent = known !== null && !tracked && [...known.values()].every((member) => member.load === null);
  const what = picked ?? (silent ? "share" : "load");

  // Few members have a colour each; of many only those that stand out.
  const threads = useMemo<Thread[]>(() => {
    const list = [...past.tracks].map(([member, track]) => ({ member, track, now: track.load.at(-1) ?? -1, alert: track.alert.at(-1) === true }));
    const few = list.length <= TOKENS.length;
    const top = few ? list.map((item) => item.member) : [...list].sort((a, b) => Number(b.alert) - Number(a.alert) || b.now - a.now).slice(0, 3).map((item) => item.member);
    top.sort();
    return list.map(({ member, track }) => {
      const at = top.indexOf(member);
      return { name: member, values: track[what], alert: track.alert, token: at < 0 ? null : TOKENS[at % TOKENS.length]!, emphasis: at >= 0 };
    });
  }, [tick, what]);
  const levels = useMemo<Level[]>(() => {
    if (what !== "load") return [];
    const param = (key: string) => details?.params.find((known) => known.name === key)?.value || null;
    const reject = param("reject_threshold") ?? past.thresholds.reject;
    const critical = param("critical_threshold") ?? past.thresholds.critical;
    return [...(reject ? [{ label: `reject ${round(reject)}`, value: reject, token: "warn" }] : []), ...(critical ? [{ label: `critical ${round(critical)}`, value: critical, token: "bad" }] : [])];
  }, [details?.params, what, past.loaded.value]);

  const loads = known ? [...known.values()].filter((member) => member.load !== null) : [];
  const highest = loads.reduce<{ name: string; load: number } | null>((best, member) => (best && best.load >= member.load! ? best : { name: member.name, load: member.load! }), null);
  const lowest = loads.reduce<{ name: string; load: number } | null>((best, member) => (best && best.load <= member.load! ? best : { name: member.name, load: member.load! }), null);
  const summary = highest && lowest ? `now highest ${highest.name} ${load(highest.load)} · lowest ${lowest.name} ${load(lowest.load)} · spread ${load(group.spread)}` : `no loads are reported${details?.load ? ` (${details.load})` : ""}`;
  const seconds = +span;
  const shared = { t: past.t, span: seconds, tick };
  const WHAT = { load: { title: `Load of members${details ? ` (${details.load})` : ""}`, format: load }, share: { title: "Share of the traffic", format: (v: number | null) => percent(v) }, in_flight: { title: "In flight at members", format: short }, weight: { title: "Effective weight", format: load } } as const;

  // What one may want to act on comes first, unless it is so long that it would hide the charts.
  const table = <Members group={name} live={known} details={details} again={again} />;
  const first = group.members <= FEW;

  return (
    <div class="stack">
      <Figures
        items={[
          { label: "Requests", value: rate(group.rate) },
          { label: "Failures", value: percent(group.failures, 2), ...((group.failures ?? 0) >= 0.05 ? { level: "bad" } : (group.failures ?? 0) >= 0.01 ? { level: "warn" } : {}) },
          { label: "p50", value: ms(group.p50_ms) },
          { label: "p99", value: ms(group.p99_ms) },
          { label: "In flight", value: short(group.in_flight) },
          { label: "Waiting", value: short(group.queue), ...(group.queue > 0 ? { level: "warn" } : {}) },
          { label: "Members up", value: <>{group.up} <small>of {group.members}</small></>, ...(group.up === 0 ? { level: "bad" } : group.up < group.members ? { level: "warn" } : {}) },
          { label: "Load alerts", value: <>{group.alerts} <small>{details ? `${details.alerts_raised} raised` : ""}</small></>, ...(group.alerts > 0 ? { level: "warn" } : {}) },
          { label: "Spread of loads", value: load(group.spread) },
        ]}
      />
      {first && table}
      {details && <Engines group={details} />}
      <div class="actions">
        <Segments label="What the large chart shows" value={what} onChange={setPicked} options={[{ id: "load", label: "Load" }, { id: "share", label: "Share" }, { id: "in_flight", label: "In flight" }, { id: "weight", label: "Weight" }]} />
        <Segments label="Time that charts show" value={span} onChange={setSpan} options={[...SPANS]} />
        {!past.loaded.value && <span class="muted small" role="status">Loading the last hour …</span>}
      </div>
      <Chart {...shared} title={WHAT[what].title} lines={[]} threads={threads} levels={levels} format={WHAT[what].format} height={280} summary={what === "load" ? summary : `${threads.length} members`} />
      <div class="cols">
        <Chart {...shared} title="Requests" lines={[{ label: "requests", token: "s1", values: past.lines.rate, area: true }]} format={rate} height={150} />
        <Chart {...shared} title="Time until the response begins" lines={[{ label: "p50", token: "s1", values: past.lines.p50_ms }, { label: "p99", token: "s2", values: past.lines.p99_ms }]} format={ms} height={150} />
        <Chart {...shared} title="In flight and waiting" lines={[{ label: "in flight", token: "s1", values: past.lines.in_flight }, { label: "waiting", token: "s2", values: past.lines.queue }]} format={short} height={150} />
        <Chart {...shared} title="Failures and spread" lines={[{ label: "spread of loads", token: "s3", values: past.lines.spread }, { label: "share of failures", token: "bad", values: past.lines.failures }]} format={load} height={150} min={0.05} />
      </div>
      {details?.zones && details.zones.length > 0 && <Zones zones={details.zones} />}
      {!first && table}
    </div>
  );
}

/** Where requests go first, and which share of them goes on. */
function Zones({ zones }: { zones: Zone[] }): JSX.Element {
  return (
    <Panel title="Zones" live>
      <Scroll label="Zones">
        <table>
          <thead><tr><th scope="col">Zone</th><th scope="col" class="num">Order</th><th scope="col" class="num">Share of requests</th><th scope="col" class="num">Load</th><th scope="col" class="num">Can serve</th><th scope="col" class="num">Members</th><th scope="col" class="num">Requests so far</th></tr></thead>
          <tbody>
            {zones.map((zone) => (
              <tr key={zone.name ?? ""}>
                <th scope="row" class="nowrap">{zone.name ?? <span class="muted">no zone</span>} {zone.own && <span class="tag accent">the balancer's own</span>}</th>
                <td class="num">{zone.rank + 1}.</td>
                <td class="num"><Gauge value={zone.share} /> {percent(zone.share, 1)}</td>
                <td class="num">{load(zone.load)}</td>
                <td class="num"><Health level={zone.usable <= 0 ? "bad" : zone.usable < 1 ? "warn" : "ok"}>{percent(zone.usable)}</Health></td>
                <td class="num">{zone.members}</td>
                <td class="num">{short(zone.requests)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {new Set(zones.map((zone) => zone.rank)).size < zones.length && <p class="more muted">Zones with the same order count as one: share, load and “can serve” are those of all these zones.</p>}
    </Panel>
  );
}
