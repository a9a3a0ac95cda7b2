// How numbers, times and names are shown. Widths are stable: the same number of digits for a size.

const NONE = "–";

/** A count or rate with three digits and a unit of thousands. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)} G`;
  if (size >= 1e6) return `${digits(value / 1e6)} M`;
  if (size >= 1e4) return `${digits(value / 1e3)} k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return digits(value);
}

function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function rate(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : `${short(value)}/s`;
}

export function percent(share: number | null | undefined, places?: number): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  return `${value.toFixed(places ?? (value !== 0 && Math.abs(value) < 10 ? 1 : 0))} %`;
}

export function ms(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value >= 60_000) return duration(value / 1000);
  if (value >= 1000) return `${digits(value / 1000)} s`;
  if (value < 1) return `${digits(value * 1000)} µs`;
  return `${digits(value)} ms`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  return `${unit === 0 ? size : digits(size)} ${units[unit]}`;
}

/** A time span in words: the two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const s = Math.abs(seconds);
  const sign = seconds < 0 ? "-" : "";
  if (s < 1) return `${sign}${Math.round(s * 1000)} ms`;
  if (s < 10) return `${sign}${s.toFixed(1)} s`;
  if (s < 60) return `${sign}${Math.round(s)} s`;
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = units.findIndex(([size]) => s >= size);
  const [size, unit] = units[at]!;
  const whole = Math.floor(s / size);
  const next = units[at + 1];
  const rest = next ? Math.floor((s - whole * size) / next[0]) : 0;
  return `${sign}${whole} ${unit}${next && rest && whole < 100 ? ` ${rest} ${next[1]}` : ""}`;
}

/** A moment in the reader's own time zone. */
export function when(unix: number | null | undefined): string {
  if (!unix) return NONE;
  return new Date(unix * 1000).toLocaleString(undefined, { year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

export function clock(unix: number): string {
  return new Date(unix * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** A load or score: plain digits, as its unit is the reporter's. */
export function load(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e6 || size < 0.001) ? value.toExponential(2) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 3);
}

/** A score of a decision: three digits that count, and no powers of ten, so that scores can be compared by eye. */
export function score(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0 || size >= 1e9) return load(value);
  const places = Math.min(9, Math.max(0, 2 - Math.floor(Math.log10(size))));
  return value.toFixed(places);
}

/** A bound of a range: large ones are powers of ten. */
export function bound(value: number): string {
  return Math.abs(value) >= 1e7 ? value.toExponential().replace("e+", "e") : String(value);
}

export function plural(count: number, one: string, many = one + "s"): string {
  return `${count} ${count === 1 ? one : many}`;
}
