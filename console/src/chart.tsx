// Charts over time. uPlot draws axes and a few series; the lines of members, of which there may be thousands, are
// drawn by hand into the same picture, so that members may come and go without a new chart.

import type { JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./format";
import { colour, colours } from "./theme";
import { useWidth } from "./ui/kit";

/** Seconds without a sample that are shown as a hole in a line. */
const HOLE = 15;

export type Values = (number | null)[];
export interface Line { label: string; token: string; values: Values; dash?: boolean; area?: boolean }
export interface Thread { name: string; values: Values; alert: (boolean | null)[]; token: string | null; emphasis: boolean }
export interface Level { label: string; value: number; token: string }

interface Props {
  title: string;
  t: number[];
  lines: Line[];
  /** Seconds that are shown. */
  span: number;
  format: (value: number | null) => string;
  /** Counts up when there is something new. */
  tick: number;
  height?: number;
  threads?: Thread[];
  levels?: Level[];
  /** Also said when nothing is pointed at. */
  summary?: string;
  min?: number;
}

export function Chart(props: Props): JSX.Element {
  const [box, width] = useWidth<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [at, setAt] = useState<{ index: number; thread: Thread | null } | null>(null);
  const [table, setTable] = useState(false);
  const id = useId();
  const theme = colours.value;
  const shape = props.lines.map((line) => line.label).join("|");

  useEffect(() => {
    if (!box.current || width === 0) return;
    const made = make(latest, width, setAt);
    plot.current = new uPlot(made, data(latest.current), box.current);
    return () => {
      plot.current?.destroy();
      plot.current = null;
    };
  }, [width > 0, theme, shape]);

  useEffect(() => {
    const chart = plot.current;
    if (chart && width > 0 && chart.width !== width) chart.setSize({ width, height: props.height ?? 180 });
  }, [width, props.height]);

  useEffect(() => {
    if (!document.hidden) plot.current?.setData(data(props));
  }, [props.tick, props.span, props.threads, props.levels]);

  const last = props.t.length - 1;
  const index = at && at.index <= last ? at.index : last;
  const said = props.lines.map((line) => `${line.label} ${props.format(line.values[index] ?? null)}`);
  if (at?.thread) said.unshift(`${at.thread.name} ${props.format(at.thread.values[index] ?? null)}`);
  const words = last < 0 ? "no data yet" : said.join(" · ");
  return (
    <figure class="chart panel live" aria-labelledby={id}>
      <figcaption>
        <h2 id={id}>{props.title}</h2>
        <Legend {...props} />
      </figcaption>
      <div class="plot" ref={box} role="img" aria-label={`${props.title}: ${words}${props.summary ? `; ${props.summary}` : ""}`} />
      <div class="readout" aria-hidden="true">{last >= 0 && (at ? `${clock(props.t[index]!)} · ${words}` : props.summary ?? words)}</div>
      <details onToggle={(event) => setTable(event.currentTarget.open)}>
        <summary>As a table</summary>
        {table && <DataTable {...props} />}
      </details>
    </figure>
  );
}

function Legend({ lines, levels, threads }: Props): JSX.Element {
  const shown = (threads ?? []).filter((thread) => thread.emphasis);
  return (
    <span class="legend" aria-hidden="true">
      {shown.map((thread) => <span key={thread.name} class={thread.token ?? ""}><i />{thread.name}</span>)}
      {threads && threads.length > shown.length && <span class="pale"><i />{shown.length ? "others" : "members"}</span>}
      {lines.map((line) => <span key={line.label} class={`${line.token}${line.dash ? " dash" : ""}`}><i />{line.label}</span>)}
      {levels?.map((level) => <span key={level.label} class={`${level.token} dash`}><i />{level.label}</span>)}
      {threads && <span class="bad span"><i />load alert</span>}
    </span>
  );
}

function DataTable({ title, lines, threads, format }: Props): JSX.Element {
  const known = (values: Values) => values.filter((value): value is number => value !== null && value !== undefined);
  const rows = threads?.length ? threads.slice(0, 200).map((thread) => ({ name: thread.name, values: thread.values })) : lines.map((line) => ({ name: line.label, values: line.values }));
  return (
    <div class="scroll" role="region" aria-label={`${title} as a table`} tabIndex={0}>
      <table>
        <thead><tr><th scope="col">Line</th><th scope="col" class="num">Now</th><th scope="col" class="num">Least</th><th scope="col" class="num">Mean</th><th scope="col" class="num">Most</th></tr></thead>
        <tbody>
          {rows.map((row) => {
            const values = known(row.values);
            const sum = values.reduce((a, b) => a + b, 0);
            return (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="num">{format(row.values.at(-1) ?? null)}</td>
                <td class="num">{format(values.length ? values.reduce((a, b) => Math.min(a, b)) : null)}</td>
                <td class="num">{format(values.length ? sum / values.length : null)}</td>
                <td class="num">{format(values.length ? values.reduce((a, b) => Math.max(a, b)) : null)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function data(props: Props): uPlot.AlignedData {
  return [props.t, ...props.lines.map((line) => line.values)] as uPlot.AlignedData;
}

/** The first index that is shown. */
function begin(t: number[], from: number): number {
  let low = 0;
  let high = t.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (t[mid]! < from) low = mid + 1;
    else high = mid;
  }
  return Math.max(0, low - 1);
}

function make(latest: { current: Props }, width: number, setAt: (at: { index: number; thread: Thread | null } | null) => void): uPlot.Options {
  const props = latest.current;
  const muted = colour("muted");
  const line = colour("line");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
  return {
    width,
    height: props.height ?? 180,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: {
      x: {
        time: true,
        range: () => {
          const { t, span } = latest.current;
          const end = t.at(-1) ?? Date.now() / 1000;
          return [end - span, end];
        },
      },
      y: {
        range: () => {
          const { t, lines, threads, levels, span, min } = latest.current;
          const from = begin(t, (t.at(-1) ?? 0) - span);
          let most = min ?? 0;
          for (const { values } of [...lines, ...(threads ?? [])]) for (let i = from; i < values.length; i++) if ((values[i] ?? 0) > most) most = values[i]!;
          for (const level of levels ?? []) most = Math.max(most, level.value);
          return [0, most > 0 ? most * 1.12 : 1];
        },
      },
    },
    series: [
      {},
      ...props.lines.map((given) => {
        const stroke = colour(given.token);
        const series: uPlot.Series = { label: given.label, stroke, width: 1.6, points: { show: false }, spanGaps: false };
        if (given.dash) series.dash = [5, 4];
        if (given.area) series.fill = stroke + "22";
        return series;
      }),
    ],
    axes: [
      { ...axis, size: 28, space: 90, values: (_self, splits) => splits.map((value) => clock(value).replace(/:00$/, "")) },
      { ...axis, size: 58, space: 34, values: (_self, splits) => splits.map((value) => latest.current.format(value)) },
    ],
    hooks: {
      drawClear: [(self) => background(self, latest.current)],
      draw: [(self) => threadsOf(self, latest.current)],
      setCursor: [
        (self) => {
          const index = self.cursor.idx;
          const left = self.cursor.left ?? -1;
          if (index === null || index === undefined || left < 0) return setAt(null);
          setAt({ index, thread: nearest(self, latest.current, index) });
        },
      ],
    },
  };
}

function nearest(self: uPlot, { threads }: Props, index: number): Thread | null {
  if (!threads?.length) return null;
  const top = self.cursor.top ?? 0;
  let best: Thread | null = null;
  let least = Infinity;
  for (const thread of threads) {
    const value = thread.values[index];
    if (value === null || value === undefined) continue;
    const far = Math.abs(self.valToPos(value, "y") - top);
    if (far < least) {
      least = far;
      best = thread;
    }
  }
  return best;
}

/** Spans of alerts, and thresholds, behind the lines. */
function background(self: uPlot, { t, threads, levels, span }: Props): void {
  const { ctx, bbox } = self;
  const from = begin(t, (t.at(-1) ?? 0) - span);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (threads) {
    ctx.fillStyle = colour("span");
    for (const [a, b] of spans(threads, from, t.length)) {
      const x = self.valToPos(t[a]!, "x", true);
      ctx.fillRect(x, bbox.top, Math.max(2, self.valToPos(t[b]!, "x", true) - x), bbox.height);
    }
  }
  for (const level of levels ?? []) {
    const y = self.valToPos(level.value, "y", true);
    ctx.strokeStyle = ctx.fillStyle = colour(level.token);
    ctx.lineWidth = 1.4 * devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    ctx.fillText(level.label, bbox.left + 6 * devicePixelRatio, y - 2 * devicePixelRatio);
  }
  ctx.restore();
}

/** Where at least one member is under an alert. */
export function spans(threads: { alert: (boolean | null)[] }[], from: number, to: number): [number, number][] {
  const on = new Uint8Array(to);
  for (const { alert } of threads) for (let i = from; i < to; i++) if (alert[i]) on[i] = 1;
  const found: [number, number][] = [];
  for (let i = from; i < to; i++) {
    if (!on[i]) continue;
    const last = found.at(-1);
    if (last && last[1] === i - 1) last[1] = i;
    else found.push([i, i]);
  }
  return found;
}

function threadsOf(self: uPlot, { t, threads, span }: Props): void {
  if (!threads?.length) return;
  const { ctx, bbox } = self;
  const from = begin(t, (t.at(-1) ?? 0) - span);
  const to = t.length;
  const x = new Float64Array(to - from);
  for (let i = from; i < to; i++) x[i - from] = self.valToPos(t[i]!, "x", true);
  const scale = self.scales.y!;
  const low = scale.min ?? 0;
  const high = scale.max ?? 1;
  const y = (value: number) => bbox.top + bbox.height * (1 - (value - low) / (high - low));
  const path = (values: Values, want?: (boolean | null)[]) => {
    // A sample or two that are missing are no hole.
    let drawn = -Infinity;
    for (let i = from; i < to; i++) {
      const value = values[i];
      if (value === null || value === undefined || (want && !want[i])) continue;
      if (want ? drawn === i - 1 : t[i]! - (t[drawn] ?? -Infinity) < HOLE) ctx.lineTo(x[i - from]!, y(value));
      else ctx.moveTo(x[i - from]!, y(value));
      drawn = i;
    }
  };
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineJoin = "round";
  // All pale lines are one path: strokes cost more than points.
  ctx.strokeStyle = colour("pale");
  ctx.lineWidth = (threads.length > 60 ? 0.8 : 1.2) * devicePixelRatio;
  ctx.beginPath();
  for (const thread of threads) if (!thread.emphasis) path(thread.values);
  // So many are an area; what stands out is still to be seen.
  ctx.globalAlpha = threads.length > 300 ? 0.5 : 1;
  ctx.stroke();
  ctx.globalAlpha = 1;
  for (const thread of threads) {
    if (!thread.emphasis) continue;
    ctx.strokeStyle = colour(thread.token ?? "s1");
    ctx.lineWidth = 1.8 * devicePixelRatio;
    ctx.beginPath();
    path(thread.values);
    ctx.stroke();
  }
  ctx.strokeStyle = colour("bad");
  ctx.lineWidth = 2.6 * devicePixelRatio;
  ctx.beginPath();
  for (const thread of threads) path(thread.values, thread.alert);
  ctx.stroke();
  ctx.restore();
}
