// Where in the console one is, kept behind the # of the address.

import { computed, signal } from "@preact/signals";

const read = () => location.hash.replace(/^#\/?/, "");
const raw = signal(read());

/** Asked before the page is left; false keeps it. */
let guard: (() => boolean) | null = null;
export function onLeave(ask: (() => boolean) | null): void {
  guard = ask;
}

export const route = computed(() => {
  const [path = "", query = ""] = raw.value.split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: new URLSearchParams(query) };
});

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(...parts: string[]): void {
  location.hash = href(...parts);
}

let known = location.hash;
window.addEventListener("hashchange", () => {
  const page = (hash: string) => hash.replace(/^#\/?/, "").split(/[/?]/)[0];
  if (guard && page(known) !== page(location.hash) && !guard()) {
    history.replaceState(null, "", known || "#/");
    return;
  }
  known = location.hash;
  raw.value = read();
});
