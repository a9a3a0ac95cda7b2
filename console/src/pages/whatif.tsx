// What if: the members and the traffic of a group as they are measured now, played by the simulator with other strategies.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { part, send } from "../api";
import { duration, load, ms, percent, rate, short } from "../format";
import { focus, sample } from "../live";
import { go, href, route } from "../router";
import { schema, strategy } from "../schema";
import type { Group } from "../types";
import { Icon } from "../ui/icons";
import { Empty, Failed, Loading, Panel, Scroll, useAnswer } from "../ui/kit";
import { numbers, Params, StrategySelect, typedOf, type Typed } from "./strategy";

interface Result { strategy: string; p50_ms: number | null; p90_ms: number | null; p99_ms: number | null; mean_ms: number | null; failed: number; queue_p99: number | null; shares: { member: string; share: number; utilisation: number }[] }
interface Simulated { assumed: { rate: number; members: { name: string; mean_ms: number | null; concurrency: number | null }[]; notes: string[] }; results: Result[] }
interface Choice { name: string; typed: Typed }

const choiceOf = (name: string, given: { name: string; value: number }[] = []): Choice => {
  const kind = strategy(name);
  return { name, typed: kind ? typedOf(kind, given) : {} };
};

export function WhatIfPage(): JSX.Element {
  useEffect(() => {
    focus.value = null;
  }, []);
  const now = sample.value;
  const name = route.value.parts[1] ?? now?.groups[0]?.name ?? "";
  const answer = useAnswer<Group>(name ? `/v1/groups/${part(name)}` : null);
  if (!now || !schema.value) return <Loading />;
  return (
    <>
      <div class="page-head">
        <h1>What if</h1>
        <label class="actions">Group
          <select value={name} onChange={(event) => go("whatif", event.currentTarget.value)}>
            {now.groups.map((group) => <option key={group.name}>{group.name}</option>)}
          </select>
        </label>
        <span class="muted">The traffic measured now is simulated with other strategies, in virtual time. The simulation does not touch the traffic.</span>
      </div>
      {!name ? <div class="panel"><Empty title="No groups yet" /></div> : answer.error && !answer.data ? <Failed error={answer.error} retry={answer.again} /> : !answer.data ? <Loading /> : <Comparison key={name} group={answer.data} />}
    </>
  );
}

function Comparison({ group }: { group: Group }): JSX.Element {
  const other = group.strategy === "adaptive" ? "least_request" : "adaptive";
  const [choices, setChoices] = useState<Choice[]>(() => [choiceOf(group.strategy, group.params), choiceOf(other)]);
  const [requests, setRequests] = useState("20000");
  const [speed, setSpeed] = useState("");
  const [seed, setSeed] = useState("1");
  const [more, setMore] = useState("0");
  const [state, setState] = useState<{ running: boolean; result: Simulated | null; error: unknown; took: number }>({ running: false, result: null, error: null, took: 0 });
  const checked = choices.map((choice) => {
    const kind = strategy(choice.name);
    return kind ? numbers(kind, choice.typed) : { params: {}, wrong: {} };
  });
  const count = Number(requests);
  const pace = speed.trim() === "" ? null : Number(speed);
  const wrong = checked.some(({ wrong }) => Object.keys(wrong).length > 0) || !(Number.isInteger(count) && count >= 100 && count <= 200_000) || (pace !== null && !(pace > 0)) || !Number.isInteger(Number(seed)) || more.trim() === "" || !(Number.isInteger(Number(more)) && Number(more) >= 0 && Number(more) <= 100);
  const run = async () => {
    setState((old) => ({ ...old, running: true, error: null }));
    const begin = performance.now();
    try {
      const result = await send<Simulated>("POST", `/v1/groups/${part(group.name)}/simulate`, { strategies: choices.map((choice, i) => ({ name: choice.name, params: checked[i]!.params })), requests: count, seed: Number(seed), rate: pace, members: null, more_members: Number(more) });
      setState({ running: false, result, error: null, took: (performance.now() - begin) / 1000 });
    } catch (error) {
      setState((old) => ({ ...old, running: false, error }));
    }
  };
  const put = (i: number, choice: Choice) => setChoices(choices.map((old, k) => (k === i ? choice : old)));
  return (
    <div class="stack">
      <form class="panel" onSubmit={(event) => { event.preventDefault(); void run(); }}>
        <header>
          <h2>Compare</h2>
          <div class="actions">
            <button type="button" class="button small" disabled={choices.length >= 4} onClick={() => setChoices([...choices, choiceOf(schema.value!.strategies.find((known) => !choices.some((choice) => choice.name === known.name))?.name ?? "adaptive")])}><Icon name="plus" size={13} />Add a strategy</button>
          </div>
        </header>
        <div class="body stack">
          <div class="cols3">
            {choices.map((choice, i) => {
              const kind = strategy(choice.name);
              return (
                <fieldset key={i} class="choice">
                  <legend>{i === 0 ? "Strategy 1" : `Strategy ${i + 1}`}{choice.name === group.strategy && <span class="muted"> (in force)</span>}</legend>
                  <div class="actions">
                    <label class="sr" for={`choice-${i}`}>Strategy {i + 1}</label>
                    <StrategySelect id={`choice-${i}`} value={choice.name} onChange={(next) => put(i, choiceOf(next, next === group.strategy ? group.params : []))} />
                    {choices.length > 2 && <button type="button" class="button icon quiet" aria-label={`Remove strategy ${i + 1}`} onClick={() => setChoices(choices.filter((_, k) => k !== i))}><Icon name="close" size={14} /></button>}
                  </div>
                  {kind && kind.params.length > 0 && <details open={Object.keys(checked[i]!.wrong).length > 0}><summary>{kind.params.length === 1 ? "1 parameter" : `${kind.params.length} parameters`}</summary><Params kind={kind} typed={choice.typed} wrong={checked[i]!.wrong} onChange={(typed) => put(i, { ...choice, typed })} /></details>}
                </fieldset>
              );
            })}
          </div>
          <div class="actions">
            <label>Requests <input class="narrow" size={9} inputMode="numeric" value={requests} onInput={(event) => setRequests(event.currentTarget.value)} /></label>
            <label>Rate <input class="narrow" size={9} inputMode="decimal" placeholder="as measured" value={speed} onInput={(event) => setSpeed(event.currentTarget.value)} /> /s</label>
            <label>More members <input class="narrow" size={4} inputMode="numeric" value={more} onInput={(event) => setMore(event.currentTarget.value)} /></label>
            <label>Seed <input class="narrow" size={5} inputMode="numeric" value={seed} onInput={(event) => setSeed(event.currentTarget.value)} /></label>
            <button type="submit" class="button primary" disabled={wrong || state.running}>{state.running ? "Playing …" : "Play"}</button>
            <span role="status" class="muted">{wrong ? "100 to 200,000 requests, a rate above 0, at most 100 more members, and parameters in their ranges" : state.running ? "" : state.result ? `took ${duration(state.took)}` : ""}</span>
          </div>
        </div>
      </form>
      {state.error !== null && <Failed error={state.error} />}
      {state.result ? <Results result={state.result} group={group} /> : state.error === null && <div class="panel"><Empty title="Nothing played yet">Choose two to four strategies, and play.</Empty></div>}
    </div>
  );
}

const MEASURES: { key: "mean_ms" | "p50_ms" | "p90_ms" | "p99_ms"; label: string }[] = [
  { key: "mean_ms", label: "Mean" },
  { key: "p50_ms", label: "p50" },
  { key: "p90_ms", label: "p90" },
  { key: "p99_ms", label: "p99" },
];

function Results({ result, group }: { result: Simulated; group: Group }): JSX.Element {
  const names = useMemo(() => result.results.map((item, i) => (result.results.findIndex((other) => other.strategy === item.strategy) === i ? item.strategy : `${item.strategy} (${i + 1})`)), [result]);
  const best = (value: (item: Result) => number | null) => result.results.reduce((index, item, i) => ((value(item) ?? Infinity) < (value(result.results[index]!) ?? Infinity) ? i : index), 0);
  const members = result.results[0]?.shares.map((item) => item.member) ?? [];
  return (
    <div class="stack">
      <Panel title="Results">
        <Scroll label="Results side by side">
          <table>
            <thead><tr><th scope="col">Strategy</th>{MEASURES.map(({ key, label }) => <th key={key} scope="col" class="num">{label}</th>)}<th scope="col" class="num">Failed</th><th scope="col" class="num">Queue p99</th><th scope="col" class="num">Spread of utilisation</th></tr></thead>
            <tbody>
              {result.results.map((item, i) => (
                <tr key={i}>
                  <th scope="row">{names[i]}{item.strategy === group.strategy && <span class="muted"> in force</span>}</th>
                  {MEASURES.map(({ key }) => <td key={key} class="num">{ms(item[key])}{best((other) => other[key]) === i && <> <span class="tag ok">best</span></>}</td>)}
                  <td class="num">{percent(item.failed, 2)}</td>
                  <td class="num">{short(item.queue_p99)}</td>
                  <td class="num">{load(spread(item.shares.map((share) => share.utilisation)))}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </Panel>
      <div class="cols">
        {MEASURES.filter(({ key }) => key === "p50_ms" || key === "p99_ms").map(({ key, label }) => {
          const max = Math.max(1e-9, ...result.results.map((item) => item[key] ?? 0));
          return (
            <Panel key={key} title={label} pad>
              <div class="bars">
                {result.results.map((item, i) => (
                  <div key={i} class={`bar${best((other) => other[key]) === i ? " chosen" : ""}`}>
                    <span class="name">{names[i]}</span>
                    <svg aria-hidden="true" viewBox="0 0 100 14" preserveAspectRatio="none"><rect width={(100 * (item[key] ?? 0)) / max} height="14" /></svg>
                    <span class="num">{ms(item[key])}</span>
                  </div>
                ))}
              </div>
            </Panel>
          );
        })}
      </div>
      <Panel title="Share of the traffic and utilisation of each member">
        <Scroll label="Members side by side">
          <table>
            <thead><tr><th scope="col">Member</th>{names.map((name, i) => <th key={i} scope="col" class="num">{name}</th>)}</tr></thead>
            <tbody>
              {members.slice(0, 200).map((member, k) => (
                <tr key={member}>
                  <th scope="row">{member}</th>
                  {result.results.map((item, i) => {
                    const share = item.shares[k];
                    return <td key={i} class="num">{percent(share?.share, 1)} <span class="muted">of requests,</span> {percent(share?.utilisation)} <span class="muted">busy</span></td>;
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </Panel>
      <Panel title="What was assumed" pad actions={<a class="button small" href={href("groups", group.name, "strategy")}>Change the strategy</a>}>
        <p>{rate(result.assumed.rate)}, {result.assumed.members.length} members.</p>
        <ul class="notes">{result.assumed.notes.map((note) => <li key={note}>{note}</li>)}</ul>
        <details>
          <summary>Members as assumed</summary>
          <table>
            <thead><tr><th scope="col">Member</th><th scope="col" class="num">Mean service time</th><th scope="col" class="num">At once</th></tr></thead>
            <tbody>{result.assumed.members.slice(0, 200).map((member) => <tr key={member.name}><th scope="row">{member.name}</th><td class="num">{ms(member.mean_ms)}</td><td class="num">{short(member.concurrency)}</td></tr>)}</tbody>
          </table>
        </details>
      </Panel>
    </div>
  );
}

function spread(values: number[]): number | null {
  if (!values.length) return null;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}
