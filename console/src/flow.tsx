// The flow picture: rules at the left, groups in the middle, members at the right. The width of a line is its
// traffic; colour, shape and dashes say what is wrong.

import type { JSX } from "preact";
import { percent, plural, rate } from "./format";
import { levelOf, rank, ruleLevel, stateOf } from "./health";
import { href, ruleHref } from "./router";
import { groupsOf } from "./namespaces";
import type { Group, GroupSample, Member, Rule, Sample } from "./types";
import { SignShape, type Level } from "./ui/icons";
import { useWidth } from "./ui/kit";

const ROW = 32;
const MEMBER_ROW = 24;
/** About so many rows of members are shown, however many groups there are. */
const ROWS = 48;
/** Most groups in the picture, and most rules. */
const MOST = 60;

interface Spot { y: number; level: Level }

export function Flow({ sample, rules, groups }: { sample: Sample; rules: Rule[]; groups: Group[] | null }): JSX.Element {
  const [ref, width] = useWidth<HTMLDivElement>();
  const shown = { ...sample, groups: most(sample.groups, levelOf), rules: most(sample.rules, (rule) => ruleLevel(rule, undefined)) };
  const more = [[sample.rules.length - shown.rules.length, "rule"], [sample.groups.length - shown.groups.length, "group"]] as const;
  return (
    <>
      <div ref={ref} class="flow-box">{width > 0 && <Picture width={width} sample={shown} rules={rules} groups={groups} />}</div>
      {more.some(([count]) => count > 0) && <p class="more muted">and {more.filter(([count]) => count > 0).map(([count, what]) => plural(count, what)).join(" and ")} more with less traffic, in the tables below</p>}
    </>
  );
}

const TROUBLE: Record<Level, number> = { bad: 2, warn: 1, off: 0, ok: 0 };

/** Those in trouble first, then those with most traffic, and then in their own order. */
function most<T extends { rate: number }>(items: T[], level: (item: T) => Level): T[] {
  if (items.length <= MOST) return items;
  const sorted = items.map((item, at) => ({ item, at, trouble: TROUBLE[level(item)] })).sort((a, b) => b.trouble - a.trouble || b.item.rate - a.item.rate);
  return sorted.slice(0, MOST).sort((a, b) => a.at - b.at).map(({ item }) => item);
}

function shorten(text: string, px: number): string {
  const max = Math.max(3, Math.floor(px / 7));
  return text.length > max ? `${text.slice(0, max - 1)}…` : text;
}

/** Members of one machine differ at the end of their names. */
export function shortenAddress(name: string, px: number): string {
  const max = Math.max(3, Math.floor(px / 7));
  return name.length > max ? `…${name.slice(name.length - max + 1)}` : name;
}

function Picture({ width, sample, rules, groups }: { width: number; sample: Sample; rules: Rule[]; groups: Group[] | null }): JSX.Element {
  const narrow = width < 620;
  const pad = 12;
  const box = narrow ? Math.floor((width - 2 * pad) * 0.29) : Math.min(230, Math.floor(width * 0.2));
  const x1 = pad;
  const x2 = Math.floor((width - box) / 2);
  const x3 = width - box - pad;
  const max = Math.max(1, ...sample.groups.map((group) => group.rate), ...sample.rules.map((rule) => rule.rate));
  const stroke = (value: number) => Math.max(1.5, Math.min(26, (26 * value) / max));
  const perGroup = Math.max(3, Math.floor(ROWS / Math.max(1, sample.groups.length)));
  const gap = sample.groups.length > 8 ? 5 : 14;
  const details = new Map((groups ?? []).map((group) => [group.name, group]));

  // Members and groups first: they decide about the height.
  let y = 34;
  const spots = new Map<string, Spot & { group: GroupSample; members: Row[] }>();
  for (const group of sample.groups) {
    const members = pick(group, details.get(group.name), perGroup);
    const tall = Math.max(ROW, members.length * MEMBER_ROW);
    spots.set(group.name, { y: y + tall / 2, level: levelOf(group), group, members });
    y += tall + gap;
  }
  const tallRight = y;
  const step = Math.max(ROW + gap - 1, (tallRight - 34) / Math.max(1, sample.rules.length));
  const height = Math.max(tallRight, 34 + step * sample.rules.length) + 4;

  // Lines are stacked at both ends, so that their widths add up to the traffic of the box.
  interface Line { key: string; from: string; to: string; ax: number; ay: number; bx: number; by: number; w: number; level: Level | "plain" }
  const lines: Line[] = [];
  const known = new Map(rules.map((rule) => [rule.name, rule]));
  const left = sample.rules.map((rule, i) => {
    const at = 34 + step * i + step / 2;
    const group = spots.get(rule.group);
    const level = ruleLevel(rule, group?.group);
    const more = known.get(rule.name);
    const targets = new Set(groupsOf(rule, more).filter((name) => spots.has(name)));
    for (const name of targets) {
      const spot = spots.get(name)!;
      // What goes by a route is not counted apart; its line is thin.
      const main = name === rule.group || targets.size === 1;
      lines.push({ key: `r-${rule.name}-${name}`, from: `r-${rule.name}`, to: `g-${name}`, ax: x1 + box, ay: at, bx: x2, by: spot.y, w: main ? stroke(rule.rate) : 1.5, level: level === "off" ? "off" : spot.level === "bad" ? "bad" : level });
    }
    return <Node key={rule.name} x={x1} y={at} w={box} level={level} title={rule.name} note={rule.enabled ? (rule.maintenance ? "maintenance" : rate(rule.rate)) : "disabled"} to={ruleHref(rule.name)} kind="rule" stacked={narrow} />;
  });

  const middle: JSX.Element[] = [];
  const right: JSX.Element[] = [];
  for (const [name, spot] of spots) {
    const top = spot.y - ((spot.members.length - 1) * MEMBER_ROW) / 2;
    spot.members.forEach((member, i) => {
      const at = top + i * MEMBER_ROW;
      const level = member.level === "bad" ? "bad" : member.rate <= 0 ? "off" : member.level === "warn" ? "warn" : "plain";
      lines.push({ key: `m-${name}-${i}`, from: `g-${name}`, to: `m-${name}-${i}`, ax: x2 + box, ay: spot.y, bx: x3, by: at, w: member.rate > 0 ? stroke(member.rate) : 1.5, level });
      right.push(
        <g key={`${name}-${member.name}`} class={`sign-${member.level}`}>
          <title>{`${member.name}: ${member.word}, ${percent(member.share)} of the traffic${member.load === null ? "" : `, load ${member.load.toFixed(2)}`}`}</title>
          <g transform={`translate(${x3 + 6} ${at - 6})`}><SignShape level={member.level} /></g>
          <text x={x3 + 24} y={at + 4}>{shortenAddress(member.name, box - 24 - (narrow ? 0 : 54))}</text>
          {!narrow && <text class="dim end" x={x3 + box} y={at + 4}>{member.note}</text>}
        </g>,
      );
    });
    middle.push(<Node key={name} x={x2} y={spot.y} w={box} level={spot.level} title={name} note={narrow ? rate(spot.group.rate) : `${rate(spot.group.rate)} · ${spot.group.up}/${spot.group.members}`} to={href("groups", name)} kind="group" stacked={narrow} />);
  }
  const sums = new Map<string, number>();
  const add = (key: string, w: number) => {
    const before = sums.get(key) ?? 0;
    sums.set(key, before + w);
    return before;
  };
  const out = [...lines].sort((a, b) => a.by - b.by).map((line) => ({ line, offset: add(`out ${line.from}`, line.w) }));
  const into = new Map([...lines].sort((a, b) => a.ay - b.ay).map((line) => [line.key, add(`in ${line.to}`, line.w)]));
  const edges = out.map(({ line, offset }) => {
    const place = (y: number, before: number, sum: number) => (y + before + line.w / 2 - sum / 2).toFixed(1);
    const ay = place(line.ay, offset, sums.get(`out ${line.from}`)!);
    const by = place(line.by, into.get(line.key)!, sums.get(`in ${line.to}`)!);
    const mid = (line.ax + line.bx) / 2;
    return <path key={line.key} class={`edge ${line.level === "plain" || line.level === "ok" ? "" : line.level}`} d={`M${line.ax} ${ay}C${mid} ${ay} ${mid} ${by} ${line.bx} ${by}`} stroke-width={line.w.toFixed(1)} />;
  });
  return (
    <svg class="flow" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label="Flow of traffic from rules over groups to members; the tables below say the same">
      <g aria-hidden="true">
        <text class="column" x={x1} y="18">Rules</text>
        <text class="column" x={x2} y="18">Groups</text>
        <text class="column" x={x3} y="18">Members</text>
        {edges}
      </g>
      {left}
      {middle}
      <g aria-hidden="true">{right}</g>
    </svg>
  );
}

/** Names of groups of one namespace begin alike. */
const cut = (title: string, px: number) => (title.startsWith("kubernetes.") ? shortenAddress(title, px) : shorten(title, px));

function Node({ x, y, w, level, title, note, to, kind, stacked }: { x: number; y: number; w: number; level: Level; title: string; note: string; to: string; kind: string; stacked: boolean }): JSX.Element {
  const h = stacked ? 40 : 28;
  return (
    <a class="node" href={to} aria-label={`${title} ${note}, ${kind}${level === "ok" ? "" : level === "off" ? ", off" : ", trouble"}`}>
      <rect x={x} y={y - h / 2} width={w} height={h} rx="5" />
      <g class={`sign-${level}`} transform={`translate(${x + 8} ${stacked ? y - 14 : y - 6})`}><SignShape level={level} /></g>
      <text x={x + 26} y={stacked ? y - 4 : y + 4}>{cut(title, stacked ? w - 30 : w - 30 - note.length * 6.6)}</text>{" "}
      {stacked ? <text class="dim" x={x + 8} y={y + 13}>{note}</text> : <text class="dim end" x={x + w - 8} y={y + 4}>{note}</text>}
    </a>
  );
}

interface Row { name: string; level: Level; word: string; share: number; rate: number; load: number | null; note: string }

/** The members to show: those in trouble first, then those with most traffic; the rest in one row. */
function pick(group: GroupSample, details: Group | undefined, most: number): Row[] {
  if (!details) {
    const out = group.members - group.up;
    const level = levelOf(group);
    return [{ name: `${group.up} of ${group.members} up`, level, word: out ? `${out} out` : "all up", share: 1, rate: group.rate, load: null, note: "" }];
  }
  const row = (member: Member): Row => {
    const { level, word } = member.alert && member.state !== "down" ? { level: "warn" as const, word: "under a load alert" } : stateOf(member.state);
    return { name: member.name, level, word, share: member.share, rate: member.share * group.rate, load: member.load, note: level === "bad" || level === "off" ? word : percent(member.share) };
  };
  if (details.members.length <= most) return details.members.map(row);
  const sorted = [...details.members].sort((a, b) => rank(b.state) - rank(a.state) || Number(b.alert) - Number(a.alert) || b.share - a.share);
  const shown = sorted.slice(0, most - 1).map(row);
  const rest = sorted.slice(most - 1);
  const share = rest.reduce((sum, member) => sum + member.share, 0);
  const worst = rest.some((member) => stateOf(member.state).level === "bad") ? "bad" : rest.some((member) => member.alert) ? "warn" : "ok";
  shown.push({ name: `${rest.length} more`, level: worst, word: "together", share, rate: share * group.rate, load: null, note: percent(share) });
  return shown;
}
