// Where traffic goes, and what is wrong, at a glance.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { send } from "../api";
import { Flow } from "../flow";
import { bytes, clock, load, ms, percent, plural, rate, short } from "../format";
import { levelOf, ruleLevel, troubles } from "../health";
import { alerts, change, focus, recent, sample } from "../live";
import { groupsOf, isIn, namespace, narrow } from "../namespaces";
import { href, ruleHref } from "../router";
import type { Group, GroupSample, Rule, RuleSample } from "../types";
import { complain, confirm, Empty, Figures, Health, Loading, needs, Panel, Scroll, Spark, tell, useAnswer, VirtualTable } from "../ui/kit";
import { Icon } from "../ui/icons";
import { NamespaceSelect, useRules } from "../ui/namespace";

/** Up to here the members of all groups are shown, and asked for every few seconds. */
const MANY = 1500;

/** Groups in a cell of the table of rules, and in a table that is laid out as a whole. */
const GROUPS_OF_RULE = 5;
const GROUPS_AT_ONCE = 100;

const rulesChanged = signal(0);

export function OverviewPage(): JSX.Element {
  useEffect(() => {
    focus.value = null;
  }, []);
  const whole = sample.value;
  const { rules, names } = useRules([rulesChanged.value]);
  const chosen = namespace.value;
  const now = whole && narrow(whole, rules, chosen);
  // With a namespace the sample has its groups only: rules name all others.
  const others = chosen === "" ? 0 : new Set(rules.flatMap((rule) => rule.routed ?? []).filter((group) => !isIn(group, chosen))).size;
  const total = now?.groups.reduce((sum, group) => sum + group.members, 0) ?? 0;
  const groups = useAnswer<Group[]>(now && total + 3 * others <= MANY && !now.groups_left_out ? "/v1/groups" : null, 3 + total / 100, [change.value?.generation]);
  if (!now) return <Loading what="Waiting for the first sample …" />;
  if (chosen === "" && now.rules.length === 0 && now.groups.length === 0)
    return (
      <>
        <Head names={names} />
        <div class="panel">
          <Empty title="No rules yet">
            <p>A rule is a service that clients connect to. Traffic shows up here as soon as there is a rule.</p>
            <a class="button primary" href={href("config", "new", "rule")}>Create a rule</a>
          </Empty>
        </div>
      </>
    );
  const sum = (take: (group: GroupSample) => number) => now.groups.reduce((all, group) => all + take(group), 0);
  const all = sum((group) => group.rate);
  const failed = all > 0 ? sum((group) => group.rate * (group.failures ?? 0)) / all : 0;
  const up = sum((group) => group.up);
  const queue = sum((group) => group.queue);
  const alertCount = sum((group) => group.alerts);
  const slowest = now.groups.filter((group) => group.p99_ms !== null).sort((a, b) => b.p99_ms! - a.p99_ms!)[0];
  return (
    <>
      <Head names={names} />
      <div class="stack">
        <Figures
          items={[
            { label: "Requests", value: rate(all) },
            { label: "Failures", value: percent(failed, 2), ...(failed >= 0.05 ? { level: "bad" } : failed >= 0.01 ? { level: "warn" } : {}) },
            { label: "Slowest p99", value: ms(slowest?.p99_ms) },
            { label: "In flight", value: short(sum((group) => group.in_flight)) },
            { label: "Waiting", value: short(queue), ...(queue > 0 ? { level: "warn" } : {}) },
            { label: "Members up", value: <>{up} <small>of {total}</small></>, ...(up < total ? { level: "warn" } : {}) },
            { label: "Load alerts", value: alertCount, ...(alertCount > 0 ? { level: "warn" } : {}) },
            { label: "CPU", value: percent(now.process.cpu_share, 1) },
            { label: "Memory", value: bytes(now.process.resident_bytes) },
          ]}
        />
        <Attention groups={now.groups} />
        <Panel title="Where traffic goes" live actions={<span class="muted small">width: requests per second · <span class="nowrap">colour and shape: trouble</span></span>}>
          <Flow sample={now} rules={rules} groups={groups.data} />
        </Panel>
        <Rules rules={now.rules} groups={now.groups} known={rules} />
        <GroupsTable groups={now.groups} />
      </div>
    </>
  );
}

function Head({ names }: { names: string[] }): JSX.Element {
  return <div class="page-head"><h1>Overview</h1><div class="actions"><NamespaceSelect names={names} outside="Without Kubernetes" /></div></div>;
}

function Attention({ groups }: { groups: GroupSample[] }): JSX.Element {
  const list = groups.flatMap((group) => troubles(group).map((trouble) => ({ ...trouble, group: group.name }))).sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
  const shown = list.slice(0, 6);
  const latest = alerts.value[0];
  return (
    <section class="panel live"><h2 class="sr">What needs attention</h2>
      <div class="attention">
        {list.length === 0 ? (
          <Health level="ok">Nothing needs attention</Health>
        ) : (
          <ul>
            {shown.map((item) => (
              <li key={item.group + item.text}>
                <a href={href("groups", item.group)}>{item.group}</a> <Health level={item.level}>{item.text}</Health>
              </li>
            ))}
            {list.length > shown.length && <li class="muted">and {list.length - shown.length} more, in the table below</li>}
          </ul>
        )}
        <span class={`muted small last${latest ? "" : " none"}`} aria-live="polite">{latest ? `${clock(latest.t)}: load alert ${latest.on ? "on" : "off"} at ${latest.location} (${latest.group})` : ""}</span>
      </div>
    </section>
  );
}

export function GroupsTable({ groups }: { groups: GroupSample[] }): JSX.Element {
  const head = <><th scope="col">Group</th><th scope="col">Health</th><th scope="col" class="num">Members</th><th scope="col" class="num">Requests</th><th scope="col">Last 2 min</th><th scope="col" class="num">Failures</th><th scope="col" class="num">p50</th><th scope="col" class="num">p99</th><th scope="col" class="num">In flight</th><th scope="col" class="num">Waiting</th><th scope="col" class="num"><abbr title="Spread: standard deviation of the members' loads; the smaller, the more even">Spread</abbr></th></>;
  const row = (group: GroupSample) => {
    const trouble = troubles(group)[0];
    return (
      <tr key={group.name}>
        <th scope="row"><a href={href("groups", group.name)}>{group.name}</a></th>
        <td class="health"><Health level={levelOf(group)}>{trouble?.text ?? "good"}</Health></td>
        <td class="num">{group.up} / {group.members}</td>
        <td class="num">{rate(group.rate)}</td>
        <td><Spark values={recent.get(group.name)?.rate ?? []} label={`Requests of the last two minutes, now ${rate(group.rate)}`} /></td>
        <td class="num">{percent(group.failures, 2)}</td>
        <td class="num">{ms(group.p50_ms)}</td>
        <td class="num">{ms(group.p99_ms)}</td>
        <td class="num">{short(group.in_flight)}</td>
        <td class="num">{short(group.queue)}</td>
        <td class="num">{load(group.spread)}</td>
      </tr>
    );
  };
  const more = sample.value?.groups_left_out ?? 0;
  return (
    <Panel title="Groups" live>
      {groups.length > GROUPS_AT_ONCE ? <VirtualTable label="Groups" rows={groups} columns={11} head={head} row={row} none="No groups" /> : (
        <Scroll label="Groups">
          <table>
            <thead><tr>{head}</tr></thead>
            <tbody>{groups.map(row)}</tbody>
          </table>
          {groups.length === 0 && <Empty title="No groups" />}
        </Scroll>
      )}
      {more > 0 && <p class="more muted">and {plural(more, "group")} more, beyond the limit of groups that are shown live{namespace.value === "" && "; choose a namespace, if they are of Kubernetes"}</p>}
    </Panel>
  );
}

function GroupsOfRule({ names }: { names: string[] }): JSX.Element {
  if (names.length === 0) return <>–</>;
  return (
    <>
      {names.slice(0, GROUPS_OF_RULE).map((name, at) => <>{at > 0 && ", "}<a key={name} href={href("groups", name)}>{name}</a></>)}
      {names.length > GROUPS_OF_RULE && <span class="muted nowrap"> and {names.length - GROUPS_OF_RULE} more</span>}
    </>
  );
}

function Rules({ rules, groups, known }: { rules: RuleSample[]; groups: GroupSample[]; known: Rule[] }): JSX.Element {
  const byName = new Map(groups.map((group) => [group.name, group]));
  const more = new Map(known.map((rule) => [rule.name, rule]));
  const change = async (rule: string, what: "enabled" | "maintenance", on: boolean) => {
    if (what === "enabled" && !on && !(await confirm(`Disable rule “${rule}”?`, "New clients are refused until the rule is enabled. Open connections end only if terminate_on_disable is set.", "Disable"))) return;
    const set = (value: boolean) => send("PUT", `/v1/rules/${encodeURIComponent(rule)}/${what}`, what === "enabled" ? { enabled: value } : { on: value });
    try {
      await set(on);
      rulesChanged.value++;
      tell(`Rule ${rule}: ${what === "enabled" ? (on ? "enabled" : "disabled") : `maintenance ${on ? "on" : "off"}`}, until the configuration says otherwise`, { label: "Undo", run: () => void set(!on).catch(complain) });
    } catch (error) {
      complain(error);
    }
  };
  return (
    <Panel title="Rules" live actions={<a class="button small" href={href("config", "new", "rule")}><Icon name="plus" size={13} />New rule</a>}>
      <Scroll label="Rules">
        <table>
          <thead>
            <tr><th scope="col">Rule</th><th scope="col">Health</th><th scope="col">Listens on</th><th scope="col">Group</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Failures</th><th scope="col" class="num">p50</th><th scope="col" class="num">p99</th><th scope="col">Change</th></tr>
          </thead>
          <tbody>
            {rules.map((rule) => {
              const group = byName.get(rule.group);
              const info = more.get(rule.name);
              const level = ruleLevel(rule, group);
              return (
                <tr key={rule.name}>
                  <th scope="row"><a href={ruleHref(rule.name)}>{rule.name}</a></th>
                  <td><Health level={level}>{!rule.enabled ? "disabled" : rule.maintenance ? "maintenance" : level === "ok" ? "good" : level === "bad" && group?.up === 0 ? "no member" : "failures"}</Health></td>
                  <td class="nowrap">{info ? <>{info.protocol} <span class="muted">{info.listen.join(", ")}</span></> : "–"}</td>
                  <td><GroupsOfRule names={groupsOf(rule, info).filter((name) => isIn(name, namespace.value))} /></td>
                  <td class="num">{rate(rule.rate)}</td>
                  <td class="num">{percent(rule.failures, 2)}</td>
                  <td class="num">{ms(group?.p50_ms)}</td>
                  <td class="num">{ms(group?.p99_ms)}</td>
                  <td>
                    <span class="actions nowrap-actions">
                      <button type="button" class="button small" {...needs("operate")} aria-label={`${rule.enabled ? "Disable" : "Enable"} rule ${rule.name}`} onClick={() => void change(rule.name, "enabled", !rule.enabled)}>{rule.enabled ? "Disable" : "Enable"}</button>
                      <button type="button" class="button small" {...needs("operate")} aria-label={`${rule.maintenance ? "End maintenance" : "Maintenance"} of rule ${rule.name}`} onClick={() => void change(rule.name, "maintenance", !rule.maintenance)}>{rule.maintenance ? "End maintenance" : "Maintenance"}</button>
                    </span>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
        {rules.length === 0 && <Empty title="No rules">{plural(groups.length, "group")} without a rule</Empty>}
      </Scroll>
    </Panel>
  );
}
