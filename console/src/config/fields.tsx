// Forms made from the schema: a field for each key, with its range, its meaning and what is wrong with it.

import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { may } from "../api";
import { bound } from "../format";
import { schema, strategy } from "../schema";
import { Params, StrategySelect, type Typed } from "../pages/strategy";
import type { Json, Path, Problem, SchemaKey, SchemaParam, SchemaTable } from "../types";
import { Icon } from "../ui/icons";
import { Prose } from "../ui/prose";
import { at, byKey, changedBelow, removeItem, setValue, values } from "./draft";
import { brief, keyText, shown, specOf, tableAt, typedValue, type Spec } from "./kinds";

const words = (name: string) => name.replaceAll("_", " ");
const isTable = (value: Json | undefined): value is { [key: string]: Json } => typeof value === "object" && value !== null && !Array.isArray(value);

export function problemText(problem: Problem): string {
  const allowed = problem.allowed === null ? "" : Array.isArray(problem.allowed) ? problem.allowed.join(", ") : problem.allowed;
  return allowed ? `${problem.message}; allowed: ${allowed}` : problem.message;
}

/** The problems of a key, and of what is in it unless it has fields of its own. */
function problemsOf(path: Path, alias: string | null, within: boolean): Problem[] {
  const names = [keyText(path)];
  if (alias) names.push(keyText([...path.slice(0, -1), alias]));
  const found: Problem[] = [];
  for (const [key, list] of byKey.value)
    for (const name of names) if (key === name || (within && (key.startsWith(`${name}.`) || key.startsWith(`${name}[`)))) found.push(...list);
  return found;
}

function Problems({ list, id }: { list: Problem[]; id?: string }): JSX.Element {
  return (
    <div id={id}>
      {list.map((problem) => <p key={problem.key + problem.message} class="problem"><Icon name="warn" size={13} />{problemText(problem)}</p>)}
    </div>
  );
}

/** Fields of the table at `path`. `keys` are shown in this order; without it all that are set, and one can add others. */
export function Fields({ path, keys, skip }: { path: Path; keys?: string[]; skip?: string[] }): JSX.Element {
  const known = schema.value;
  const [added, setAdded] = useState<string[]>([]);
  const id = useId();
  if (!known) return <p class="muted">Loading the schema …</p>;
  const table = path.length === 1 && path[0] === "defaults" ? defaults() : path.length === 2 && path[0] === "rule" ? ruleTable() : tableAt(known, path);
  if (!table) return <JsonField path={path} name="value" />;
  const tree = at(values.value, path);
  const set = isTable(tree) ? Object.keys(tree) : [];
  const all = table.keys.filter((key) => !skip?.includes(key.name));
  const isSet = (key: SchemaKey) => set.includes(key.name) || (key.alias !== null && set.includes(key.alias));
  const wanted = keys ? keys.map((name) => all.find((key) => key.name === name)).filter((key) => key !== undefined) : all.filter((key) => isSet(key) || added.includes(key.name) || /Required/.test(key.meaning) || problemsOf([...path, key.name], key.alias, true).length > 0);
  const others = keys ? [] : all.filter((key) => !wanted.includes(key));
  // Keys that the schema does not know are shown, too: they are what is wrong.
  const unknown = keys ? [] : set.filter((name) => !table.keys.some((key) => key.name === name || key.alias === name) && !skip?.includes(name) && !tableAt(known, [...path, name]));
  return (
    <div class="fields">
      {wanted.map((key) => <Field key={key.name} path={[...path, isTable(tree) && key.alias && key.alias in tree ? key.alias : key.name]} spec={key} />)}
      {unknown.map((name) => <JsonField key={name} path={[...path, name]} name={name} />)}
      {wanted.length === 0 && unknown.length === 0 && <p class="muted empty-fields">Nothing is set here; the defaults apply.</p>}
      {others.length > 0 && (
        <p class="add">
          <label for={id} class="sr">Add a setting</label>
          <select id={id} value="" disabled={!may("administer")} onChange={(event) => {
            const name = event.currentTarget.value;
            if (!name) return;
            setAdded([...added, name]);
            requestAnimationFrame(() => document.getElementById(fieldId([...path, name]))?.focus());
          }}>
            <option value="">Add a setting …</option>
            {others.map((key) => <option key={key.name} value={key.name}>{key.name}{key.default !== null ? ` (default ${shown(key.default)})` : ""}</option>)}
          </select>
        </p>
      )}
    </div>
  );
}

/** A rule without a group has the keys of its own. */
function ruleTable(): SchemaTable {
  const [rule, group] = ["[rule.NAME]", "[group.NAME]"].map((header) => schema.value!.tables.find((table) => table.header === header)!);
  return { ...rule!, keys: [...rule!.keys, ...group!.keys.filter((key) => !rule!.keys.some((known) => known.name === key.name))] };
}

/** `[defaults]` takes the keys of rules and groups, but for what each must say itself. */
function defaults(): { header: string; meaning: string; keys: SchemaKey[] } {
  const tables = schema.value!.tables;
  const keys = [...tables.find((table) => table.header === "[rule.NAME]")!.keys, ...tables.find((table) => table.header === "[group.NAME]")!.keys];
  return { header: "[defaults]", meaning: "", keys: keys.filter((key) => !["listen", "group", "members", "members_files", "sni", "routes"].includes(key.name)) };
}

export function fieldId(path: Path): string {
  return `f-${keyText(path)}`;
}

function Field({ path, spec: key }: { path: Path; spec: SchemaKey }): JSX.Element {
  const spec = specOf(schema.value!, key, path);
  const value = at(values.value, path);
  const table = spec.kind.type === "table";
  const composed = table || spec.kind.type === "strategy" || spec.kind.type === "members";
  const found = problemsOf(path, key.alias, !composed);
  const id = fieldId(path);
  const help = `${id}-help`;
  const changed = changedBelow(path);
  const labelled = !composed && !spec.list && spec.kind.type !== "map";
  return (
    <div class={`field${changed ? " changed" : ""}`}>
      {labelled ? <label class="name" for={id}>{words(key.name)}{changed && <span class="sr"> (changed)</span>}</label> : <span class="name" id={`${id}-name`}>{words(key.name)}{changed && <span class="sr"> (changed)</span>}</span>}
      <div>
        {composed && <p class="help before"><Prose text={here(key.meaning)} /></p>}
        <div class="control" {...(labelled ? {} : { role: "group", "aria-labelledby": `${id}-name` })}>
          <Control id={id} path={path} spec={spec} value={value} schemaKey={key} invalid={found.length > 0} help={help} />
        </div>
        <div id={help}>
          <Problems list={found} />
          {!composed && <p class="help"><Prose text={key.meaning} /> {range(spec, key)}</p>}
        </div>
      </div>
    </div>
  );
}

function range(spec: Spec, key: SchemaKey): string {
  const kind = spec.kind;
  const fallback = key.default === null ? "" : ` Default: ${shown(key.default)}.`;
  if (kind.type === "bool" || kind.type === "choice") return fallback;
  if (kind.type === "number") return `${kind.integer ? "A whole number" : "A number"} from ${bound(kind.min)} to ${bound(kind.max)}${kind.unit ? ` (${kind.unit})` : ""}.${fallback}`;
  const text = spec.hint.replace(/, or false$/, "");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.${fallback}`;
}

/** The manual has tables below their keys; here they are within. */
const here = (meaning: string) => meaning.replace(/: (`true`, or )?a (table|list of tables), see below\./, ".").replace(/,? \(?see below\)?/g, "");

interface ControlProps { id: string; path: Path; spec: Spec; value: Json | undefined; schemaKey: SchemaKey; invalid: boolean; help: string }

function Control(props: ControlProps): JSX.Element {
  const { id, path, spec, value, schemaKey, invalid, help } = props;
  const kind = spec.kind;
  const off = !may("administer");
  const common = { id, disabled: off, "aria-invalid": invalid, "aria-describedby": help };
  const placeholder = schemaKey.default !== null ? shown(schemaKey.default) : "";
  if (kind.type === "table") return <TableControl {...props} />;
  if (kind.type === "strategy") return <StrategyControl path={path} value={value} id={id} />;
  if (kind.type === "members") return <MembersControl path={path} value={value} />;
  if (kind.type === "map") return <MapControl path={path} value={value} numeric={kind.numeric} hint={kind.value} />;
  if (spec.list) return <ListControl {...props} />;
  if (kind.type === "bool")
    return (
      <select {...common} value={value === undefined ? "" : String(value)} onChange={(event) => setValue(path, event.currentTarget.value === "" ? undefined : event.currentTarget.value === "true")}>
        <option value="">default{placeholder ? ` (${placeholder === "true" ? "yes" : placeholder === "false" ? "no" : placeholder})` : ""}</option>
        <option value="true">yes</option>
        <option value="false">no</option>
      </select>
    );
  if (kind.type === "choice") {
    const text = value === undefined ? "" : String(value);
    return (
      <select {...common} value={text} onChange={(event) => { const chosen = event.currentTarget.value; setValue(path, chosen === "" ? undefined : chosen === "false" ? false : chosen); }}>
        <option value="">{placeholder ? `default (${placeholder})` : "not set"}</option>
        {kind.options.map((option) => <option key={option} value={option}>{option}</option>)}
        {spec.optional && <option value="false">none, even if defaults set a value</option>}
        {text !== "" && !kind.options.includes(text) && text !== "false" && <option value={text}>{text}</option>}
      </select>
    );
  }
  if (kind.type === "json") return <JsonInput {...common} value={value} placeholder={schemaKey.example} onValue={(next) => setValue(path, next)} />;
  if (kind.type === "number") {
    return (
      <>
        <TextInput {...common} narrow value={value === undefined ? "" : String(value)} placeholder={placeholder} mode="decimal" onValue={(text) => setValue(path, typedValue(text, true))} />
        {kind.unit && <span class="muted">{kind.unit}</span>}
      </>
    );
  }
  if (kind.type === "text" && path.at(-1) === "group" && path[0] !== "process") {
    const text = value === undefined ? "" : String(value);
    const own = path[0] === "rule" && path.length === 3;
    const names = own ? Object.keys((values.value.group as object) ?? {}) : groupNames();
    return (
      <select {...common} value={text} onChange={(event) => setValue(path, event.currentTarget.value || undefined)}>
        <option value="">{own ? "none: members of its own" : "not set"}</option>
        {names.map((name) => <option key={name} value={name}>{name}</option>)}
        {text !== "" && !names.includes(text) && <option value={text}>{text}</option>}
      </select>
    );
  }
  const suggest = kind.type === "text" && kind.suggest.length ? kind.suggest : [];
  return (
    <>
      <TextInput {...common} value={value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value)} placeholder={placeholder || (schemaKey.example ? `for example ${shown(schemaKey.example)}` : "")} {...(suggest.length ? { list: `${id}-list` } : {})} onValue={(text) => setValue(path, typedValue(text, kind.type === "text" && kind.numeric))} />
      {suggest.length > 0 && <datalist id={`${id}-list`}>{suggest.map((name) => <option key={name} value={name} />)}</datalist>}
    </>
  );
}

function groupNames(): string[] {
  const tree = values.value;
  return [...Object.keys((tree.group as object) ?? {}), ...Object.entries((tree.rule as Record<string, Json>) ?? {}).filter(([, rule]) => isTable(rule) && "members" in rule).map(([name]) => name)];
}

interface InputProps { id?: string; value: string; placeholder?: string; onValue: (text: string) => void; disabled?: boolean; narrow?: boolean; mode?: "decimal"; list?: string; label?: string; "aria-invalid"?: boolean; "aria-describedby"?: string }

function TextInput({ onValue, narrow, mode, label, ...rest }: InputProps): JSX.Element {
  return <input type="text" {...rest} {...(mode ? { inputMode: mode } : {})} {...(label ? { "aria-label": label } : {})} class={narrow ? "narrow" : ""} spellcheck={false} autocomplete="off" onInput={(event) => onValue(event.currentTarget.value)} />;
}

/** A value that has no field of its own, as JSON; a plain text needs no quotes. */
function JsonInput({ value, onValue, placeholder, ...rest }: { value: Json | undefined; onValue: (value: Json | undefined) => void; placeholder?: string; id?: string; disabled?: boolean; "aria-invalid"?: boolean; "aria-describedby"?: string; "aria-label"?: string }): JSX.Element {
  const write = (known: Json | undefined) => (known === undefined ? "" : typeof known === "string" ? known : JSON.stringify(known));
  const [text, setText] = useState<string | null>(null);
  const take = (typed: string) => {
    setText(typed);
    const trimmed = typed.trim();
    if (trimmed === "") return onValue(undefined);
    try {
      onValue(JSON.parse(trimmed.replace(/([{,]\s*)([A-Za-z_][\w-]*)\s*[=:]/g, '$1"$2":')) as Json);
    } catch {
      onValue(trimmed);
    }
  };
  return <input type="text" {...rest} spellcheck={false} autocomplete="off" placeholder={placeholder ? `for example ${shown(placeholder)}` : ""} value={text ?? write(value)} onInput={(event) => take(event.currentTarget.value)} onBlur={() => setText(null)} />;
}

export function JsonField({ path, name }: { path: Path; name: string }): JSX.Element {
  const id = fieldId(path);
  const found = problemsOf(path, null, true);
  return (
    <div class="field">
      <label class="name" for={id}>{words(name)}</label>
      <div>
        <div class="control">
          <JsonInput id={id} value={at(values.value, path)} disabled={!may("administer")} aria-invalid={found.length > 0} aria-describedby={`${id}-help`} onValue={(next) => setValue(path, next)} />
          <button type="button" class="button small" disabled={!may("administer")} onClick={() => setValue(path, undefined)}>Remove</button>
        </div>
        <Problems list={found} id={`${id}-help`} />
      </div>
    </div>
  );
}

/** One value or a list of such: one input each. A single one stays a single value. */
function ListControl({ id, path, spec, value, schemaKey, help, invalid }: ControlProps): JSX.Element {
  const kind = spec.kind;
  const off = !may("administer");
  const list = value === undefined || value === false ? [] : Array.isArray(value) ? value : [value];
  const numeric = kind.type === "text" && kind.numeric;
  const put = (next: Json[]) => setValue(path, next.length === 0 ? undefined : next.length === 1 && !Array.isArray(value) ? next[0]! : next);
  return (
    <div class="list">
      {list.map((item, i) => {
        const own = byKey.value.get(keyText([...path, i])) ?? [];
        return (
          <div key={i}>
            {typeof item === "object" ? (
              <JsonInput value={item} disabled={off} aria-label={`${words(schemaKey.name)} ${i + 1}`} onValue={(next) => put(list.map((old, k) => (k === i ? next ?? "" : old)))} />
            ) : kind.type === "choice" ? (
              <select aria-label={`${words(schemaKey.name)} ${i + 1}`} value={String(item)} disabled={off} onChange={(event) => put(list.map((old, k) => (k === i ? event.currentTarget.value : old)))}>
                {kind.options.map((option) => <option key={option}>{option}</option>)}
              </select>
            ) : (
              <TextInput {...(i === 0 ? { id } : {})} label={`${words(schemaKey.name)} ${i + 1}`} value={String(item)} disabled={off} aria-invalid={own.length > 0 || (invalid && list.length === 1)} aria-describedby={help} onValue={(text) => put(list.map((old, k) => (k === i ? (typedValue(text, numeric) ?? "") : old)))} />
            )}
            <button type="button" class="button icon quiet" disabled={off} aria-label={`Remove ${words(schemaKey.name)} ${i + 1}`} onClick={() => put(list.filter((_, k) => k !== i))}><Icon name="close" size={14} /></button>
          </div>
        );
      })}
      <div>
        <button type="button" class="button small" {...(list.length === 0 ? { id } : {})} disabled={off} onClick={() => put([...list, kind.type === "choice" ? kind.options[0]! : ""])}><Icon name="plus" size={13} />Add{list.length === 0 && schemaKey.default !== null ? ` (default ${shown(schemaKey.default)})` : ""}</button>
      </div>
    </div>
  );
}

function MapControl({ path, value, numeric, hint }: { path: Path; value: Json | undefined; numeric: boolean; hint: string }): JSX.Element {
  const off = !may("administer");
  const entries = isTable(value) ? Object.entries(value) : [];
  const put = (next: [string, Json][]) => setValue(path, next.length ? Object.fromEntries(next) : undefined);
  return (
    <div class="list">
      {entries.map(([name, item], i) => (
        <div key={i}>
          <TextInput label={`Name ${i + 1}`} value={name} disabled={off} onValue={(text) => put(entries.map((old, k) => (k === i ? [text, old[1]] : old)))} />
          <TextInput label={`Value of ${name}`} value={typeof item === "object" ? JSON.stringify(item) : String(item)} disabled={off} onValue={(text) => put(entries.map((old, k) => (k === i ? [old[0], typedValue(text, numeric || typeof item === "number") ?? ""] : old)))} />
          <button type="button" class="button icon quiet" disabled={off} aria-label={`Remove ${name}`} onClick={() => put(entries.filter((_, k) => k !== i))}><Icon name="close" size={14} /></button>
        </div>
      ))}
      <div><button type="button" class="button small" disabled={off} onClick={() => put([...entries, [freeName("name", entries.map(([name]) => name)), ""]])}><Icon name="plus" size={13} />Add</button><span class="muted small">a name, and {hint}</span></div>
    </div>
  );
}

export function freeName(wanted: string, taken: string[]): string {
  if (!taken.includes(wanted)) return wanted;
  for (let i = 2; ; i++) if (!taken.includes(`${wanted}-${i}`)) return `${wanted}-${i}`;
}

function Sub({ title, actions, children }: { title?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren }): JSX.Element {
  return <div class="sub">{title && <h3>{title}{actions}</h3>}{children}</div>;
}

/** A table within a table: not there, on, off, or with keys of its own. */
function TableControl({ id, path, spec, value, schemaKey, invalid, help }: ControlProps): JSX.Element {
  if (spec.kind.type !== "table") return <></>;
  const { toggle, list } = spec.kind;
  const off = !may("administer");
  if (list) {
    const items = Array.isArray(value) ? value : value === undefined || value === false ? [] : [value];
    const indexed = Array.isArray(value);
    const move = (i: number, to: number) => {
      const next = [...items];
      const [item] = next.splice(i, 1);
      next.splice(to, 0, item!);
      setValue(path, next);
    };
    return (
      <>
        {items.map((item, i) => (
          <Sub key={i} title={`${words(schemaKey.name)} ${i + 1}`} actions={
            <>
              <button type="button" class="button icon quiet" disabled={off || i === 0} aria-label={`Move ${i + 1} up`} onClick={() => move(i, i - 1)}><Icon name="up" size={14} /></button>
              <button type="button" class="button icon quiet push-none" disabled={off || i === items.length - 1} aria-label={`Move ${i + 1} down`} onClick={() => move(i, i + 1)}><Icon name="down" size={14} /></button>
              <button type="button" class="button icon quiet push-none" disabled={off} aria-label={`Remove ${i + 1}`} onClick={() => (items.length > 1 && indexed ? removeItem([...path, i]) : setValue(path, undefined))}><Icon name="trash" size={14} /></button>
            </>
          }>
            {isTable(item) ? <Fields path={indexed ? [...path, i] : path} /> : <JsonField path={indexed ? [...path, i] : path} name="value" />}
          </Sub>
        ))}
        <button type="button" id={id} class="button small" disabled={off} aria-invalid={invalid} aria-describedby={help} onClick={() => (items.length === 0 ? setValue(path, [{}]) : indexed ? setValue([...path, items.length], {}) : setValue(path, [...items, {}]))}><Icon name="plus" size={13} />Add</button>
      </>
    );
  }
  const mode = value === undefined ? "" : value === false ? "off" : value === true ? "on" : "keys";
  return (
    <>
      <select id={id} disabled={off} aria-invalid={invalid} aria-describedby={help} aria-label={words(schemaKey.name)} value={mode} onChange={(event) => {
        const next = event.currentTarget.value;
        setValue(path, next === "" ? undefined : next === "off" ? false : next === "on" ? true : {});
      }}>
        <option value="">not set</option>
        {toggle && <option value="on">on, with all defaults{path.at(-1) === "health_check" ? " (a TCP connection)" : ""}</option>}
        <option value="keys">on, with these settings</option>
        {(spec.optional || mode === "off") && <option value="off">off, even if defaults turn this on</option>}
      </select>
      {isTable(value) && <Sub><Fields path={path} /></Sub>}
      {typeof value === "string" && <JsonField path={path} name={schemaKey.name} />}
    </>
  );
}

function StrategyControl({ path, value, id }: { path: Path; value: Json | undefined; id: string }): JSX.Element {
  const off = !may("administer");
  const name = isTable(value) ? String(value.name ?? "") : value === undefined ? (schema.value!.strategies.find((known) => known.default)?.name ?? "") : String(value);
  const given = isTable(value) ? value : {};
  const kind = strategy(name);
  const own = problemsOf(path, null, false);
  const wrong: Record<string, string> = {};
  for (const param of kind?.params ?? []) for (const problem of byKey.value.get(keyText([...path, param.name])) ?? []) wrong[param.name] = problemText(problem);
  const put = (to: string, params: Record<string, Json>) => setValue(path, Object.keys(params).length ? { name: to, ...params } : to);
  const typed: Typed = Object.fromEntries((kind?.params ?? []).map((param) => [param.name, given[param.name] === undefined ? String(param.default) : String(given[param.name])]));
  const take = (next: Typed) => {
    const params: Record<string, Json> = {};
    for (const param of kind?.params ?? []) {
      const text = (next[param.name] ?? "").trim();
      const known = given[param.name] !== undefined || changedParam(param, text);
      if (text !== "" && known && !(Number(text) === param.default && given[param.name] === undefined)) params[param.name] = Number.isFinite(Number(text)) ? Number(text) : text;
    }
    put(name, params);
  };
  return (
    <>
      <StrategySelect id={id} label="strategy" value={name} disabled={off} onChange={(next) => put(next, {})} />
      {value === undefined && <span class="muted">the default</span>}
      {value !== undefined && <button type="button" class="button small quiet" disabled={off} onClick={() => setValue(path, undefined)}>Use the default</button>}
      <Problems list={own} />
      {kind && <div class="sub"><p class="help"><Prose text={kind.meaning} /></p><Params kind={kind} typed={typed} wrong={wrong} onChange={take} disabled={off} /></div>}
    </>
  );
}

const changedParam = (param: SchemaParam, text: string) => Number(text) !== param.default;

const MEMBER_COLUMNS = ["address", "name", "weight", "max_connections", "location", "backup", "drain"] as const;

/** The members: one row each; an address alone stays an address alone. */
function MembersControl({ path, value }: { path: Path; value: Json | undefined }): JSX.Element {
  const off = !may("administer");
  const list = Array.isArray(value) ? value : [];
  const [more, setMore] = useState<number | null>(null);
  const table = (item: Json): { [key: string]: Json } => (isTable(item) ? item : { address: String(item) });
  const put = (i: number, key: string, next: Json | undefined) => {
    // One that is a table already is changed key by key, which leaves its comments alone.
    if (isTable(list[i])) setValue([...path, i, key], next);
    else if (key === "address") setValue([...path, i], next ?? "");
    else if (next !== undefined) setValue([...path, i], { ...table(list[i]!), [key]: next });
  };
  const problem = (i: number, key: string) => [...(byKey.value.get(keyText([...path, i, key])) ?? []), ...(key === "address" ? (byKey.value.get(keyText([...path, i])) ?? []) : [])];
  const all = list.flatMap((_, i) => MEMBER_COLUMNS.flatMap((key) => problem(i, key).map((found) => ({ i, found }))));
  return (
    <div class="members-edit">
      <div class="scroll" role="region" aria-label="Members" tabIndex={0}>
        <table>
          <thead><tr><th scope="col">Address</th><th scope="col">Name</th><th scope="col">Weight</th><th scope="col">Max. connections</th><th scope="col">Location</th><th scope="col">Backup</th><th scope="col">Drain</th><th scope="col"><span class="sr">More</span></th></tr></thead>
          <tbody>
            {list.slice(0, 300).map((raw, i) => {
              const item = table(raw);
              const name = String(item.address ?? item.srv ?? i + 1);
              const input = (key: string, label: string, size: number, hint: string, numeric = false) => (
                <td><input type="text" size={size} aria-label={`${label} of member ${i + 1}`} value={item[key] === undefined ? "" : String(item[key])} placeholder={hint} disabled={off} spellcheck={false} aria-invalid={problem(i, key).length > 0} onInput={(event) => put(i, key, typedValue(event.currentTarget.value, numeric) ?? (key === "address" ? "" : undefined))} /></td>
              );
              return (
                <tr key={i}>
                  {input("address", "Address", 24, item.srv ? String(item.srv) : "10.0.0.1:80")}
                  {input("name", "Name", 10, "its address")}
                  {input("weight", "Weight", 6, "1", true)}
                  {input("max_connections", "Max. connections", 8, "no limit", true)}
                  {input("location", "Location", 14, "its host")}
                  <td><input type="checkbox" aria-label={`Backup: ${name}`} checked={item.backup === true} disabled={off} onChange={(event) => put(i, "backup", event.currentTarget.checked || undefined)} /></td>
                  <td><input type="checkbox" aria-label={`Drain: ${name}`} checked={item.drain === true} disabled={off} onChange={(event) => put(i, "drain", event.currentTarget.checked || undefined)} /></td>
                  <td>
                    <span class="actions nowrap-actions">
                      <button type="button" class="button small quiet" aria-expanded={more === i} aria-label={`All settings of ${name}`} onClick={() => setMore(more === i ? null : i)}>…</button>
                      <button type="button" class="button icon quiet" disabled={off} aria-label={`Remove ${name}`} onClick={() => { setMore(null); removeItem([...path, i]); }}><Icon name="trash" size={14} /></button>
                    </span>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {list.length > 300 && <p class="muted">and {list.length - 300} more; the text has them all</p>}
      {all.map(({ i, found }) => <p key={i + found.message} class="problem"><Icon name="warn" size={13} />Member {i + 1}: {problemText(found)}</p>)}
      {more !== null && list[more] !== undefined && (
        <Sub title={`Member ${brief(table(list[more]!).address)}`}>
          {isTable(list[more]) ? <Fields path={[...path, more]} /> : <button type="button" class="button small" disabled={off} onClick={() => setValue([...path, more], table(list[more]!))}>Give this member settings of its own</button>}
        </Sub>
      )}
      <div class="actions">
        <button type="button" class="button small" disabled={off} onClick={() => (list.length ? setValue([...path, list.length], "") : setValue(path, [""]))}><Icon name="plus" size={13} />Add a member</button>
        <span class="muted">{list.length === 1 ? "1 member" : `${list.length} members`}</span>
      </div>
    </div>
  );
}
