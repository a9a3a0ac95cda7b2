// The strategy of a group, changed live: from the next request on.

import type { JSX } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import { ApiError, part, send, words } from "../api";
import { bound } from "../format";
import { href } from "../router";
import { schema, strategy } from "../schema";
import type { Group, SchemaStrategy } from "../types";
import { Failed, Loading, needs, Panel, tell } from "../ui/kit";

export function StrategyPanel({ group, error, again }: { group: Group | null; error: unknown; again: () => void }): JSX.Element {
  if (!group || !schema.value) return error ? <Failed error={error} retry={again} /> : <Loading />;
  return <Form key={group.name + group.strategy} group={group} again={again} />;
}

/** Numbers as they are typed, by the name of the parameter. */
export type Typed = Record<string, string>;

export function typedOf(kind: SchemaStrategy, given: { name: string; value: number }[]): Typed {
  return Object.fromEntries(kind.params.map((param) => [param.name, String(given.find((known) => known.name === param.name)?.value ?? param.default)]));
}

/** The numbers, or what is wrong with them. Those that are defaults are left out. */
export function numbers(kind: SchemaStrategy, typed: Typed): { params: Record<string, number>; wrong: Record<string, string> } {
  const params: Record<string, number> = {};
  const wrong: Record<string, string> = {};
  for (const param of kind.params) {
    const text = (typed[param.name] ?? "").trim();
    const value = text === "" ? param.default : Number(text);
    if (!Number.isFinite(value) || value < param.min || value > param.max || (param.integer && !Number.isInteger(value)))
      wrong[param.name] = `a ${param.integer ? "whole " : ""}number from ${bound(param.min)} to ${bound(param.max)}`;
    else if (value !== param.default) params[param.name] = value;
  }
  return { params, wrong };
}

export function Params({ kind, typed, wrong, onChange, disabled }: { kind: SchemaStrategy; typed: Typed; wrong: Record<string, string>; onChange: (typed: Typed) => void; disabled?: boolean }): JSX.Element {
  const id = useId();
  return (
    <div class="fields">
      {kind.params.map((param) => {
        const bad = wrong[param.name];
        return (
          <div key={param.name} class="field">
            <label class="name" for={`${id}-${param.name}`}>{param.name.replaceAll("_", " ")}</label>
            <div>
              <div class="control">
                <input id={`${id}-${param.name}`} class="narrow" inputMode="decimal" value={typed[param.name] ?? ""} disabled={disabled ?? false} aria-invalid={bad !== undefined} aria-describedby={`${id}-${param.name}-help`} onInput={(event) => onChange({ ...typed, [param.name]: event.currentTarget.value })} />
                <span class="muted">{param.unit}</span>
                {typed[param.name] !== String(param.default) && <button type="button" class="button small quiet" disabled={disabled ?? false} onClick={() => onChange({ ...typed, [param.name]: String(param.default) })}>Default {param.default}</button>}
              </div>
              <div id={`${id}-${param.name}-help`}>
                {bad && <p class="problem">{bad}</p>}
                <p class="help">{param.meaning} <span class="nowrap">{bound(param.min)} to {bound(param.max)}.</span></p>
              </div>
            </div>
          </div>
        );
      })}
      {kind.params.length === 0 && <p class="muted">This strategy has no parameters.</p>}
    </div>
  );
}

export function StrategySelect({ id, value, onChange, disabled, label }: { id: string; value: string; onChange: (name: string) => void; disabled?: boolean; label?: string }): JSX.Element {
  return (
    <select id={id} {...(label ? { "aria-label": label } : {})} value={value} disabled={disabled ?? false} onChange={(event) => onChange(event.currentTarget.value)}>
      {schema.value!.strategies.map((known) => <option key={known.name} value={known.name}>{known.name}{known.default ? " (default)" : ""}</option>)}
      {!strategy(value) && <option value={value}>{value}</option>}
    </select>
  );
}

function Form({ group, again }: { group: Group; again: () => void }): JSX.Element {
  const [name, setName] = useState(group.strategy);
  const kind = strategy(name);
  const [typed, setTyped] = useState<Typed>(() => (kind ? typedOf(kind, group.params) : {}));
  const [problem, setProblem] = useState<string>("");
  useEffect(() => setProblem(""), [name, typed]);
  const { params, wrong } = kind ? numbers(kind, typed) : { params: {}, wrong: {} };
  const before = Object.fromEntries(group.params.map((param) => [param.name, param.value]));
  const changed = name !== group.strategy || (kind?.params.some((param) => Number(typed[param.name]) !== (before[param.name] ?? param.default)) ?? false);
  const put = (to: string, values: Record<string, number>) => send("PUT", `/v1/groups/${part(group.name)}/strategy`, { name: to, params: values });
  const apply = async () => {
    if (Object.keys(wrong).length) return;
    try {
      await put(name, params);
      const undo = () => void put(group.strategy, before).then(again, (error) => setProblem(words(error)));
      tell(`Group ${group.name}: ${name} from the next request on`, { label: "Undo", run: undo });
      again();
    } catch (error) {
      setProblem(error instanceof ApiError ? words(error) : String(error));
    }
  };
  return (
    <Panel title="Strategy in force" pad actions={<a class="button small" href={href("whatif", group.name)}>Compare first</a>}>
      <form class="stack" onSubmit={(event) => { event.preventDefault(); void apply(); }}>
        <p class="muted">A change counts from the next request on, and lasts until the process ends or the configuration sets another strategy. To keep it, <a href={href("config", "group", group.name)}>change the configuration</a>.</p>
        <div class="field">
          <label class="name" for="strategy">strategy</label>
          <div>
            <div class="control"><StrategySelect id="strategy" value={name} disabled={needs("operate").disabled} onChange={(next) => { setName(next); const to = strategy(next); if (to) setTyped(typedOf(to, next === group.strategy ? group.params : [])); }} /></div>
            <p class="help">{kind?.meaning}</p>
          </div>
        </div>
        {kind && <Params kind={kind} typed={typed} wrong={wrong} onChange={setTyped} disabled={needs("operate").disabled} />}
        <div class="actions">
          <button type="submit" class="button primary" disabled={!changed || Object.keys(wrong).length > 0 || needs("operate").disabled}>Apply now</button>
          <span class="problem" role="alert">{problem}</span>
        </div>
      </form>
    </Panel>
  );
}
