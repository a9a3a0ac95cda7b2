// The members of a group: a table that is drawn only where it is seen, and what can be done with them.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { part, send } from "../api";
import { duration, load, ms, percent, plural, rate, short } from "../format";
import { rank } from "../health";
import { go, href, route } from "../router";
import type { AdminState, Group, Member, MemberSample } from "../types";

import { complain, confirm, Dialog, Empty, Failed, Gauge, Health, Loading, needs, Panel, Segments, State, tell, useAnswer, VirtualTable } from "../ui/kit";

type Key = "name" | "state" | "load" | "share" | "rate" | "failures" | "in_flight" | "p50_ms" | "p99_ms" | "effective_weight";
const COLUMNS: { key: Key; label: string; num?: boolean }[] = [
  { key: "name", label: "Member" },
  { key: "state", label: "State" },
  { key: "load", label: "Load", num: true },
  { key: "share", label: "Share", num: true },
  { key: "rate", label: "Requests", num: true },
  { key: "failures", label: "Failures", num: true },
  { key: "in_flight", label: "In flight", num: true },
  { key: "p50_ms", label: "p50", num: true },
  { key: "p99_ms", label: "p99", num: true },
  { key: "effective_weight", label: "Weight", num: true },
];

const STATES: { id: AdminState; label: string; done: string }[] = [
  { id: "ready", label: "Ready", done: "is ready" },
  { id: "drain", label: "Drain", done: "drains: no new traffic" },
  { id: "maintenance", label: "Maintenance", done: "is in maintenance: its traffic is moved" },
];

const path = (group: string, member: string, what = "") => `/v1/groups/${part(group)}/members/${part(member)}${what}`;

/** States that were asked for and are not in a sample yet: shown at once, so that nothing jumps back. */
const wanted = signal<ReadonlyMap<string, AdminState>>(new Map());
const keyOf = (group: string, name: string) => `${group} ${name}`;

function want(group: string, names: string[], state: AdminState | null): void {
  const next = new Map(wanted.peek());
  for (const name of names) {
    if (state === null) next.delete(keyOf(group, name));
    else next.set(keyOf(group, name), state);
  }
  wanted.value = next;
}

async function setState(group: string, names: string[], state: AdminState, before: Map<string, AdminState>): Promise<void> {
  const put = async (name: string, to: AdminState) => send("PUT", path(group, name, "/state"), { state: to });
  want(group, names, state);
  // By then there was a sample; if not, what is known counts again.
  setTimeout(() => want(group, names, null), 2500);
  try {
    for (const name of names) await put(name, state);
    const word = STATES.find((known) => known.id === state)!.done;
    tell(names.length === 1 ? `${names[0]} ${word}` : `${plural(names.length, "member")}: ${word}`, {
      label: "Undo",
      run: () => {
        want(group, names, null);
        void Promise.all(names.map((name) => put(name, before.get(name) ?? "ready"))).catch(complain);
      },
    });
  } catch (error) {
    want(group, names, null);
    complain(error);
  }
}

export function Members({ group, live, details, again }: { group: string; live: Map<string, MemberSample> | null; details: Group | null; again: () => void }): JSX.Element {
  const [sort, setSort] = useState<{ key: Key; down: boolean }>({ key: "name", down: false });
  const [find, setFind] = useState("");
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const open = route.value.query.get("member");

  const reasons = useMemo(() => new Map((details?.members ?? []).map((member) => [member.name, member])), [details]);
  const rows = useMemo(() => {
    const list = [...(live?.values() ?? [])].filter((member) => !find || member.name.includes(find) || member.state.includes(find) || reasons.get(member.name)?.member.includes(find));
    const by = sort.key;
    const value = (member: MemberSample) => (by === "state" ? rank(member.state) + (member.alert ? 0.5 : 0) : member[by]);
    const order = new Intl.Collator(undefined, { numeric: true });
    list.sort((a, b) => {
      const x = value(a);
      const y = value(b);
      const less = typeof x === "string" ? order.compare(x, y as string) : ((x as number | null) ?? -1) - ((y as number | null) ?? -1);
      return (sort.down ? -less : less) || order.compare(a.name, b.name);
    });
    return list;
  }, [live, find, sort, reasons]);

  if (!live) return <Panel title="Members"><Loading what="Waiting for the members …" /></Panel>;
  const chosen = [...picked].filter((name) => live.has(name));
  const toggle = (name: string, on: boolean) => {
    const next = new Set(picked);
    if (on) next.add(name);
    else next.delete(name);
    setPicked(next);
  };
  const apply = async (state: AdminState) => {
    const before = new Map(chosen.map((name) => [name, live.get(name)!.admin]));
    const left = [...live.values()].filter((member) => !picked.has(member.name) && member.admin === "ready").length;
    if (state !== "ready" && left === 0 && !(await confirm("Take out every member?", "No member would be left to serve requests.", "Take out all"))) return;
    await setState(group, chosen, state, before);
    again();
  };
  return (
    <Panel
      title={`Members (${live.size})`}
      actions={
        <>
          {chosen.length > 0 && (
            <>
              <span class="muted">{chosen.length} chosen</span>
              {STATES.map((state) => <button key={state.id} type="button" class="button small" {...needs("operate")} onClick={() => void apply(state.id)}>{state.label}</button>)}
            </>
          )}
          <input type="search" aria-label="Filter members by name or state" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
        </>
      }
    >
      {live.size === 0 ? (
        <Empty title="No members">This group has no members yet.</Empty>
      ) : (
        <VirtualTable
          label={`Members of ${group}`} rows={rows} columns={COLUMNS.length + 2} none="No member matches"
          head={
            <>
              <th scope="col"><input type="checkbox" aria-label="Choose all" checked={rows.length > 0 && rows.every((row) => picked.has(row.name))} onChange={(event) => setPicked(event.currentTarget.checked ? new Set(rows.map((row) => row.name)) : new Set())} /></th>
              {COLUMNS.map((column) => (
                <th key={column.key} scope="col" class={column.num ? "num" : ""} aria-sort={sort.key === column.key ? (sort.down ? "descending" : "ascending") : undefined}>
                  <button type="button" class="sort" onClick={() => setSort({ key: column.key, down: sort.key === column.key ? !sort.down : column.key !== "name" })}>{column.label}</button>
                </th>
              ))}
              <th scope="col">Set</th>
            </>
          }
          row={(member) => <Row key={member.name} group={group} member={member} more={reasons.get(member.name)} picked={picked.has(member.name)} toggle={toggle} />}
        />
      )}
      {open !== null && <MemberDialog key={open} group={group} name={open} live={live.get(open)} onClose={() => { go("groups", group); again(); }} />}
    </Panel>
  );
}

function Row({ group, member, more, picked, toggle }: { group: string; member: MemberSample; more: Member | undefined; picked: boolean; toggle: (name: string, on: boolean) => void }): JSX.Element {
  const why = more && more.reasons.length > 1 ? more.reasons.join(", ") : "";
  return (
    <tr>
      <td><input type="checkbox" aria-label={`Choose ${member.name}`} checked={picked} onChange={(event) => toggle(member.name, event.currentTarget.checked)} /></td>
      <th scope="row"><a href={`${href("groups", group)}?member=${encodeURIComponent(member.name)}`}>{member.name}</a>{more && more.member !== more.name && <span class="small muted"> {more.member}</span>}</th>
      <td title={why}><State state={member.state} />{member.alert && member.state !== "shedding" && <> <span class="tag warn">alert</span></>}</td>
      <td class="num">{load(member.load)}<Gauge value={member.load} level={member.alert ? "bad" : undefined} /></td>
      <td class="num">{percent(member.share, 1)}</td>
      <td class="num">{rate(member.rate)}</td>
      <td class="num">{percent(member.failures, 1)}</td>
      <td class="num">{short(member.in_flight)}</td>
      <td class="num">{ms(member.p50_ms)}</td>
      <td class="num">{ms(member.p99_ms)}</td>
      <td class="num">{load(member.effective_weight)}<span class="muted"> of {member.weight}</span></td>
      <td>
        <select aria-label={`State of ${member.name}`} value={wanted.value.get(keyOf(group, member.name)) ?? member.admin} {...needs("operate")} onChange={(event) => void setState(group, [member.name], event.currentTarget.value as AdminState, new Map([[member.name, member.admin]]))}>
          {STATES.map((state) => <option key={state.id} value={state.id}>{state.label}</option>)}
        </select>
      </td>
    </tr>
  );
}

function MemberDialog({ group, name, live, onClose }: { group: string; name: string; live: MemberSample | undefined; onClose: () => void }): JSX.Element {
  const answer = useAnswer<Member>(path(group, name), 2);
  const [weight, setWeight] = useState<string | null>(null);
  const [wrong, setWrong] = useState("");
  const [check, setCheck] = useState<{ ok: boolean; error: string | null; took_ms: number } | "running" | null>(null);
  const member = answer.data;
  const admin = wanted.value.get(keyOf(group, name)) ?? live?.admin ?? member?.admin ?? "ready";
  const [backup, setBackup] = useState<boolean | null>(null);
  useEffect(() => {
    if (member?.backup === backup) setBackup(null);
  }, [member?.backup, backup]);
  useEffect(() => setWrong(""), [weight]);
  /** Does it, and says so with a way back. */
  const run = async (action: () => Promise<unknown>, said: string, back: () => Promise<unknown>) => {
    try {
      await action();
      tell(said, { label: "Undo", run: () => void back().then(answer.again).catch(complain) });
      answer.again();
      return true;
    } catch (error) {
      complain(error);
      return false;
    }
  };
  const saveWeight = async () => {
    const value = Number(weight);
    if (weight === null || weight.trim() === "" || !(value >= 0 && value <= 1000)) return setWrong("a number from 0 to 1000");
    const before = member!.weight;
    const put = (weight: number) => send("PUT", path(group, name, "/weight"), { weight });
    await run(() => put(value), `Weight of ${name}: ${value}`, () => put(before));
    setWeight(null);
  };
  const endEjection = async () => {
    try {
      await send("POST", path(group, name, "/uneject"), {});
      tell(`${name} is not ejected`);
      answer.again();
    } catch (error) {
      complain(error);
    }
  };
  const checkNow = async () => {
    setCheck("running");
    try {
      setCheck(await send("POST", path(group, name, "/check"), {}));
    } catch (error) {
      setCheck(null);
      complain(error);
    }
  };
  return (
    <Dialog title={`Member ${name}`} onClose={onClose}>
      {answer.error && !member ? <Failed error={answer.error} retry={answer.again} /> : !member ? <Loading /> : (
        <>
          <div class="actions">
            <Segments label="State" value={admin} options={STATES} disabled={needs("operate").disabled} onChange={(state) => void setState(group, [name], state, new Map([[name, admin]])).then(answer.again)} />
            <button type="button" class="button" {...needs("operate")} onClick={() => void checkNow()}>Check now</button>
            {member.ejection && <button type="button" class="button" {...needs("operate")} onClick={() => void endEjection()}>End ejection</button>}
            <span role="status">
              {check === "running" ? "checking …" : check && <Health level={check.ok ? "ok" : "bad"}>{check.ok ? "passed" : check.error ?? "failed"} in {ms(check.took_ms)}</Health>}
            </span>
          </div>
          <form class="actions" onSubmit={(event) => { event.preventDefault(); void saveWeight(); }}>
            <label>Weight <input class="narrow" inputMode="decimal" size={8} aria-invalid={wrong !== ""} aria-describedby="weight-help" value={weight ?? String(member.weight)} disabled={needs("operate").disabled} onInput={(event) => setWeight(event.currentTarget.value)} /></label>
            <button type="submit" class="button" disabled={weight === null || needs("operate").disabled}>Set</button>
            <span id="weight-help" class={wrong ? "problem" : "muted small"}>{wrong || "0 (no new traffic) to 1000"}</span>
            <label class="check"><input type="checkbox" checked={backup ?? member.backup} disabled={needs("operate").disabled} onChange={(event) => { const to = event.currentTarget.checked; setBackup(to); const put = (backup: boolean) => send("PUT", path(group, name, "/backup"), { backup }); void run(() => put(to), `${name} is ${to ? "a backup" : "no backup"}`, () => put(!to)).then((done) => done || setBackup(null)); }} />Backup</label>
          </form>
          <p class="muted small">These changes last until the process ends, or the configuration sets something new. <a href={href("config", "group", group)}>Change the configuration</a> to keep them.</p>
          <dl class="props">
            <dt>State</dt><dd><State state={live?.state ?? member.state} /> {member.reasons.length > 0 && <span class="muted">({member.reasons.join(", ")})</span>}</dd>
            <dt>Address</dt><dd>{member.address ?? "not resolved"}{member.member !== member.name && member.member !== member.address && ` of ${member.member}`}{member.joined && " (registered by an agent)"}</dd>
            <dt>Location</dt><dd><a href={`${href("monitor", "locations")}?find=${encodeURIComponent(member.location)}`}>{member.location}</a></dd>
            <dt>Weight</dt><dd>{load(member.effective_weight)} effective, of {member.weight}</dd>
            <dt>Load</dt><dd>{load(live?.load ?? member.load)}{(live?.alert ?? member.alert) && " – under a load alert"}</dd>
            <dt>In flight</dt><dd>{member.in_flight}{member.max_connections !== null && ` of at most ${member.max_connections}`}{member.cost_in_flight !== member.in_flight && `, cost ${load(member.cost_in_flight)}`}{member.cap !== null && `, works on ${member.cap} at once`}</dd>
            <dt>Traffic</dt><dd>{rate(live?.rate ?? member.recent.picks / Math.max(1, member.recent.seconds))}, {percent(live?.share ?? member.share, 1)} of the group's</dd>
            <dt>Latency</dt><dd>p50 {ms(member.recent.p50_ms)}, p99 {ms(member.recent.p99_ms)}, smoothed {ms(member.latency_ms)}</dd>
            <dt>Since it was added</dt><dd>{plural(member.totals.requests, "request")}, {plural(member.totals.failures, "failure")}, {plural(member.totals.overloads, "refusal")}, {member.totals.cancelled} cancelled, {member.totals.assigned} assigned by negotiation</dd>
            <dt>Last check</dt><dd>{member.check ? <Health level={member.check.error ? "bad" : "ok"}>{member.check.error ?? "passed"}, {duration(member.check.age_seconds)} ago</Health> : "no health check"}</dd>
            {member.tls && <><dt>TLS</dt><dd><Health level="bad">{member.tls.error}, {duration(member.tls.age_seconds)} ago</Health></dd></>}
            {member.ejection && <><dt>Ejected</dt><dd>{member.ejection.by ? `by ${member.ejection.by}` : "by this balancer"}: {member.ejection.why}; {duration(member.ejection.seconds_left)} left</dd></>}
            {member.opinions.map((opinion) => <><dt>{opinion.source}</dt><dd>{opinion.says || "nothing"}, {duration(opinion.age_seconds)} ago</dd></>)}
          </dl>
        </>
      )}
    </Dialog>
  );
}


