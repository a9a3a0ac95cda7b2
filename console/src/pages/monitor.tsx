// What the balancer hears of machines and what it is asked: loads, agents, monitors, CORBA, negotiation, clients of
// xDS, other balancers, Kubernetes, certificates, FTP, the process itself and all counters.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { part, send } from "../api";
import { bytes, duration, load, ms, percent, plural, short, when } from "../format";
import { focus, sample } from "../live";
import { go, href, route } from "../router";
import type { Location } from "../types";
import { Icon } from "../ui/icons";
import { Answer, complain, confirm, Empty, Failed, Figures, Health, Loading, needs, Panel, Scroll, Segments, SHOWN, State, TabPanel, Tabs, tell, useAnswer } from "../ui/kit";
import { KubernetesView } from "./kubernetes";

const VIEWS: { id: string; label: string; body: () => JSX.Element }[] = [
  { id: "locations", label: "Locations", body: Locations },
  { id: "agents", label: "Agents", body: Agents },
  { id: "kernel", label: "Kernel monitors", body: Kernel },
  { id: "negotiation", label: "Clients and quanta", body: Negotiation },
  { id: "corba", label: "CORBA", body: CorbaView },
  { id: "xds", label: "xDS clients", body: Xds },
  { id: "steer", label: "Steered balancers", body: Steered },
  { id: "kubernetes", label: "Kubernetes", body: KubernetesView },
  { id: "certificates", label: "Certificates", body: Certificates },
  { id: "ftp", label: "FTP", body: Ftp },
  { id: "process", label: "Process", body: Process },
  { id: "counters", label: "Counters", body: Counters },
];

export function MonitorPage(): JSX.Element {
  useEffect(() => {
    focus.value = null;
  }, []);
  const view = VIEWS.find((known) => known.id === route.value.parts[1]) ?? VIEWS[0]!;
  const Body = view.body;
  return (
    <>
      <div class="page-head"><h1>Monitoring</h1></div>
      <Tabs label="Parts of monitoring" tabs={VIEWS} current={view.id} onChange={(id) => go("monitor", id)} />
      <TabPanel id={view.id}><Body key={view.id} /></TabPanel>
    </>
  );
}

function Locations(): JSX.Element {
  const total = sample.peek()?.groups.reduce((sum, group) => sum + group.members, 0) ?? 0;
  const answer = useAnswer<Location[]>("/v1/locations", 2 + total / 200);
  const query = route.value.query.get("find");
  const [find, setFind] = useState(query ?? "");
  const [only, setOnly] = useState(false);
  useEffect(() => {
    if (query !== null) setFind(query);
  }, [query]);
  const set = async (name: string, alert: Location["alert_setting"], before: Location["alert_setting"]) => {
    const put = (to: string) => send("PUT", `/v1/locations/${part(name)}/alert`, { alert: to }).then(answer.again);
    try {
      await put(alert);
      tell(`Load alert of ${name}: ${alert === "auto" ? "the load decides" : alert === "on" ? "forced on" : "suppressed"}`, { label: "Undo", run: () => void put(before).catch(complain) });
    } catch (error) {
      complain(error);
    }
  };
  return (
    <Answer answer={answer} empty={<Empty title="No locations">A location is a machine where members run. A location appears as soon as a group has a member there.</Empty>}>
      {(all) => {
        const shown = all.filter((location) => location.name.includes(find) && (!only || location.alert || location.loads.some((item) => item.expired)));
        return (
          <Panel title={`Locations (${all.length})`} live actions={
            <>
              <label class="check"><input type="checkbox" checked={only} onChange={(event) => setOnly(event.currentTarget.checked)} />Only with trouble</label>
              <input type="search" aria-label="Filter locations" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
            </>
          }>
            <Scroll label="Locations">
              <table>
                <thead><tr><th scope="col">Location</th><th scope="col">Alert</th><th scope="col">Loads: value and age</th><th scope="col">Set the alert</th></tr></thead>
                <tbody>
                  {shown.slice(0, SHOWN).map((location) => (
                    <tr key={location.name}>
                      <th scope="row" class="nowrap">{location.name}</th>
                      <td>
                        <Health level={location.alert ? "warn" : "ok"}>{location.alert ? "under a load alert" : "none"}</Health>
                        {location.alerts.map((item) => <div key={item.group} class="small muted nowrap">{item.group}: load {load(item.load)} above {load(item.threshold)}, {duration(item.age_seconds)} ago</div>)}
                      </td>
                      <td>
                        <span class="loads">
                          {location.loads.map((item) => (
                            <span key={item.id} class={`load${item.expired ? " expired" : ""}`}>
                              <span class="muted">{item.id}{item.first ? " ★" : ""}</span> <strong>{load(item.value)}</strong> <span class="muted small">{item.expired ? "unknown since " : ""}{duration(item.age_seconds)}{"source" in item ? `, ${String(item.source)}` : ""}</span>
                            </span>
                          ))}
                          {location.loads.length === 0 && <span class="muted">no loads are reported</span>}
                        </span>
                      </td>
                      <td><Segments label={`Load alert of ${location.name}`} value={location.alert_setting} options={[{ id: "auto", label: "Auto" }, { id: "on", label: "On" }, { id: "off", label: "Off" }]} disabled={needs("operate").disabled} onChange={(alert) => void set(location.name, alert, location.alert_setting)} /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {shown.length === 0 && <Empty title="No location matches" />}
              {shown.length > SHOWN && <p class="more muted">and {shown.length - SHOWN} more: filter by name</p>}
            </Scroll>
          </Panel>
        );
      }}
    </Answer>
  );
}

interface Agent { location: string; name: string; address: string; state: string; identifier: string; key: number; registered_seconds: number; heard_seconds: number; measured_seconds: number | null; sequence: number; lost: number; confirmed: boolean; location_known: boolean; servers: { group: string; address: string; members: string[]; state: string; alert: boolean }[] }
interface Broker { listen: string[]; agents: number; stopped: number; datagrams: { result: string; count: number }[]; sent: number; unsent: number; lost: number; displaced: number; forgotten: number }

function Agents(): JSX.Element {
  const agents = useAnswer<Agent[]>("/v1/agents", 3);
  const broker = useAnswer<Broker | null>("/v1/broker", 5);
  const act = async (agent: Agent, what: "query" | "forget") => {
    if (what === "forget" && !(await confirm(`Forget agent ${agent.name}?`, "The agent's findings about its servers are removed. An agent that still runs registers again at its next report.", "Forget"))) return;
    try {
      await send("POST", `/v1/locations/${part(agent.location)}/agents/${part(agent.name)}/${what}`, {});
      tell(what === "query" ? `${agent.name} was asked for a report` : `${agent.name} is forgotten`);
      agents.again();
    } catch (error) {
      complain(error);
    }
  };
  return (
    <div class="stack">
      {broker.data && (
        <Figures items={[
          { label: "Agents", value: <>{broker.data.agents} <small>{broker.data.stopped ? `${broker.data.stopped} stopped` : ""}</small></> },
          ...broker.data.datagrams.filter((item) => item.count > 0).map((item) => ({ label: item.result.replaceAll("_", " "), value: short(item.count) })),
          { label: "Sent", value: short(broker.data.sent) },
          { label: "Lost", value: short(broker.data.lost), ...(broker.data.lost > 0 ? { level: "warn" as const } : {}) },
        ]} />
      )}
      <Answer answer={agents} empty={<Empty title="No agents report"><p>{broker.data ? `Agents reach this balancer at ${[broker.data.listen].flat().join(", ")}.` : "Set up [broker] in the configuration, and start evenkeel agent on the back-ends."}</p>{!broker.data && <a class="button" href={href("config", "table", "broker")}>Configure</a>}</Empty>}>
        {(list) => (
          <Panel title={`Agents (${list.length})`} live>
            <Scroll label="Agents">
              <table>
                <thead><tr><th scope="col">Agent</th><th scope="col">State</th><th scope="col">Location</th><th scope="col">Address</th><th scope="col" class="num">Heard</th><th scope="col" class="num">Measured</th><th scope="col" class="num">Lost</th><th scope="col">Servers</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
                <tbody>
                  {list.map((agent) => (
                    <tr key={agent.location + agent.name}>
                      <th scope="row">{agent.name}</th>
                      <td><Health level={agent.state === "registered" ? (agent.confirmed ? "ok" : "warn") : "off"}>{agent.state}{agent.state === "registered" && !agent.confirmed ? ", not confirmed" : ""}</Health></td>
                      <td>{agent.location}{!agent.location_known && <span class="tag warn">no member there</span>}</td>
                      <td class="nowrap">{agent.address}</td>
                      <td class="num">{duration(agent.heard_seconds)} ago</td>
                      <td class="num">{agent.measured_seconds === null ? "–" : `${duration(agent.measured_seconds)} ago`}</td>
                      <td class="num">{agent.lost}</td>
                      <td>{agent.servers.map((server) => <div key={server.group + server.address} class="nowrap"><a href={href("groups", server.group)}>{server.group}</a> {server.members.join(", ") || <span class="tag warn">{server.address}: no member</span>} <State state={server.state} />{server.alert && <span class="tag warn">alert</span>}</div>)}</td>
                      <td><span class="actions nowrap-actions"><button type="button" class="button small" {...needs("operate")} aria-label={`Ask ${agent.name} for a report`} onClick={() => void act(agent, "query")}>Ask</button><button type="button" class="button small" {...needs("operate")} aria-label={`Forget ${agent.name}`} onClick={() => void act(agent, "forget")}>Forget</button></span></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          </Panel>
        )}
      </Answer>
    </div>
  );
}

interface KernelLocation { location: string; type: string; address: string; target: number; interval_ms: number; state: string; source: string | null; age_seconds: number | null; round_trip_ms: number | null; asked: number; answered: number; missed: number; refused: number; failed: number; expired: number; trouble: string | null }
interface KernelSum { locations: number; fresh: number; asked: number; answers: { result: string; count: number }[]; delays: [number | null, number][]; delay_seconds: number }

function Kernel(): JSX.Element {
  const all = useAnswer<KernelSum | null>("/v1/monitor", 3);
  const list = useAnswer<KernelLocation[]>("/v1/monitor/locations", 2);
  return (
    <div class="stack">
      {all.data && (
        <Figures items={[
          { label: "Locations fresh", value: <>{all.data.fresh} <small>of {all.data.locations}</small></>, ...(all.data.fresh < all.data.locations ? { level: "warn" as const } : {}) },
          { label: "Queries", value: short(all.data.asked) },
          ...all.data.answers.filter((item) => item.count > 0).map((item) => ({ label: item.result.replaceAll("_", " "), value: short(item.count) })),
          { label: "Mean delay of queries", value: ms(all.data.asked > 0 ? (all.data.delay_seconds * 1000) / all.data.asked : null) },
        ]} />
      )}
      <Answer answer={list} empty={<Empty title="No kernel is queried for its load"><p>If a group has a table <code>monitor</code>, the balancer reads the loads of its locations from their kernels, many times a second.</p></Empty>}>
        {(rows) => (
          <Panel title="Kernel monitors" live>
            <Scroll label="Kernel monitors">
              <table>
                <thead><tr><th scope="col">Location</th><th scope="col">State</th><th scope="col">Kind</th><th scope="col">Address</th><th scope="col" class="num">Every</th><th scope="col" class="num">Round trip</th><th scope="col" class="num">Age</th><th scope="col" class="num">Asked</th><th scope="col" class="num">Answered</th><th scope="col" class="num">Missed</th><th scope="col" class="num">Refused</th><th scope="col" class="num">Failed</th><th scope="col">Trouble</th></tr></thead>
                <tbody>
                  {rows.slice(0, SHOWN).map((row) => (
                    <tr key={row.location + row.address + row.target}>
                      <th scope="row" class="nowrap">{row.location}{row.target ? `/${row.target}` : ""}</th>
                      <td><Health level={row.state === "fresh" ? "ok" : row.state === "waiting" ? "off" : "bad"}>{row.state}</Health></td>
                      <td>{row.type}{row.source && <span class="muted"> ({row.source.replaceAll("_", " ")})</span>}</td>
                      <td class="nowrap">{row.address}</td>
                      <td class="num">{ms(row.interval_ms)}</td>
                      <td class="num">{ms(row.round_trip_ms)}</td>
                      <td class="num">{duration(row.age_seconds)}</td>
                      <td class="num">{short(row.asked)}</td>
                      <td class="num">{short(row.answered)}</td>
                      <td class="num">{short(row.missed)}</td>
                      <td class="num">{short(row.refused)}</td>
                      <td class="num">{short(row.failed)}</td>
                      <td>{row.trouble ?? "–"}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          </Panel>
        )}
      </Answer>
    </div>
  );
}

interface Family { name: string; help: string; type: string; samples: { labels: Record<string, string>; value: number | null; [more: string]: unknown }[] }
interface Cluster { name: string; group: string; hosts: string[]; classes: { name: string; quantum_seconds: [number, number]; response_time_ms: number | null; max_utilization: number | null; negotiations: Record<string, number> }[] }

function sumOf(families: Family[] | null, name: string, by: string, labels: Record<string, string> = {}): Map<string, number> {
  const sums = new Map<string, number>();
  for (const item of families?.find((family) => family.name === name)?.samples ?? []) {
    if (Object.entries(labels).some(([label, value]) => item.labels[label] !== value)) continue;
    const key = item.labels[by] ?? "";
    sums.set(key, (sums.get(key) ?? 0) + (item.value ?? 0));
  }
  return sums;
}

function Negotiation(): JSX.Element {
  const clusters = useAnswer<Cluster[]>("/v1/clusters", 3);
  const counters = useAnswer<Family[]>("/v1/counters", 5);
  const groups = useAnswer<{ name: string; granularity: string; members: { name: string; in_flight: number; totals: { assigned: number } }[] }[]>((sample.peek()?.groups.reduce((sum, group) => sum + group.members, 0) ?? 0) > 2000 ? null : "/v1/groups", 5);
  const bound = (groups.data ?? []).filter((group) => group.granularity === "on_demand");
  const reasons = (rule: string) => [...sumOf(counters.data, "evenkeel_rule_moved_total", "reason", { rule })].filter(([, count]) => count > 0);
  const rules = [...sumOf(counters.data, "evenkeel_rule_moved_total", "rule").keys()];
  return (
    <div class="stack">
      <Answer answer={clusters} empty={<Empty title="No clusters">Clients negotiate for a cluster: they get a server for a quantum of time, and connect to it directly.<p><a class="button" href={href("config", "new", "cluster")}>Create a cluster</a></p></Empty>}>
        {(list) => (
          <Panel title="Quanta and negotiations" live>
            <Scroll label="Quanta and negotiations">
              <table>
                <thead><tr><th scope="col">Cluster</th><th scope="col">Class</th><th scope="col">Group</th><th scope="col">Hosts</th><th scope="col" class="num">Quantum</th><th scope="col" class="num">Response time</th><th scope="col" class="num">Maximum utilisation</th><th scope="col" class="num">Redirected</th><th scope="col" class="num">Answered</th><th scope="col">Refused</th></tr></thead>
                <tbody>
                  {list.flatMap((cluster) =>
                    cluster.classes.map((item) => {
                      const refused = Object.entries(item.negotiations).filter(([how, count]) => !["redirected", "answered"].includes(how) && count > 0);
                      return (
                        <tr key={`${cluster.name}/${item.name}`}>
                          <th scope="row">{cluster.name}</th>
                          <td>{item.name || <span class="muted">none named</span>}</td>
                          <td><a href={href("groups", cluster.group)}>{cluster.group}</a></td>
                          <td>{cluster.hosts.join(", ")}</td>
                          <td class="num">{item.quantum_seconds[0] === item.quantum_seconds[1] ? duration(item.quantum_seconds[0]) : `${duration(item.quantum_seconds[0])} to ${duration(item.quantum_seconds[1])}`}</td>
                          <td class="num">{ms(item.response_time_ms)}</td>
                          <td class="num">{percent(item.max_utilization)}</td>
                          <td class="num">{short(item.negotiations.redirected ?? 0)}</td>
                          <td class="num">{short(item.negotiations.answered ?? 0)}</td>
                          <td>{refused.map(([how, count]) => `${how.replaceAll("_", " ")} ${count}`).join(", ") || "–"}</td>
                        </tr>
                      );
                    }),
                  )}
                </tbody>
              </table>
            </Scroll>
          </Panel>
        )}
      </Answer>
      <Panel title="Clients bound on demand" live>
        {bound.length === 0 ? <Empty title="No group binds clients on demand">Groups with granularity <code>on_demand</code> bind a client to a member until a load alert or the rebind interval moves it.</Empty> : (
          <Scroll label="Clients bound on demand">
            <table>
              <thead><tr><th scope="col">Group</th><th scope="col">Member</th><th scope="col" class="num">In flight</th><th scope="col" class="num">Assigned by negotiation</th></tr></thead>
              <tbody>
                {bound.flatMap((group) => group.members.slice(0, SHOWN).map((member) => (
                  <tr key={group.name + member.name}><th scope="row"><a href={href("groups", group.name)}>{group.name}</a></th><td>{member.name}</td><td class="num">{member.in_flight}</td><td class="num">{short(member.totals.assigned)}</td></tr>
                )))}
              </tbody>
            </table>
          </Scroll>
        )}
      </Panel>
      {rules.length > 0 && (
        <Panel title="Clients moved" live>
          <Scroll label="Clients moved">
            <table>
              <thead><tr><th scope="col">Rule</th><th scope="col">Moved, by reason</th></tr></thead>
              <tbody>{rules.map((rule) => <tr key={rule}><th scope="row">{rule}</th><td>{reasons(rule).map(([why, count]) => `${why} ${short(count)}`).join(", ") || "nobody"}</td></tr>)}</tbody>
            </table>
          </Scroll>
        </Panel>
      )}
    </div>
  );
}

interface Corba {
  listen: string[]; reference: string; state_problem: string | null; standby: { is_owner: boolean; owner: string | null; for_seconds: number; takeovers: number; problem: string | null } | null; connections: number; requests: Record<string, number>; relayed: Record<string, number>;
  groups: { id: number; name: string; type_id: string; reference: string; membership: string; properties: { name: string; value: string; level: string }[]; custom_strategy: { reference: string; answers: boolean; silences: number; unusable: number } | null; requests: Record<string, number>; members: { location: string; reference: string; made: boolean }[] }[];
  monitors: { location: string; reference: string }[];
  alerts: { location: string; reference: string; wanted: boolean; acknowledged: boolean | null; problem: string | null }[];
}

const counts = (map: Record<string, number>) => Object.entries(map).filter(([, count]) => count > 0).map(([name, count]) => `${name.replaceAll("_", " ")} ${short(count)}`).join(", ") || "none";

function Reference({ text }: { text: string }): JSX.Element {
  return <button type="button" class="button small quiet" title={text} onClick={() => void navigator.clipboard?.writeText(text).then(() => tell("The reference is copied"), complain)}>Copy IOR</button>;
}

function CorbaView(): JSX.Element {
  const answer = useAnswer<Corba | null>("/v1/corba", 3);
  const remove = async (path: string, title: string, text: string) => {
    if (!(await confirm(title, text, "Remove"))) return;
    try {
      await send("POST", path, {});
      tell("Removed");
      answer.again();
    } catch (error) {
      complain(error);
    }
  };
  return (
    <Answer answer={answer} empty={<Empty title="The CORBA service is off"><p>To turn the service on, add a table <code>[corba]</code> to the configuration.</p><a class="button" href={href("config", "table", "corba")}>Configure</a></Empty>}>
      {(corba) => (
        <div class="stack">
          {corba.state_problem && <p class="banner warn"><Icon name="warn" />The last change is not stored: {corba.state_problem}</p>}
          {corba.standby?.problem && <p class="banner warn"><Icon name="warn" />{corba.standby.problem}</p>}
          {corba.standby && <p class="muted">{corba.standby.is_owner ? "This balancer is the load manager" : `This balancer stands by: ${corba.standby.owner ?? "nobody"} is the load manager`}, for {duration(corba.standby.for_seconds)}</p>}
          <Figures items={[{ label: "Connections", value: corba.connections }, { label: "Object groups", value: corba.groups.length }, ...Object.entries(corba.requests).map(([name, count]) => ({ label: `for ${name}`, value: short(count) })), ...Object.entries(corba.relayed).map(([name, count]) => ({ label: `relayed: ${name}`, value: short(count) }))]} />
          {corba.reference && <p class="muted">Load manager at {[corba.listen].flat().join(", ")} <Reference text={corba.reference} /></p>}
          {corba.groups.length === 0 && corba.standby?.is_owner !== false && <div class="panel"><Empty title="No object groups">Applications create them with the load manager.</Empty></div>}
          {corba.groups.map((group) => (
            <Panel key={group.id} title={<a href={href("groups", group.name)}>{group.name}</a>} live actions={<><Reference text={group.reference} /><button type="button" class="button small danger" {...needs("operate")} onClick={() => void remove(`/v1/corba/groups/${part(group.name)}/remove`, `Delete object group ${group.name}?`, "Clients of the group get an exception afterwards.")}>Delete</button></>}>
              <div class="body stack">
                <dl class="props">
                  <dt>Type</dt><dd class="mono">{group.type_id}</dd>
                  <dt>Members come from</dt><dd>the {group.membership}</dd>
                  <dt>Requests</dt><dd>{counts(group.requests)}</dd>
                  {group.custom_strategy && <><dt>Custom strategy</dt><dd><Health level={group.custom_strategy.answers ? "ok" : "bad"}>{group.custom_strategy.answers ? "answers" : "does not answer"}</Health> ({group.custom_strategy.silences} silences, {group.custom_strategy.unusable} unusable answers)</dd></>}
                  {group.properties.map((property) => <><dt>{property.name}</dt><dd>{property.value} <span class="muted">({property.level})</span></dd></>)}
                </dl>
                <Scroll label={`Members of ${group.name}`}>
                  <table>
                    <thead><tr><th scope="col">Location</th><th scope="col">Made by</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
                    <tbody>{group.members.map((member) => <tr key={member.location}><th scope="row">{member.location}</th><td>{member.made ? "a factory" : "the application"}</td><td><span class="actions"><Reference text={member.reference} /><button type="button" class="button small" {...needs("operate")} aria-label={`Remove ${member.location}`} onClick={() => void remove(`/v1/corba/groups/${part(group.name)}/members/${part(member.location)}/remove`, `Remove member ${member.location}?`, `The member leaves object group ${group.name}.`)}>Remove</button></span></td></tr>)}</tbody>
                  </table>
                </Scroll>
              </div>
            </Panel>
          ))}
          <div class="cols">
            <Panel title="Load monitors" live>
              {corba.monitors.length === 0 ? <Empty title="None are registered" /> : (
                <Scroll label="Load monitors"><table><thead><tr><th scope="col">Location</th><th scope="col"><span class="sr">Actions</span></th></tr></thead><tbody>{corba.monitors.map((item) => <tr key={item.location}><th scope="row">{item.location}</th><td><button type="button" class="button small" {...needs("operate")} aria-label={`Remove the monitor of ${item.location}`} onClick={() => void remove(`/v1/corba/monitors/${part(item.location)}/remove`, `Remove the load monitor of ${item.location}?`, "It can be registered again.")}>Remove</button></td></tr>)}</tbody></table></Scroll>
              )}
            </Panel>
            <Panel title="Load alerts" live>
              {corba.alerts.length === 0 ? <Empty title="None are registered" /> : (
                <Scroll label="Load alerts"><table><thead><tr><th scope="col">Location</th><th scope="col">Wanted</th><th scope="col">Acknowledged</th><th scope="col">Problem</th><th scope="col"><span class="sr">Actions</span></th></tr></thead><tbody>{corba.alerts.map((item) => <tr key={item.location}><th scope="row">{item.location}</th><td><Health level={item.wanted ? "warn" : "ok"}>{item.wanted ? "on" : "off"}</Health></td><td>{item.acknowledged === null ? "nothing yet" : item.acknowledged ? "on" : "off"}</td><td>{item.problem ?? "–"}</td><td><button type="button" class="button small" {...needs("operate")} aria-label={`Remove the alert of ${item.location}`} onClick={() => void remove(`/v1/corba/alerts/${part(item.location)}/remove`, `Remove the load alert of ${item.location}?`, "It can be registered again.")}>Remove</button></td></tr>)}</tbody></table></Scroll>
              )}
            </Panel>
          </div>
        </div>
      )}
    </Answer>
  );
}

interface Subscription { type: string; all: boolean; names: number; accepted: string | null; pending: string | null; pushes: number; nacks: number; last_nack: { version: string; reason: string; age_seconds: number } | null }
interface XdsStream { node: string; service: string; program: string; dialect: string; zone: string | null; address: string; stream: string; connected_seconds: number; subscriptions: Subscription[] }
interface XdsStatus { listen: string[]; connections: number; refused: number; groups: number; changes: number; load_reports: number; unknown_load_reports: number; clients: XdsStream[] }

/** How it goes with one type of resource at one client, and what it has refused. */
function Accepted({ of }: { of: Subscription }): JSX.Element {
  const nack = of.last_nack;
  // The number of a change is the last part of a version; what was accepted after a refusal has mended it.
  const change = (version: string | null) => Number(version?.split("-").at(-1) ?? -1);
  const refuses = nack !== null && change(nack.version) > change(of.accepted);
  const state = refuses ? <Health level="bad">refuses {nack.version}</Health> : of.pending ? <Health level="off">has not answered to {of.pending}</Health> : of.accepted ? <Health level="ok">accepted</Health> : <Health level="off">nothing sent</Health>;
  return (
    <>
      {state}
      {nack && <div class={`small${refuses ? "" : " muted"}`}>{refuses ? "" : `refused ${nack.version}: `}{nack.reason || "no reason given"}, {duration(nack.age_seconds)} ago</div>}
    </>
  );
}

function Xds(): JSX.Element {
  const answer = useAnswer<XdsStatus | null>("/v1/xds", 3);
  const [find, setFind] = useState("");
  return (
    <Answer answer={answer} empty={<Empty title="xDS is off"><p>With a table <code>[xds]</code> in the configuration, Envoy and clients of gRPC get members and weights from this balancer.</p><a class="button" href={href("config", "table", "xds")}>Configure</a></Empty>}>
      {(xds) => {
        const wanted = find.trim().toLowerCase();
        const rows = xds.clients
          .filter((client) => `${client.node} ${client.service} ${client.program} ${client.zone ?? ""} ${client.address}`.toLowerCase().includes(wanted))
          .flatMap((client): { client: XdsStream; of: Subscription | null }[] => (client.subscriptions.length ? client.subscriptions.map((of) => ({ client, of })) : [{ client, of: null }]));
        return (
          <div class="stack">
            <Figures items={[
              { label: "Clients", value: new Set(xds.clients.map((client) => client.node)).size },
              { label: "Connections", value: xds.connections },
              { label: "Refused: too many connections", value: short(xds.refused), ...(xds.refused > 0 ? { level: "warn" as const } : {}) },
              { label: "Groups for clients", value: xds.groups },
              { label: "Changes", value: short(xds.changes) },
              { label: "Load reports", value: <>{short(xds.load_reports)} <small>{xds.unknown_load_reports > 0 ? `${short(xds.unknown_load_reports)} for unknown members` : ""}</small></> },
            ]} />
            {xds.clients.length === 0 ? <div class="panel"><Empty title="No client is connected"><p>Clients reach this balancer at {xds.listen.join(", ")}.</p></Empty></div> : (
              <Panel title="Clients of xDS" live actions={<input type="search" aria-label="Filter clients" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} />}>
                <Scroll label="Clients of xDS">
                  <table>
                    <thead><tr><th scope="col">Client</th><th scope="col">Program</th><th scope="col">Zone</th><th scope="col" class="num">Connected</th><th scope="col">Type</th><th scope="col">State</th><th scope="col" class="num">Requested</th><th scope="col">Last accepted</th><th scope="col" class="num">Sent</th><th scope="col" class="num">Refused</th></tr></thead>
                    <tbody>
                      {rows.slice(0, SHOWN).map(({ client, of }) => (
                        <tr key={client.address + client.stream + client.node + (of?.type ?? "")}>
                          <th scope="row">{client.node || <span class="muted">no name</span>}<div class="small muted nowrap">{client.service && `${client.service}, `}{client.address}</div></th>
                          <td class="nowrap">{client.program || "–"}<div class="small muted">{client.dialect === "grpc" ? "a locality for each member" : "as Envoy"}</div></td>
                          <td>{client.zone ?? "–"}</td>
                          <td class="num">{duration(client.connected_seconds)}</td>
                          {of ? (
                            <>
                              <td class="nowrap">{of.type}<div class="small muted">{client.stream.replaceAll("_", " ")}</div></td>
                              <td><Accepted of={of} /></td>
                              <td class="num">{of.all ? "all" : of.names}</td>
                              <td class="mono nowrap">{of.accepted ?? "–"}</td>
                              <td class="num">{short(of.pushes)}</td>
                              <td class="num">{short(of.nacks)}</td>
                            </>
                          ) : (
                            <>
                              <td class="nowrap">{client.stream.replaceAll("_", " ")}</td>
                              <td><Health level="ok">connected</Health></td>
                              <td class="num">–</td><td>–</td><td class="num">–</td><td class="num">–</td>
                            </>
                          )}
                        </tr>
                      ))}
                    </tbody>
                  </table>
                  {rows.length === 0 && <Empty title="No client matches" />}
                  {rows.length > SHOWN && <p class="more muted">and {rows.length - SHOWN} more: filter by name</p>}
                </Scroll>
              </Panel>
            )}
          </div>
        );
      }}
    </Answer>
  );
}

interface SteerStatus { name: string; group: string; target: string; dry_run: boolean; peer: string | null; error: string | null; changes: number; failures: number; restarts: number; overridden: number; members: { name: string; member: string; address: string; state: string; weight: number; server: string | null; has: number | null; note: string | null }[]; others: string[]; pending: string[] }

function Steered(): JSX.Element {
  const answer = useAnswer<SteerStatus[]>("/v1/steer", 3);
  return (
    <Answer answer={answer} empty={<Empty title="No other balancer is steered"><p>A table <code>[steer.NAME]</code> in the configuration gives HAProxy or nginx the weights and states of a group.</p></Empty>}>
      {(all) => (
        <div class="stack">
          {all.map((steer) => {
            const sum = steer.members.reduce((sum, member) => sum + member.weight, 0);
            return (
              <Panel key={steer.name} title={steer.name} live actions={<>{steer.dry_run && <span class="tag accent">dry run: nothing is changed</span>}<Health level={steer.error ? "bad" : "ok"}>{steer.error ? "cannot be updated" : "up to date"}</Health></>}>
                <div class="body stack">
                  {steer.error && <p class="banner warn"><Icon name="warn" />{steer.error}</p>}
                  <dl class="props">
                    <dt>Group</dt><dd><a href={href("groups", steer.group)}>{steer.group}</a></dd>
                    <dt>Address</dt><dd>{steer.target}</dd>
                    {steer.peer && <><dt>Process</dt><dd>{steer.peer}</dd></>}
                    <dt>So far</dt><dd>{plural(steer.changes, "change")}, {plural(steer.failures, "failure")}, {plural(steer.restarts, "restart")}, {plural(steer.overridden, "weight")} changed by others</dd>
                    {steer.others.length > 0 && <><dt>Servers that are no members, left alone</dt><dd>{steer.others.join(", ")}</dd></>}
                    {steer.pending.length > 0 && <><dt>Would be sent</dt><dd class="mono">{steer.pending.map((line) => <div key={line}>{line}</div>)}</dd></>}
                  </dl>
                  <Scroll label={`Members at ${steer.name}`}>
                    <table>
                      <thead><tr><th scope="col">Member</th><th scope="col">State</th><th scope="col" class="num">Share</th><th scope="col" class="num">Weight</th><th scope="col" class="num">Has</th><th scope="col">Server</th><th scope="col">Note</th></tr></thead>
                      <tbody>
                        {steer.members.slice(0, SHOWN).map((member) => (
                          <tr key={member.member + (member.server ?? "")}>
                            <th scope="row" class="nowrap">{member.name}{member.name !== member.member && <span class="small muted"> {member.member}</span>}</th>
                            <td><Health level={member.state === "serving" ? "ok" : member.state === "down" ? "bad" : member.state === "shedding" ? "warn" : "off"}>{member.state}</Health></td>
                            <td class="num">{percent(sum > 0 ? member.weight / sum : 0, 1)}</td>
                            <td class="num">{member.weight}</td>
                            <td class="num">{member.has ?? "–"}</td>
                            <td class="nowrap">{member.server ?? "–"}</td>
                            <td>{member.note ?? "–"}</td>
                          </tr>
                        ))}
                      </tbody>
                    </table>
                    {steer.members.length > SHOWN && <p class="more muted">and {steer.members.length - SHOWN} more</p>}
                  </Scroll>
                </div>
              </Panel>
            );
          })}
        </div>
      )}
    </Answer>
  );
}

interface Certificate { listener: string; file: string; names: string[]; subject: string; issuer: string; key: string; not_before: number; not_after: number; expires_in: number; fingerprint: string }
interface Acme { name: string; issued: boolean; next: number; failures: number; error: string | null }

function Certificates(): JSX.Element {
  const certificates = useAnswer<Certificate[]>("/v1/certificates", 60);
  const acme = useAnswer<Acme[]>("/v1/acme", 30);
  return (
    <div class="stack">
      <Answer answer={certificates} empty={<Empty title="No certificates">No rule, negotiator or admin API of this process uses TLS.</Empty>}>
        {(list) => (
          <Panel title="Certificates" live>
            <Scroll label="Certificates">
              <table>
                <thead><tr><th scope="col">Shown by</th><th scope="col">Names</th><th scope="col">Expires</th><th scope="col" class="num">Days</th><th scope="col">Issuer</th><th scope="col">Key</th><th scope="col">File</th></tr></thead>
                <tbody>
                  {[...list].sort((a, b) => a.not_after - b.not_after).map((item) => {
                    const days = item.expires_in / 86400;
                    return (
                      <tr key={item.listener + item.fingerprint}>
                        <th scope="row" class="nowrap">{item.listener}</th>
                        <td>{item.names.join(", ") || item.subject}</td>
                        <td class="nowrap"><Health level={days < 0 ? "bad" : days < 14 ? "warn" : "ok"}>{when(item.not_after)}</Health></td>
                        <td class="num">{days < 0 ? "expired" : Math.floor(days)}</td>
                        <td>{item.issuer}</td>
                        <td class="nowrap">{item.key}</td>
                        <td class="mono small" title={`SHA-256 ${item.fingerprint}`}>{item.file}</td>
                      </tr>
                    );
                  })}
                </tbody>
              </table>
            </Scroll>
          </Panel>
        )}
      </Answer>
      {acme.data && acme.data.length > 0 && (
        <Panel title="By ACME" live>
          <Scroll label="Certificates by ACME">
            <table>
              <thead><tr><th scope="col">Name</th><th scope="col">Certificate</th><th scope="col">Next request</th><th scope="col" class="num">Failures in a row</th><th scope="col">Last error</th></tr></thead>
              <tbody>{acme.data.map((item) => <tr key={item.name}><th scope="row">{item.name}</th><td><Health level={item.issued ? "ok" : "bad"}>{item.issued ? "there" : "none yet"}</Health></td><td>{when(item.next)}</td><td class="num">{item.failures}</td><td>{item.error ?? "–"}</td></tr>)}</tbody>
            </table>
          </Scroll>
        </Panel>
      )}
    </div>
  );
}

function Ftp(): JSX.Element {
  const answer = useAnswer<Family[]>("/v1/counters", 3);
  const rules = useAnswer<{ name: string; protocol: string; listen: string[]; group: string }[]>("/v1/rules", 30);
  const ftp = (rules.data ?? []).filter((rule) => rule.protocol === "ftp");
  const text = (name: string, by: string, rule: string, format: (value: number) => string = short) => [...sumOf(answer.data, name, by, { rule })].filter(([, count]) => count > 0).map(([what, count]) => `${what.replaceAll("_", " ")} ${format(count)}`).join(", ") || "none";
  if (answer.error && !answer.data) return <Failed error={answer.error} retry={answer.again} />;
  if (answer.at === 0 || rules.at === 0) return <Loading />;
  if (ftp.length === 0) return <div class="panel"><Empty title="No FTP rules">A rule with <code>protocol = "ftp"</code> balances FTP sessions with their data connections.</Empty></div>;
  return (
    <Panel title="FTP" live>
      <Scroll label="FTP rules">
        <table>
          <thead><tr><th scope="col">Rule</th><th scope="col">Listens on</th><th scope="col" class="num">Sessions open</th><th scope="col" class="num">Sessions so far</th><th scope="col">Data connections</th><th scope="col">Bytes</th><th scope="col">Refused</th></tr></thead>
          <tbody>
            {ftp.map((rule) => (
              <tr key={rule.name}>
                <th scope="row"><a href={href("config", "rule", rule.name)}>{rule.name}</a></th>
                <td>{rule.listen.join(", ")}</td>
                <td class="num">{short(sumOf(answer.data, "evenkeel_rule_connections_open", "rule").get(rule.name))}</td>
                <td class="num">{short(sumOf(answer.data, "evenkeel_rule_connections_total", "rule").get(rule.name))}</td>
                <td>{text("evenkeel_rule_ftp_data_connections_total", "kind", rule.name)}</td>
                <td>{text("evenkeel_rule_ftp_bytes_total", "of", rule.name, bytes)}</td>
                <td>{text("evenkeel_rule_ftp_refused_total", "reason", rule.name)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

interface ProcessInfo { pid: number; uptime_seconds: number; cpu_seconds: number; cpu_share: number | null; resident_bytes: number; open_files: number; threads: number; version: string; workers: number }
interface Limits { files: number; files_reserved: number; clients: number; clients_open: number; memory: number; memory_reserved: number }

function Process(): JSX.Element {
  const answer = useAnswer<ProcessInfo>("/v1/process", 2);
  const total = sample.peek()?.groups.reduce((sum, group) => sum + group.members, 0) ?? 0;
  const status = useAnswer<{ generation: number; last_reload: { unix_seconds: number; error: string | null } | null; needs_restart: string[]; limits: Limits | null }>("/v1/status", 10 + total / 50);
  const limits = status.data?.limits;
  const now = sample.value?.process;
  return (
    <Answer answer={answer} empty={<Empty title="No figures of the process" />}>
      {(info) => (
        <div class="stack">
          <Figures items={[
            { label: "CPU now", value: percent(now?.cpu_share ?? info.cpu_share, 1) },
            { label: "CPU so far", value: duration(info.cpu_seconds) },
            { label: "Memory", value: bytes(now?.resident_bytes ?? info.resident_bytes) },
            { label: "Open files", value: <>{short(info.open_files)} <small>{limits ? `of ${short(limits.files)}` : ""}</small></> },
            { label: "Clients", value: <>{limits ? short(limits.clients_open) : "–"} <small>{limits ? `of ${short(limits.clients)}` : ""}</small></> },
            { label: "Threads", value: <>{info.threads} <small>{info.workers} workers</small></> },
            { label: "Up for", value: duration(info.uptime_seconds) },
          ]} />
          <Panel title="The process" pad>
            <dl class="props">
              <dt>Version</dt><dd>{info.version}</dd>
              <dt>Process id</dt><dd>{info.pid}</dd>
              {status.data && (
                <>
                  <dt>Configuration</dt><dd>{status.data.generation}{status.data.last_reload && <>, {when(status.data.last_reload.unix_seconds)}{status.data.last_reload.error && <span class="problem"> the last reload was refused: {status.data.last_reload.error}</span>}</>}</dd>
                  <dt>Needs a restart</dt><dd>{status.data.needs_restart.join("; ") || "nothing"}</dd>
                </>
              )}
              {limits && <><dt>Reserved</dt><dd>{plural(limits.files_reserved, "file")}, {bytes(limits.memory_reserved)} of {bytes(limits.memory)}, for checks, reports, this API and reloads</dd></>}
            </dl>
          </Panel>
        </div>
      )}
    </Answer>
  );
}

function Counters(): JSX.Element {
  const answer = useAnswer<Family[]>("/v1/counters", 10);
  const [find, setFind] = useState("");
  const wanted = find.trim().toLowerCase();
  const rows = useMemo(() => {
    const list: { name: string; help: string; labels: string; value: string }[] = [];
    for (const family of answer.data ?? [])
      for (const item of family.samples) {
        const labels = Object.entries(item.labels).map(([name, value]) => `${name}=${value}`).join(" ");
        if (wanted && !`${family.name} ${labels}`.toLowerCase().includes(wanted)) continue;
        list.push({ name: family.name, help: family.help, labels, value: typeof item.value === "number" ? (Number.isInteger(item.value) ? item.value.toLocaleString() : load(item.value)) : item.value === null ? "–" : JSON.stringify(item.value) });
      }
    return list;
  }, [answer.data, wanted]);
  return (
    <Answer answer={answer} empty={<Empty title="No counters" />}>
      {() => (
        <Panel title={`Counters (${rows.length})`} actions={<input type="search" aria-label="Filter counters by name and labels" placeholder="Filter by name and labels" value={find} onInput={(event) => setFind(event.currentTarget.value)} />}>
          <Scroll label="Counters">
            <table>
              <thead><tr><th scope="col">Name</th><th scope="col">Labels</th><th scope="col" class="num">Value</th></tr></thead>
              <tbody>{rows.slice(0, 300).map((row) => <tr key={row.name + row.labels}><th scope="row" class="mono small" title={row.help}>{row.name}</th><td class="small">{row.labels || "–"}</td><td class="num">{row.value}</td></tr>)}</tbody>
            </table>
            {rows.length > 300 && <p class="more muted">and {rows.length - 300} more: filter</p>}
            {rows.length === 0 && <Empty title="Nothing matches" />}
          </Scroll>
        </Panel>
      )}
    </Answer>
  );
}
