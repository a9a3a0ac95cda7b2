// Small pictures, drawn here so that nothing is loaded. They say nothing that words beside them do not.

import type { JSX } from "preact";

const PATHS = {
  overview: "M3 12h4l2-6 4 12 2-6h6",
  groups: "M4 5h16M4 12h16M4 19h16M8 3v4M15 10v4M10 17v4",
  config: "M4 6h9M17 6h3M4 12h3M11 12h9M4 18h10M18 18h2M15 4v4M9 10v4M16 16v4",
  monitor: "M3 4h18v12H3zM8 20h8M12 16v4M7 12l3-4 3 3 2-3",
  whatif: "M6 3v6l6 5 6-5V3M12 14v7M8 21h8",
  audit: "M6 3h9l4 4v14H6zM14 3v5h5M9 13h7M9 17h5",
  search: "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM15.5 15.5 21 21",
  close: "M6 6l12 12M18 6 6 18",
  warn: "M12 4 2.5 20h19zM12 10v5M12 17.2v.3",
  info: "M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18zM12 11v6M12 7.2v.3",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 4h4M7 7l1 13h8l1-13",
  up: "M12 19V6M6 11l6-6 6 6",
  down: "M12 5v13M6 13l6 6 6-6",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  user: "M12 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM4.5 20c1-4 4-6 7.5-6s6.500 2 7.500 6",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  undo: "M9 7 4 12l5 5M4 12h10a5 5 0 0 1 0 10h-3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export type Level = "ok" | "warn" | "bad" | "off";

/** A sign whose shape says as much as its colour: disc, triangle, cross in an octagon, ring. */
export function Sign({ level, size = 12 }: { level: Level; size?: number }): JSX.Element {
  return (
    <svg class={level === "ok" ? "ok" : level === "warn" ? "warn-text" : level === "bad" ? "bad-text" : "off"} width={size} height={size} viewBox="0 0 12 12" aria-hidden="true">
      <SignShape level={level} />
    </svg>
  );
}

export function SignShape({ level }: { level: Level }): JSX.Element {
  if (level === "ok") return <circle cx="6" cy="6" r="4.6" fill="currentColor" />;
  if (level === "warn") return <path d="M6 .8 11.700 11.200H.3z" fill="currentColor" />;
  if (level === "off") return <circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="1.8" />;
  return (
    <g>
      <path d="M3.600.4h4.800L11.600 3.600v4.800L8.400 11.600H3.600L.4 8.400V3.600z" fill="currentColor" />
      <path class="cut" d="M3.800 3.800l4.400 4.400M8.200 3.800 3.800 8.200" stroke="var(--panel)" stroke-width="1.500" />
    </g>
  );
}
